"""Streaming: a second way to run modules, chunk after chunk, with the numbers of the whole. No speech in this file.

A module that keeps something between chunks takes it as named tensors and gives it back, so a slice of a DAG runs as a
whole, in chunks and exported with the same weights. All rows of a batch get as many frames in each step.

In an exported graph all sizes are fixed. So frames that are not there yet stand in their places as frames before the
first one (`ChunkFrames`), and states have the sizes that they have behind the first chunks (`StreamsInGraph`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, fx

from nemo_lite.backends.pytorch.lowering import Unit, lower, units_of
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Node, Slice

State: TypeAlias = Mapping[str, Tensor]
# The larger of two sizes, which an exporter may leave open: max would fix it. Its types depend on torch's version.
larger: Callable[[int, int], int] = cast(Any, torch.sym_max)


class Delay(NamedTuple):
    """When the frames of an output are there.

    Attributes:
        stride: frames of the input for one of the output.
        look_ahead: frame u is there as soon as frame ``u * stride + look_ahead`` of the input is.
    """

    stride: int = 1
    look_ahead: int = 0

    def then(self, behind: Delay) -> Delay:
        """That of two modules, one behind the other."""
        return Delay(self.stride * behind.stride, self.look_ahead + self.stride * behind.look_ahead)


@runtime_checkable
class Streams(Protocol):
    """A module that runs in chunks. What it gives for all chunks, one behind the other, is what ``forward`` gives."""

    def stream_problem(self) -> str:
        """Why this one cannot, with these settings; empty if it can."""

    def stream_delay(self) -> Delay:
        """When its outputs are there."""

    def initial_state(self, batch: int) -> State:
        """The state before the first chunk of so many streams."""

    def step(self, *inputs: Tensor, state: State, last: bool) -> tuple[tuple[Tensor, ...], State]:
        """Outputs, as many as ``forward`` has, and the new state.

        Args:
            inputs: as of ``forward``: the next frames of the input, any number, also none; of lengths their number.
            state: what the step before gave. It is not modified.
            last: nothing follows.
        """


@runtime_checkable
class StreamsInGraph(Streams, Protocol):
    """A module that runs in chunks in an exported graph as well, where all chunks and states have fixed sizes.

    Its last length is that from the first frame of a chunk to the end of the recording: below 0 behind it, more than
    there are as long as the end is not known. What it keeps of chunks is zeros at first, whatever `initial_state` has.
    """

    @property
    def graph_chunk(self) -> int:
        """Frames of the input in each chunk."""

    @property
    def graph_late(self) -> int:
        """Outputs of the first chunks that stand before the recording's first one, and have no meaning."""

    def graph_problem(self) -> str:
        """Why it cannot; empty if it can."""

    def graph_state(self, batch: int) -> State:
        """The sizes of what is kept. ``num_frames`` (B,) counts the outputs of the chunks before, late ones too."""


