"""Leaks that a training run can find before it starts: by the files that lines name. The audio is not decoded here."""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from collections.abc import Mapping

from nemo_asr.data.check.findings import overlap
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.data.utterances import Utterance
from nemo_lite import DataLayerNM
from nemo_lite.backends.pytorch.data import MAX_LISTED
from nemo_lite.utils import logging

_MOST_COMPARED = 1000  # files whose content is read


def shared_recordings(train: Manifest, evaluation: Manifest) -> list[tuple[str, str]]:
    """Places of an evaluation set whose recording a training set has as well, each with a place there.

    Two lines share a recording if they name the same file, or files of the same name and the same content, and the
    parts that they take overlap. Copies under another name, or in another format, are not found. Of the training set
    only lines whose file has the name of one of the evaluation set are looked at.
    """
    by_name = defaultdict[str, list[tuple[Utterance, os.stat_result]]](list)
    for row, path in enumerate(evaluation.written_paths()):
        utterance = evaluation.utterance(row)
        if status := _status(utterance.audio_path):
            by_name[os.path.basename(path)].append((utterance, status))
    found: dict[str, str] = {}
    num_compared = 0
    for row, path in enumerate(train.written_paths()):
        if (near := by_name.get(path.rpartition("/")[2])) is None:
            continue
        utterance = train.utterance(row)
        status = _status(utterance.audio_path)
        for other, its_status in near if status else ():
            if other.place in found or not overlap(_span(utterance), _span(other)) or not status:
                continue
            same = os.path.samestat(status, its_status)
            if not same and status.st_size == its_status.st_size and num_compared < _MOST_COMPARED:
                num_compared += 1
                same = _same_content(utterance.audio_path, other.audio_path)
            if same:
                found[other.place] = utterance.place
    return list(found.items())


def warn_of_leaks(train: DataLayerNM, evaluations: Mapping[str, DataLayerNM]) -> int:
    """Warn of recordings of evaluation sets that are in the training set as well, see `shared_recordings`.

    Data layers that do not read manifests are passed over.

    Returns:
        How many there are, over all sets.
    """
    total = 0
    for tag, evaluation in evaluations.items():
        sets = [layer.utterances for layer in (train, evaluation) if isinstance(layer, SpeechDataLayer)]
        manifests = [utterances for utterances in sets if isinstance(utterances, Manifest)]
        if len(manifests) < 2:
            continue
        pairs = shared_recordings(*manifests)
        total += len(pairs)
        if pairs:
            shown = ", ".join(f"{place} = {twin}" for place, twin in pairs[:MAX_LISTED])
            more = f" and {len(pairs) - MAX_LISTED} more" if len(pairs) > MAX_LISTED else ""
            logging.warning(
                f"{tag}: {len(pairs)} of {len(evaluation)} recordings are in the training set as well, so its error "
                f"rates are better than those of new speech: {shown}{more}. Take them out of one of the sets "
                "(nemo-lite data check compares the audio itself)"
            )
    return total


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _span(utterance: Utterance) -> tuple[float, float]:
    if utterance.offset is None or utterance.duration is None:
        return 0.0, float("inf")
    return utterance.offset, utterance.offset + utterance.duration


def _same_content(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
