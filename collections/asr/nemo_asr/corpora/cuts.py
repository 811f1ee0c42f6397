"""Cuts of lhotse and lists of WeNet: a JSON object a line, also compressed by gzip; and Shar folders of lhotse."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from nemo_asr.corpora.listed import Listed
from nemo_asr.data.tar_shards import members_of
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, names_in, open_file, parse_json, path_in_list

_CUTS = FileKind("the list", 1 << 40)
_CUT_SUFFIXES = (".jsonl", ".jsonl.gz")
_MOST_LINE_BYTES = 1 << 20
_OVERLAP_SECONDS = 0.001  # lhotse rounds offsets
_ROUNDING_SECONDS = 0.05  # by which a supervision may begin before its recording


def cut_files(path: Path) -> list[Path]:
    """A file of cuts, or those in a folder."""
    files = [path / name for name in names_in(path)] if path.is_dir() else [path]
    return [
        file for file in files if file.name.endswith(_CUT_SUFFIXES) and str(_first(file).get("type")).endswith("Cut")
    ]


def _first(path: Path) -> dict[str, Any]:
    """The first object of a list; an empty one where it cannot be read."""
    try:
        _, first = next(_cuts(path), ("", {}))
    except DataError:
        return {}
    return {} if isinstance(first, DataError) else first


def lhotse_utterances(path: Path) -> Iterator[Listed | DataError]:
    """An utterance for each supervision of each cut."""
    read = partial(_supervised, path)
    for place, cut in _cuts(path):
        yield from _guarded(read, cut, place)


def _guarded(
    read: Callable[[dict[str, Any], str], Iterator[Listed | DataError]], cut: dict[str, Any] | DataError, place: str
) -> Iterator[Listed | DataError]:
    """What a cut gives, or why it gives nothing."""
    if isinstance(cut, DataError):
        yield cut
        return
    try:
        yield from read(cut, place)
    except DataError as error:
        yield error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        got = f"no {error}" if isinstance(error, KeyError) else str(error)
        yield DataError("the cut cannot be read", place=place, got=got, wanted="a cut as lhotse writes it")


def _cuts(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """Each line with its place: a cut, or why it is none."""
    try:
        with open_file(path, _CUTS) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            number = 0
            while line := file.readline(_MOST_LINE_BYTES + 1):
                number += 1
                place = f"{path}:{number}"
                if len(line) > _MOST_LINE_BYTES:
                    raise DataError(f"the line has more than {_MOST_LINE_BYTES} bytes", place=place)
                if line.strip():
                    yield place, _cut(line, place)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("the list cannot be read", place=str(path), got=f'"{error}"') from None


def _cut(line: bytes, place: str) -> dict[str, Any] | DataError:
    try:
        cut = parse_json(line, place, _CUTS)
    except DataError as error:
        return error
    return cut if isinstance(cut, dict) else DataError("this is no cut", place=place, got=str(cut)[:60])


def _supervised(path: Path, cut: dict[str, Any], place: str) -> Iterator[Listed | DataError]:
    for track in _tracks(cut, place):
        if track.get("recording") is None:
            problem, remedy = "the cut has features and no recording", "give cuts of recordings: their audio is needed"
            raise DataError(problem, place=place, got=", ".join(track), remedy=remedy)
        sources = track["recording"]["sources"]
        if len(sources) != 1 or sources[0]["type"] != "file":
            got = ", ".join(str(source["type"]) for source in sources)
            raise DataError(
                "the recording is no single file", place=place, got=got, wanted='a source of the type "file"'
            )
        audio, source = Path(path_in_list(str(sources[0]["source"]), str(path.parent))), Path(sources[0]["source"])
        # lhotse writes paths as they were given, often from the folder in which it ran.
        channels = sources[0].get("channels")
        audio = source if source.is_file() and not audio.is_file() else audio
        yield from supervisions(track, audio, place, channels=channels)


def _tracks(cut: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """The cuts of one recording that a cut is, or that it has one after another; what is padded is left out."""
    tracks = [cut]
    if cut["type"] == "MixedCut":
        of_recordings = [track for track in cut["tracks"] if track["cut"]["type"] != "PaddingCut"]
        spans = sorted((float(track["offset"]), float(track["cut"]["duration"])) for track in of_recordings)
        if any(start + seconds > after + _OVERLAP_SECONDS for (start, seconds), (after, _) in pairwise(spans)):
            problem, remedy = "the cut mixes recordings", "store what it sounds like (CutSet.save_audios)"
            raise DataError(problem, place=place, got=f"{len(spans)} at the same time", remedy=remedy)
        tracks = [track["cut"] for track in of_recordings if track["cut"]["supervisions"]]
        if not tracks:
            raise DataError("the cut has no supervision", place=place, wanted="a text")
    for track in tracks:
        if track["type"] not in ("MonoCut", "MultiCut"):
            raise DataError("this is no cut of a recording", place=place, got=str(track["type"]))
        changes = [str(change["name"]) for change in (track.get("recording") or {}).get("transforms") or ()]
        if changes := [name for name in changes if name != "Resample"]:
            problem, remedy = "the recording is changed as it is read", "store it so (CutSet.save_audios)"
            raise DataError(problem, place=place, got=", ".join(changes), remedy=remedy)
    return tracks


def supervisions(
    cut: dict[str, Any], audio: Path, place: str, seconds: float | None = None, channels: object = None
) -> Iterator[Listed | DataError]:
    """An utterance for each supervision of a cut of one recording, whose channels have these numbers (None: 0, ...)."""
    if not cut["supervisions"]:
        yield DataError("the cut has no supervision", place=place, wanted="a text")
    for supervision in cut["supervisions"]:
        try:
            yield _supervision(supervision, cut, audio, place, seconds, channels)
        except DataError as error:
            yield error


def _supervision(
    supervision: dict[str, Any], cut: dict[str, Any], audio: Path, place: str, seconds: float | None, channels: object
) -> Listed:
    start = float(cut["start"]) + float(supervision["start"])
    text, speaker = supervision.get("text"), supervision.get("speaker")
    return Listed(
        place,
        audio,
        "" if text is None else text_in(text, "text", place),
        "" if speaker is None else text_in(speaker, "speaker", place),
        0.0 if -_ROUNDING_SECONDS < start < 0.0 else start,
        start + float(supervision["duration"]),
        _channel(supervision.get("channel", cut.get("channel")), channels, place),
        seconds,
    )


def text_in(value: object, key: str, place: str) -> str:
    """A value that has to be a text; a speaker may be a number.

    Raises:
        DataError: it is something else, such as null or a list.
    """
    if isinstance(value, str):
        return value
    if key == "speaker" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    got = "null" if value is None else f"{type(value).__name__} {str(value)[:40]}"
    raise DataError(f"{key} is no text", place=place, got=got, wanted='words in quotation marks: "one two"')


def _channel(channel: object, channels: object, place: str) -> int | None:
    """The channel that a supervision names, as its number in the file; None where it names all or none.

    Raises:
        DataError: it names some of several channels.
    """
    if isinstance(channel, list) and len(channel) == 1:
        (channel,) = channel
    if channel is None or (isinstance(channel, list) and (not isinstance(channels, list) or channel == channels)):
        return None
    if isinstance(channel, int) and not isinstance(channel, bool):
        return channels.index(channel) if isinstance(channels, list) and channel in channels else channel
    raise DataError("an utterance has one channel, or all", place=place, got=f"channel {str(channel)[:40]}")


# Shar folders of lhotse: cuts.NNNNNN.jsonl.gz, and their recordings by the cuts' names in recording.NNNNNN.tar.


_SHARD_OF_CUTS = re.compile(r"cuts\.([0-9]+)\.jsonl(?:\.gz)?")
_NO_RECORDINGS = frozenset({".json", ".nodata", ".nometa"})


def shar_folders(path: Path) -> list[Path]:
    """A folder of Shar with recordings."""
    has_cuts = path.is_dir() and any(_SHARD_OF_CUTS.fullmatch(name) for name in names_in(path))
    return [path] if has_cuts and any(path.glob("recording.*.tar")) else []


def shar_utterances(path: Path) -> Iterator[Listed | DataError]:
    """An utterance for each supervision of each cut of a Shar folder; recordings stay in their tar files.

    Raises:
        DataError: a tar file or a list is damaged.
    """
    for name in sorted(names_in(path)):
        if (number := _SHARD_OF_CUTS.fullmatch(name)) is None:
            continue
        shard = path / f"recording.{number[1]}.tar"
        if not shard.is_file():
            yield DataError("the cuts have no recordings beside them", place=str(path / name), wanted=shard.name)
            continue
        members = [PurePosixPath(member.name) for member in members_of(str(shard))]
        recordings = {str(file.with_suffix("")): file for file in members if file.suffix not in _NO_RECORDINGS}
        read = partial(_in_shard, recordings, shard)
        for place, cut in _cuts(path / name):
            yield from _guarded(read, cut, place)


def _in_shard(
    recordings: dict[str, PurePosixPath], shard: Path, cut: dict[str, Any], place: str
) -> Iterator[Listed | DataError]:
    if (file := recordings.get(str(cut["id"]))) is None:
        raise DataError(f"{shard} has no recording of the cut", place=place, got=str(cut["id"]))
    channels = cut.get("channel")  # the recording in the shard has these
    has_several = isinstance(channels, list) and len(channels) > 1
    for utterance in supervisions(cut, Path(file), place, float(cut["duration"]), channels):
        if isinstance(utterance, Listed) and not has_several:
            utterance = utterance._replace(channel=None)
        yield utterance


# What else is written as a JSON object a line.


def why_no_cuts(path: Path) -> str:
    """What is wrong with the first line of a list, or what it holds, as no cuts of lhotse and no list of WeNet."""
    try:
        _, first = next(_cuts(path), ("", {}))
    except DataError as error:
        return error.problem
    if isinstance(first, DataError):
        return first.problem
    if "sources" in first or {"recording_id", "supervisions"} & first.keys():
        return (
            "recordings or supervisions of lhotse: make cuts of them (lhotse cut simple -r FILE -s FILE CUTS.jsonl.gz)"
        )
    if {"audio_filepath", "duration"} <= first.keys():
        return "a manifest already: name it where a manifest is wanted"
    return f"objects with {', '.join(first) or 'no keys'}: write them as a CSV file with columns path and text"


# Lists of WeNet: ``{"key": ..., "wav": FILE, "txt": TEXT}``.


def wenet_files(path: Path) -> list[Path]:
    """A list of WeNet (``data.list`` of the type raw)."""
    return [path] if path.is_file() and {"wav", "txt"} <= _first(path).keys() else []


def wenet_utterances(path: Path) -> Iterator[Listed | DataError]:
    """The utterances of a list; with ``start`` and ``end`` parts of recordings."""
    for place, line in _cuts(path):
        if isinstance(line, DataError):
            yield line
            continue
        try:
            start, end = float(line.get("start") or 0.0), line.get("end")
            audio = Path(path_in_list(text_in(line["wav"], "wav", place), str(path.parent)))
            end = None if end is None else float(end)
            speaker = line.get("speaker")
            speaker = "" if speaker is None else text_in(speaker, "speaker", place)
            yield Listed(place, audio, text_in(line["txt"], "txt", place), speaker, start, end)
        except DataError as error:
            yield error
        except (KeyError, TypeError, ValueError) as error:
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            yield DataError(
                "the line cannot be read", place=place, got=got, wanted='{"key": ..., "wav": ..., "txt": ...}'
            )
