"""KenlmModel: binaries of KenLM, read by the optional package ``kenlm``. ARPA files need no package: ``arpa``."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_lite.errors import DataError, UsageError
from nemo_lite.untrusted import FileKind, open_file

_MAGIC = b"mmap lm http://kheafield.com/code"
_BINARY = FileKind("the binary of KenLM", 1 << 40)  # mapped, not read
_FIRST_WORD = b"<unk>\0"
_MARKS = ("<unk>", "<s>", "</s>")
INSTALL = "pip install ufal-kenlm"


def is_kenlm_binary(path: Path) -> bool:
    """Whether a file begins as KenLM's binaries do.

    Raises:
        DataError: it cannot be read.
    """
    with open_file(path, _BINARY) as file:
        return file.read(len(_MAGIC)) == _MAGIC


class KenlmModel:
    """A language model in a binary of KenLM (``build_binary``), of any of its types. Scores are log10.

    KenLM's states become whole numbers in the order in which they are met.

    Args:
        path: the file. It must hold its words, as it does unless it was built without.

    Raises:
        UsageError: the package ``kenlm`` is not installed.
        DataError: the file is damaged, of another version, or holds no words.
    """

    def __init__(self, path: Path) -> None:
        try:
            import kenlm
        except ImportError:
            problem, remedy = "reading binaries of KenLM needs a package", f"{INSTALL}, or give the ARPA file"
            raise UsageError(problem, place=str(path), remedy=remedy) from None
        try:
            self._model: Any = kenlm.Model(str(path))
        except OSError as error:
            reason = " ".join(str(error).split())[:300]
            raise DataError("KenLM cannot read the file", place=str(path), got=reason) from None
        self._new_state = kenlm.State
        self.words: Sequence[str] = _words_in(path)
        first = kenlm.State()
        self._model.BeginSentenceWrite(first)
        self._states: list[Any] = [first]
        self._numbers: dict[Any, int] = {first: 0}

    def start(self) -> int:
        """The state in front of a text's first word."""
        return 0

    def score(self, state: int, word: str) -> tuple[float, int]:
        """log10 P(word | state), and the state behind the word. A word that is not known is scored as ``<unk>``."""
        after = self._new_state()
        score: float = self._model.BaseScore(self._states[state], word, after)
        number = self._numbers.setdefault(after, len(self._states))
        if number == len(self._states):
            self._states.append(after)
        return score, number

    def end(self, state: int) -> float:
        """log10 P(the text ends | state)."""
        score: float = self._model.BaseScore(self._states[state], "</s>", self._new_state())
        return score


def _words_in(path: Path) -> list[str]:
    """The words of a binary: they are its end, each with a null character behind it, ``<unk>`` first."""
    with open_file(path, _BINARY) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        first = content.rfind(_FIRST_WORD)
        listed = content[first:].split(b"\0") if first >= 0 else []
    if not listed or listed[-1]:
        raise DataError("the binary of KenLM holds no words", place=str(path), remedy="build it again, with its words")
    try:
        names = [word.decode() for word in listed[:-1]]
    except UnicodeDecodeError:
        raise DataError("the words of the binary of KenLM are not UTF-8", place=str(path)) from None
    return [name for name in names if name not in _MARKS]
