"""transcribe: the modules of a model and recordings to transcripts, on one rank or several. No command line in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder, NBestCTCDecoder
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.decoding.texts import ctc_collapse
from nemo_asr.recipe.wiring import Model, Signal, Wires, connect, connect_by_type, signals_of
from nemo_asr.transcription.alignment import LabelAlignment, PathScores
from nemo_asr.transcription.recording import BATCH_SECONDS, BATCH_SIZE
from nemo_asr.transcription.recordings import Recording, RecordingsDataLayer, recording_of
from nemo_asr.transcription.transcript import Transcribed as Transcribed
from nemo_asr.transcription.transcript import Transcript, scored_texts, transcript_of
from nemo_asr.transcription.windows import (
    GUESSED_CONTEXT_SECONDS,
    FeatureSource,
    Windowed,
    WindowPlan,
    context_frames,
    plan_windows,
    stride_of,
)
from nemo_lite import Dag, NeuralModule, NeuralModuleFactory, NmTensor
from nemo_lite.errors import DataError, UsageError


def transcribe(
    model: Model,
    labels: Sequence[str],
    sample_rate: int,
    audio: Sequence[Any],
    *,
    audio_rate: int | None = None,
    batch_size: int = BATCH_SIZE,
    batch_seconds: float = BATCH_SECONDS,
    num_workers: int = 0,
    worker_timeout: float | None = None,
    factory: NeuralModuleFactory | None = None,
    verbose: bool = False,
    calibration: Callable[[float], float] | None = None,
    decoder: NeuralModule | None = None,
    nbest: int = 1,
    trim_silence: bool = False,
    int_values: bool = False,
) -> Transcribed:
    """Transcribe recordings, in batches of similar length; the result is in the order given.

    Longer ones than ``batch_seconds`` are cut into overlapping windows; see ``context_frames`` of the encoder.

    Args:
        model: the modules, see ``Recipe.model``.
        labels: the vocabulary, without the blank.
        sample_rate: samples a second that the model takes.
        audio: paths, arrays of samples (see `recording_of`), or `Recording` objects.
        audio_rate: samples a second of the arrays.
        batch_size: most recordings in a batch.
        batch_seconds: most seconds of audio that are computed at once, which bounds memory.
        num_workers: processes that read audio.
        worker_timeout: seconds that a batch may take in them before an error; 0: for ever. None: 600.
        factory: where to run; by default the factory made last, or a new one.
        verbose: show progress on a terminal.
        calibration: turns the confidence of a word into a calibrated one, as that of the model's card does.
        decoder: a search in the place of the model's.
        nbest: above 1, transcripts have so many ``hypotheses``, of a decoder that is a ``BeamSearchCTCDecoder``.
        trim_silence: leave out quiet ends of recordings, as the data layer does with which the model was evaluated:
            see ``Recipe.reading``. Times count from the beginning of the recording all the same.
        int_values: read files through 32-bit integers, likewise.

    Raises:
        UsageError: an array is no audio or has no rate; numbers out of range; ``nbest`` of a decoder without it.
    """
    if batch_seconds <= 0:
        raise UsageError("batch_seconds must be above 0", got=f"{batch_seconds:g}")
    model = replace(model, greedy=_searching(decoder or model.greedy, nbest))
    recordings = [recording_of(each, audio_rate, number) for number, each in enumerate(audio)]
    layer = RecordingsDataLayer(
        recordings, sample_rate, batch_size, batch_seconds, num_workers, trim_silence, int_values
    )
    layer.worker_timeout = worker_timeout
    if len(layer.faults) == len(layer):  # nothing to run, on any rank
        return Transcribed([], dict(layer.faults), 0.0)
    factory = factory or NeuralModuleFactory.get_default_factory() or NeuralModuleFactory()
    wires = connect(model, layer)
    data = Dag([wires.log_probs]).data_node.outputs
    asked = [data["a_sig_length"], data["start"], *_path_wires(model, wires, sample_rate, batch_seconds, factory)]
    values = factory.infer(asked, verbose=verbose)
    if values is None:
        return Transcribed([], dict(layer.faults), 0.0)
    items = inferred.items if (inferred := factory.get_trainer().inferred) else None
    assert items is not None
    frame = stride_of(wires.log_probs)
    rows = (row for batch in zip(*values, strict=True) for row in zip(*batch, strict=True))
    found = {
        position: _transcript(path, layer.recordings[position], labels, sample_rate, frame, calibration)
        for position, path in zip(items, rows, strict=True)
    }
    transcripts = [found[position] for position in sorted(found)]
    return Transcribed(transcripts, dict(layer.faults), sum(each.duration for each in transcripts))


def _transcript(
    row: tuple[Tensor, ...],
    recording: Recording,
    labels: Sequence[str],
    sample_rate: int,
    frame_samples: int | None,
    calibration: Callable[[float], float] | None,
) -> Transcript:
    """The transcript of one recording from its samples and their start, its path, scores and number of frames."""
    num_samples, start, ids, scores, length, *found = row
    number, hypotheses = int(length), []
    if found:
        texts = ctc_collapse(found[0], None, len(labels))
        hypotheses = list(scored_texts(zip(texts, found[1].tolist(), strict=True), labels))
    # A model that does not say how its frames lie in time: evenly.
    seconds = (frame_samples or int(num_samples) / max(number, 1)) / sample_rate
    about = recording.source, recording.offset, calibration, hypotheses, int(start) / sample_rate
    return transcript_of(ids[:number].numpy(), scores[:number].numpy(), labels, seconds, recording.seconds, *about)


def _searching(decoder: NeuralModule, nbest: int) -> NeuralModule:
    if nbest == 1:
        return decoder
    if not isinstance(decoder, BeamSearchCTCDecoder):
        problem, remedy = "this decoder gives one text", "give decoder=nemo_asr.BeamSearchCTCDecoder(labels)"
        raise UsageError(problem, got=f"nbest {nbest}, {type(decoder).__name__}", remedy=remedy)
    return NBestCTCDecoder(decoder, nbest)


def transcripts_or_error(result: Transcribed) -> list[Transcript]:
    """The transcripts.

    Raises:
        DataError: some recordings could not be read; all are named.
    """
    if result.faults:
        problems = "; ".join(result.faults[position] for position in sorted(result.faults))
        raise DataError(f"{len(result.faults)} of the recordings cannot be read: {problems}")
    return result.transcripts


def _path_wires(
    model: Model, wires: Wires, sample_rate: int, batch_seconds: float, factory: NeuralModuleFactory
) -> list[NmTensor]:
    """The CTC path (B, T), the log-probability of each frame's label (B, T) and the valid frames (B,).

    With an n-best also its ids (B, N, U) and scores (B, N).
    """
    assert wires.features is not None
    features = Signal(wires.features, wires.feature_lengths)
    source = signals_of(FeatureSource(features)())[0]
    encoded, *_ = connect_by_type(model.encoder, source)
    log_probs, *_ = connect_by_type(model.decoder, encoded)
    assert features.lengths is not None
    assert log_probs.lengths is not None
    samples_of_frame = stride_of(features.values) or 1
    plan = _plan(model, log_probs.values, sample_rate / samples_of_frame, batch_seconds)
    if isinstance(model.greedy, GreedyCTCDecoder):
        # Greedy decoding looks at each frame alone, so log-probabilities need not be kept.
        path = connect_by_type(model.greedy, log_probs)[0].values
        scores = PathScores()(log_probs=log_probs.values, path=path, length=log_probs.lengths)
        return list(Windowed([path, scores], log_probs.lengths, plan, factory)(features.values, features.lengths))
    whole, lengths = Windowed([log_probs.values], log_probs.lengths, plan, factory)(features.values, features.lengths)
    predictions, *found = (each.values for each in connect_by_type(model.greedy, Signal(whole, lengths)))
    path = LabelAlignment()(log_probs=whole, length=lengths, predictions=predictions)
    return [path, PathScores()(log_probs=whole, path=path, length=lengths), lengths, *found[:2]]


def _plan(model: Model, log_probs: NmTensor, frames_a_second: float, batch_seconds: float) -> WindowPlan | None:
    """The windows of a model; None where it is not known which frames of features make which of the output."""
    stride = stride_of(log_probs)
    if stride is None:
        return None
    longest, guess = (int(seconds * frames_a_second) for seconds in (batch_seconds, GUESSED_CONTEXT_SECONDS))
    return plan_windows(stride, context_frames(model), longest, guess)
