"""Manifests of AN4 (Carnegie Mellon, 1991: spelled names, numbers, commands). ``python -m nemo_asr.corpora.an4``

The corpus comes as ``an4/etc/an4_{train,test}.{fileids,transcription}`` and ``an4/wav/<fileid>.sph`` (or ``.raw``).
This writes WAV files, ``train_manifest.json`` and ``test_manifest.json`` under the data root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nemo_asr.corpora.archives import PublishedCorpus, download
from nemo_asr.corpora.listed import lines_of
from nemo_asr.corpora.writing import (
    check_corpus_files,
    check_id,
    describe,
    open_recording,
    write_corpus_file,
    write_recording,
)
from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES
from nemo_asr.run.manifest import Entry, write_manifest
from nemo_lite.base.errors import DataError, reported_to_user
from nemo_lite.base.files import FileKind, make_writable_folder, read_bytes
from nemo_lite.base.options import OneLineParser

URL = "https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz"
SHA256 = "a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12"
SPLITS = ("train", "test")
SAMPLE_RATE = 16000

_CORPUS = PublishedCorpus(
    name="AN4",
    folder="an4",
    mark=Path("etc"),
    wanted="a folder etc with an4_train.fileids",
    suffixes=(".fileids", ".transcription", ".sph", ".raw"),
    max_bytes=1 << 30,  # the corpus has about 0.1 GB
)
_RAW = FileKind("the recording", MAX_CONTENT_BYTES)
_TRANSCRIPTION = re.compile(r"(?:<s>)?(?P<text>.*?)(?:</s>)?\s*\((?P<utterance>[^()\s]+)\)\s*")


def make(data_root: str | Path, source: str | Path | None = None) -> dict[str, list[Entry]]:
    """Write the WAV files and the two manifests under ``data_root``.

    Args:
        data_root: the folder to write to.
        source: the unpacked corpus or its archive. By default ``an4`` or ``an4_sphere.tar.gz`` in ``data_root``; where
            neither is there, the archive is downloaded to it.

    Returns:
        What the manifests hold, by split.

    Raises:
        DataError: the corpus is incomplete or damaged; names the file and the line.
        UsageError: ``data_root`` cannot be written to, or holds other files of these names.
    """
    root = make_writable_folder(data_root)
    files = {split: root / f"{split}_manifest.json" for split in SPLITS}
    check_corpus_files(*files.values())
    manifests: dict[str, list[Entry]] = {}
    if source is None:
        source = root / "an4" if (root / "an4" / "etc").is_dir() else root / "an4_sphere.tar.gz"
        if not source.exists():
            download(URL, source, SHA256)
    with _CORPUS.opened(Path(source).expanduser(), root) as corpus:
        for split in SPLITS:
            manifests[split] = [_convert(corpus, root, *item) for item in _items(corpus, split)]
    for split, entries in manifests.items():
        write_corpus_file(files[split], partial(write_manifest, entries=entries))
    return manifests


def _items(corpus: Path, split: str) -> Iterator[tuple[str, str, str]]:
    """The split's utterances in order: their file id, text, and the line that lists them."""
    texts = dict(_transcriptions(corpus / "etc" / f"an4_{split}.transcription"))
    for place, file_id in lines_of(corpus / "etc" / f"an4_{split}.fileids"):
        check_id(file_id, place)
        utterance = file_id.rpartition("/")[2]
        if utterance not in texts:
            raise DataError("the utterance has no transcription", place=place, got=utterance)
        yield file_id, texts[utterance], place


def _transcriptions(path: Path) -> Iterator[tuple[str, str]]:
    for place, line in lines_of(path):
        match = _TRANSCRIPTION.fullmatch(line)
        if match is None:
            problem, wanted = "this is not a transcription", "WORDS (utterance-id)"
            raise DataError(problem, place=place, got=repr(line[:60]), wanted=wanted)
        yield match["utterance"], " ".join(match["text"].lower().split())


def _convert(corpus: Path, root: Path, file_id: str, text: str, place: str) -> Entry:
    """Write the utterance as WAV; returns its manifest line."""
    samples = _samples(corpus / "wav" / file_id, place)
    path = Path("wav") / f"{file_id}.wav"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    write_recording(root / path, samples, SAMPLE_RATE, may_replace=False)
    seconds = round(len(samples) / SAMPLE_RATE, 4)
    return {"audio_filepath": str(path), "duration": seconds, "text": text, "speaker": Path(file_id).parent.name}


def _samples(stem: Path, place: str) -> npt.NDArray[np.int16]:
    sphere, raw = (stem.with_name(stem.name + suffix) for suffix in (".sph", ".raw"))
    if not sphere.exists() and not raw.exists():
        raise DataError("the recording is missing", place=place, wanted=f"{sphere} or .raw")
    if not sphere.exists():  # a .raw file has no header: 16 kHz, 16 bit, the high byte first
        return _raw_samples(raw, place)
    with open_recording(sphere, "SPHERE", place) as part:
        samples = part.samples(None)
    if part.source_rate != SAMPLE_RATE or part.num_channels != 1:
        got = f"{part.source_rate} Hz, {len(samples)} samples, {part.num_channels} channels"
        raise DataError("the recording is not of AN4", place=place, got=got, wanted="16000 Hz, one channel")
    return np.rint(samples * 32768).astype(np.int16)  # 16 bits are exact in float32


def _raw_samples(path: Path, place: str) -> npt.NDArray[np.int16]:
    try:
        content = read_bytes(path, _RAW)
    except DataError as error:
        raise DataError("the recording cannot be read", place=place, got=str(error)) from None
    if len(content) < 2:
        raise DataError("the recording is not of AN4", place=place, got=f"{len(content)} bytes", wanted="samples")
    return np.frombuffer(content, ">i2", len(content) // 2).astype(np.int16)


def main(argv: Sequence[str] | None = None, program: str = "python -m nemo_asr.corpora.an4") -> None:
    """The command line; ``program`` is what the user typed."""
    description = "Write the AN4 corpus as WAV files and manifests."
    parser = OneLineParser(prog=program, description=description)
    parser.add_argument("--data_root", metavar="FOLDER", required=True, help="folder to write to")
    source_help = "the unpacked corpus or its archive (default: downloaded to the data root)"
    parser.add_argument("--source", metavar="PATH", help=source_help)
    options = parser.parse_args(argv)
    with reported_to_user(program):
        for split, entries in make(options.data_root, options.source).items():
            print(describe(str(Path(options.data_root) / f"{split}_manifest.json"), entries))


if __name__ == "__main__":
    main()
