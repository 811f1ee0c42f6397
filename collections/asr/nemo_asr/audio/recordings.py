"""Recordings of noise and of rooms: the lines of a manifest, checked, and the seconds that a perturbation wants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from nemo_asr.audio.reading import Samples, audio_seconds, excess_of, read_audio
from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, Json, JsonLimits, numbered_lines, parse_json
from nemo_lite.utils.files import path_in_list

CHECKED = 20_000
_SHOWN = 5
_MANIFEST = FileKind("the manifest", 1 << 28)
_LIMITS = JsonLimits(depth=32, values=10_000)
_MOST_SECONDS = 1e7  # four months


class Recording(NamedTuple):
    """One line of a manifest of noises or impulse responses: the file, and which seconds of it."""

    place: str
    path: str
    offset: float
    duration: float

    def read(self, sample_rate: int, first: float, seconds: float) -> Samples:
        """(T,) samples at ``sample_rate``: ``seconds`` from second ``first`` of this part of the file."""
        offset = self.offset + first
        audio = read_audio(
            self.path, sample_rate=sample_rate, offset=offset, duration=seconds, strict=False, place=self.place
        )
        return audio.samples

    def check(self) -> None:
        """Look at the file's header.

        Raises:
            DataError: no audio, or shorter than the line says.
        """
        seconds = audio_seconds(self.path, place=self.place)
        if excess_of(seconds - self.offset, self.duration) < 0:
            raise DataError(
                f"{self.path} is shorter than its line says",
                place=self.place,
                got=f"{seconds:.3f} s",
                wanted=f"{self.offset + self.duration:.3f} s (offset + duration)",
                remedy="correct the line, or delete it",
            )


def read_recordings(manifest_path: str) -> list[Recording]:
    """The recordings of a manifest: JSON lines with audio_filepath and duration, optionally offset.

    Raises:
        DataError: a manifest that cannot be read, or a line that names no recording.
    """
    manifest_path = os.path.expanduser(manifest_path)
    lines = list(numbered_lines(manifest_path, _MANIFEST))
    if not lines:
        raise DataError("the manifest is empty", place=manifest_path, remedy="it needs one JSON object a line")
    folder = os.path.dirname(manifest_path)
    return [_recording(place, folder, line) for place, line in lines]


def check_recordings(recordings: Sequence[Recording]) -> None:
    """Look at the header of each file; in a list of more than ``CHECKED``, of so many, evenly spread.

    Raises:
        DataError: some cannot be used: the first few, and how many.
    """
    problems = []
    step = -(-len(recordings) // CHECKED)
    for recording in recordings[::step]:
        try:
            recording.check()
        except DataError as error:
            problems.append(str(error))
    if problems:
        more = [f"... and {len(problems) - _SHOWN} more recordings that cannot be used"] * (len(problems) > _SHOWN)
        raise DataError("\n".join([*problems[:_SHOWN], *more]))


def _recording(place: str, folder: str, line: bytes) -> Recording:
    fields = parse_json(line, place, _MANIFEST, _LIMITS)
    try:
        if not isinstance(fields, dict):
            raise TypeError
        path = fields.get("audio_filepath") or fields["audio_filename"]
        duration, offset = _number(fields["duration"]), _number(fields.get("offset") or 0.0)
        named = path if isinstance(path, str) and "\0" not in path else ""
    except (ValueError, TypeError, KeyError, OverflowError):
        named = ""
    if not named:
        problem, wanted = "the line does not name a recording", '{"audio_filepath": "...", "duration": seconds}'
        raise DataError(problem, place=place, got=line.decode()[:80], wanted=wanted) from None
    if not (0.0 < duration <= _MOST_SECONDS and 0.0 <= offset <= _MOST_SECONDS):
        raise DataError("duration or offset is not usable", place=place, got=f"{duration} s and {offset} s")
    return Recording(place, path_in_list(named, folder), offset, duration)


def _number(value: Json) -> float:
    if isinstance(value, (int, float, str)):
        return float(value)
    raise TypeError
