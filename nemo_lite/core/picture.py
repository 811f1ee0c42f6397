"""Pictures of a DAG: as a self-contained SVG without scripts, and as a Mermaid flowchart, which Markdown pages draw.

In the SVG nodes lie below each other, their ports as lines, the wires beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from html import escape
from itertools import count
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import counted
from nemo_lite.base.files import write_atomically
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import LossType, NestedUse, NmTensor
from nemo_lite.core.shapes import definitions, symbolic_shapes, written


class ModuleKind(Enum):
    """The purpose of a module, and its colours: a muted fill for dark text, a darker border of the same hue."""

    DATA = ("data layer", "#dfebf7", "#4f7cac")
    PREPROCESSOR = ("preprocessor", "#e0f0e6", "#4c8c64")
    AUGMENTATION = ("augmentation", "#fbf0d5", "#b08a2e")
    TRAINABLE = ("trainable", "#ebe4f5", "#7a5ea8")
    LOSS = ("loss", "#f8e1de", "#b65b50")
    OTHER = ("other", "#eceff2", "#788594")

    def __init__(self, title: str, fill: str, border: str) -> None:
        self.title, self.fill, self.border = title, fill, border


class GraphFrame:
    """A use of a nested graph, around whose nodes a box is drawn; or the whole picture, which has no name.

    Attributes:
        name: the graph's.
        items: its nodes and the frames in it, in the order of the nodes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[Node | GraphFrame] = []

    @property
    def nodes(self) -> list[Node]:
        """Its nodes, those in frames included."""
        return [node for item in self.items for node in (item.nodes if isinstance(item, GraphFrame) else [item])]


def _framed(nodes: Iterable[Node]) -> GraphFrame:
    """Nodes in the frames of the graphs that they were nested in."""
    frames: dict[tuple[NestedUse, ...], GraphFrame] = {(): GraphFrame("")}
    for node in nodes:
        path = node.call.nested_in
        for depth, use in enumerate(path):
            if path[: depth + 1] not in frames:
                frames[path[: depth + 1]] = GraphFrame(use.name)
                frames[path[:depth]].items.append(frames[path[: depth + 1]])
        frames[path].items.append(node)
    return frames[()]


class View:
    """A DAG, and what is shown of it.

    Attributes:
        frame: the nodes in the frames of nested graphs.
        nodes: all nodes, the data layer's first.
        legend: the named sizes and what they mean.
        num_weights: number of trainable parameters; a shared module is counted once.
        outputs: the wires asked for, and their names; where two have one name, the node's name is put before it.
    """

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.nodes: tuple[Node, ...] = (dag.data_node, *dag.nodes)
        self.frame = _framed(self.nodes)
        self.num_weights = sum(module.num_weights for module in dag.modules.values())
        self._shapes = symbolic_shapes(dag)
        self.legend = definitions(self._shapes.values())
        self._node_of = {node.call: node for node in self.nodes}
        self._place = {node: place for place, node in enumerate(self.nodes)}
        self._first_of = {node.module: node for node in reversed(self.nodes)}
        wires = dict.fromkeys(dag.outputs)
        names = Counter(wire.name for wire in wires)
        self.outputs = {w: w.name if names[w.name] == 1 else f"{self.source(w).name}.{w.name}" for w in wires}

    def source(self, wire: NmTensor) -> Node:
        """The node that gives a wire."""
        return self._node_of[wire.call]

    def readers(self, wire: NmTensor) -> list[tuple[Node, str]]:
        """The nodes of this DAG that take a wire, in their order, each with its input port."""
        takers = [(self._node_of[call], port) for call, port in wire.readers if call in self._node_of]
        return sorted(takers, key=lambda taker: self._place[taker[0]])

    def shared_with(self, node: Node) -> Node | None:
        """The first node of the same module, or None if this node is the first."""
        first = self._first_of[node.module]
        return None if first is node else first

    def role(self, node: Node) -> ModuleKind:
        """The purpose of a node's module."""
        module = node.module
        if node is self.dag.data_node:
            return ModuleKind.DATA
        if module.training_only:
            return ModuleKind.AUGMENTATION
        if any(isinstance(ntype.elements_type, LossType) for ntype in module.output_ports.values()):
            return ModuleKind.LOSS
        if module.converts is not None:
            return ModuleKind.PREPROCESSOR
        return ModuleKind.TRAINABLE if module.is_trainable() or module.num_weights else ModuleKind.OTHER

    def shape(self, wire: NmTensor) -> str:
        """``B 64 T``."""
        return written(self._shapes[wire])

    def shapes(self, node: Node) -> str:
        """First input to first output: ``B 64 T -> B 1024 T/2``; a data layer has only the output."""
        ends = [next(iter(wires.values()), None) for wires in (node.inputs, node.outputs)]
        return " -> ".join(self.shape(wire) for wire in ends if wire is not None)

    def graphs(self, node: Node) -> str:
        """The nested graphs that a node belongs to, the outermost first: ``outer/inner``; empty if there are none."""
        return "/".join(use.name for use in node.call.nested_in)

    def weights(self, node: Node) -> str:
        """``332,632,349``; ``shared with encoder`` for a later node of a module; empty if there are none."""
        first = self.shared_with(node)
        if first is not None:
            return f"shared with {first.name}"
        return f"{node.module.num_weights:,}" if node.module.num_weights else ""

    def weights_line(self, node: Node) -> str:
        """The same as a line of a box: ``332,632,349 parameters``."""
        weights = self.weights(node)
        return f"{weights} parameters" if weights and self.shared_with(node) is None else weights

    def summary(self) -> str:
        """``7 nodes, 332,632,349 parameters``."""
        return f"{counted(len(self.nodes), 'node')}, {self.num_weights:,} parameters"


