"""Recordings of noise and of rooms: the lines of a manifest, checked, and the seconds that a perturbation wants."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

from nemo_asr.audio.reading import Samples, audio_seconds, excess_of, read_audio
from nemo_lite.errors import DataError
from nemo_lite.utils.files import path_in_list

CHECKED = 20_000
_SHOWN = 5


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
    try:
        with open(manifest_path, encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the manifest cannot be read ({error})", place=manifest_path) from None
    if not lines:
        raise DataError("the manifest is empty", place=manifest_path, remedy="it needs one JSON object a line")
    folder = os.path.dirname(manifest_path)
    return [_recording(f"{manifest_path}:{number}", folder, line) for number, line in lines]


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


def _recording(place: str, folder: str, line: str) -> Recording:
    try:
        fields = json.loads(line)
        path = fields.get("audio_filepath") or fields["audio_filename"]
        duration, offset = float(fields["duration"]), float(fields.get("offset") or 0.0)
        is_path = isinstance(path, str)
    except (ValueError, TypeError, AttributeError, KeyError):
        is_path = False
    if not is_path:
        problem, wanted = "the line does not name a recording", '{"audio_filepath": "...", "duration": seconds}'
        raise DataError(problem, place=place, got=line.strip()[:80], wanted=wanted) from None
    if not (0.0 < duration < math.inf and 0.0 <= offset < math.inf):
        raise DataError("duration or offset is not usable", place=place, got=f"{duration} s and {offset} s")
    return Recording(place, path_in_list(path, folder), offset, duration)
