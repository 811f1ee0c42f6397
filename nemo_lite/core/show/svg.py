"""A DAG as a self-contained SVG: boxes for nodes, arrows with types and shapes for wires. No fonts, no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.graph.nm_tensor import NmTensor
from nemo_lite.core.show.layout import Box, ColumnChange, Picture, arrange
from nemo_lite.core.show.view import COLOURS, Role, View
from nemo_lite.utils.files import write_atomically

MARGIN = 28.0
LABEL_HEIGHT = 40.0  # two lines of type and shape on an arrow
BEND_HEIGHT = 26.0
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


def as_svg(dag: Dag, title: str = "") -> str:
    """The picture as text of an SVG file. Equal DAGs give equal text."""
    return _Drawing(View(dag), title).svg()


def write_svg(path: str | Path, dag: Dag, title: str = "") -> None:
    """Write the picture to a file.

    Raises:
        UsageError: the folder cannot be written to.
    """
    text = as_svg(dag, title)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class _Drawing:
    """One picture while it is made."""

    def __init__(self, view: View, title: str) -> None:
        self._view, self._title = view, title
        self._boxes = {node: self._box(node, layer) for node, layer in _layers(view).items()}
        last = max(box.layer for box in self._boxes.values()) + 1
        self._outputs = {wire: _output_box(name, wire, last) for wire, name in view.outputs.items()}
        self._picture: Picture = arrange([*self._boxes.values(), *self._outputs.values()], LABEL_HEIGHT, BEND_HEIGHT)

    def svg(self) -> str:
        """The whole file."""
        header, header_width, header_height = self._header()
        inner = max(self._picture.width, header_width)
        width, height = inner + 2 * MARGIN, header_height + self._picture.height + MARGIN
        shift = MARGIN + (inner - self._picture.width) / 2
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        name = _escaped(self._title or "DAG")
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">',
                f"<title>{name}</title>",
                f"<style>\n{_STYLE}\n</style>",
                '<rect class="paper" width="100%" height="100%"/>',
                *header,
                f'<g transform="translate({shift:.1f} {header_height:.1f})">',
                *self._wires(),
                *(line for node in self._boxes for line in self._labels(node)),
                *(line for node, box in self._boxes.items() for line in self._node(node, box)),
                *(line for wire, box in self._outputs.items() for line in _output(self._view.outputs[wire], box)),
                "</g>",
                "</svg>\n",
            ]
        )

    # Sizes

    def _box(self, node: Node, layer: int) -> Box:
        wires = node.outputs.values()
        texts = [(node.name, BOLD * 13), (type(node.module).__name__, PLAIN * 11), (self._weights(node), PLAIN * 11)]
        width = max(len(text) * size for text, size in texts) + 28
        if node.inputs:
            width = max(width, len(node.inputs) * (max(map(len, node.inputs)) * MONO * 10 + 14))
        label = max(self._label_width(wire) for wire in wires)
        height = 46 + 16 * bool(node.inputs) + 16 + 15 * bool(self._weights(node))
        return Box(layer, max(width, len(wires) * (label + 18)), height, [*node.inputs.values()], [*wires])

    def _label_width(self, wire: NmTensor) -> float:
        texts = (str(wire.ntype.elements_type), self._view.shape(wire))
        return max(len(wire.output_port_name) * MONO * 10, *(len(text) * MONO * 11 for text in texts))

    def _weights(self, node: Node) -> str:
        weights = self._view.weights(node)
        return f"{weights} parameters" if weights and self._view.shared_with(node) is None else weights

    # Parts

    def _header(self) -> tuple[list[str], float, float]:
        """Title, summary, the colours and the named sizes; how wide and how high they are."""
        lines, widths, y = [], [0.0], 18.0
        if self._title:
            y += 18
            lines.append(f'<text class="title" x="{MARGIN:.0f}" y="{y:.0f}">{_escaped(self._title)}</text>')
            widths.append(len(self._title) * BOLD * 18)
        sizes = ", ".join(f"{name} = {meaning}" for name, meaning in self._view.legend.items())
        note = self._view.summary() + (f"; {sizes}" if sizes else "")
        y += 22
        lines.append(f'<text class="note" x="{MARGIN:.0f}" y="{y:.0f}">{_escaped(note)}</text>')
        widths.append(len(note) * PLAIN * 12)
        y += 12
        x = MARGIN
        for role in sorted({self._view.role(node) for node in self._boxes}, key=list(Role).index):
            fill, border = COLOURS[role]
            swatch = f'<rect x="{x:.1f}" y="{y:.0f}" width="14" height="14" rx="3" fill="{fill}" stroke="{border}"/>'
            lines += [swatch, f'<text class="note" x="{x + 20:.1f}" y="{y + 11:.0f}">{role.value}</text>']
            x += 20 + len(role.value) * PLAIN * 11 + 14
        widths.append(x - MARGIN)
        return lines, max(widths), y + 14 + 24

    def _wires(self) -> Iterator[str]:
        picture = self._picture
        begun: set[tuple[Box, int]] = set()
        for segment in picture.segments:
            layer = segment.upper.layer
            start = picture.tops[layer] + segment.upper.height
            bend, end = picture.tops[layer] + picture.heights[layer] + LABEL_HEIGHT, picture.tops[layer + 1]
            arrives = segment.lower not in picture.lanes
            if (segment.upper, segment.upper_port) in begun:
                start = bend  # a line drawn twice looks thicker than the others
            begun.add((segment.upper, segment.upper_port))
            change = picture.changes.get(segment)
            if change is None:
                path = _curve(segment.upper_x, segment.lower_x, start, bend, end - 6 * arrives)
            else:
                path = _round_the_column(segment.upper_x, segment.lower_x, start, end - 6 * arrives, change)
            yield f'<path class="wire" d="{path}"/>'
            if arrives:
                yield _arrowhead(segment.lower_x, end)

    def _labels(self, node: Node) -> Iterator[str]:
        """Type and shape on each wire that leaves a node; a wire that nobody takes ends below them."""
        box = self._boxes[node]
        below = self._picture.tops[box.layer] + self._picture.heights[box.layer]
        for index, wire in enumerate(box.outputs):
            assert isinstance(wire, NmTensor)
            x = box.left + box.port(box.outputs, index)
            taken = wire in self._outputs or self._view.readers(wire)
            if not taken:
                end = below + LABEL_HEIGHT
                yield f'<path class="wire" d="M {x:.1f} {box.top + box.height:.1f} V {end:.1f}"/>'
                yield f'<circle class="end" cx="{x:.1f}" cy="{end:.1f}" r="3"/>'
            width = self._label_width(wire) + 6
            yield f'<rect class="paper" x="{x - width / 2:.1f}" y="{below + 6:.1f}" width="{width:.1f}" height="30"/>'
            for kind, text, y in (("type", str(wire.ntype.elements_type), 18), ("shape", self._view.shape(wire), 32)):
                yield f'<text class="{kind}" x="{x:.1f}" y="{below + y:.1f}">{_escaped(text)}</text>'

    def _node(self, node: Node, box: Box) -> Iterator[str]:
        fill, border = COLOURS[self._view.role(node)]
        frame = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="7"'
        centre, y = box.left + box.width / 2, box.top
        yield f"<g><title>{_escaped(self._told(node))}</title>"
        dashes = "" if self._view.shared_with(node) is None else ' stroke-dasharray="5 3"'
        yield f'<rect {frame} fill="{fill}" stroke="{border}" stroke-width="1.25"{dashes}/>'
        if node.inputs:
            yield from _ports(box, box.inputs, _names(node, box), y + 14)
            y += 16
        for kind, text, height in (
            ("step", node.name, 22),
            ("class", type(node.module).__name__, 15),
            ("weights", self._weights(node), 15),
        ):
            if text:
                y += height
                yield f'<text class="{kind}" x="{centre:.1f}" y="{y:.1f}">{_escaped(text)}</text>'
        yield from _ports(box, box.outputs, list(node.outputs), box.top + box.height - 6)
        yield "</g>"

    def _told(self, node: Node) -> str:
        """What a viewer shows when the pointer rests on a box."""
        lines = [f"{node.name}: {type(node.module).__name__}"]
        for port, wire in node.inputs.items():
            lines.append(f"{port} <- {self._view.source(wire).name}.{wire.output_port_name}: {self._view.shape(wire)}")
        return "\n".join(lines)


def _layers(view: View) -> dict[Node, int]:
    """The row of each node: one below the lowest of those it takes wires from."""
    layers: dict[str, int] = {}
    for node in view.nodes:
        sources = [layers[view.source(wire).name] for wire in node.inputs.values()]
        layers[node.name] = 1 + max(sources, default=-1)
    return {node: layers[node.name] for node in view.nodes}


def _escaped(text: str) -> str:
    """Text for XML, which has no place for control characters."""
    return escape("".join(each if each >= " " or each == "\n" else "\ufffd" for each in text))


def _output_box(name: str, wire: NmTensor, layer: int) -> Box:
    return Box(layer, len(name) * MONO * 11 + 28, 26, [wire])


def _output(name: str, box: Box) -> Iterator[str]:
    frame = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="13"'
    yield f'<rect {frame} fill="#ffffff" stroke="#52606d" stroke-width="1.25"/>'
    centre = box.left + box.width / 2
    yield f'<text class="type" x="{centre:.1f}" y="{box.top + 17:.1f}">{_escaped(name)}</text>'


def _names(node: Node, box: Box) -> list[str]:
    """The input ports in the order in which the layout has put their wires."""
    left = list(node.inputs.items())
    names = []
    for wire in box.inputs:
        found = next(item for item in left if item[1] is wire)
        left.remove(found)
        names.append(found[0])
    return names


def _ports(box: Box, ports: list[object], names: list[str], y: float) -> Iterator[str]:
    for index, name in enumerate(names):
        x = box.left + box.port(ports, index)
        yield f'<text class="port" x="{x:.1f}" y="{y:.1f}">{_escaped(name)}</text>'


def _curve(upper: float, lower: float, start: float, bend: float, end: float) -> str:
    """Straight down from ``start`` to ``bend``, then over to the lower end."""
    middle = (bend + end) / 2
    return (
        f"M {upper:.1f} {start:.1f} V {bend:.1f} "
        f"C {upper:.1f} {middle:.1f} {lower:.1f} {middle:.1f} {lower:.1f} {end:.1f}"
    )


def _round_the_column(upper: float, lower: float, start: float, end: float, change: ColumnChange) -> str:
    """Down below the column, up beside it and down again into the next one, with rounded corners."""
    corners = [(upper, change.foot), (change.gutter, change.foot), (change.gutter, change.head), (lower, change.head)]
    points = [(upper, start), *corners, (lower, end)]
    path = f"M {upper:.1f} {start:.1f}"
    for before, corner, after in zip(points, corners, points[2:], strict=False):
        (x1, y1), (x2, y2) = _towards(corner, before), _towards(corner, after)
        path += f" L {x1:.1f} {y1:.1f} Q {corner[0]:.1f} {corner[1]:.1f} {x2:.1f} {y2:.1f}"
    return f"{path} V {end:.1f}"


def _towards(corner: tuple[float, float], point: tuple[float, float], radius: float = 8.0) -> tuple[float, float]:
    """The point on the way from a corner at which its rounding begins."""
    dx, dy = point[0] - corner[0], point[1] - corner[1]
    share = min(radius / max(abs(dx) + abs(dy), 1e-9), 0.5)
    return corner[0] + dx * share, corner[1] + dy * share


def _arrowhead(x: float, y: float) -> str:
    return f'<path class="end" d="M {x - 4.5:.1f} {y - 8:.1f} L {x + 4.5:.1f} {y - 8:.1f} L {x:.1f} {y:.1f} Z"/>'
