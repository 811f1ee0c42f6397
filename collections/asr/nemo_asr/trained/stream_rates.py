"""What a model's streams are worth: their texts against those of whole recordings, their latency and their speed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import EndpointRules, FrameStream
from nemo_asr.scoring.intervals import paired_test, utterance_errors
from nemo_asr.trained.folder import StreamRate
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.streamed_model import StreamedModel
from nemo_lite import NeuralModuleFactory

_CHUNK_SECONDS = 0.1  # of audio that come together


def rate_streams(
    model: TrainedModel,
    name: str,
    recordings: Sequence[Recording],
    references: Sequence[str],
    factory: NeuralModuleFactory | None = None,
    search: str = "",
) -> list[StreamRate]:
    """Hear recordings whole and as streams, by the model's search, with each context that attention was trained with.

    Latency is counted from the end of a frame to when its label is known: audio that the frame waits for, and the
    computing of the chunk that completes it.

    Args:
        model: streams by frames.
        name: of the set.
        recordings: what is heard.
        references: what is said in each.
        factory: where to run, in one process.
        search: what the rates say of the search; see `StreamRate`.

    Raises:
        UsageError: the model cannot stream.
        DataError: a recording cannot be read.
    """
    model.streamed(factory)  # or the reason why it cannot
    encoder = model.modules.encoder
    stream_rates: list[StreamRate] = []
    contexts = list(dict.fromkeys(getattr(encoder, "att_context_sizes", [None])))
    try:
        for context in contexts:
            if context is not None:
                encoder.set_default_att_context_size(context)  # type: ignore[attr-defined]  # it has contexts
            rate = _rate(model, name, recordings, references, factory, context)
            stream_rates.append(msgspec.structs.replace(rate, search=search))
    finally:
        if contexts[0] is not None:
            encoder.set_default_att_context_size(contexts[0])  # type: ignore[attr-defined]
    return stream_rates


def _rate(
    model: TrainedModel,
    name: str,
    recordings: Sequence[Recording],
    references: Sequence[str],
    factory: NeuralModuleFactory | None,
    context: tuple[int, int] | None,
) -> StreamRate:
    streamed = model.streamed(factory)
    heard = model.transcribe(recordings, cutting=None, factory=factory, batch_size=1, count_gaps=True)
    whole = [transcript.text for transcript in heard]
    texts, latencies, busy, num_seconds = [], list[float](), 0.0, 0.0
    reading = model.recipe.reading
    for recording in recordings:
        audio = recording.read(streamed.sample_rate, trim_silence=reading.trim_silence, int_values=reading.int_values)
        stream = FrameStream(streamed, streamed.sample_rate, EndpointRules())
        start = time.perf_counter()
        latencies += _latencies(stream, streamed, audio.samples, max(1, round(_CHUNK_SECONDS * streamed.sample_rate)))
        busy += time.perf_counter() - start
        num_seconds += stream.seconds
        texts.append(stream.text)
    use_cer = main_metric(model.recipe.labels) == "cer"
    test = paired_test(utterance_errors(whole, references, use_cer), utterance_errors(texts, references, use_cer))
    is_scored = math.isfinite(test.rate_a) and math.isfinite(test.rate_b)
    median, most = np.percentile(latencies, [50, 95]) if latencies else (0.0, 0.0)
    return StreamRate(
        set=name,
        context=None if context is None else list(context),
        chunk_seconds=_CHUNK_SECONDS,
        look_ahead=round(streamed.look_ahead, 4),
        latency=round(float(median), 4),
        latency_95=round(float(most), 4),
        real_time_factor=round(busy / max(num_seconds, 1e-3), 4),
        utterances=len(texts),
        equal=sum(a == b for a, b in zip(texts, whole, strict=True)),
        metric="cer" if use_cer else "wer",
        rate=test.rate_b if is_scored else None,
        whole_rate=test.rate_a if is_scored else None,
        difference=[test.interval.low, test.interval.high] if is_scored else [],
    )


def _latencies(stream: FrameStream, model: StreamedModel, samples: np.ndarray, size: int) -> Iterator[float]:
    """Of each frame that is known before the recording ends, in seconds."""
    frame, done = model.frame_samples / model.sample_rate, 0
    for first in range(0, len(samples), size):
        start = time.perf_counter()
        stream.accept(samples[first : first + size])
        now = stream.seconds + time.perf_counter() - start
        yield from (now - (number + 1) * frame for number in range(done, stream.num_frames))
        done = stream.num_frames
    stream.finish()


def stream_table(rates: Sequence[StreamRate]) -> str:
    """The rates as a table in Markdown."""
    metric = rates[0].metric.upper()
    lines = [
        f"| context | look-ahead | latency (median) | latency (95 %) | real-time factor | {metric} | texts equal |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate in rates:
        context = "" if rate.context is None else str(rate.context)
        equal = f"{rate.equal} of {rate.utterances}"
        if rate.equal < rate.utterances and rate.difference:
            low, high = rate.difference
            equal += f"; {metric} of whole recordings {rate.whole_rate:.2%}, difference {low:+.2%} to {high:+.2%}"
        times = " | ".join(f"{1000 * seconds:.0f} ms" for seconds in (rate.look_ahead, rate.latency, rate.latency_95))
        errors = "no texts" if rate.rate is None else f"{rate.rate:.2%}"
        lines.append(f"| {context} | {times} | {rate.real_time_factor:.2g} | {errors} | {equal} |")
    return "\n".join(lines)
