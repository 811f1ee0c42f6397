"""The networks of a transducer as parts of an exported file, for its search. No torch, and no runtime in this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from nemo_asr.run.search.parts import Parts
from nemo_asr.run.search.transducer import Array, Memory

PREDICTION, JOINT = "prediction", "joint"
"""Names of the parts."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_Duration = Annotated[int, msgspec.Meta(ge=0, le=1_000)]


class MemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of the memory of a prediction network, as it begins.

    Args:
        shape: of one hypothesis.
        fill: what all its values are.
        is_labels: it holds label ids, not numbers.
    """

    shape: Annotated[list[_Size], msgspec.Meta(min_length=1, max_length=4)]
    fill: float = 0.0
    is_labels: bool = False

    def beginning(self, number: int) -> Array:
        """Of so many hypotheses."""
        return np.full((number, *self.shape), self.fill, np.int64 if self.is_labels else np.float32)


class TransducerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file says of a transducer beside its labels.

    Args:
        durations: frames by which each output behind the blank goes on.
        big_blank_durations: frames by which big blanks go on.
        max_symbols: most labels at one frame.
        memory: of the prediction network, in the order of its inputs.
    """

    durations: list[_Duration]
    big_blank_durations: list[_Duration]
    max_symbols: Annotated[int, msgspec.Meta(ge=1, le=1_000)]
    memory: list[MemorySettings]


class ExportedNetworks:
    """`TransducerNetworks` over the parts of a file.

    Args:
        parts: of the file.
        num_labels: the vocabulary, without blanks.
    """

    def __init__(self, parts: Parts, num_labels: int) -> None:
        self.settings = msgspec.convert(parts.settings, TransducerSettings)
        self._prediction, self._joint = parts.networks[PREDICTION], parts.networks[JOINT]
        self._num_labels = num_labels

    @property
    def blank(self) -> int:
        """See `TransducerNetworks`."""
        return self._num_labels + len(self.settings.big_blank_durations)

    @property
    def durations(self) -> Sequence[int]:
        """See `TransducerNetworks`."""
        return self.settings.durations

    @property
    def big_blank_durations(self) -> Sequence[int]:
        """See `TransducerNetworks`."""
        return self.settings.big_blank_durations

    def beginning(self, number: int) -> Memory:
        """See `TransducerNetworks`. The label behind the last one stands for the beginning."""
        memory = (each.beginning(number) for each in self.settings.memory)
        return tuple(self._prediction(np.full(number, self._num_labels), *memory))

    def after(self, labels: Array, memory: Memory) -> Memory:
        """See `TransducerNetworks`."""
        return tuple(self._prediction(labels, *memory[1:]))

    def scores(self, frames: Array, memory: Memory) -> Array:
        """See `TransducerNetworks`."""
        (scores,) = self._joint(frames, memory[0])
        return scores
