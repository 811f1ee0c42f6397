"""Kaldi's data folder: ``wav.scp``, perhaps ``segments`` and ``utt2spk``, and ``text``. WeNet takes the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from nemo_asr.corpora.listed import SUFFIXES, Listed, Sets
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, decode_text, names_in, numbered_lines, path_in_list

_LIST = FileKind("the list", 1 << 40)  # read line by line
_UNPACKERS = ("flac", "sph2pipe", "cat")  # programs that only unpack the one file that they are given


def is_kaldi(path: Path) -> bool:
    """Whether this is a data folder of Kaldi with recordings, or holds some, one for each set."""
    return bool(_kaldi_folders(path))


def kaldi_sets(path: Path) -> Sets:
    """The utterances of each data folder."""
    folders = _kaldi_folders(path)
    if folders == [path]:
        return {"manifest": kaldi_utterances(path)}
    return {folder.name: kaldi_utterances(folder) for folder in folders}


def _kaldi_folders(path: Path) -> list[Path]:
    folders = [path, *(path / name for name in names_in(path))] if path.is_dir() else []
    kaldi = [folder for folder in folders if (folder / "wav.scp").is_file()]
    return kaldi[:1] if kaldi[:1] == [path] else kaldi


def kaldi_utterances(folder: Path) -> Iterator[Listed | DataError]:
    """The utterances of a data folder, in the order of ``segments``, or else of ``wav.scp``.

    Raises:
        DataError: ``text`` or another list cannot be read.
    """
    texts = {name: words for _, name, words in _pairs(folder / "text")}
    speakers_file = folder / "utt2spk"
    speakers = {name: speaker for _, name, speaker in _pairs(speakers_file)} if speakers_file.is_file() else {}
    recordings = {name: (place, written) for place, name, written in _pairs(folder / "wav.scp")}
    segments = folder / "segments"
    parts = _pairs(segments) if segments.is_file() else ((place, name, name) for name, (place, _) in recordings.items())
    for place, name, part in parts:
        try:
            recording, start, end = _kaldi_part(place, part) if segments.is_file() else (part, 0.0, None)
            if name not in texts:
                raise DataError(f"{name} has no text", place=place, wanted=f"a line in {folder / 'text'}")
            if recording not in recordings:
                raise DataError(f"{recording} is no recording", place=place, wanted=f"a line in {folder / 'wav.scp'}")
            audio, channel = _kaldi_audio(recordings[recording][1], folder, recordings[recording][0])
        except DataError as error:
            yield error
            continue
        yield Listed(place, audio, texts[name], speakers.get(name, ""), start, end, channel)


def _pairs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Of each line its place, its first word, and what follows."""
    for place, raw in numbered_lines(path, _LIST):
        name, *rest = decode_text(raw, place, _LIST).split(maxsplit=1)
        yield place, name, "".join(rest).strip()


def _kaldi_part(place: str, part: str) -> tuple[str, float, float | None]:
    """The recording, start and end of a line of ``segments``; an end of -1 is that of the recording."""
    words = part.split()
    try:
        recording, start, end = words[0], float(words[1]), float(words[2])
    except (IndexError, ValueError):
        raise DataError("this is no segment", place=place, got=part[:60], wanted="ID RECORDING START END") from None
    return recording, start, None if end == -1 else end


def _kaldi_audio(written: str, folder: Path, place: str) -> tuple[Path, int | None]:
    """The file of a line of ``wav.scp``, and its channel. Of commands only those that unpack one file are understood.

    Raises:
        DataError: it is another command; none is run.
    """
    if not written.endswith("|"):
        return Path(path_in_list(written, str(folder))), None
    try:
        words = shlex.split(written[:-1])
    except ValueError:
        words = []
    files = [word for word in words[1:] if Path(word).suffix.lower() in SUFFIXES]
    if not words or Path(words[0]).name not in _UNPACKERS or len(files) != 1 or "|" in words:
        remedy = "run it once, and write the name of the file that it makes"
        raise DataError("the recording is a command, which is not run", place=place, got=written[:80], remedy=remedy)
    channel = words[words.index("-c") + 1] if words[0].endswith("sph2pipe") and "-c" in words[:-1] else ""
    return Path(path_in_list(files[0], str(folder))), int(channel) - 1 if channel.isdigit() else None
