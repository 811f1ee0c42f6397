"""Whether a model's transcripts depend on how it is run: batches, their order, padding, windows, chunks, threads.

Each recording is heard alone first. What is heard in another way must have the same text, the same words at the same
times, and the same duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.transcribe.driver import row_transcriber
from nemo_asr.run.transcribe.inputs import Recording, named
from nemo_asr.run.transcribe.stream import EndpointRules, FrameStream
from nemo_asr.run.transcribe.transcript import Transcript, Word
from nemo_asr.trained.folder import Certificate, CertifiedSetting
from nemo_asr.trained.model import ModelEngine, TrainedModel
from nemo_lite import NeuralModuleFactory
from nemo_lite.base.errors import DataError, UsageError

_BATCH = 8
_CHUNK_SECONDS = 0.37  # no multiple of a frame
_SHORTEST_WINDOW = 0.01  # seconds; a plan makes it as long as the context asks for
_ORDER_SEED = 1
_ONE_PART = EndpointRules(silence=1e4, pause=1e4, longest=1e4)

Heard: TypeAlias = tuple[str, tuple[tuple[str, float, float], ...], float]
"""What is compared of a transcript: text, words with start and end, duration."""


class Difference(NamedTuple):
    """A recording that is heard otherwise.

    Attributes:
        setting: how it was heard.
        name: of the recording.
        alone, heard: its transcript alone, and so.
    """

    setting: str
    name: str
    alone: Heard
    heard: Heard

    def __str__(self) -> str:
        alone, heard = (f'"{each[0]}"' if self.alone[0] != self.heard[0] else f"{each[1:]}" for each in self[2:])
        return f"{self.setting}: {self.name}: {heard}, alone {alone}"


def certify(
    model: TrainedModel,
    name: str,
    recordings: Sequence[Recording],
    factory: NeuralModuleFactory | None = None,
    search: str = "",
) -> tuple[Certificate, list[Difference]]:
    """Hear recordings in several ways.

    Args:
        model: with its search.
        name: of the set.
        recordings: of it. Those longer than the model hears at once are left out.
        factory: where to run, in one process.
        search: what the certificate says of the search.

    Returns:
        The certificate, and the recordings that differ.

    Raises:
        UsageError: no recording is left.
        DataError: a recording cannot be read.
    """
    engine = ModelEngine(model, factory)
    longest = engine.longest_seconds or float("inf")
    rows = [row for row in map(_measured, recordings) if 0 < row.seconds <= longest]
    if not rows:
        raise UsageError("a certificate needs recordings", place=name, got="none that the model hears at once")
    ways = _Ways(model, engine, rows)
    settings, differences = [], list[Difference]()
    for setting, hear in ways.all():
        try:
            heard, expected = hear()
        except _NotSo as reason:
            settings.append(CertifiedSetting(name=setting, problem=str(reason)))
            continue
        pairs = zip(rows, expected, heard, strict=True)
        found = [Difference(setting, row.source, alone, here) for row, alone, here in pairs if alone != here]
        settings.append(CertifiedSetting(name=setting, differing=len(found)))
        differences += found
    certificate = Certificate(
        set=name,
        search=search,
        utterances=len(rows),
        device=str(engine.factory.device.type),
        precision=engine.factory.optim_level.name.removeprefix("mxpr"),
        torch=str(torch.__version__),
        settings=settings,
    )
    return certificate, differences


def certificate_table(certificate: Certificate) -> str:
    """The settings as a table in Markdown."""
    lines = ["| heard | differing from alone |", "|---|---|"]
    for setting in certificate.settings:
        told = setting.problem if setting.differing is None else f"{setting.differing} of {certificate.utterances}"
        lines.append(f"| {setting.name} | {told} |")
    return "\n".join(lines)


class _NotSo(Exception):  # noqa: N818 - no fault
    """A model cannot be run in a way; with the reason."""


def _measured(recording: Recording) -> Recording:
    try:
        return recording.measured()
    except DataError as error:
        raise DataError(named(recording, error)) from None


class _Ways:
    """The ways in which rows are heard; each gives what was heard, and what should have been."""

    def __init__(self, model: TrainedModel, engine: ModelEngine, rows: Sequence[Recording]) -> None:
        self._model, self._engine, self._rows = model, engine, rows
        self._hear = row_transcriber(engine, TranscriptionSettings(cutting=None))
        self._alone = self._in_batches(1, range(len(rows)))

    def all(self) -> Iterator[tuple[str, Callable[[], tuple[list[Heard], list[Heard]]]]]:
        """Names and functions."""
        forwards = list(range(len(self._rows)))
        shuffled = np.random.default_rng(_ORDER_SEED).permutation(forwards).tolist()
        yield f"in batches of {_BATCH}", lambda: (self._in_batches(_BATCH, forwards), self._alone)
        yield "in another order", lambda: (self._in_batches(_BATCH, shuffled), self._alone)
        yield "beside a recording twice as long as the longest", lambda: (self._padded(), self._alone)
        yield "in windows", self._windows
        yield f"as a stream, {_CHUNK_SECONDS:g} s at a time", self._streamed
        yield "by another number of threads", lambda: (self._in_threads(), self._alone)
        yield "alone again", lambda: (self._in_batches(1, forwards[::-1]), self._alone)

    def _in_batches(self, size: int, order: Sequence[int], beside: Sequence[Recording] = ()) -> list[Heard]:
        """Rows as heard in batches of an order, each with more rows beside; in the order of the rows."""
        heard: dict[int, Heard] = {}
        for first in range(0, len(order), size):
            numbers = order[first : first + size]
            transcripts = self._hear([*beside, *(self._rows[number] for number in numbers)]).or_error()
            heard.update(zip(numbers, map(_heard, transcripts[len(beside) :]), strict=True))
        return [heard[number] for number in range(len(self._rows))]

    def _padded(self) -> list[Heard]:
        longest = max(self._rows, key=lambda row: row.seconds)
        return self._in_batches(_BATCH - 1, range(len(self._rows)), [self._repeated(longest, 2 * longest.seconds)])

    def _windows(self) -> tuple[list[Heard], list[Heard]]:
        """Each recording is repeated until it is longer than two windows; whole, and in windows."""
        settings = TranscriptionSettings(cutting=None, batch_seconds=_SHORTEST_WINDOW)
        plan = self._engine.window_plan(settings)
        if plan is None or not plan.is_exact:
            raise _NotSo("not so: a frame may depend on the whole recording")
        rows = [self._repeated(row, 2.5 * plan.longest * self._frame_seconds(plan.stride)) for row in self._rows]
        hear = row_transcriber(self._engine, settings)
        heard = [[_heard(run([row]).or_error()[0]) for row in rows] for run in (hear, self._hear)]
        return heard[0], heard[1]

    def _frame_seconds(self, stride: int) -> float:
        return (self._model.card.frame_seconds or 0.01 * stride) / stride

    def _streamed(self) -> tuple[list[Heard], list[Heard]]:
        try:
            streamed = self._engine.frame_model()
        except UsageError as error:
            raise _NotSo(f"not so: {error.problem}") from None
        heard = []
        for row in self._rows:
            samples = self._samples_of(row)
            stream = FrameStream(streamed, streamed.sample_rate, _ONE_PART)
            size = max(1, round(_CHUNK_SECONDS * streamed.sample_rate))
            parts = [stream.accept(samples[first : first + size]) for first in range(0, len(samples), size)]
            finals = [part for part in [*(p for each in parts for p in each), *stream.finish()] if part.is_final]
            words = _times(tuple(word for part in finals for word in part.words))
            # A stream counts the model's samples, of which resampling may give one more or less.
            is_whole = abs(stream.seconds - row.seconds) <= 2 / streamed.sample_rate
            heard.append((stream.text, words, round(row.seconds if is_whole else stream.seconds, 3)))
        return heard, self._alone

    def _in_threads(self) -> list[Heard]:
        number = torch.get_num_threads()
        torch.set_num_threads(1 if number > 1 else 2)
        try:
            return self._in_batches(_BATCH, range(len(self._rows)))
        finally:
            torch.set_num_threads(number)

    def _samples_of(self, row: Recording) -> np.ndarray:
        reading = self._model.recipe.reading
        rate = self._engine.sample_rate
        return row.read(rate, trim_silence=reading.trim_silence, int_values=reading.int_values).samples

    def _repeated(self, row: Recording, seconds: float) -> Recording:
        """At least so many seconds of a recording again and again, as far as the model hears them at once."""
        seconds, rate = min(seconds, self._engine.longest_seconds or seconds), self._engine.sample_rate
        samples = np.resize(self._samples_of(row), max(1, int(seconds * rate)))
        return Recording(row.source, samples, rate, seconds=len(samples) / rate)


def _heard(transcript: Transcript) -> Heard:
    return transcript.text, _times(transcript.words), transcript.duration


def _times(words: Sequence[Word]) -> tuple[tuple[str, float, float], ...]:
    return tuple((word.text, word.start, word.end) for word in words)
