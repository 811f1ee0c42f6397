"""What a model recognises of a set of utterances, as the manifest has them or cut at pauses; how many have pauses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeGuard

import numpy as np
from torch import Tensor

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.decoding.greedy import (
    post_process_predictions,
    post_process_transcripts,
)
from nemo_asr.decoding.times import frame_labels, labels_of_frames, timed_labels
from nemo_asr.run.audio.segments import frame_levels, frame_samples, longest_pause
from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.manifest import evenly
from nemo_asr.run.search.search import TimedLabels
from nemo_asr.run.transcribe.driver import transcribe
from nemo_asr.run.transcribe.inputs import Recording, recording_of_utterance
from nemo_asr.run.transcribe.transcript import Transcript, transcript_of
from nemo_asr.scoring.sclite import TimedWord
from nemo_asr.tasks.family import Wires, connect, data_of
from nemo_asr.trained.model import ModelEngine, TrainedModel
from nemo_asr.trained.windows import stride_of
from nemo_lite import Dag, DataLayerNM, NeuralModule, NeuralModuleFactory, NmTensor
from nemo_lite.backends.pytorch.data.loaders import Loaded, UnusableItems
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.core.neural_types import AudioSignal

# Utterances, evenly spread, in which pauses are looked for; seconds of them in all; seconds of a pause that is told.
_MOST_HEARD, _MOST_HEARD_SECONDS, _TOLD_PAUSE = 200, 3600.0, 0.5


class RecognisedSet(NamedTuple):
    """The texts of a set; on ranks above 0 none.

    Attributes:
        items: the positions of the utterances.
        references: what is said in each, as the data layer gives it.
        hypotheses: what was recognised.
        words: of each with their times; None where they are not known.
        transcripts: of recordings that were cut.
    """

    items: Sequence[int]
    references: list[str]
    hypotheses: list[str]
    words: list[list[TimedWord]] | None
    transcripts: Sequence[Transcript] = ()


def recognise_utterances(
    model: TrainedModel, data_layer: DataLayerNM, factory: NeuralModuleFactory, search: NeuralModule | None = None
) -> RecognisedSet:
    """The texts of utterances as the manifest has them, in the batches of the data layer, as evaluations in training
    compute them. Over several ranks each utterance comes once. All ranks call it.

    Args:
        model: with its search.
        data_layer: of any kind.
        factory: where it runs.
        search: in the place of the model's.
    """
    recipe, modules = model.recipe, model.modules
    wires_of_set = connect(modules if search is None else replace(modules, search=search), data_layer)
    _, *wires = wires_of_set.scored  # all but the loss
    times = None if recipe.reading.trim_silence else _times_of(wires_of_set, recipe.labels)
    hypotheses: list[str] = []
    references: list[str] = []
    words: list[list[TimedWord]] = []
    batches = factory.infer_batches([*wires, *(times.wires if times else [])])  # come out on rank 0
    for predictions, texts, lengths, *of_labels in batches:
        hypotheses += post_process_predictions([predictions], recipe.labels)
        references += post_process_transcripts([texts], [lengths], recipe.labels)
        if times:
            words += _timed_words(of_labels, recipe.labels, times.frame_samples, recipe.sample_rate)
    assert batches.items is not None, "data layers of speech number their items"
    return RecognisedSet(batches.items, references, hypotheses, words if times else None)


def recognise_segments(
    model: TrainedModel,
    data_layer: DataLayerNM,
    factory: NeuralModuleFactory,
    settings: TranscriptionSettings,
    strict: bool = False,
) -> RecognisedSet:
    """The texts of utterances whose recordings are cut at pauses, by the code of ``transcribe``. All ranks call it.

    Args:
        model: with its search.
        data_layer: has recordings.
        factory: where it runs.
        settings: how they are cut, and batches.
        strict: a file that is not as long as its line says cannot be read.

    Raises:
        DataError: more recordings cannot be read than the configuration allows.
    """
    assert isinstance(data_layer, SpeechDataLayer)
    settings = replace(
        settings,
        calibration=model.card.calibration,
        num_workers=data_layer.setting("num_workers", None) or 0,
        worker_timeout=data_layer.setting("worker_timeout", None),
        count_gaps=True,
    )
    recordings = recordings_of(data_layer, range(len(data_layer)), strict)
    transcripts, faults, _ = transcribe(ModelEngine(model, factory), recordings, settings)
    budget = data_layer.corrupt_budget(False)
    account = UnusableItems(
        data_layer.utterances.name, budget, data_layer.place_of, noun="utterance", remedy=data_layer.remedy
    )
    account.note(Loaded(None, faults=sorted(faults.items())))
    account.report()
    items = [item for item in range(len(data_layer)) if item not in faults] if transcripts else []
    references = [data_layer.utterance_of(item).text for item in items]
    words = [[TimedWord(word.text, word.start, word.end) for word in each.words] for each in transcripts]
    return RecognisedSet(items, references, [transcript.text for transcript in transcripts], words, transcripts)


def recordings_of(data_layer: SpeechDataLayer, rows: Iterable[int], strict: bool = False) -> list[Recording]:
    """Utterances of a data layer as recordings: those that ``transcribe`` makes of the lines of its manifest.

    Args:
        data_layer: has utterances. The content of those in archives is read here.
        rows: their positions.
        strict: a file that is not as long as its line says cannot be read.
    """
    reader = data_layer.utterances.reader
    return [recording_of_utterance(data_layer.utterance_of(row), reader, strict=strict) for row in rows]


def pauses_line(data_layer: DataLayerNM) -> str | None:
    """How many utterances have a pause of more than 0.5 s; None: none of them, or there are no recordings.

    At most 200 are read, evenly spread, and at most an hour of them.
    """
    if not _has_recordings(data_layer):
        return None
    number = len(data_layer)
    rows = evenly(number, _MOST_HEARD)
    rows = rows[np.cumsum(data_layer.durations[rows]) <= _MOST_HEARD_SECONDS]
    pausing = sum(_has_pause(data_layer, row) for row in rows.tolist())
    if not pausing:
        return None
    spread = "" if len(rows) == number else ", evenly spread,"
    remedy = "--segments energy cuts there as transcribe does"
    return f"{pausing} of {len(rows)} utterances{spread} have pauses longer than {_TOLD_PAUSE:g} s: {remedy}"


def _has_pause(data_layer: SpeechDataLayer, row: int) -> bool:
    try:
        (recording,) = recordings_of(data_layer, [row])
        with recording.pieces() as (_, pieces, sample_rate):
            levels = frame_levels(pieces, sample_rate)
    except DataError:
        return False  # it has been told
    return longest_pause(levels, frame_samples(sample_rate) / sample_rate) > _TOLD_PAUSE


def with_recordings(data_layer: DataLayerNM, option: str) -> SpeechDataLayer:
    """The data layer, where it has the recordings that an option needs; else UsageError."""
    if _has_recordings(data_layer):
        return data_layer
    problem = f"{option} needs recordings, and this data layer has none"
    raise UsageError(problem, place=data_layer.label, remedy="leave it out")


def _has_recordings(data_layer: DataLayerNM) -> TypeGuard[SpeechDataLayer]:
    """Whether its utterances are recordings, not features."""
    types = [ntype.elements_type for ntype in data_layer.output_ports.values()]
    return isinstance(data_layer, SpeechDataLayer) and any(isinstance(each, AudioSignal) for each in types)


class _Times(NamedTuple):
    """Wires that say when labels are said.

    Attributes:
        wires: ids, starts and ends (B, N, U) of hypotheses, the best first; samples (B,) of the recordings.
        frame_samples: how many samples a frame stands for.
    """

    wires: list[NmTensor]
    frame_samples: int


def _times_of(wires: Wires, labels: Sequence[str]) -> _Times | None:
    """Where the labels of a search lie in time; None where neither the search nor the model tells."""
    frame, search = stride_of(wires.frames), wires.predictions.call
    if frame is None:
        return None
    if of_frames := frame_labels(search, wires.log_probs, wires.log_probs_lengths):
        timed = labels_of_frames(of_frames[0], None, None, labels)
    else:
        (port,) = (port for port, wire in search.outputs.items() if wire is wires.predictions)
        timed = timed_labels(search, port, wires.log_probs, wires.log_probs_lengths, labels)
    num_samples = data_of(tuple(Dag([wires.frames]).data_node.outputs.values())).audio.lengths
    if num_samples is None or "starts" not in timed:
        return None
    return _Times([*(timed[name] for name in ("ids", "starts", "ends")), num_samples], frame)


def _timed_words(
    values: Sequence[Tensor], labels: list[str], frame_samples: int, sample_rate: int
) -> list[list[TimedWord]]:
    """The words of each utterance of a batch, from the values of :class:`_Times`."""
    rows = []
    for *of_labels, num_samples in zip(*(value.cpu() for value in values), strict=True):
        ids, starts, ends = (value[0].tolist() for value in of_labels)
        number = sum(label >= 0 for label in ids)
        found = TimedLabels(ids[:number], starts[:number], ends[:number], [0.0] * number)
        recording = Recording("", "", seconds=int(num_samples) / sample_rate)
        heard = transcript_of(found, labels, recording, frame_samples / sample_rate).words
        rows.append([TimedWord(word.text, word.start, word.end) for word in heard])
    return rows