# Pixels.
MARGIN, HEADER_HEIGHT = 28, 108
GAP, PADDING, ROW = 22, 14, 17  # between boxes, inside of them, and from one port to the next
INDENT, FRAME_TITLE = 12, 26  # of the nodes of a nested graph: at their sides, and above
LANE, LANE_COLOURS = 16, ("#52606d", "#4f7cac", "#4c8c64", "#7a5ea8", "#a07a1e", "#b65b50")
# Widths of a character relative to the font size: monospace fonts are 0.60; bold sans-serif text stays below 0.66.
MONO, BOLD, PLAIN = 0.61, 0.66, 0.6

_STYLE = """<style>
text { font-family: "Helvetica Neue", Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; fill: #1f2933; }
.title { font-size: 18px; font-weight: 600; }
.note { font-size: 12px; }
.step { font-size: 13px; font-weight: 600; }
.graph { font-size: 12px; font-weight: 600; }
.class, .weights { font-size: 11px; fill: #3e4c59; }
.port, .type, .shape, .source { font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 10px; }
.note, .graph, .shape, .source { fill: #52606d; }
.casing { fill: none; stroke: #ffffff; stroke-width: 5; }
.wire { fill: none; stroke-width: 1.5; }
.frame { fill: none; stroke: #9aa5b1; stroke-dasharray: 6 4; }
</style>"""


class Note(NamedTuple):
    """A line in the box of a node, and the box's colours, which stand for what the note says.

    Attributes:
        text: the line.
        meaning: what the colours mean, for the legend.
        fill, border: the colours.
    """

    text: str
    meaning: str
    fill: str
    border: str


def as_svg(dag: Dag, title: str = "", notes: Mapping[str, Note] | None = None) -> str:
    """The picture as text of an SVG file. Equal DAGs give equal text.

    Args:
        dag: what to draw.
        title: its heading.
        notes: by the names of nodes; those without one have the colour of what their module is for.
    """
    return _Drawing(View(dag), title, notes or {}).svg()


Dag.drawn = as_svg


