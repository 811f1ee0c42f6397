"""Long recordings in overlapping windows: the same frames as from the whole recording, in bounded memory.

Features are computed over the whole recording, because their normalisation is over all of it; they are small. The rest
of the model runs on windows of features. Of each window the frames are kept that do not see its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nemo_asr.decoding.hypotheses import time_axis
from nemo_asr.tasks.family import Signal, Wires
from nemo_lite import Dag, NeuralModule, NeuralModuleFactory, NmTensor, NonTrainableNM, logging
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import frames_of

GUESSED_CONTEXT_SECONDS = 10.0
"""Context of models that say no ``context_frames``, such as recurrent ones."""


@dataclass(frozen=True)
class WindowPlan:
    """How features are cut into windows. All numbers are frames of features.

    Attributes:
        core: frames of a window that are kept; a multiple of ``stride``.
        context: frames before and behind the core, likewise.
        stride: frames of features for one frame of the output.
        is_exact: the model sees no further than ``context``, so nothing depends on the windows.
    """

    core: int
    context: int
    stride: int
    is_exact: bool

    @property
    def longest(self) -> int:
        """Frames of the longest window."""
        return self.core + 2 * self.context


def plan_windows(stride: int, context: int | None, longest: int, guessed_context: int) -> WindowPlan:
    """Windows of about ``longest`` frames; longer where the context asks for it.

    Args:
        stride: frames of features for one frame of the output.
        context: frames that a frame of the output sees on each side; None where it sees all.
        longest: frames of a window.
        guessed_context: what is used for a context of None.
    """
    rounded = -(-(guessed_context if context is None else context) // stride) * stride
    # A core shorter than its context on both sides would compute most frames more than twice.
    core = max(longest - 2 * rounded, 2 * rounded, stride)
    return WindowPlan(-(-core // stride) * stride, rounded, stride, context is not None)


def context_frames(modules: Iterable[NeuralModule]) -> int | None:
    """Frames of features that a frame behind some modules depends on, on each side; None: on all, or not known.

    Encoders and decoders say it in an attribute of this name.
    """
    total = 0
    for module in modules:
        context = getattr(module, "context_frames", None)
        if not isinstance(context, int):
            return None
        total += context
    return total


def stride_of(wire: NmTensor) -> int | None:
    """How many frames (or samples) of the data layer one frame of a wire stands for; None where its DAG says not."""
    try:
        frames = frames_of(Dag([wire]), wire)
    except UsageError:
        return None
    # The difference of two lengths: what is added at the ends does not count.
    many = 2**24
    return round(many / (frames(2 * many) - frames(many)))


class Windowed(NonTrainableNM):
    """The part of a model behind its features, in windows where they are longer than one.

    Args:
        outputs: wires that a DAG from a `StandIn` gives, with a time axis.
        lengths: the wire of their valid frames.
        plan: the windows; None: everything at once.
        factory: lowers the DAG.
        name: the module's name.
    """

    def __init__(
        self,
        outputs: Sequence[NmTensor],
        lengths: NmTensor,
        plan: WindowPlan | None,
        factory: NeuralModuleFactory,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._plan = plan
        self._inputs = dict(Dag(outputs).data_layer.output_ports)
        self._outputs = {f"out_{index}": wire.ntype for index, wire in enumerate(outputs)}
        self._time_axes = [time_axis(wire.ntype) for wire in outputs]
        self._has_warned = False
        self.part: torch.nn.Module = factory.lower([*outputs, lengths])

    @property
    def input_ports(self) -> Ports:
        return self._inputs

    @property
    def output_ports(self) -> Ports:
        return {**self._outputs, "out_length": NeuralType("B", LengthsType())}

    def forward(self, features: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """(B, D, T) and valid frames (B,) to the outputs, and their valid frames (B,)."""
        plan, num_frames = self._plan, features.shape[2]
        if plan is None or num_frames <= plan.longest:
            outputs: tuple[Tensor, ...] = self.part(features, length)
            return outputs
        if not plan.is_exact and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "The encoder sees the whole recording (attention, squeeze-and-excitation, recurrence): one "
                "transcribed in windows may get another text than in one piece; --batch_seconds sets their length"
            )
        kept = [self._window(features, length, start, plan) for start in range(0, num_frames, plan.core)]
        *values, lengths = zip(*kept, strict=True)
        whole = (torch.cat(parts, dim=axis) for parts, axis in zip(values, self._time_axes, strict=True))
        return (*whole, torch.stack(lengths).sum(0))

    def _window(self, features: Tensor, length: Tensor, start: int, plan: WindowPlan) -> tuple[Tensor, ...]:
        """What is kept of the window whose core begins at ``start``, and how many valid frames that is."""
        end = min(start + plan.core, features.shape[2])
        first, last = max(0, start - plan.context), min(features.shape[2], end + plan.context)
        *values, lengths = self.part(features[:, :, first:last], (length - first).clamp(0, last - first))
        before, number = (start - first) // plan.stride, -(-(end - start) // plan.stride)
        number = min(number, max(0, values[0].shape[self._time_axes[0]] - before))
        kept = (value.narrow(axis, before, number) for value, axis in zip(values, self._time_axes, strict=True))
        return (*kept, (lengths - before).clamp(0, number))


class Behind(NamedTuple):
    """The part of a model behind its features, which is computed in windows.

    Attributes:
        wires: from features alone.
        features: those of the recordings.
        plan: the windows; None where it is not known from which frames of features each frame comes.
    """

    wires: Wires
    features: Signal
    plan: WindowPlan | None

    def windowed(self, outputs: Sequence[NmTensor], lengths: NmTensor, factory: NeuralModuleFactory) -> list[NmTensor]:
        """Some of its wires for recordings, and how many valid frames there are."""
        module = Windowed(outputs, lengths, self.plan, factory)
        return list(module(self.features.values, self.features.lengths))
