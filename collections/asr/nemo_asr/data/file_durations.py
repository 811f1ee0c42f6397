"""How long audio files are, where a manifest says something else. Reads headers; no sample is decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from nemo_asr.run.audio.files import check_channel, open_audio
from nemo_asr.run.audio.reading import excess_of
from nemo_asr.run.manifest import Manifest, evenly
from nemo_lite.base.errors import DataError, listed
from nemo_lite.utils import logging

CHECKED_FILES = 1000
_CHUNK_ROWS = 256
# More than there are cores: on a network file system most of the time is waiting.
_NUM_THREADS = min(32, 4 + (os.cpu_count() or 1))


def with_file_durations(manifest: Manifest, limit: int = CHECKED_FILES) -> Manifest:
    """The manifest with what its files hold, where that is less than stated by more than 0.1 s and 1 %.

    Filters by duration, batches of equal cost and the check that a text fits its frames need true durations. The
    headers of ``limit`` files, evenly spread, are read; those of all files only if one of these differs. Of a longer
    file only the stated duration is read, so that stays; this is told as well. Files that cannot be read are
    found elsewhere.

    Raises:
        DataError: a part begins behind the end of its file, or a channel is not there: the first few, and how many.
    """
    total = len(manifest)
    rows = evenly(total, limit).tolist()
    held, missing = _differing(manifest, rows)
    if (held or missing) and len(rows) < total:
        logging.info(
            f"{manifest.name}: {len(held) + len(missing)} of {len(rows)} durations, evenly spread, differ from their "
            f"files: reading the headers of all {total} files"
        )
        held, missing = _differing(manifest, range(total))
    if missing:
        raise DataError(listed(missing, len(missing)))
    if not held:
        return manifest
    durations = manifest.durations.copy()
    for row, seconds in held.items():
        durations[row] = min(seconds, float(durations[row]))
    num_cut = sum(seconds > manifest.durations[row] for row, seconds in held.items())
    cut = f" (of {num_cut} longer files the rest is not read)" if num_cut else ""
    worst = max(held, key=lambda row: abs(held[row] - float(manifest.durations[row])))
    logging.warning(
        f"{manifest.name}: {len(held)} of {total} durations differ from their files by more than 0.1 s and 1 %: "
        f"what a file has of its duration is read{cut}. "
        f"The largest difference: {manifest.place(worst)} says {manifest.durations[worst]:.3f} s, "
        f"the file has {held[worst]:.3f} s"
    )
    return replace(manifest, durations=durations)


def _differing(manifest: Manifest, rows: Sequence[int]) -> tuple[dict[int, float], list[str]]:
    """The seconds that the file has from the offset, for each of these rows where its line says others; in order.

    And what is wrong with lines whose part or channel is not in the file.
    """
    chunks = [rows[first : first + _CHUNK_ROWS] for first in range(0, len(rows), _CHUNK_ROWS)]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        parts = list(pool.map(partial(_differing_among, manifest), chunks))
    held = {row: seconds for part, _ in parts for row, seconds in part.items()}
    return held, [problem for _, problems in parts for problem in problems]


def _differing_among(manifest: Manifest, rows: Sequence[int]) -> tuple[dict[int, float], list[str]]:
    held: dict[int, float] = {}
    problems: list[str] = []
    for row, ref in zip(rows, manifest.refs(rows), strict=True):
        utterance = manifest.reader.utterance(ref)
        if utterance.duration is None:
            continue
        path, place = utterance.audio_path, utterance.place
        try:
            with open_audio(path, path, place) as file:
                whole, num_channels = file.seconds, file.num_channels
        except DataError:
            continue
        offset = utterance.offset or 0.0
        seconds = whole - offset
        try:
            check_channel(utterance.channel, num_channels, path, place)
            if seconds <= 0.0 < offset:
                remedy = "mend the offset, or delete the line"
                got = f"{whole:.3f} s in the file"
                raise DataError(f"offset {offset:g} s leaves nothing of {path}", place=place, got=got, remedy=remedy)
        except DataError as error:
            problems.append(str(error))
            continue
        excess = excess_of(seconds, utterance.duration)
        if seconds > 0 and (excess < 0 or (excess and utterance.offset is None)):
            held[row] = seconds
    return held, problems