class SlidingWindow(NamedTuple):
    """What an operation over time, such as a convolution, sees: which frames have to be kept for the next chunk.

    Output u sees ``span`` frames of the input from frame ``u * stride - before`` on.

    Attributes:
        span: frames.
        stride: from one output to the next.
        before: padding before the input.
        behind: padding behind it.
    """

    span: int
    stride: int = 1
    before: int = 0
    behind: int = 0

    @property
    def delay(self) -> Delay:
        """When its outputs are there."""
        return Delay(self.stride, max(self.span - 1 - self.before, 0))

    @property
    def _skipped(self) -> int:
        """Frames before a window that no output sees, where windows do not touch."""
        return max(self.stride - self.span, 0)

    def initial(
        self, shape: Sequence[int], axis: int, like: Tensor, value: float = 0.0, first: int | None = None
    ) -> Tensor:
        """What is kept before the first frame: padding.

        Args:
            shape: of a chunk; its size along ``axis`` has no meaning.
            axis: that of time.
            like: a tensor of the type and on the device of chunks.
            value: of the padding.
            first: in a graph, where the first chunk begins; as many frames are kept as behind each chunk.
        """
        sizes = [*shape]
        late = 0 if first is None else first - self.stride * self.first(first)
        sizes[axis] = self.before + self._skipped + late
        return torch.full(sizes, value, dtype=like.dtype, device=like.device)

    def first(self, first: int) -> int:
        """In a graph: where the outputs of chunks begin whose frames begin at ``first``; see `ChunkFrames`."""
        return (first + self.before - self.span) // self.stride + 1

    def take(self, kept: Tensor, chunk: Tensor, axis: int, last: bool, value: float = 0.0) -> tuple[Tensor, Tensor]:
        """The input of the outputs that can be computed now, and what is kept for the others.

        Returns:
            Frames whose windows, without padding, are those of the new outputs, or none; and the frames to keep.
        """
        frames = torch.cat([kept, chunk], dim=axis)
        if last and self.behind:
            sizes = [*frames.shape]
            sizes[axis] = self.behind
            frames = torch.cat([frames, frames.new_full(sizes, value)], dim=axis)
        span = self.span + self._skipped
        number = max((frames.shape[axis] - span) // self.stride + 1, 0)
        done = number * self.stride
        seen = (self._skipped, done - self.stride + self.span) if number else (0, 0)
        return frames.narrow(axis, *seen), frames.narrow(axis, done, frames.shape[axis] - done)


class ChunkFrames(NamedTuple):
    """Of chunks in a graph: which frames are those of the recording. All numbers are counted from the beginning of the
    chunk, in frames of this rate.

    Attributes:
        first: where the frames are that are there now: 0, or before, where they have waited for frames behind.
        start: (B,) of the recording's first frame.
        end: (B,) behind its last one, or of any later one while that is not known.
    """

    first: int
    start: Tensor
    end: Tensor

    @classmethod
    def of_chunk(cls, length: Tensor, num_before: Tensor) -> ChunkFrames:
        """Those of a chunk of the input.

        Args:
            length: (B,) frames from the first one of the chunk to the end of the recording.
            num_before: (B,) frames of the chunks before.
        """
        return cls(0, -num_before, torch.maximum(length, -num_before))  # no recording ends before it begins

    @property
    def left(self) -> Tensor:
        """(B,) frames from the first one that is there to the end of the recording."""
        return self.end - self.first

    def behind(self, window: SlidingWindow) -> ChunkFrames:
        """Those of the outputs of an operation."""
        padding = window.before + window.behind - window.span
        return ChunkFrames(
            window.first(self.first), self.start // window.stride, (self.end + padding) // window.stride + 1
        )

    def is_there(self, number: int, before: int = 0) -> Tensor:
        """(B, before + number): whether frames are of the recording; ``before`` of them were kept."""
        positions = torch.arange(self.first - before, self.first + number, device=self.end.device)
        return (positions >= self.start.unsqueeze(1)) & (positions < self.end.unsqueeze(1))


def in_step(kept: Sequence[Tensor], chunks: Sequence[Tensor], axis: int) -> tuple[list[Tensor], list[Tensor]]:
    """Several signals of one frame rate, of which some are ahead: as many frames of each as the slowest has.

    Args:
        kept: frames of each that were ahead until now.
        chunks: the next frames of each.
        axis: that of time.

    Returns:
        Equally many frames of each, and what is ahead of each.
    """
    whole = [torch.cat(pair, dim=axis) for pair in zip(kept, chunks, strict=True)]
    number = min(frames.shape[axis] for frames in whole)
    ahead = [frames.narrow(axis, number, frames.shape[axis] - number) for frames in whole]
    return [frames.narrow(axis, 0, number) for frames in whole], ahead


def keyed(state: State, prefix: str) -> dict[str, Tensor]:
    """The tensors of a part, whose names begin with ``prefix`` and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}


def prefixed(state: State, prefix: str) -> dict[str, Tensor]:
    """The inverse of :func:`keyed`."""
    return {f"{prefix}.{key}": value for key, value in state.items()}


def num_new(values: Tensor, axis: int) -> Tensor:
    """(B,), int64: the frames of a chunk, which are as many in all rows."""
    return torch.full((values.shape[0],), values.shape[axis], dtype=torch.int64, device=values.device)


class StreamedDag(fx.GraphModule):
    """A slice of a DAG that runs chunk after chunk; see :func:`lower_to_stream`.

    Its forward takes the slice's input wires, in their order, then ``state``, what the call before gave, and ``last``:
    nothing follows. It gives the pair of the outputs and the new state.

    Attributes:
        delays: when each wire is there.
        delay: when the first output is there.
    """

    def __init__(self, part: Slice) -> None:
        lowered = lower(part, units=_steps, in_chunks=True)
        super().__init__(lowered, lowered.graph, type(self).__name__)
        self._streams = {node.name: node.module for node in part.nodes if isinstance(node.module, Streams)}
        self.delays = {wire: Delay() for wire in part.inputs}
        for node in part.nodes:
            delays = (self.delays[wire] for wire in node.inputs.values())
            slowest = max(delays, key=lambda delay: (delay.look_ahead, delay.stride))
            delay = node.module.stream_delay() if isinstance(node.module, Streams) else Delay()
            self.delays |= dict.fromkeys(node.outputs.values(), slowest.then(delay))
        self.delay = self.delays[part.outputs[0]]

    def initial_state(self, batch: int) -> dict[str, State]:
        """The state before the first chunk of so many streams: that of each node that keeps one, by its name."""
        return {name: module.initial_state(batch) for name, module in self._streams.items()}


def lower_to_stream(part: Slice) -> StreamedDag:
    """A module that gives a slice's outputs chunk after chunk, of the slice's own module objects.

    A module takes part that is of :class:`Streams`, or whose class says ``is_framewise``: no frame depends on another.

    Raises:
        UsageError: modules that cannot stream; all are named, with the reason.
    """
    problems = [f"{node.name}: {problem}" for node in part.nodes if (problem := stream_problem(node.module))]
    if problems:
        raise UsageError("the model cannot stream by frames", got="; ".join(problems))
    return StreamedDag(part)


def _steps(nodes: Iterable[Node]) -> Iterator[Unit]:
    """Each node by itself; of those that keep a state, the arguments of ``step`` in the order of their ports."""
    for node, unit in zip(nodes, units_of(nodes), strict=True):
        if isinstance(node.module, Streams):
            inputs = {port: node.inputs[port] for port in node.module.input_ports if port in node.inputs}
            unit = unit._replace(inputs=inputs, gives_tuple=True, keeps_state=True)
        yield unit


def stream_problem(module: object) -> str:
    """Why a module cannot run in chunks; empty if it can."""
    if isinstance(module, Streams):
        return module.stream_problem()
    if getattr(module, "is_framewise", False):
        return ""
    return f"{type(module).__name__} needs the whole input"
