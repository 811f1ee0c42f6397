"""A DAG as a table of plain text."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.core.show.view import View

_HEADER = ("node", "module, and where its ports lead", "shapes and types", "parameters")
MOST_TARGETS = 6  # readers of a wire that are listed
Row = tuple[str, str, str, str]


def as_text(dag: Dag, title: str = "") -> str:
    """A table with a line for each node (module, shapes, parameters) and one for each of its ports.

    ``<- [1] x``: the wire comes from port ``x`` of node 1. ``-> [2] y``: it goes to port ``y`` of node 2.
    """
    view = View(dag)
    rows = [_HEADER, *_rows(view)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruler = "  ".join("-" * width for width in widths)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sizes = [f"{name} = {meaning}" for name, meaning in view.legend.items()]
    head = f"{title}: {view.summary()}" if title else view.summary()
    return "\n".join([head, *sizes, "", lines[0], ruler, *lines[1:]])


def _rows(view: View) -> Iterator[Row]:
    numbers = {node.name: f"[{number}]" for number, node in enumerate(view.nodes)}
    digits = max(map(len, numbers.values()))
    for node in view.nodes:
        first = view.shared_with(node)
        weights = f"as {numbers[first.name]}" if first else view.weights(node)
        name = f"{numbers[node.name].ljust(digits)} {node.name}"
        graphs = view.graphs(node)
        module = type(node.module).__name__ + (f" in {graphs}" if graphs else "")
        yield name, module, view.shapes(node), weights
        yield from _ports(view, node, numbers, " " * (digits + 3))


def _ports(view: View, node: Node, numbers: dict[str, str], indent: str) -> Iterator[Row]:
    for port, wire in node.inputs.items():
        source = f"<- {numbers[view.source(wire).name]} {wire.output_port_name}"
        yield f"{indent}{port}", source, f"{view.shape(wire)}  {node.module.input_ports[port].elements_type}", ""
    for port, wire in node.outputs.items():
        name = f'{port} "{wire.name}"' if wire.is_renamed else port
        yield f"{indent}{name}", _targets(view, wire, numbers), f"{view.shape(wire)}  {wire.ntype.elements_type}", ""


def _targets(view: View, wire: NmTensor, numbers: dict[str, str]) -> str:
    """Where a wire goes; ``->`` alone if nothing takes it."""
    targets = [f"{numbers[node.name]} {port}" for node, port in view.readers(wire)]
    more = len(targets) - MOST_TARGETS
    if more > 0:
        targets[MOST_TARGETS:] = [f"{more} more"]
    if wire in view.outputs:
        targets.append("output")
    return f"-> {', '.join(targets)}".rstrip()
