"""Greedy search of transducers, in numpy: recordings side by side, or one frame after the other in a stream.

The state of a search is ``frames`` (T, joint_hidden): encoded frames as the joint network has projected them. What the
networks compute comes from `TransducerNetworks`: of torch, or of exported files. No torch in here.

Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012; durations: Xu et al., "Efficient Sequence
Transduction by Jointly Predicting Tokens and Durations", ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.search.search import FrameByFrame, Hypotheses, States, TimedLabels, refuse_no_numbers
from nemo_asr.run.search.transducer_align import TransducerAligner
from nemo_lite.base.errors import UsageError

Array: TypeAlias = "npt.NDArray[Any]"
Memory: TypeAlias = "tuple[Array, ...]"
"""What a prediction network remembers of N hypotheses: arrays (N, ...), of which the first is what the joint reads."""

FRAMES = "frames"
"""The state that is read."""
MAX_SYMBOLS = 10
"""Most labels at one frame, as in NeMo: a network that gives no blank moves on after them."""
_AT_ONCE = 8
"""Frames that are looked at together: as many recordings side by side, or of one recording as many frames in a row."""


class TransducerNetworks(Protocol):
    """The prediction network and the joint network, in some runtime."""

    @property
    def blank(self) -> int:
        """Its output. Labels are the first outputs, and big blanks those directly in front of the blank."""

    @property
    def durations(self) -> Sequence[int]:
        """Frames by which each output behind the blank goes on; empty: those of an RNN-T."""

    @property
    def big_blank_durations(self) -> Sequence[int]:
        """Frames by which big blanks go on; the first one is directly in front of the blank."""

    def beginning(self, number: int) -> Memory:
        """Of so many hypotheses without a label. The arrays are new."""

    def after(self, labels: Array, memory: Memory) -> Memory:
        """Behind one more label (N,) of each."""

    def scores(self, frames: Array, memory: Memory) -> Array:
        """Of a frame (N, joint_hidden) for each hypothesis the outputs of the joint network: (N, outputs), float32."""


class Choices(NamedTuple):
    """What follows at a frame, of N hypotheses.

    Attributes:
        outputs: (N,) labels or blanks.
        steps: (N,) frames by which they go on.
        log_probs: (N,) natural logarithms of the outputs' probabilities.
    """

    outputs: Array
    steps: Array
    log_probs: Array


def best_choices(networks: TransducerNetworks, frames: Array, memory: Memory) -> Choices:
    """The most probable output of each hypothesis, and the most probable duration, which a blank has above 0.

    Raises:
        UsageError: the networks give no numbers.
    """
    scores = networks.scores(frames, memory)
    refuse_no_numbers(scores)
    outputs, log_probs = _best(scores[:, : networks.blank + 1])
    is_label = outputs <= last_label(networks)
    if networks.durations:
        durations = np.array(networks.durations)
        steps = durations[scores[:, networks.blank + 1 :].argmax(1)]
        return Choices(outputs, np.where(is_label, steps, np.maximum(steps, 1)), log_probs)
    # How far each output leads: labels not at all, big blanks by theirs, which stand the other way round.
    leads = np.zeros(networks.blank + 1, np.int64)
    leads[last_label(networks) + 1 :] = [*reversed(networks.big_blank_durations), 1]
    return Choices(outputs, leads[outputs], log_probs)


def last_label(networks: TransducerNetworks) -> int:
    """The last output that is a label."""
    return networks.blank - len(networks.big_blank_durations) - 1


def _best(scores: Array) -> tuple[Array, Array]:
    outputs = scores.argmax(1)
    best = scores[np.arange(len(scores)), outputs]
    return outputs, -np.log(np.exp((scores - best[:, None]).astype(np.float64)).sum(1))


@dataclass(frozen=True)
class Decoded:
    """What greedy search has found in one recording, and where it goes on.

    Attributes:
        labels: so far.
        score: their natural logarithm.
        memory: behind the last label, of this one hypothesis.
        next_frame: where it looks next: behind the frames of a stream that have come, where a duration leads there.
        num_here: labels at that frame so far.
    """

    memory: Memory
    labels: TimedLabels = field(default_factory=lambda: TimedLabels([], [], [], []))
    score: float = 0.0
    next_frame: int = 0
    num_here: int = 0


class GreedyTransducer:
    """Greedy search: at each frame the most probable output, labels until a blank.

    Args:
        networks: what computes.
        max_symbols: most labels at one frame.
    """

    def __init__(self, networks: TransducerNetworks, max_symbols: int = MAX_SYMBOLS) -> None:
        self._networks, self._max_symbols = networks, max_symbols

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `Search`."""
        if nbest > 1:
            problem, remedy = "greedy decoding gives one text", "search with a beam"
            raise UsageError(problem, got=f"nbest {nbest}", remedy=remedy)
        (found,) = self.decode([states[FRAMES]])
        return Hypotheses(found.labels)

    def stream(self, most_frames: int = 0) -> FrameByFrame[Decoded]:
        """See `Search`."""
        return FrameByFrame(Decoded(self._networks.beginning(1)), self._next)

    def aligner(self) -> TransducerAligner:
        """See `Search`."""
        return TransducerAligner(self._networks, self._max_symbols)

    def decode(self, recordings: Sequence[Array]) -> list[Decoded]:
        """What is said in recordings, each (T, joint_hidden), computed side by side.

        At each step every recording that has not ended looks at frames of its own: none waits for another one. Most
        outputs are blanks, behind which the memory stays. So few recordings look at several frames at once, and those
        behind a label for nothing: the weights are read once for all of them, which is what takes the time.
        """
        number = len(recordings)
        ends = np.array([len(frames) for frames in recordings], np.int64)
        padded = np.zeros((number, max([1, *ends]), recordings[0].shape[1] if number else 0), np.float32)
        for row, frames in enumerate(recordings):
            padded[row, : len(frames)] = frames
        found: list[TimedLabels] = [TimedLabels([], [], [], []) for _ in recordings]
        totals, now, num_here = [0.0] * number, [0] * number, [0] * number
        memory = self._networks.beginning(number)
        while len(rows := np.flatnonzero(np.array(now, np.int64) < ends)):
            num_ahead = max(1, _AT_ONCE // len(rows))
            ahead = np.array(now)[rows, None] + np.arange(num_ahead)
            frames = padded[rows[:, None], np.minimum(ahead, ends[rows, None] - 1)].reshape(-1, padded.shape[2])
            chosen = best_choices(self._networks, frames, take(memory, np.repeat(rows, num_ahead)))
            outputs, steps, log_probs = (each.reshape(ahead.shape).tolist() for each in chosen)
            said, labels = list[int](), list[int]()
            for place, row in enumerate(rows.tolist()):
                first = now[row]
                while (at := now[row] - first) < num_ahead and now[row] < ends[row]:
                    output, step, log_prob = outputs[place][at], steps[place][at], log_probs[place][at]
                    totals[row] += log_prob
                    is_label = output <= last_label(self._networks)
                    num_here[row] += is_label
                    moved = 1 if step == 0 and num_here[row] >= self._max_symbols else step
                    if is_label:
                        _append(found[row], output, now[row], step, log_prob)
                        said.append(row)
                        labels.append(output)
                    now[row] += moved
                    if moved:
                        num_here[row] = 0
                    if is_label:  # the frames behind it are to be heard with another memory
                        break
            if said:
                after = self._networks.after(np.array(labels), take(memory, np.array(said)))
                for kept, new in zip(memory, after, strict=True):
                    kept[said] = new
        return [
            Decoded(take(memory, np.array([row])), labels, totals[row], now[row]) for row, labels in enumerate(found)
        ]

    def _next(self, states: States, frame: int, before: Sequence[Decoded]) -> Sequence[Decoded]:
        (said,) = before
        while said.next_frame == frame:
            chosen = best_choices(self._networks, states[FRAMES][None], said.memory)
            (output,), (step,), (log_prob,) = chosen
            memory = said.memory
            if output <= last_label(self._networks):
                memory = self._networks.after(chosen.outputs, memory)
                _append(said.labels, int(output), frame, int(step), float(log_prob))
            num_here = said.num_here + 1
            if step == 0 and num_here >= self._max_symbols:
                step = 1
            said = replace(
                said,
                memory=memory,
                score=said.score + float(log_prob),
                next_frame=frame + int(step),
                num_here=0 if step else num_here,
            )
        return [said]


def take(memory: Memory, rows: Array) -> Memory:
    """The memory of some hypotheses."""
    return tuple(part[rows] for part in memory)


def _append(labels: TimedLabels, label: int, frame: int, step: int, log_prob: float) -> None:
    # A label lasts for its duration, and at least for its frame; what is said of it holds for each of its frames.
    num_frames = max(step, 1)
    for kept, new in zip(labels, (label, frame, frame + num_frames, num_frames * log_prob), strict=True):
        kept.append(new)  # type: ignore[attr-defined]  # made as lists here
