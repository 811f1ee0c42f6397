"""How long audio files are, where a manifest says something else. Reads headers; no sample is decoded in this file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from nemo_asr.audio.reading import audio_seconds, excess_of
from nemo_asr.data.manifest import Manifest
from nemo_lite.errors import DataError
from nemo_lite.utils import logging

CHECKED_FILES = 1000
_CHUNK_ROWS = 256
# More than there are cores: on a network file system most of the time is waiting.
_NUM_THREADS = min(32, 4 + (os.cpu_count() or 1))


def with_file_durations(manifest: Manifest, limit: int = CHECKED_FILES) -> Manifest:
    """The manifest with what its files hold, where that is less than stated by more than 0.1 s and 1 %.

    Filters by duration, batches of equal cost and the check that a text fits its frames need true durations. The
    headers of ``limit`` files, evenly spread, are read; those of all files only if one of these differs. Of a longer
    file only the stated duration is read, so that stays; this is told as well. Files that cannot be read are found
    elsewhere.
    """
    total = len(manifest)
    rows = np.unique(np.linspace(0, total - 1, min(limit, total)).astype(np.int64)).tolist()
    found = _differing(manifest, rows)
    if found and len(rows) < total:
        logging.info(
            f"{manifest.name}: {len(found)} of {len(rows)} durations, evenly spread, differ from their files: reading "
            f"the headers of all {total} files"
        )
        found = _differing(manifest, range(total))
    if not found:
        return manifest
    durations = manifest.durations.copy()
    for row, seconds in found.items():
        durations[row] = min(seconds, float(durations[row]))
    num_cut = sum(seconds > manifest.durations[row] for row, seconds in found.items())
    cut = f" (of {num_cut} longer files the rest is not read)" if num_cut else ""
    worst = max(found, key=lambda row: abs(found[row] - float(manifest.durations[row])))
    logging.warning(
        f"{manifest.name}: {len(found)} of {total} durations differ from their files by more than 0.1 s and 1 %: "
        f"what a file has of its duration is read{cut}. "
        f"The largest difference: {manifest.place(worst)} says {manifest.durations[worst]:.3f} s, "
        f"the file has {found[worst]:.3f} s"
    )
    return replace(manifest, durations=durations)


def _differing(manifest: Manifest, rows: Sequence[int]) -> dict[int, float]:
    """The seconds that the file has from the offset, for each of these rows where its line says others; in order."""
    chunks = [rows[first : first + _CHUNK_ROWS] for first in range(0, len(rows), _CHUNK_ROWS)]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        parts = list(pool.map(partial(_differing_among, manifest), chunks))
    return {row: seconds for part in parts for row, seconds in part.items()}


def _differing_among(manifest: Manifest, rows: Sequence[int]) -> dict[int, float]:
    found = {}
    for row, ref in zip(rows, manifest.refs(rows), strict=True):
        utterance = manifest.reader.utterance(ref)
        if utterance.duration is None:
            continue
        try:
            seconds = audio_seconds(utterance.audio_path, place=utterance.place) - (utterance.offset or 0.0)
        except DataError:
            continue
        excess = excess_of(seconds, utterance.duration)
        if seconds > 0 and (excess < 0 or (excess and utterance.offset is None)):
            found[row] = seconds
    return found
