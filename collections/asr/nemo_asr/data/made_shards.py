"""make_shards: the recordings of manifests into tar shards, and a manifest of them.

Names and layout are NeMo's: ``audio_0.tar``, ``audio_1.tar``, ... and ``tarred_audio_manifest.json``, whose lines have
the member's name and ``shard_id``. Names have no folder, and one dot: WebDataset takes what is before the first dot.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES, audio_seconds, excess_of
from nemo_asr.run.manifest import Manifest, ManifestPaths
from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, listed
from nemo_lite.base.files import (
    FileKind,
    make_writable_folder,
    read_bytes,
    unused_name,
    write_atomically,
)
from nemo_lite.base.ranges import NotNegativeInt, PositiveInt, numbers_checked

MANIFEST_NAME = "tarred_audio_manifest.json"
_RECORDING = FileKind("the audio file", MAX_CONTENT_BYTES, remedy="cut it into shorter ones")  # as a reader of shards


@dataclass(frozen=True)
class MadeShards:
    """The tar shards and their manifest.

    Attributes:
        shards: the paths of the tar shards.
        manifest: the path of their manifest.
        num_lines: lines in it.
        num_recordings: recordings in the shards; a recording may have several lines with an ``offset`` each.
        seconds: of audio, all lines together.
        num_bytes: of the shards.
    """

    shards: tuple[Path, ...]
    manifest: Path
    num_lines: int
    num_recordings: int
    seconds: float
    num_bytes: int


@numbers_checked
def make_shards(
    manifests: ManifestPaths,
    folder: str | os.PathLike[str],
    *,
    num_shards: PositiveInt = 1,
    shuffle: bool = False,
    seed: NotNegativeInt = 0,
    min_duration: float | None = None,
    max_duration: float | None = None,
) -> MadeShards:
    """Write tar shards of equal numbers of recordings, but for one, and last their manifest.

    Recordings are taken over as they are. A line's other keys are kept, its text is written into it, and its duration
    is at most what the file has. Equal input gives equal files.

    Args:
        manifests: see `Manifest.open`.
        folder: made if it is not there; it must hold no tar shards yet.
        num_shards: how many.
        shuffle: put the recordings into a random order first; without it they keep the manifest's.
        seed: of that order.
        min_duration: seconds; shorter utterances are left out.
        max_duration: seconds; longer utterances are left out.

    Raises:
        UsageError: more shards than recordings, or a folder that cannot be written to or holds shards.
        DataError: a manifest that is not valid; recordings that are missing or damaged.
    """
    manifest = Manifest.open(manifests, min_duration=min_duration, max_duration=max_duration, lenient=True)
    recordings = _recordings(manifest)
    if num_shards > len(recordings):
        got, wanted = str(num_shards), f"at most {len(recordings)}, as many as there are recordings"
        raise UsageError("there are more shards than recordings", place=manifest.name, got=got, wanted=wanted)
    target = make_writable_folder(os.fspath(folder))
    if there := sorted(path.name for path in (*target.glob("audio_*.tar"), *target.glob(MANIFEST_NAME))):
        remedy = "choose another folder, or remove these files"
        raise UsageError("the folder holds tar shards already", place=str(target), got=there[0], remedy=remedy)
    order = np.random.default_rng(seed).permutation(len(recordings)) if shuffle else np.arange(len(recordings))
    audio_paths = list(recordings)
    names = _names(audio_paths)
    lines: list[dict[str, Any]] = []
    paths = []
    for number, part in enumerate(np.array_split(order, num_shards)):
        paths.append(target / f"audio_{number}.tar")
        rows_by_path = {audio_paths[index]: recordings[audio_paths[index]] for index in part.tolist()}
        lines += _write_shard(paths[-1], manifest, rows_by_path, names, number)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(target / MANIFEST_NAME, lambda path: path.write_text(text, encoding="utf-8"))
    seconds, num_bytes = sum(line["duration"] for line in lines), sum(path.stat().st_size for path in paths)
    return MadeShards(tuple(paths), target / MANIFEST_NAME, len(lines), len(recordings), seconds, num_bytes)


def _recordings(manifest: Manifest) -> dict[str, list[int]]:
    """The rows of each recording's path, in the order of first lines. DataError if some are missing or empty."""
    rows_of: dict[str, list[int]] = {}
    problems: list[str] = []
    for row in range(len(manifest)):
        utterance = manifest.utterance(row)
        if utterance.audio_path not in rows_of:
            try:
                manifest.reader.check_audio(utterance)
            except DataError as error:
                problems.append(str(error))
        rows_of.setdefault(utterance.audio_path, []).append(row)
    if problems:
        raise DataError(listed(problems[:MAX_LISTED], len(problems)))
    return rows_of


def _names(paths: Sequence[str]) -> dict[str, str]:
    """The member's name of each path: the folders below the common one, and the file, joined by underscores."""
    full = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in full])
    stems: dict[str, str] = {}
    names = {}
    for path, whole in zip(paths, full, strict=True):
        stem, ending = os.path.splitext(os.path.relpath(whole, common))
        stem = unused_name(stem.replace(os.sep, "_").replace(".", "_"), stems)
        stems[stem] = path
        names[path] = stem + ending
    return names


def _write_shard(
    path: Path, manifest: Manifest, recordings: Mapping[str, Sequence[int]], names: Mapping[str, str], number: int
) -> list[dict[str, Any]]:
    """Write one shard; the lines of its recordings."""
    lines: list[dict[str, Any]] = []

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w") as archive:
            for recording, rows in recordings.items():
                content = read_bytes(recording, _RECORDING)
                member = tarfile.TarInfo(names[recording])  # no times, no owners: equal input, equal files
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                for ref in manifest.refs(rows):
                    utterance = manifest.reader.utterance(ref)
                    whole = audio_seconds(content, name=utterance.audio_path, place=utterance.place)
                    held, seconds = whole - (utterance.offset or 0.0), utterance.duration
                    if (
                        seconds is None or excess_of(held, seconds) < 0.0
                    ):  # the file has clearly fewer than its line says
                        seconds = round(held, 4)
                    line = {"audio_filepath": names[recording], "duration": seconds, "text": utterance.text}
                    other_keys = manifest.sources[ref.source].other_keys(ref.offset)
                    lines.append({**line, **other_keys, "shard_id": number})

    write_atomically(path, write)
    return lines
