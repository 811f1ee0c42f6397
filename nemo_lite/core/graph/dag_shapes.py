"""Shapes along a DAG, from the modules' own rules: what can be known before any data is read. No drawing here."""

from __future__ import annotations

from collections.abc import Callable

from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.core.graph.shapes import Expr, Shape, is_unknown, symbols_of, written
from nemo_lite.core.neural_types import AxisKind
from nemo_lite.errors import DagError, UsageError


def symbolic_shapes(dag: Dag) -> dict[NmTensor, Shape]:
    """The shape of every wire of the DAG, node after node by the modules' ``output_shapes``.

    Raises:
        UsageError: a module's rule leaves out an output port, or gives a shape of another number of axes.
    """
    shapes: dict[NmTensor, Shape] = {}
    for node in (dag.data_node, *dag.nodes):
        given = {port: shapes[wire] for port, wire in node.inputs.items()}
        outputs = node.module.output_shapes(given)
        for port, wire in node.outputs.items():
            if port not in outputs or len(outputs[port]) != len(wire.ntype.axes or ()):
                raise UsageError(
                    "output_shapes does not follow the ports",
                    place=f"{type(node.module).__name__}.{port}",
                    got=written(outputs[port]) if port in outputs else "nothing",
                    wanted=str(wire.ntype),
                )
            shapes[wire] = outputs[port]
    return shapes


def frames_of(dag: Dag, wire: NmTensor, axis: AxisKind = AxisKind.Time) -> Callable[[int], int]:
    """How long an axis of a wire is for an input of a certain length: a function of the data layer's own size.

    For speech: from samples of audio to frames behind the encoder. Lengths are valid lengths, without padding.

    Args:
        dag: the DAG.
        wire: the wire whose axis is asked for.
        axis: which axis; the wire has one of this kind.

    Raises:
        DagError: the wire is not in the DAG.
        UsageError: there is no such axis, or its size does not follow from exactly one size of the data.
    """
    if wire not in dag:
        raise DagError(f"{wire.place} is not in this DAG")
    kinds = [each.kind for each in wire.ntype.axes or ()]
    if kinds.count(axis) != 1:
        raise UsageError(f"{wire.place} does not have one {axis} axis", got=str(wire.ntype))
    shapes = symbolic_shapes(dag)
    size = shapes[wire][kinds.index(axis)]
    if isinstance(size, int):
        fixed = size
        return lambda _: fixed
    symbols = symbols_of(size)
    from_data = {name for given in dag.inputs for part in shapes[given] for name in symbols_of(part)}
    if len(symbols) != 1 or not symbols <= from_data or any(map(is_unknown, symbols)):
        raise UsageError(
            f"the {axis} axis of {wire.place} does not follow from one size of the data",
            got=written(shapes[wire]),
            remedy=f"give an output_shapes to {_first_without_rule(dag, shapes)}",
        )
    return _with(size, next(iter(symbols)))


def _with(size: Expr, symbol: str) -> Callable[[int], int]:
    return lambda value: size.value(**{symbol: value})


def _first_without_rule(dag: Dag, shapes: dict[NmTensor, Shape]) -> str:
    """The first node that gives unknown sizes."""

    def unknown(node: Node) -> bool:
        return any(
            is_unknown(name) for wire in node.outputs.values() for size in shapes[wire] for name in symbols_of(size)
        )

    return next((type(node.module).__name__ for node in (dag.data_node, *dag.nodes) if unknown(node)), "the modules")