def write_svg(path: str | Path, dag: Dag, title: str = "", notes: Mapping[str, Note] | None = None) -> None:
    """Write the picture to a file; for the arguments see :func:`as_svg`.

    Raises:
        UsageError: the folder cannot be written to.
    """
    text = as_svg(dag, title, notes)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class _Drawing:
    """The picture, from top to bottom; ``_y`` is where the next box begins."""

    def __init__(self, view: View, title: str, notes: Mapping[str, Note]) -> None:
        self._view, self._title, self._notes = view, title, notes
        inputs = [(port, self._source(wire)) for node in view.nodes for port, wire in node.inputs.items()]
        wires = [wire for node in view.nodes for wire in node.outputs.values()]
        ports = [port for port, _ in inputs] + [wire.output_port_name for wire in wires]
        self._type_at = PADDING + max(map(len, ports)) * MONO * 10 + 14
        self._shape_at = self._type_at + max(len(str(wire.ntype.elements_type)) for wire in wires) * MONO * 10 + 14
        texts = [self._shape_at + len(view.shape(wire)) * MONO * 10 for wire in wires]
        texts += [self._type_at + len(source) * MONO * 10 for _, source in inputs]
        texts += [PADDING + len(node.name) * BOLD * 13 for node in view.nodes]
        texts += [PADDING + len(line) * PLAIN * 11 for node in view.nodes for line in self._lines(node)]
        depth = max(len(node.call.nested_in) for node in view.nodes)
        self._width, self._y = max(texts) + PADDING + 2 * INDENT * depth, 0.0
        # Where wires leave and enter a box, from left and top.
        self._givers: dict[NmTensor, tuple[float, float]] = {}
        self._takers: dict[NmTensor, list[tuple[float, float]]] = {wire: [] for wire in wires}

    def _source(self, wire: NmTensor) -> str:
        return f"\u2190 {self._view.source(wire).name}.{wire.output_port_name}"

    def svg(self) -> str:
        """The whole file."""
        boxes = [*self._frame(self._view.frame, 0), *self._outputs()]
        lanes = self._lanes()
        wires = [line for lane, wires in enumerate(lanes) for wire in wires for line in self._wire(wire, lane)]
        header, header_width = self._header()
        width = max(self._width + PADDING + LANE * max(len(lanes), 1), header_width) + 2 * MARGIN
        height = HEADER_HEIGHT + self._y - GAP + MARGIN
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        name = _xml_text(self._title or "DAG")
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">\n<title>{name}</title>'
        paper = '<rect fill="#ffffff" width="100%" height="100%"/>'
        group = f'<g transform="translate({MARGIN} {HEADER_HEIGHT})">'
        return "\n".join([head, _STYLE, paper, *header, group, *boxes, *wires, "</g>", "</svg>\n"])

    def _header(self) -> tuple[list[str], float]:
        """Title, summary with the named sizes, and the colours; how wide they are."""
        sizes = ", ".join(f"{name} = {meaning}" for name, meaning in self._view.legend.items())
        note = self._view.summary() + (f"; {sizes}" if sizes else "")
        x: float = MARGIN
        lines = [_text("title", x, 36, self._title), _text("note", x, 58, note)]
        for title, colours in dict(map(self._meaning, self._view.nodes)).items():
            lines += [_rect(x, 70, 14, 14, colours, 3), _text("note", x + 20, 81, title)]
            x += 34 + len(title) * PLAIN * 11
        return lines, max(len(self._title) * BOLD * 18, len(note) * PLAIN * 12, x - MARGIN)

    def _meaning(self, node: Node) -> tuple[str, str]:
        """The meaning of a box's colour, and its attributes."""
        role = self._view.role(node)
        _, meaning, fill, border = self._notes.get(node.name) or Note("", role.title, role.fill, role.border)
        return meaning, f'fill="{fill}" stroke="{border}" stroke-width="1.25"'

    def _lines(self, node: Node) -> list[str]:
        """The lines in a box below the name."""
        note = self._notes.get(node.name)
        lines = (type(node.module).__name__, self._view.weights_line(node), note.text if note else "")
        return [line for line in lines if line]

    def _frame(self, frame: GraphFrame, depth: int) -> Iterator[str]:
        """Nodes, and graphs in frames of their own, below each other."""
        for item in frame.items:
            if not isinstance(item, GraphFrame):
                yield from self._node(item, depth)
                continue
            top = self._y
            self._y += FRAME_TITLE
            inside = list(self._frame(item, depth + 1))
            left, height = INDENT * depth, self._y - GAP + INDENT - top
            yield _rect(left, top, self._width - 2 * left, height, 'class="frame"', 9)
            yield _text("graph", left + INDENT, top + 17, item.name)
            yield from inside
            self._y += INDENT

    def _node(self, node: Node, depth: int) -> Iterator[str]:
        left, y, lines = INDENT * depth, self._y + 22, self._lines(node)
        height = 36 + 15 * len(lines) + ROW * (len(node.inputs) + len(node.outputs))
        dashes = "" if self._view.shared_with(node) is None else ' stroke-dasharray="5 3"'
        yield "<g>"
        yield _rect(left, self._y, self._width - 2 * left, height, self._meaning(node)[1] + dashes, 7)
        yield _text("step", left + PADDING, y, node.name)
        for line in lines:
            y += 15
            yield _text("class" if line is lines[0] else "weights", left + PADDING, y, line)
        for port, wire in (*node.inputs.items(), *node.outputs.items()):
            y += ROW
            yield _text("port", left + PADDING, y, port)
            end = self._width - left, y - 4
            if wire.call is node.call:
                self._givers[wire] = end
                yield _text("type", left + self._type_at, y, str(wire.ntype.elements_type))
                yield _text("shape", left + self._shape_at, y, self._view.shape(wire))
            else:
                self._takers[wire].append(end)
                yield _text("source", left + self._type_at, y, self._source(wire))
        yield "</g>"
        self._y += height + GAP

    def _outputs(self) -> Iterator[str]:
        """A box for each wire that was asked for."""
        for wire, name in self._view.outputs.items():
            yield _rect(0, self._y, self._width, 26, 'fill="#ffffff" stroke="#52606d" stroke-width="1.25"', 13)
            yield _text("port", PADDING, self._y + 17, name)
            self._takers[wire].append((self._width, self._y + 13))
            self._y += 26 + GAP

    def _lanes(self) -> list[list[NmTensor]]:
        """The wires that run down beside the boxes, in lanes; short ones are next to the boxes."""
        spans: dict[NmTensor, tuple[float, float]] = {}
        for wire, takers in self._takers.items():
            heights = [y for _, y in (self._givers[wire], *takers)]
            spans[wire] = min(heights), max(heights)
        lanes: list[list[NmTensor]] = []
        for wire in sorted(spans, key=lambda wire: spans[wire][1] - spans[wire][0]):
            first, last = spans[wire]
            free = (lane for lane in lanes if all(last < spans[o][0] or first > spans[o][1] for o in lane))
            lane = next(free, [])
            if not lane:
                lanes.append(lane)
            lane.append(wire)
        return lanes

    def _wire(self, wire: NmTensor, lane: int) -> Iterator[str]:
        (left, top), x = self._givers[wire], self._width + PADDING + LANE * lane
        ends, colour = self._takers[wire], LANE_COLOURS[lane % len(LANE_COLOURS)]
        if not ends:  # nobody takes it
            yield f'<circle class="end" fill="{colour}" cx="{left + 5:.1f}" cy="{top:.1f}" r="3"/>'
        ways = [f"M {left + 1:.1f} {top:.1f} H {x:.1f} V {y:.1f} H {right + 6:.1f}" for right, y in ends]
        yield from (f'<path class="casing" d="{way}"/>' for way in ways)
        yield from (f'<path class="wire" stroke="{colour}" d="{way}"/>' for way in ways)
        for right, y in ends:
            yield f'<path class="end" fill="{colour}" d="M {right:.1f} {y:.1f} l 8 -4.5 v 9 Z"/>'


def _xml_text(text: str) -> str:
    """Text for XML, which does not allow control characters."""
    return escape("".join(letter if letter >= " " or letter == "\n" else "\ufffd" for letter in text))


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_xml_text(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str, rounding: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{rounding}" {style}/>'


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
