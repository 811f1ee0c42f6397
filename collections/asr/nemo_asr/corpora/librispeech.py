"""Manifests of LibriSpeech (Panayotov et al., ICASSP 2015: read books). ``python -m nemo_asr.corpora.librispeech``

A set comes as ``LibriSpeech/<set>/<speaker>/<chapter>/`` with FLAC files and one ``.trans.txt``. This writes
``<set>.json`` under the data root, and leaves the audio as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from nemo_asr.corpora.archives import download, unpack
from nemo_asr.corpora.lists import transcripts
from nemo_asr.corpora.writing import (
    as_written,
    check_corpus_files,
    describe,
    filling_folder,
    seconds_of,
    write_corpus_file,
)
from nemo_asr.run.manifest import Entry, write_manifest
from nemo_lite.base.errors import DataError, UnknownNameError, reported_to_user
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import OneLineParser

URL = "https://www.openslr.org/resources/12/{}.tar.gz"
# The sets and the sha256 of their archives.
SETS = {
    "dev-clean": "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3",
    "dev-other": "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365",
    "test-clean": "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23",
    "test-other": "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29",
    "train-clean-100": "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
    "train-clean-360": "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf",
    "train-other-500": "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2",
}
_MAX_BYTES = 64 << 30  # the largest set has about 30 GB


def make(data_root: str | Path, data_set: str, source: str | Path | None = None) -> list[Entry]:
    """Write the manifest of one set under ``data_root``.

    Args:
        data_root: the folder to write to.
        data_set: one of ``SETS``; underscores do as well as dashes.
        source: an archive, or a folder that holds the set. By default ``LibriSpeech/<set>`` or ``<set>.tar.gz`` in
            ``data_root``; where neither is there, the archive is downloaded to it. An archive is unpacked to
            ``LibriSpeech/<set>``.

    Returns:
        What the manifest holds.

    Raises:
        UnknownNameError: there is no such set.
        DataError: the set is incomplete or damaged; names the file and the line.
        UsageError: ``data_root`` cannot be written to, or holds other files of these names.
    """
    name = data_set.replace("_", "-")
    if name not in SETS:
        raise UnknownNameError("data set", data_set, SETS)
    root = make_writable_folder(data_root)
    manifest = root / f"{name.replace('-', '_')}.json"
    check_corpus_files(manifest)
    folder = _folder(root, name, Path(source).expanduser() if source else None)
    entries = sorted(_entries(folder, root), key=lambda entry: entry["audio_filepath"])
    if not entries:
        raise DataError("the folder has no transcripts", place=str(folder), wanted="<speaker>/<chapter>/*.trans.txt")
    write_corpus_file(manifest, partial(write_manifest, entries=entries))
    return entries


def _folder(root: Path, name: str, source: Path | None) -> Path:
    """The folder with the set's speakers, unpacked if need be."""
    folder = root / "LibriSpeech" / name
    if source is None:
        source = folder if folder.is_dir() else root / f"{name}.tar.gz"
        if not source.exists():
            download(URL.format(name), source, SETS[name])
    if source.is_dir():
        candidates = (source / "LibriSpeech" / name, source / name, source)
        return next(candidate for candidate in candidates if candidate.is_dir())
    with filling_folder(folder) as temporary:
        unpacked = temporary / "unpacked"
        unpack(source, unpacked, (".flac", ".trans.txt"), max_bytes=_MAX_BYTES)
        if not (unpacked / "LibriSpeech" / name).is_dir():
            raise DataError("the archive is of another set", place=str(source), wanted=f"LibriSpeech/{name} in it")
        for speaker in (unpacked / "LibriSpeech" / name).iterdir():
            speaker.rename(temporary / speaker.name)
        shutil.rmtree(unpacked)
    return folder


def _entries(folder: Path, root: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*/*/*.trans.txt")):
        for place, utterance, text in transcripts(path):
            audio = path.with_name(f"{utterance}.flac")
            yield {
                "audio_filepath": as_written(audio, root),
                "duration": seconds_of(audio, "FLAC", place),
                "text": " ".join(text.lower().split()),
                "speaker": path.parent.parent.name,
            }


def main(argv: Sequence[str] | None = None, program: str = "python -m nemo_asr.corpora.librispeech") -> None:
    """The command line; ``program`` is what the user typed."""
    description = "Write manifests of LibriSpeech."
    parser = OneLineParser(prog=program, description=description)
    parser.add_argument("--data_root", metavar="FOLDER", required=True, help="folder to write to")
    sets_help = "one or more sets, or ALL (default: dev_clean)"
    parser.add_argument("--data_sets", metavar="SET", nargs="+", default=["dev_clean"], help=sets_help)
    source_help = "a folder with the sets, or the archive of one (default: downloaded)"
    parser.add_argument("--source", metavar="PATH", help=source_help)
    options = parser.parse_args(argv)
    names = [name for text in options.data_sets for name in text.split(",") if name]
    with reported_to_user(program):
        for name in SETS if names == ["ALL"] else names:
            entries = make(options.data_root, name, options.source)
            print(describe(str(Path(options.data_root) / f"{name.replace('-', '_')}.json"), entries))


if __name__ == "__main__":
    main()
