"""Compiling: runs of nodes of a DAG become regions for ``torch.compile``; what it does is counted and told.

A region is a maximal run of nodes that can be compiled; features and losses stay between regions. The module objects
stay the user's, so the keys of their states do too. Importing this file imports ``torch._dynamo``, which takes seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch._dynamo
from torch import fx, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._guards import CompileContext
from torch._inductor import list_mode_options

from nemo_lite.backends.pytorch.distributed.batchnorm import needs_all_ranks
from nemo_lite.backends.pytorch.distributed.process import COMPILING, Activity
from nemo_lite.backends.pytorch.lowering import Unit, lower, units_of
from nemo_lite.base.errors import UnknownNameError, UsageError, counted
from nemo_lite.core.dag import Node, Slice
from nemo_lite.core.neural_types import AxisKind, NmTensor, NotCopied, Value
from nemo_lite.core.run_options import CompileOptions
from nemo_lite.utils import logging

_FOR_TESTS = ("eager", "aot_eager")
_MANY_SHAPES = 8
# Reason of a graph that ends where DDP can begin to exchange gradients: it is no loss.
_FOR_DDP = "DDPOptimizer"
_VARYING = (AxisKind.Batch, AxisKind.Time)
_CompiledGraph = Callable[..., Any]


@dataclass
class CompileLog:
    """Counts of graphs and recompilations, and the nodes that stay as they are.

    Attributes:
        graphs: how many, with those made anew for other shapes or modes.
        recompilations: how many of them replace one that did not fit.
        breaks: lines of code where torch begins a new graph; the node, and why.
        uncompiled: nodes that run as they are, and why.
        seconds: of the calls in which something was compiled.
    """

    graphs: int = 0
    recompilations: int = 0
    breaks: dict[str, str] = field(default_factory=dict)
    uncompiled: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [
            f"Compiled {_count(self.graphs, 'graph')} in {self.seconds:.1f} s",
            _count(self.recompilations, "recompilation"),
            _count(len(self.breaks), "graph break") + _reasons(self.breaks),
        ]
        if self.uncompiled:
            parts.append(f"{_count(len(self.uncompiled), 'node')} not compiled{_reasons(self.uncompiled)}")
        return ", ".join(parts)


class Compiler:
    """Lowers DAGs so that regions of them are compiled when they run first.

    Args:
        options: how.

    Attributes:
        log: what was compiled since :meth:`report`.

    Raises:
        UnknownNameError: the backend is not one of torch's.
    """

    def __init__(self, options: CompileOptions) -> None:
        backends = [*torch.compiler.list_backends(), *_FOR_TESTS]
        if options.backend not in backends:
            raise UnknownNameError("backend", str(options.backend), backends, place="compile")
        self.options, self.log = options, CompileLog()

    def lower(self, part: Slice, name: str) -> fx.GraphModule:
        """As :func:`~nemo_lite.backends.pytorch.lowering.lower`, with compiled regions in place of their nodes."""
        return lower(part, name, partial(self._units, part, name))

    def report(self) -> None:
        """Say what was compiled, in one line, if anything was; then count anew."""
        if self.log != CompileLog():
            logging.info("%s", self.log)
        self.log = CompileLog()

    def compile_graph(self, graph: fx.GraphModule, inputs: Sequence[object]) -> _CompiledGraph:
        """Make code of a graph with the backend that was asked for."""
        make: Callable[..., _CompiledGraph] = torch._dynamo.lookup_backend(self.options.backend)
        if self.options.mode is None:
            return make(graph, inputs)
        return make(graph, inputs, config_patches=list_mode_options(self.options.mode, self.options.dynamic))

    def leave_out(self, name: str, reason: str) -> None:
        """Say that a node is not compiled, and why."""
        if self.log.uncompiled.setdefault(name, reason) is reason:
            logging.warning("%s is not compiled and runs as it is: %s", name, reason)

    def _units(self, part: Slice, name: str, nodes: Sequence[Node]) -> Iterator[Unit]:
        for is_region, run in groupby(nodes, key=_can_be_compiled):
            together = tuple(run)
            if is_region:
                for unit in units_of(together):
                    unit.module.count_outputs()  # type: ignore[operator]  # torch allows any attribute of a module
                yield self._region(region_of(part, together), name)
                continue
            for node, unit in zip(together, units_of(together), strict=True):
                if needs_all_ranks([unit.module]):
                    self.leave_out(node.name, "it exchanges values with other ranks")
                yield unit

    def _region(self, part: Slice, name: str) -> Unit:
        """The region of a slice. A later DAG that calls the same modules in the same way gets the one that is there.

        The youngest of its modules keeps it: so it leaves memory with them, also where an older one is shared with
        models that live on.
        """
        body = lower(part, "Region")
        youngest = max((node.module for node in part.nodes), key=attrgetter("_serial"))
        regions = vars(youngest).setdefault("_compiled_regions", NotCopied())
        key = (self, name, body.code, *body.children())
        if key in regions:
            regions[key].part = part  # alike; of the earlier one wires, and with them data layers, may go
        else:
            regions[key] = Region(part, body, self)
        inputs = {f"input_{number}": wire for number, wire in enumerate(part.inputs)}
        return Unit(f"{part.nodes[0].name}_region", regions[key], inputs, part.outputs, gives_tuple=True)


class Region(nn.Module):
    """Nodes that are compiled together. A node that fails to compile is named, and runs as it is from then on.

    Args:
        part: the nodes.
        body: what they were lowered to.
        compiler: whose options count, and who keeps the log.
    """

    def __init__(self, part: Slice, body: fx.GraphModule, compiler: Compiler) -> None:
        super().__init__()
        self.body = body
        self.part, self._compiler = part, compiler
        self._names = ", ".join(node.name for node in part.nodes)
        self._activity = Activity(f"forward of {self._names}")
        self._failure: BaseException | None = None
        options = compiler.options
        self._copies = options.has_cuda_graphs  # of outputs
        self._shapes: set[tuple[torch.Size, ...]] = set()
        self._varying = [_varying_axes(wire) if options.dynamic is None else () for wire in part.inputs]
        region = ref(self)  # torch keeps what compiles for as long as the process lives

        def compile_graph(graph: fx.GraphModule, inputs: Sequence[object]) -> _CompiledGraph:
            living = region()
            assert living is not None, "it runs"
            return living._compile(graph, inputs)

        # Not torch.compile(body), which is a module again and would hold the same weights under a second name.
        self._run: Callable[..., tuple[Value, ...]] = torch.compile(
            body.forward, backend=compile_graph, dynamic=options.dynamic, fullgraph=options.fullgraph
        )

    def forward(self, **values: Value) -> tuple[Value, ...]:
        """The slice's outputs from its inputs, in their order."""
        log, inputs = self._compiler.log, tuple(values.values())
        for value, axes in zip(inputs, self._varying, strict=True):
            for axis in axes:
                if isinstance(value, torch.Tensor) and axis < value.dim():
                    torch._dynamo.maybe_mark_dynamic(value, axis)
        if self._copies and _on_gpu(inputs):
            self._note_shape(inputs)
        num_graphs, started = log.graphs, time.perf_counter()
        try:
            with self._activity:
                outputs = self._run(*inputs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self._run_apart(error)
            outputs = self._run(*inputs)
        if log.graphs > num_graphs:
            log.seconds += time.perf_counter() - started
            if self._failure is not None:
                self._run_apart(self._failure)
        return tuple(map(_copied, outputs)) if self._copies else outputs

    def _note_shape(self, inputs: Sequence[object]) -> None:
        """Say once that CUDA graphs are recorded for many shapes, where they are."""
        if len(self._shapes) < _MANY_SHAPES:
            self._shapes.add(tuple(value.shape for value in inputs if isinstance(value, torch.Tensor)))
            if len(self._shapes) == _MANY_SHAPES:
                logging.warning(
                    f"compile mode {self._compiler.options.mode} records a CUDA graph for each shape of its inputs, "
                    f"which takes time and memory: {self._names} has got {_MANY_SHAPES} shapes so far; pad batches to "
                    "few lengths, or take mode default"
                )

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[object]) -> _CompiledGraph:
        """What torch calls for each graph."""
        log, compile_id = self._compiler.log, CompileContext.current_compile_id()
        log.graphs += 1
        # Each place in the code has its own count; it grows when another graph is made for it.
        log.recompilations += bool(compile_id and compile_id.frame_compile_id)
        reason: Any = graph.compile_subgraph_reason
        if reason.graph_break and reason.user_stack and _FOR_DDP not in reason.reason:
            line = reason.user_stack[-1]  # the same for each of the frames that end there; the outermost comes first
            reason_text = f"{self._node_of(reason.user_stack)}, {_first_line(reason.reason)}"
            log.breaks.setdefault(f"{Path(line.filename).name}:{line.lineno}", reason_text)
        try:
            with COMPILING:
                return self._compiler.compile_graph(graph, inputs)
        except Exception as error:
            if self._compiler.options.fullgraph:
                raise
            self._failure = error
            return graph.forward

    def _run_apart(self, error: BaseException) -> None:
        """After a failure: each node becomes a region of its own; one that is alone is named, and not compiled.

        Raises:
            UsageError: the options say that all must be compiled.
        """
        self._failure, options = None, self._compiler.options
        reason = _first_line(str(getattr(error, "inner_exception", None) or error))
        if options.fullgraph:
            raise UsageError(
                f"does not compile as one graph with {options.backend}",
                place=self._node_of(getattr(error, "real_stack", None) or ()),
                got=reason,
                remedy="leave fullgraph out, or compile out",
            ) from error
        if len(self.part.nodes) == 1:
            self._compiler.leave_out(self._names, f"{options.backend}: {reason}")
        else:
            self.body = lower(self.part, "Region", self._apart)
        self._run = self.body.forward

    def _apart(self, nodes: Iterable[Node]) -> Iterator[Unit]:
        for node in nodes:
            yield self._compiler._region(region_of(self.part, (node,)), self._names)

    def _node_of(self, frames: Iterable[Any]) -> str:
        """The node in whose call the innermost of these frames is: the body's code calls each by its name."""
        calls = [call for frame in frames if (call := re.search(r"self\.(\w+)\(", str(frame.line)))]
        return next((call[1] for call in calls if hasattr(self.body, call[1])), self._names)


