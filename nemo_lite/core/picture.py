"""A DAG as a self-contained SVG: nodes below each other, their ports as lines, the wires beside them. No scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.files import write_atomically
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.view import GraphFrame, View

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
