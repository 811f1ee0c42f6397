"""Streams by frames: a model whose modules run in chunks gives, however audio arrives, the text of the whole recording.

Where a part ends (`EndpointRules`) decides when words are final, not what they are. Streams of models that cannot:
`SegmentStream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import soxr
import torch

from nemo_asr.audio.segments import Samples
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.tasks.families import Model, connect
from nemo_asr.text.labels import has_words, spelled
from nemo_asr.transcribe.engine import StandIn
from nemo_asr.transcribe.inputs import Recording
from nemo_asr.transcribe.stream import Partial
from nemo_asr.transcribe.transcript import TimedLabels, labels_of_path, refuse_no_probabilities, transcript_of
from nemo_lite.backends.pytorch.streaming import StreamedDag, lower_to_stream
from nemo_lite.core.dag import slice_between
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.errors import UsageError

_MOST_SECONDS = 8.0  # that are computed at once
_LOWEST_RATE, _HIGHEST_RATE = 1000, 768_000


@dataclass(frozen=True)
class EndpointRules:
    """When a part of a stream ends; its text is final then. All in seconds, counted in frames of the model.

    Attributes:
        silence: without a label, where nothing was said.
        pause: without a label, after something was said.
        longest: of a part; it ends before its last word then.
    """

    silence: float = 2.4
    pause: float = 1.2
    longest: float = 20.0

    def __post_init__(self) -> None:
        if not all(seconds > 0 for seconds in (self.silence, self.pause, self.longest)):
            raise UsageError("rules of endpoints are seconds above 0", got=str(self))


class StreamedModel(NamedTuple):
    """A model that runs in chunks, of which many streams can be made.

    Attributes:
        dag: samples and their number to log-probabilities.
        labels: the vocabulary.
        sample_rate: samples a second that it takes.
        frame_samples: samples of one frame of log-probabilities.
        hop_samples: samples of one frame of features.
    """

    dag: StreamedDag
    labels: Sequence[str]
    sample_rate: int
    frame_samples: int
    hop_samples: int

    @property
    def look_ahead(self) -> float:
        """Seconds of audio behind the beginning of a frame that its log-probabilities wait for."""
        return self.dag.delay.look_ahead / self.sample_rate


def streamed_model(model: Model, labels: Sequence[str], sample_rate: int) -> StreamedModel:
    """The model as it runs in chunks, in evaluation mode, where its modules are.

    Raises:
        UsageError: it cannot: all its modules that see the whole utterance are named, with the reason; or it has a
            search of its own, or no log-probabilities.
    """
    audio = StandIn(
        {
            "audio_signal": NeuralType("B T", AudioSignal(freq=sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
        }
    )
    sources = audio()
    wires = connect(model, sources)
    if wires.log_probs is None or not isinstance(wires.predictions.call.module, GreedyCTCDecoder):
        got = wires.predictions.call.module.label
        raise UsageError("only greedy CTC decoding streams by frames", got=got, remedy="stream in segments")
    dag = lower_to_stream(slice_between(sources, [wires.log_probs])).eval()
    assert wires.features is not None, "there are log-probabilities of them"
    return StreamedModel(dag, list(labels), sample_rate, dag.delay.stride, dag.delays[wires.features].stride)


class FrameStream:
    """A `Stream` of a model that runs in chunks.

    Its final texts, one behind the other, are the text of the whole recording, for any pieces in which it comes.

    Args:
        model: what computes.
        sample_rate: samples a second of the stream.
        rules: when parts end.
        calibration: turns a confidence into a calibrated one.
        name: what messages call the stream.

    Raises:
        UsageError: the rate is out of range.
    """

    def __init__(
        self,
        model: StreamedModel,
        sample_rate: int,
        rules: EndpointRules | None = None,
        calibration: Callable[[float], float] | None = None,
        name: str = "the stream",
    ) -> None:
        if not _LOWEST_RATE <= sample_rate <= _HIGHEST_RATE:
            wanted = f"{_LOWEST_RATE} to {_HIGHEST_RATE} Hz"
            raise UsageError("the sample rate is out of range", got=f"{sample_rate} Hz", wanted=wanted)
        self._model, self._rules, self._calibration, self._name = model, rules or EndpointRules(), calibration, name
        rates = sample_rate, model.sample_rate
        self._resampler = None if rates[0] == rates[1] else soxr.ResampleStream(*rates, 1, dtype="float32")
        self._state = model.dag.initial_state(1)
        self._num_samples = 0
        self._num_done = 0  # frames before the open part
        self._path: list[int] = []  # of the open part: the label of each frame,
        self._scores: list[float] = []  # and its log-probability
        self._num_silent = 0  # frames at the end of it without a label
        self._ids: list[int] = []  # labels before it
        self._shown = ""

    @property
    def seconds(self) -> float:
        """Of audio that came."""
        return self._num_samples / self._model.sample_rate

    @property
    def num_frames(self) -> int:
        """Frames whose labels are known."""
        return self._num_done + len(self._path)

    @property
    def text(self) -> str:
        """See `Stream`: the text that `transcribe` gives of the whole recording, where it is not cut."""
        ids = [*self._ids, *self._open().ids]
        labels = [spelled(label) for label in self._model.labels]
        found = TimedLabels(ids, range(len(ids)), range(1, len(ids) + 1), [0.0] * len(ids))
        words = ("".join(labels[ids[position]] for position in word).strip() for word in found.words(labels))
        return (" " if has_words(labels) else "").join(words)

    def accept(self, samples: Samples) -> list[Partial]:
        """See `Stream`."""
        samples = np.asarray(samples, np.float32)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        return self._with_partial(self._finals(samples, last=False)) if len(samples) else []

    def finish(self) -> list[Partial]:
        """See `Stream`."""
        rest = np.zeros(0, np.float32)
        if self._resampler is not None:
            rest = self._resampler.resample_chunk(rest, last=True)
        if not self._num_samples and not len(rest):
            return []
        events = self._finals(rest, last=True)
        return [*events, *self._final(len(self._path))]

    def _finals(self, samples: Samples, last: bool) -> list[Partial]:
        """The parts that end with these samples."""
        self._num_samples += len(samples)
        most = int(_MOST_SECONDS * self._model.sample_rate)
        pieces = [samples[first : first + most] for first in range(0, len(samples), most)] or [samples]
        events: list[Partial] = []
        for index, piece in enumerate(pieces):
            for label, score in self._decoded(piece, last and index == len(pieces) - 1):
                events += self._append(label, score)
        return events

    @torch.no_grad()
    def _decoded(self, samples: Samples, last: bool) -> Iterator[tuple[int, float]]:
        """The labels of the frames that these samples complete, and their log-probabilities."""
        dag = self._model.dag
        device = next((tensor.device for tensor in self._state.values()), torch.device("cpu"))
        signal = torch.from_numpy(np.ascontiguousarray(samples)).to(device).unsqueeze(0)
        length = torch.tensor([len(samples)], device=device)
        (log_probs,), self._state = dag(signal, length, state=self._state, last=last)
        if not log_probs.shape[1]:
            return iter(())
        sums = log_probs.float().logsumexp(2).flatten()
        refuse_no_probabilities(float(sums[sums.abs().argmax()]))
        scores, path = log_probs[0].max(dim=1)
        return zip(path.tolist(), scores.tolist(), strict=True)

    def _append(self, label: int, score: float) -> list[Partial]:
        """One more frame; the part that ends with it."""
        self._path.append(label)
        self._scores.append(score)
        self._num_silent = self._num_silent + 1 if label == len(self._model.labels) else 0
        seconds = self._model.frame_samples / self._model.sample_rate
        rules, num_frames = self._rules, len(self._path)
        if self._num_silent == num_frames:
            return self._final(num_frames) if num_frames * seconds >= rules.silence else []
        if self._num_silent * seconds >= rules.pause:
            return self._final(num_frames)
        if num_frames * seconds < rules.longest:
            return []
        found = self._open()
        words = list(found.words([spelled(label) for label in self._model.labels]))
        # The last word may go on, and so may what is before it: a space alone begins it.
        first = words[-1][0] if len(words) > 1 else 0
        if first and spelled(self._model.labels[found.ids[first - 1]]) == " ":
            first -= 1
        return self._final(found.starts[first]) if first else []

    def _open(self) -> TimedLabels:
        """The labels of the open part."""
        return labels_of_path(np.array(self._path, np.int64), np.array(self._scores), len(self._model.labels))

    def _final(self, num_frames: int) -> list[Partial]:
        """End the open part after some of its frames."""
        found = self._open()
        number = sum(end <= num_frames for end in found.ends)
        events = []
        if number or self._shown:
            events.append(self._event(found.part(0, number), num_frames, is_final=True))
        self._ids += found.ids[:number]
        self._num_done += num_frames
        del self._path[:num_frames], self._scores[:num_frames]
        self._num_silent = min(self._num_silent, len(self._path))
        self._shown = ""
        return events

    def _with_partial(self, events: list[Partial]) -> list[Partial]:
        """With the open part, where its text has changed."""
        found = self._open()
        event = self._event(found, len(self._path), is_final=False)
        if event.text == self._shown:
            return events
        self._shown = event.text
        return [*events, event]

    def _event(self, found: TimedLabels, num_frames: int, is_final: bool) -> Partial:
        seconds = self._model.frame_samples / self._model.sample_rate
        start = self._num_done * seconds
        whole = Recording(self._name, np.zeros(0, np.float32), self._model.sample_rate, seconds=self.seconds)
        transcript = transcript_of(found, self._model.labels, whole, seconds, start, self._calibration)
        end = min(start + num_frames * seconds, self.seconds)
        return Partial(transcript.text, transcript.words, is_final, round(start, 3), round(end, 3))
