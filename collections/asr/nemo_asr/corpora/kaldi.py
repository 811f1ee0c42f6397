"""Kaldi's data folder: ``wav.scp``, perhaps ``segments`` and ``utt2spk``, and ``text``. WeNet takes the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from nemo_asr.corpora.listed import Listed, channel_of, lines_of
from nemo_asr.run.audio.kinds import ALL_SUFFIXES
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import names_in, path_in_list

_UNPACKERS = ("flac", "sph2pipe", "cat")  # programs that only unpack the one file that they are given
_PARTS = {"sph2pipe": re.compile("-[ts].*"), "flac": re.compile("--(?:skip|until|cue).*")}  # what gives a part of it
_CHANNEL = re.compile(r"\s-c\s*(\S+)")  # of sph2pipe, from 1


def kaldi_folders(path: Path) -> list[Path]:
    """A data folder with recordings, or those in a folder, one for each set."""
    folders = [path, *(path / name for name in names_in(path))] if path.is_dir() else []
    kaldi = [folder for folder in folders if (folder / "wav.scp").is_file()]
    return kaldi[:1] if kaldi[:1] == [path] else kaldi


def kaldi_utterances(folder: Path) -> Iterator[Listed | DataError]:
    """The utterances of a data folder, in the order of ``segments``, or else of ``wav.scp``.

    Raises:
        DataError: ``text`` or another list cannot be read.
    """
    texts = yield from _by_name(folder / "text")
    speakers = yield from _by_name(folder / "utt2spk", is_needed=False)
    recordings = yield from _by_name(folder / "wav.scp")
    channels = yield from _by_name(folder / "reco2file_and_channel", is_needed=False)
    segments = folder / "segments"
    parts = yield from _by_name(segments, is_needed=False)
    utterances = parts if segments.is_file() else recordings
    for name, (line, part) in utterances.items():
        place = f"{utterances.path}:{line}"
        if name in texts.refused:
            continue  # it is told already
        try:
            if name not in texts:
                raise DataError(f"{name} has no text", place=place, wanted=f"a line in {folder / 'text'}")
            segment = _kaldi_part(place, part) if segments.is_file() else _KaldiSegment(name)
            if segment.recording in recordings.refused:
                raise DataError(f"{segment.recording} is no single recording", place=place, remedy="see above")
            if segment.recording not in recordings:
                problem, wanted = f"{segment.recording} is no recording", f"a line in {folder / 'wav.scp'}"
                raise DataError(problem, place=place, wanted=wanted)
            scp_line, written = recordings[segment.recording]
            audio, channel = _kaldi_audio(written, folder, f"{recordings.path}:{scp_line}")
        except DataError as error:
            yield error
            continue
        if channel is None:
            _, of_recording = channels.get(segment.recording, (0, ""))
            of_list = channel_of(of_recording.split()[-1], 1) if of_recording else None  # A, B, 1 or 2
            channel = segment.channel if segment.channel is not None else of_list
        _, speaker = speakers.get(name, (0, ""))
        yield Listed(place, audio, texts[name][1], speaker, segment.start, segment.end, channel)


class _LinesByWord(dict[str, tuple[int, str]]):
    """The lines of a list by their first word: the number of each, and what follows the word.

    Attributes:
        path: the list.
        refused: words that two lines have, which say different things.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.refused = path, set[str]()


def _by_name(path: Path, *, is_needed: bool = True) -> Generator[DataError, None, _LinesByWord]:
    """The lines of a list, and a `DataError` of each whose first word another line has with something else."""
    named = _LinesByWord(path)
    if not path.is_file():
        if is_needed:
            wanted = "wav.scp and text, with a line for each name"
            raise DataError(
                "the list is missing", place=str(path), wanted=wanted, remedy="name the folder that has both"
            )
        return named
    for place, content in lines_of(path):
        name, *rest = content.split(maxsplit=1)
        value = "".join(rest)
        line, its_value = named.setdefault(name, (int(place.rpartition(":")[2]), value))
        if its_value != value:
            named.refused.add(name)
            problem, wanted = f"{name} occurs a second time", f"what line {line} has: {its_value[:60]}"
            remedy = "keep the right line; both are left out"
            yield DataError(problem, place=place, got=value[:60], wanted=wanted, remedy=remedy)
    for name in named.refused:
        named.pop(name, None)
    return named


class _KaldiSegment(NamedTuple):
    """A line of ``segments``: of which recording, from when to when in seconds (None: its end), on which channel."""

    recording: str
    start: float = 0.0
    end: float | None = None
    channel: int | str | None = None


def _kaldi_part(place: str, part: str) -> _KaldiSegment:
    """A line of ``segments`` behind its first word; an end of -1 is that of the recording."""
    words = part.split()
    try:
        recording, start, end = words[0], float(words[1]), float(words[2])
        (channel,) = words[3:] or ["-1"]
    except (IndexError, ValueError):
        wanted = "ID RECORDING START END [CHANNEL]"
        raise DataError("this is no segment", place=place, got=part[:60], wanted=wanted) from None
    return _KaldiSegment(
        recording, start, None if end == -1 else end, None if channel == "-1" else channel_of(channel, 0)
    )


def _kaldi_audio(written: str, folder: Path, place: str) -> tuple[Path, int | str | None]:
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
    files = [word for word in words[1:] if Path(word).suffix.lower() in ALL_SUFFIXES]
    program = Path(words[0]).name if words else ""
    is_part = program in _PARTS and any(map(_PARTS[program].fullmatch, words[1:]))
    if program not in _UNPACKERS or len(files) != 1 or "|" in words or is_part:
        remedy = "run it once, and write the name of the file that it makes"
        raise DataError("the recording is a command, which is not run", place=place, got=written[:80], remedy=remedy)
    channel = _CHANNEL.search(written) if program == "sph2pipe" else None
    return Path(path_in_list(files[0], str(folder))), None if channel is None else channel_of(channel[1], 1)
