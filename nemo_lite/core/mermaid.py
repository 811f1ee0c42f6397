"""A DAG as a Mermaid flowchart, which Markdown pages draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.view import GraphFrame, ModuleKind, View


def as_mermaid(dag: Dag) -> str:
    """A ``flowchart TD``: a box for each node, an arrow for each wire with its name, type and shape.

    A nested graph is a box with its name around its nodes.
    """
    view = View(dag)
    ids = {node.name: f"s{number}" for number, node in enumerate(view.nodes)}
    lines = ["flowchart TD", *_boxes(view, view.frame, ids, "    ", count())]
    for node in view.nodes:
        for wire in node.outputs.values():
            lines += [
                f'    {ids[node.name]} -->|"{_arrow(view, wire, port)}"| {ids[reader.name]}'
                for reader, port in view.readers(wire)
            ]
    for number, (wire, name) in enumerate(view.outputs.items()):
        lines.append(f'    out{number}(["{_mermaid_text(name)}"]):::output')
        lines.append(f'    {ids[view.source(wire).name]} -->|"{_arrow(view, wire)}"| out{number}')
    for role in dict.fromkeys(view.role(node) for node in view.nodes):
        lines.append(f"    classDef {role.name.lower()} fill:{role.fill},stroke:{role.border},color:#1f2933")
    lines.append("    classDef output fill:#ffffff,stroke:#52606d,color:#1f2933")
    return "\n".join(lines) + "\n"


def _boxes(view: View, frame: GraphFrame, ids: Mapping[str, str], indent: str, numbers: Iterator[int]) -> Iterator[str]:
    for item in frame.items:
        if isinstance(item, GraphFrame):
            yield f'{indent}subgraph g{next(numbers)}["{_mermaid_text(item.name)}"]'
            yield from _boxes(view, item, ids, indent + "    ", numbers)
            yield f"{indent}end"
        else:
            role = view.role(item)
            open_, close = ("[(", ")]") if role is ModuleKind.DATA else ("[", "]")
            yield f'{indent}{ids[item.name]}{open_}"{_box(view, item)}"{close}:::{role.name.lower()}'


def _box(view: View, node: Node) -> str:
    lines = [f"<b>{_mermaid_text(node.name)}</b>", type(node.module).__name__, _mermaid_text(view.weights_line(node))]
    return "<br/>".join(line for line in lines if line)


def _arrow(view: View, wire: NmTensor, port: str = "") -> str:
    """The port that gives the wire (and the one that takes it, if its name differs), type and shape."""
    source = wire.output_port_name
    name = source if port in ("", source) else f"{source} → {port}"
    return "<br/>".join(_mermaid_text(text) for text in (name, str(wire.ntype.elements_type), view.shape(wire)))


def _mermaid_text(text: str) -> str:
    """Text for use inside quotes. Mermaid writes a character as ``#`` and its number."""
    return "".join(f"#{ord(letter)};" if letter in '#"<>&' or letter < " " else letter for letter in text)
