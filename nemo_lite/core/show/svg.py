"""A DAG as a self-contained SVG: boxes for nodes, arrows with types and shapes for wires. No fonts, no scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.neural_types.nm_tensor import NmTensor
from nemo_lite.core.show.layout import Box, Port, arrange
from nemo_lite.core.show.view import Role, View
from nemo_lite.utils.files import write_atomically

MARGIN = 28.0
HEADER_HEIGHT = 108.0
LABEL_HEIGHT = 40.0  # two lines of type and shape on an arrow
BEND_HEIGHT = 26.0
RADIUS = 9.0  # of the numbered circles where a wire goes on in another column
# Widths of a character relative to the font size: monospace fonts are 0.60; bold sans-serif text stays below 0.66.
MONO, BOLD, PLAIN = 0.61, 0.66, 0.6

_STYLE = """
text { font-family: "Helvetica Neue", Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; fill: #1f2933; }
.title { font-size: 18px; font-weight: 600; }
.note { font-size: 12px; fill: #52606d; }
.step { font-size: 13px; font-weight: 600; text-anchor: middle; }
.class { font-size: 11px; fill: #52606d; text-anchor: middle; }
.weights { font-size: 11px; fill: #3e4c59; text-anchor: middle; }
.port, .type, .shape { font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; text-anchor: middle; }
.port { font-size: 10px; fill: #52606d; }
.type { font-size: 11px; }
.shape { font-size: 11px; fill: #486581; }
.wire { fill: none; stroke: #7b8794; stroke-width: 1.5; }
.end { fill: #7b8794; }
.paper { fill: #ffffff; }
""".strip()


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
    """The boxes of one picture, and the SVG elements for each part of it."""

    def __init__(self, view: View, title: str, notes: Mapping[str, Note]) -> None:
        self._view, self._title, self._notes = view, title, notes
        self._nodes: dict[Node, Box] = {}
        for node in view.nodes:
            sources = [self._nodes[view.source(wire)].layer for wire in node.inputs.values()]
            self._nodes[node] = self._box(node, 1 + max(sources, default=-1))
        last = 1 + max(box.layer for box in self._nodes.values())
        self._outputs = [
            Box(last, len(name) * MONO * 11 + 28, 26, {name: wire}, {}) for wire, name in view.outputs.items()
        ]
        self._boxes = arrange([*self._nodes.values(), *self._outputs], LABEL_HEIGHT, BEND_HEIGHT)

    def svg(self) -> str:
        """The whole file."""
        header, header_width = self._header()
        diagram_width = max(box.right for box in self._boxes)
        inner = max(diagram_width, header_width)
        # A wire that goes on in another column ends in a circle, below the labels of its last layer.
        bottom = max(box.floor + bool(box.outputs) * (LABEL_HEIGHT + 2 * RADIUS) for box in self._boxes)
        width, height = inner + 2 * MARGIN, HEADER_HEIGHT + bottom + MARGIN
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        name = _escaped(self._title or "DAG")
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">',
            f"<title>{name}</title>\n<style>\n{_STYLE}\n</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *header,
            f'<g transform="translate({MARGIN + (inner - diagram_width) / 2:.1f} {HEADER_HEIGHT:.1f})">',
            *self._wires(),
            *(line for box in self._nodes.values() for port in box.outputs for line in self._label(port)),
            *(line for node, box in self._nodes.items() for line in self._node(node, box)),
            *(line for box in self._outputs for line in _output(box)),
        ]
        return "\n".join([*parts, "</g>", "</svg>\n"])

    def _box(self, node: Node, layer: int) -> Box:
        lines = self._lines(node)
        texts = [(node.name, BOLD * 13), *((line, PLAIN * 11) for line in (type(node.module).__name__, *lines))]
        width = max(
            max(len(text) * size for text, size in texts) + 28,
            len(node.inputs) * (max(map(len, node.inputs), default=0) * MONO * 10 + 14),
            len(node.outputs) * (max(map(self._label_width, node.outputs.values())) + 18),
        )
        height = 62 + 16 * bool(node.inputs) + 15 * len(lines)
        return Box(layer, width, height, node.inputs, node.outputs)

    def _lines(self, node: Node) -> list[str]:
        """What is written in a box below the names."""
        note = self._notes.get(node.name)
        return [line for line in (self._view.weights_line(node), note.text if note else "") if line]

    def _meaning(self, node: Node) -> tuple[str, str]:
        """What the colour of a box stands for, and its attributes."""
        note, role = self._notes.get(node.name), self._view.role(node)
        if note is not None:
            return note.meaning, _colours(note.fill, note.border)
        return role.title, _colours(role.fill, role.border)

    def _label_width(self, wire: NmTensor) -> float:
        texts = (str(wire.ntype.elements_type), self._view.shape(wire))
        return max(len(wire.output_port_name) * MONO * 10, *(len(text) * MONO * 11 for text in texts))

    def _header(self) -> tuple[list[str], float]:
        """Title, summary with the named sizes, and the colours; how wide they are."""
        sizes = ", ".join(f"{name} = {meaning}" for name, meaning in self._view.legend.items())
        note = self._view.summary() + (f"; {sizes}" if sizes else "")
        x = MARGIN
        lines = [_text("title", x, 36, self._title), _text("note", x, 58, note)]
        roles = {role.title: index for index, role in enumerate(Role)}
        meanings = dict(map(self._meaning, self._nodes))
        for title in sorted(meanings, key=lambda title: (roles.get(title, len(roles)), title)):
            lines += [_rect(x, 70, 14, 14, meanings[title], 3), _text("note", x + 20, 81, title)]
            x += 34 + len(title) * PLAIN * 11
        return lines, max(len(self._title) * BOLD * 18, len(note) * PLAIN * 12, x - MARGIN)

    def _wires(self) -> Iterator[str]:
        numbers: dict[object, int] = {}
        pairs = [(port, peer) for box in self._boxes for port in box.outputs for peer in port.peers]
        for port, peer in pairs:
            start, bend, tip = port.box.top + port.box.height, port.box.floor + LABEL_HEIGHT, peer.box.top
            end = tip - 6 * bool(peer.box.height)  # inside the arrowhead, so that its tip is sharp
            draws_start = peer is port.peers[0]  # a line drawn twice looks thicker than the others
            if end > bend:
                yield _curve(port.x, peer.x, start if draws_start else bend, bend, end)
            else:
                number = numbers.setdefault(port.wire, len(numbers) + 1)
                if draws_start:
                    yield from _column_end(port.x, start, bend + RADIUS, number)
                yield from _column_end(peer.x, end, tip - 4 * RADIUS, number)
            if peer.box.height:
                yield f'<path class="end" d="M {peer.x - 4.5:.1f} {tip - 8:.1f} h 9 l -4.5 8 Z"/>'

    def _label(self, port: Port) -> Iterator[str]:
        """Type and shape on a wire that leaves a node; a wire that no node takes ends below them."""
        wire, x, y = port.wire, port.x, port.box.floor
        assert isinstance(wire, NmTensor)
        if not port.peers:
            yield f'<path class="wire" d="M {x:.1f} {port.box.top + port.box.height:.1f} V {y + LABEL_HEIGHT:.1f}"/>'
            yield f'<circle class="end" cx="{x:.1f}" cy="{y + LABEL_HEIGHT:.1f}" r="3"/>'
        width = self._label_width(wire) + 6
        yield _rect(x - width / 2, y + 6, width, 30, 'class="paper"')
        yield _text("type", x, y + 18, str(wire.ntype.elements_type))
        yield _text("shape", x, y + 32, self._view.shape(wire))

    def _node(self, node: Node, box: Box) -> Iterator[str]:
        yield f"<g><title>{_escaped(self._tooltip(node))}</title>"
        dashes = "" if self._view.shared_with(node) is None else ' stroke-dasharray="5 3"'
        yield _frame(box, self._meaning(node)[1] + dashes, 7)
        yield from (_text("port", port.x, box.top + 14, port.name) for port in box.inputs)
        x, y = box.left + box.width / 2, box.top + 16 * bool(box.inputs)
        yield _text("step", x, y + 22, node.name)
        yield _text("class", x, y + 37, type(node.module).__name__)
        yield from (_text("weights", x, y + 52 + 15 * i, line) for i, line in enumerate(self._lines(node)))
        yield from (_text("port", port.x, box.top + box.height - 6, port.name) for port in box.outputs)
        yield "</g>"

    def _tooltip(self, node: Node) -> str:
        """A viewer shows it when the pointer rests on a box."""
        lines = [f"{node.name}: {type(node.module).__name__}"]
        for port, wire in node.inputs.items():
            lines.append(f"{port} <- {self._view.source(wire).name}.{wire.output_port_name}: {self._view.shape(wire)}")
        return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text for XML, which does not allow control characters."""
    return escape("".join(each if each >= " " or each == "\n" else "\ufffd" for each in text))


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_escaped(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str, rounding: float = 0) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{rounding}" {style}/>'


def _frame(box: Box, style: str, rounding: float) -> str:
    return _rect(box.left, box.top, box.width, box.height, f'{style} stroke-width="1.25"', rounding)


def _colours(fill: str, border: str) -> str:
    return f'fill="{fill}" stroke="{border}"'


def _output(box: Box) -> Iterator[str]:
    yield _frame(box, 'fill="#ffffff" stroke="#52606d"', 13)
    yield _text("type", box.left + box.width / 2, box.top + 17, box.inputs[0].name)


def _curve(upper: float, lower: float, start: float, bend: float, end: float) -> str:
    """Straight down from ``start`` to ``bend``, then over to the lower end."""
    middle = (bend + end) / 2
    curve = f"C {upper:.1f} {middle:.1f} {lower:.1f} {middle:.1f} {lower:.1f} {end:.1f}"
    return f'<path class="wire" d="M {upper:.1f} {start:.1f} V {bend:.1f} {curve}"/>'


def _column_end(x: float, start: float, centre: float, number: int) -> Iterator[str]:
    """One of the two ends of a wire between columns: a line to a circle, with the same number at both ends."""
    yield f'<path class="wire" d="M {x:.1f} {start:.1f} V {centre:.1f}"/>'
    yield f'<circle class="wire" cx="{x:.1f}" cy="{centre:.1f}" r="{RADIUS}" style="fill: #ffffff"/>'
    yield _text("port", x, centre + 3.5, str(number))