def region_of(part: Slice, nodes: tuple[Node, ...]) -> Slice:
    """These nodes of a slice: from what they take from elsewhere to what others take from them."""
    produced = [wire for node in nodes for wire in node.outputs.values()]
    taken = dict.fromkeys(wire for node in nodes for wire in node.inputs.values())
    needed = {*part.outputs, *(wire for node in part.nodes if node not in nodes for wire in node.inputs.values())}
    return Slice(
        tuple(wire for wire in taken if wire not in produced), nodes, tuple(wire for wire in produced if wire in needed)
    )


def _can_be_compiled(node: Node) -> bool:
    module = node.module
    stays_out = module.keep_float32 or module.keep_uncompiled
    return isinstance(module, nn.Module) and not stays_out and not needs_all_ranks([module])


def _varying_axes(wire: NmTensor) -> tuple[int, ...]:
    """Axes whose size differs from batch to batch."""
    axes = wire.ntype.axes or ()
    return tuple(number for number, axis in enumerate(axes) if axis.kind in _VARYING and axis.size is None)


def _on_gpu(values: Iterable[object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def _count(number: int, thing: str) -> str:
    return counted(number, thing) if number else f"no {thing}s"


def _reasons(by_node: dict[str, str]) -> str:
    return f" ({'; '.join(f'{node}: {reason}' for node, reason in by_node.items())})" if by_node else ""
