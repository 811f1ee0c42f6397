"""How sure a model is of the words of a set, and calibration, learnt on utterances whose texts are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.calibration import (
    Calibration,
    CalibrationRecord,
    Floats,
    Mask,
    MeasuredSet,
    fit_calibration,
    held_out,
    reliability,
    right_words,
)
from nemo_asr.run.manifest import Utterance, evenly
from nemo_asr.run.options import unique_tags
from nemo_asr.run.transcribe.domain import Domain, fit_domain
from nemo_asr.run.transcribe.inputs import Recording, recording_of_utterance
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_asr.trained.folder import ModelCard, read_card, read_card_of, write_card
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.texts import Speller, text_layer
from nemo_lite import NeuralModuleFactory
from nemo_lite.base.errors import DataError, counted

_MOST_UTTERANCES = 200
MOST_CALIBRATED = 2000
"""Utterances of a set: of each 133 kB of moments of frames are kept until all are heard."""


def hear_set(
    model: TrainedModel, name: str, layer: SpeechDataLayer, factory: NeuralModuleFactory
) -> tuple[float | None, Domain | None]:
    """The mean confidence of the words that a model hears in utterances of a set, evenly spread, and their domain.

    Confidences are not calibrated. All ranks call it; rank 0 gets the values, the others None. None where it hears no
    word, or for the domain too few of them.

    Raises:
        DataError: a recording cannot be read.
    """
    _, recordings = _spread(layer, _MOST_UTTERANCES)
    batch_size = layer.batch_size if layer.batch_size > 0 else len(layer)  # as many as an evaluation has fit
    heard = _heard(model, recordings, factory=factory, batch_size=batch_size)
    confidences = [word.confidence for transcript in heard for word in transcript.words]
    if not confidences:
        return None, None
    return float(np.mean(confidences)), fit_domain(name, heard, model.card.sample_rate)


def _spread(layer: SpeechDataLayer, most: int) -> tuple[list[Utterance], list[Recording]]:
    """At most so many utterances of a set, evenly spread, and their recordings."""
    utterances = [layer.utterance_of(row) for row in evenly(len(layer), most).tolist()]
    return utterances, [recording_of_utterance(utterance, layer.utterances.reader) for utterance in utterances]


def _heard(model: TrainedModel, recordings: Sequence[Recording], **settings: Any) -> list[Transcript]:
    """Transcripts with confidences that are not calibrated. An empty domain has sounds measured, and marks none."""
    card = msgspec.structs.replace(model.card, domain=Domain())
    measuring = TrainedModel(model.place, model.recipe, model.modules, card)
    return measuring.transcribed(recordings, calibration=None, count_gaps=True, **settings).or_error()


def store_heard(card: Path, name: str, confidence: float, domain: Domain | None) -> None:
    """Write how sure a model is of words of a set, and what it knows, into its card.

    Raises:
        CheckpointError: the card is damaged.
        UsageError: it cannot be written.
    """
    held = read_card(card)
    rates = [
        msgspec.structs.replace(rate, confidence=round(confidence, 3)) if rate.set == name else rate
        for rate in held.rates
    ]
    write_card(card, msgspec.structs.replace(held, rates=rates, domain=domain))


LEAST_WORDS = 50


class HeardWords(NamedTuple):
    """The words that a model heard in a set.

    Attributes:
        confidences: (N,) of each word, as the model gives them.
        right: (N,) whether it is right.
        utterances: (N,) the position of its utterance among those that were heard.
        transcripts: of the utterances.
    """

    confidences: Floats
    right: Mask
    utterances: npt.NDArray[np.int64]
    transcripts: Sequence[Transcript]


def calibrate(
    model: TrainedModel, manifest: str, tests: Sequence[str] = (), batch_size: int = 16
) -> tuple[CalibrationRecord, Domain | None]:
    """Learn a calibration on one set; measure it there, on held-out fifths of the utterances, and on other sets.

    The first set also says what the model knows, where words are heard in enough recordings of it.

    Args:
        model: the model; it is not changed.
        manifest: the utterances to learn from: none that the model was trained on.
        tests: manifests of other sets.
        batch_size: most recordings in a batch.

    Raises:
        DataError: a manifest or a recording cannot be read, or the model heard too few words.
    """
    name, *test_names = unique_tags([manifest, *tests])
    layer, *test_layers = (text_layer(model.recipe, each) for each in (manifest, *tests))  # all are read first
    heard = heard_words(model, layer, batch_size)
    if len(heard.right) < LEAST_WORDS:
        problem, remedy = "the model heard too few words to calibrate on", "give a larger set"
        got = counted(len(heard.right), "word")
        raise DataError(problem, place=manifest, got=got, wanted=f"{LEAST_WORDS} or more", remedy=remedy)
    calibration = fit_calibration(heard.confidences, heard.right, name)
    sets = [_measured(f"{name} (held out)", heard, held_out(*heard[:3]))]
    for test_name, test_layer in zip(test_names, test_layers, strict=True):
        other = heard_words(model, test_layer, batch_size)
        sets.append(_measured(test_name, other, calibration.of(other.confidences)))
    domain = fit_domain(name, heard.transcripts, model.card.sample_rate)
    return CalibrationRecord(calibration=calibration, sets=sets), domain


def heard_words(model: TrainedModel, layer: SpeechDataLayer, batch_size: int = 16) -> HeardWords:
    """Transcribe the utterances of a data layer, and see which words are right. Confidences are not calibrated.

    Of more than ``MOST_CALIBRATED`` utterances as many are heard, evenly spread.

    Raises:
        DataError: a recording cannot be read.
    """
    speller = Speller(layer.new_parser(), model.card.labels)
    utterances, recordings = _spread(layer, MOST_CALIBRATED)
    transcripts = _heard(model, recordings, batch_size=batch_size)
    rows = []
    for number, (utterance, transcript) in enumerate(zip(utterances, transcripts, strict=True)):
        right = right_words(speller.words(utterance.text), [word.text for word in transcript.words])
        rows += [(word.confidence, good, number) for word, good in zip(transcript.words, right, strict=True)]
    confidences, good, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = np.array(confidences, np.float64), np.array(good, bool), np.array(numbers, np.int64)
    return HeardWords(*arrays, transcripts)


def store_calibration(card: Path, heard: ModelCard, calibration: Calibration, domain: Domain | None) -> None:
    """Write a calibration into the card of the model that was heard, and what it knows, where that is known.

    Raises:
        CheckpointError: the card is damaged.
        UsageError: it cannot be written, or is that of another model by now.
    """
    held = read_card_of(card, heard)
    write_card(card, msgspec.structs.replace(held, calibration=calibration, domain=domain or held.domain))


def _measured(name: str, heard: HeardWords, calibrated: Floats) -> MeasuredSet:
    before, after = reliability(heard.confidences, heard.right), reliability(calibrated, heard.right)
    return MeasuredSet(name=name, before=before, after=after)
