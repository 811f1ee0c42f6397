"""Calibrates a model's confidences on utterances whose texts are known, and stores that in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.options import unique_tags
from nemo_asr.scoring.calibration import (
    Calibration,
    Floats,
    Mask,
    MeasuredSet,
    fit_calibration,
    held_out,
    reliability,
    right_words,
)
from nemo_asr.transcribe.engine import transcripts_or_error
from nemo_asr.transcribe.folder import CARD, card_to_json, find_model, read_card
from nemo_asr.transcribe.inputs import Recording
from nemo_asr.transcribe.model import TrainedModel
from nemo_asr.transcribe.ngram_training import Speller, text_layer
from nemo_lite.errors import DataError, UsageError
from nemo_lite.files import write_atomically

LEAST_WORDS = 50


class HeardWords(NamedTuple):
    """The words that a model heard in a set.

    Attributes:
        confidences: (N,) of each word, as the model gives them.
        right: (N,) whether it is right.
        utterances: (N,) the position of its utterance.
    """

    confidences: Floats
    right: Mask
    utterances: npt.NDArray[np.int64]


class Calibrated(NamedTuple):
    """A calibration, and how reliable confidences are before and after it, on each set."""

    calibration: Calibration
    sets: list[MeasuredSet]


def calibrate(model: TrainedModel, manifest: str, tests: Sequence[str] = (), batch_size: int = 16) -> Calibrated:
    """Learn a calibration on one set; measure it there, on held-out fifths of the utterances, and on other sets.

    Args:
        model: the model; it is not changed.
        manifest: the utterances to learn from: none that the model was trained on.
        tests: manifests of other sets.
        batch_size: most recordings in a batch.

    Raises:
        DataError: a manifest or a recording cannot be read, or the model heard too few words.
    """
    name, *test_names = unique_tags([manifest, *tests])
    heard = heard_words(model, manifest, batch_size)
    if len(heard.right) < LEAST_WORDS:
        problem, remedy = "the model heard too few words to calibrate on", "give a larger set"
        got = f"{len(heard.right)} words"
        raise DataError(problem, place=manifest, got=got, wanted=f"{LEAST_WORDS} or more", remedy=remedy)
    calibration = fit_calibration(heard.confidences, heard.right, name)
    sets = [_measured(f"{name} (held out)", heard, held_out(*heard))]
    for test_name, test in zip(test_names, tests, strict=True):
        other = heard_words(model, test, batch_size)
        sets.append(_measured(test_name, other, calibration.of(other.confidences)))
    return Calibrated(calibration, sets)


def heard_words(model: TrainedModel, manifest: str, batch_size: int = 16) -> HeardWords:
    """Transcribe the utterances of a manifest, and see which words are right. Confidences are not calibrated.

    Raises:
        DataError: the manifest or a recording cannot be read.
    """
    layer = text_layer(model.recipe, manifest)
    speller = Speller(layer.new_parser(), model.card.labels)
    utterances = [layer.utterance_of(row) for row in range(len(layer))]
    recordings = [
        Recording(utterance.place, utterance.audio_path, offset=utterance.offset, duration=utterance.duration)
        for utterance in utterances
    ]
    transcripts = transcripts_or_error(model.transcribed(recordings, batch_size=batch_size, calibration=None))
    rows = []
    for number, (utterance, transcript) in enumerate(zip(utterances, transcripts, strict=True)):
        right = right_words(speller.words(utterance.text), [word.text for word in transcript.words])
        rows += [(word.confidence, good, number) for word, good in zip(transcript.words, right, strict=True)]
    confidences, good, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    return HeardWords(np.array(confidences, np.float64), np.array(good, bool), np.array(numbers, np.int64))


def card_file(path: str | Path) -> Path:
    """The card in a model's folder.

    Raises:
        CheckpointError: there is no model.
        UsageError: it is no model folder.
    """
    folder = find_model(path)
    if not (folder / CARD).is_file():
        problem, remedy = "a calibration is stored in a model folder", "make one: nemo-lite models convert"
        raise UsageError(problem, place=str(folder), got="checkpoints or a .nemo file", remedy=remedy)
    return folder / CARD


def store_calibration(card: Path, calibration: Calibration) -> None:
    """Write a calibration into a model's card.

    Raises:
        CheckpointError: the card is damaged.
        UsageError: it cannot be written.
    """
    content = card_to_json(msgspec.structs.replace(read_card(card), calibration=calibration))
    write_atomically(card, lambda file: file.write_bytes(content))


def _measured(name: str, heard: HeardWords, calibrated: Floats) -> MeasuredSet:
    before, after = reliability(heard.confidences, heard.right), reliability(calibrated, heard.right)
    return MeasuredSet(name=name, before=before, after=after)
