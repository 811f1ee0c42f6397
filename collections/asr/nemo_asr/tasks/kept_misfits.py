"""Which texts of a large set do not fit their frames, kept between runs under a digest of all that this follows from.

The files are in ``nemo_lite/misfits`` of the user's cache folder (``$XDG_CACHE_HOME``, or ``~/.cache``), where they may
be deleted at any time. One that is damaged is not used. No text is compared with frames here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

import nemo_lite
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer, Misfit, SpeechDataLayer
from nemo_asr.models.losses import ctc_frames_needed
from nemo_asr.run.manifest_kinds import JsonLines, Source
from nemo_asr.run.text.subwords import Subwords
from nemo_lite import NeuralModule
from nemo_lite.base.errors import NemoLiteError
from nemo_lite.base.files import FileKind, digest_of, digest_of_package, read_bytes, write_atomically
from nemo_lite.core.shapes import AxisLength

_PACKAGE = Path(__file__).parents[1]
LEAST_LINES = 10_000  # fewer are looked at in a twentieth of a second
_MOST_FILES = 64
_FILE = FileKind("the file of misfits", 1 << 30)
_BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 64
# The key of a text in a file of its own, which a manifest's digest does not cover; also as JSON may spell its letters.
_TEXT_ELSEWHERE = re.compile(rb"text_filepath|\\u00(?:5[fF]|[67][0-9a-fA-F])")
_READERS = ("num2words", "anyascii", "sentencepiece")  # packages that have a part in reading texts
_ARGUMENTS = ("normalize_transcripts", "bos_id", "eos_id", "strict_data", "parser", "language", "strip_marks")
_decoder = msgspec.json.Decoder(list[Misfit])


def name_of(data_layer: SpeechDataLayer, frames_of: AxisLength, loss: NeuralModule | None, training: bool) -> str:
    """The name of the file for this check; "" where it is not kept.

    So it is with small sets, and where something that counts is not known by its content: data layers, manifests,
    losses and perturbations that do not come with the package, texts in files of their own, silence that is left out.
    """
    if type(data_layer) is not AudioToTextDataLayer or len(data_layer) < LEAST_LINES:
        return ""
    manifest, given, augmentor = data_layer.manifest, data_layer.init_params, data_layer._augmentor
    settings = given.get("augmentor") if training and augmentor is not None else {}
    own_types = {type(one).__module__.partition(".")[0] for _, one in augmentor._pipeline} if augmentor else set()
    needed = getattr(loss, "frames_needed", ctc_frames_needed)
    needs = getattr(needed, "__func__", None)
    is_own = getattr(needs, "__module__", "").partition(".")[0] == _PACKAGE.name  # its code has a part in the name
    if (
        (data_layer._reading.trim_silence and data_layer._reading.load_audio)
        or (loss is not None and not is_own)
        or not isinstance(settings, Mapping)
        or own_types - {_PACKAGE.name}
        or any(type(source) is not JsonLines for source in manifest.sources)
        or "<" in frames_of.formula  # a function without a name
    ):
        return ""
    try:
        contents = [_digest_of(source) for source in manifest.sources]
    except (OSError, NemoLiteError):
        return ""
    labels = given["labels"]
    arrays = (manifest.offsets, manifest.starts, data_layer.lengths_in_samples())
    follows_from = {
        "code": [digest_of_package(folder) for folder in (_PACKAGE, nemo_lite.__path__[0])],
        "versions": [unicodedata.unidata_version, *map(_version, _READERS)],
        "contents": contents,
        "rows": [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays],
        "labels": labels.sha256 if isinstance(labels, Subwords) else list(labels),
        "texts": [given.get(name) for name in _ARGUMENTS],
        # What the code makes of a loss's arguments, such as durations, shows in a few texts.
        "needed": [needed(text) for text in ([0], [0, 0], [0, 1, 0])],
        "frames": frames_of.formula,
        "augmentor": settings,
    }
    return digest_of(follows_from) if all(contents) else ""


def read(name: str, num_rows: int) -> list[Misfit] | None:
    """The misfits under this name; None where there are none, or the file is damaged."""
    try:
        content = read_bytes(_folder() / name, _FILE)
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        misfits = _decoder.decode(body)
    except (NemoLiteError, RuntimeError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    rows = [-1, *(misfit[0] for misfit in misfits), num_rows]
    is_whole = hashlib.sha256(body).hexdigest().encode() == digest and all(row < after for row, after in pairwise(rows))
    return misfits if is_whole else None


def write(name: str, misfits: list[Misfit]) -> None:
    """Keep them; where that cannot be done, the next run looks at the texts again. Only the newest files stay."""
    body = msgspec.json.encode(misfits)
    with suppress(OSError, RuntimeError, NemoLiteError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        content = hashlib.sha256(body).hexdigest().encode() + body
        write_atomically(folder / name, lambda path: path.write_bytes(content))
        files = [path for path in folder.iterdir() if len(path.name) == len(name) and path.is_file()]
        for path in sorted(files, key=lambda path: path.stat().st_mtime)[:-_MOST_FILES]:
            path.unlink(missing_ok=True)


def _folder() -> Path:
    """Where the files are. RuntimeError: this user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo_lite" / "misfits"


def _digest_of(source: Source) -> str:
    """The sha256 of a manifest as it was opened; "" where it may name files of texts."""
    digest, position, before = hashlib.sha256(), 0, b""
    while block := os.pread(source.descriptor(), _BLOCK_BYTES, position):
        if _TEXT_ELSEWHERE.search(before + block):
            return ""
        digest.update(block)
        position, before = position + len(block), block[-_DIGEST_BYTES:]
    return digest.hexdigest()


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""
