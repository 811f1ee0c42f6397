"""load_language_model: a file of an n-gram model, whatever its format."""

from __future__ import annotations

from pathlib import Path

from nemo_asr.decoding.language_model import BatchedLanguageModel, RememberingLanguageModel
from nemo_asr.decoding.ngram.arpa import read_arpa
from nemo_asr.decoding.ngram.kenlm_model import KenlmModel, is_kenlm_binary
from nemo_asr.decoding.ngram.ngram_model import NgramModel
from nemo_lite.errors import DataError


def load_language_model(path: str | Path) -> BatchedLanguageModel:
    """The n-gram model in a file: ARPA, perhaps compressed by gzip, or a binary of KenLM.

    Raises:
        DataError: there is no such file, or it is damaged or of another format; of ARPA files with the line.
        UsageError: a binary of KenLM, and the package that reads them is not installed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        problem = "the language model is a folder" if path.is_dir() else "the language model does not exist"
        raise DataError(problem, place=str(path), wanted="an ARPA file or a binary of KenLM")
    if is_kenlm_binary(path):
        return RememberingLanguageModel(KenlmModel(path))
    return NgramModel(read_arpa(path))
