"""Networks of a transducer in numpy, with random or chosen scores, and the plainest greedy search of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"

HIDDEN = 6


class RandomNetworks:
    """`TransducerNetworks` with random weights; the memory is that of a recurrent network.

    Args:
        seed: of the weights.
        num_labels: without blanks.
        durations, big_blank_durations: of the outputs behind the blank, and in front of it.
        scale: of the scores: how sure it is.
    """

    def __init__(
        self,
        seed: int = 0,
        num_labels: int = 3,
        durations: Sequence[int] = (),
        big_blank_durations: Sequence[int] = (),
        scale: float = 2.0,
    ) -> None:
        random = np.random.default_rng(seed)
        self.blank, self.durations = num_labels + len(big_blank_durations), tuple(durations)
        self.big_blank_durations = tuple(big_blank_durations)
        self._head = scale * random.standard_normal((HIDDEN, self.blank + 1 + len(durations))).astype(np.float32)
        self._embedding = random.standard_normal((num_labels, HIDDEN)).astype(np.float32)
        self._again = random.standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
        self.num_evaluated = 0
        self.num_calls = 0

    def beginning(self, number: int) -> tuple[Array, ...]:
        """Zeros."""
        return (np.zeros((number, HIDDEN), np.float32),)

    def after(self, labels: Array, memory: tuple[Array, ...]) -> tuple[Array, ...]:
        """A recurrence."""
        return (np.tanh(_product(memory[0], self._again) + self._embedding[labels]),)

    def scores(self, frames: Array, memory: tuple[Array, ...]) -> Array:
        """Of the sum of both."""
        self.num_evaluated += len(frames)
        self.num_calls += 1
        return _product(np.maximum(frames + memory[0], 0), self._head)


def _product(rows: Array, matrix: Array) -> Array:
    """In float32, and of each row the same whatever the others are: in float32 alone, BLAS may sum in another order."""
    product: Array = (rows.astype(np.float64) @ matrix.astype(np.float64)).astype(np.float32)
    return product


class ChosenNetworks:
    """`TransducerNetworks` whose scores are chosen for a frame, by its number, and the labels so far.

    Args:
        scores_of: from the number of a frame and the labels so far to the scores of all outputs.
        blank, durations: see `TransducerNetworks`.
    """

    big_blank_durations: Sequence[int] = ()

    def __init__(
        self, scores_of: Callable[[int, tuple[int, ...]], Sequence[float]], blank: int, durations: Sequence[int] = ()
    ) -> None:
        self._scores_of, self.blank, self.durations = scores_of, blank, durations
        self._texts: list[tuple[int, ...]] = [()]

    def beginning(self, number: int) -> tuple[Array, ...]:
        """The number of the empty text."""
        return (np.zeros((number, 1), np.int64),)

    def after(self, labels: Array, memory: tuple[Array, ...]) -> tuple[Array, ...]:
        """The numbers of longer texts."""
        numbers = []
        for label, number in zip(labels.tolist(), memory[0][:, 0].tolist(), strict=True):
            self._texts.append((*self._texts[number], label))
            numbers.append(len(self._texts) - 1)
        return (np.array(numbers)[:, None],)

    def scores(self, frames: Array, memory: tuple[Array, ...]) -> Array:
        """As chosen."""
        pairs = zip(frames[:, 0].tolist(), memory[0][:, 0].tolist(), strict=True)
        return np.array([self._scores_of(round(frame), self._texts[number]) for frame, number in pairs], np.float32)


def numbered(num_frames: int) -> Array:
    """Frames (T, 1) for `ChosenNetworks`: each is its number."""
    return np.arange(num_frames, dtype=np.float32)[:, None]


def random_frames(num_frames: int, seed: int = 0) -> Array:
    """Frames (T, HIDDEN) for `RandomNetworks`."""
    return 2 * np.random.default_rng(seed).standard_normal((num_frames, HIDDEN)).astype(np.float32)


def log_softmax(scores: Array) -> Array:
    """In float64."""
    scores = scores.astype(np.float64)
    shifted: Array = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def plain_greedy(networks: Any, frames: Array, max_symbols: int = 10) -> list[tuple[int, int, int, float]]:
    """Labels with start, duration and log-probability of one recording, output by output, as the definition says it."""
    said, frame, num_here, memory = [], 0, 0, networks.beginning(1)
    blanks = {networks.blank: 1}
    blanks |= {networks.blank - 1 - k: step for k, step in enumerate(networks.big_blank_durations)}
    while frame < len(frames):
        (scores,) = networks.scores(frames[frame : frame + 1], memory)
        output = int(scores[: networks.blank + 1].argmax())
        duration = networks.durations[int(scores[networks.blank + 1 :].argmax())] if networks.durations else 0
        if output in blanks:
            frame, num_here = frame + (max(duration, 1) if networks.durations else blanks[output]), 0
            continue
        said.append((output, frame, duration, float(log_softmax(scores[: networks.blank + 1])[output])))
        memory = networks.after(np.array([output]), memory)
        num_here += 1
        if duration == 0 and num_here == max_symbols:
            duration = 1
        frame, num_here = frame + duration, num_here if duration == 0 else 0
    return said
