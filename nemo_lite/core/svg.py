"""A DAG as an SVG picture: where nodes stand, and the drawing."""

from __future__ import annotations

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.view import Frame, Role, View
from nemo_lite.files import write_atomically

# Where the boxes and wires of a layered picture go: geometry only, top to bottom, the same for the same input.
# The classical steps of Sugiyama, Tagawa and Toda ("Methods for visual understanding of hierarchical system
# structures", 1981): layers are given; a wire that passes a layer gets a lane in it; each layer is ordered by the
# positions of its neighbours, and placed as near to them as its order allows (least squares).


GAP = 36.0  # between neighbours of a layer, pixels
LANE = 16.0  # width of a wire that passes a layer
LANE_GAP = 20.0  # between it and its neighbours
LANE_WEIGHT = 1000.0  # boxes give way to long wires, so that these run straight
FOLD_FROM = 2000.0  # a picture of this height is broken into columns
COLUMN_GAP = 60.0  # above and beside a column, for the ends of wires that come from another
SWEEPS = 13  # an odd number, so that the last goes down; pictures of tens of boxes stop changing after a few


@dataclass(eq=False)
class Port:
    """Where a wire meets an edge of a box: ports are spread evenly from left to right.

    Attributes:
        name: the port's name, empty for a lane.
        wire: what it gives or takes.
        box: whose port it is.
        edge: all ports of this edge.
        peers: ports in the next layer that take what this one gives, or the port that gives what this one takes.
        offset: pixels from the left edge of the box, where that is fixed.
    """

    name: str
    wire: Hashable
    box: Box
    edge: list[Port]
    peers: list[Port] = field(default_factory=list)
    offset: float | None = None

    @property
    def x(self) -> float:
        """Pixels from the left."""
        if self.offset is not None:
            return self.box.left + self.offset
        return self.box.left + self.box.width * (self.edge.index(self) + 0.5) / len(self.edge)


class Box:
    """A rectangle with inputs at its upper edge and outputs at its lower one; or a lane, which has no height.

    Attributes:
        layer: its row, from 0.
        width: pixels.
        height: pixels.
        inputs: from left to right; the layout may put them in another order.
        outputs: from left to right.
        left: pixels; set by the layout, as all that follows.
        top: pixels; the same for all boxes of a layer.
        floor: the lower edge of the highest box of the layer.
    """

    def __init__(
        self, layer: int, width: float, height: float, inputs: Mapping[str, Hashable], outputs: Mapping[str, Hashable]
    ) -> None:
        self.layer, self.width, self.height = layer, width, height
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.inputs += [Port(name, wire, self, self.inputs) for name, wire in inputs.items()]
        self.outputs += [Port(name, wire, self, self.outputs) for name, wire in outputs.items()]
        self.left = self.top = self.floor = 0.0

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def weight(self) -> float:
        """How much it resists being moved: a lane below a lane continues it straight down."""
        is_lane = not self.height and bool(self.inputs)
        return LANE_WEIGHT if is_lane and not self.inputs[0].peers[0].box.height else 1.0


def arrange(boxes: Sequence[Box], label_height: float, bend_height: float) -> list[Box]:
    """Place the boxes, connect their ports, and return them with the lanes between them, layer by layer.

    A wire goes from the box that has it among its outputs to all that have it among their inputs.

    Args:
        boxes: in an order that is a good first guess; inputs come from boxes of higher layers only.
        label_height: pixels kept free below the boxes of a layer, where wires run straight down.
        bend_height: least pixels below that, where wires run sideways.
    """
    rows: list[list[Box]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    for box in _with_lanes(boxes):
        rows[box.layer].append(box)
    for row in rows:
        _settle(row)
    best = (_crossings(rows), 0, rows)
    for sweep in range(1, SWEEPS + 1):
        rows = [list(row) for row in rows]
        _sweep(rows, down=sweep % 2 == 1, sort=True)
        best = min(best, (_crossings(rows), sweep, rows))
    _, _, rows = best
    for sweep in range(1, SWEEPS + 1):
        _sweep(rows, down=sweep % 2 == 1, sort=False)
    _stack(rows, label_height, bend_height)
    _fold(rows)
    return [box for row in rows for box in row]


def _with_lanes(boxes: Sequence[Box]) -> list[Box]:
    """The boxes, and a lane in each layer that a wire passes on its way down; with all ports connected."""
    last: dict[Hashable, int] = {}
    for box in boxes:
        last |= {port.wire: max(last.get(port.wire, 0), box.layer) for port in box.inputs}
    outputs = [(box.layer, port.wire) for box in boxes for port in box.outputs]
    lanes = [
        Box(layer, LANE, 0.0, {"": wire}, {"": wire})
        for above, wire in outputs
        for layer in range(above + 1, last.get(wire, 0))
    ]
    together = [*boxes, *lanes]
    takers: dict[tuple[int, Hashable], list[Port]] = defaultdict(list)
    for port in (port for box in together for port in box.inputs):
        takers[port.box.layer, port.wire].append(port)
    for port in (port for box in together for port in box.outputs):
        port.peers = takers[port.box.layer + 1, port.wire]
        for peer in port.peers:
            peer.peers = [port]
    return together


def _sweep(rows: Sequence[list[Box]], down: bool, sort: bool) -> None:
    """Move each layer to the one above it (or below it); ``sort`` allows other orders of its boxes.

    The last sweep goes down, so that what has one input stands right below it.
    """
    for row in rows if down else rows[::-1]:
        for box in row:
            shifts = [peer.x - port.x for port in (box.inputs if down else box.outputs) for peer in port.peers]
            box.left += sum(shifts) / max(len(shifts), 1)
        if sort:
            row.sort(key=lambda box: box.left + box.width / 2)
        _settle(row)
        for box in row if down else ():
            box.inputs[:] = sorted(box.inputs, key=lambda port: port.peers[0].x)


def _settle(row: Sequence[Box]) -> None:
    """Move the boxes of a layer apart, in their order, with the least (weighted) sum of squared distances.

    Neighbours that would overlap form a block, which goes to the mean place of its members (pool adjacent violators).
    """
    offsets = [0.0]
    for box, following in pairwise(row):
        offsets.append(offsets[-1] + box.width + (GAP if box.height and following.height else LANE_GAP))
    blocks: list[tuple[float, float, int]] = []  # mean of (left - offset), weight, number of boxes
    for box, offset in zip(row, offsets, strict=True):
        mean, weight, number = box.left - offset, box.weight, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, many = blocks.pop()
            mean, weight = (mean * weight + before * heavy) / (weight + heavy), weight + heavy
            number += many
        blocks.append((mean, weight, number))
    means = [mean for mean, _, number in blocks for _ in range(number)]
    for box, offset, mean in zip(row, offsets, means, strict=True):
        box.left = mean + offset


def _crossings(rows: Iterable[Iterable[Box]]) -> int:
    """How many pairs of wires cross."""
    total = 0
    for row in rows:
        ends: list[float] = []
        for _, end in sorted((port.x, peer.x) for box in row for port in box.outputs for peer in port.peers):
            total += len(ends) - bisect(ends, end)
            insort(ends, end)
    return total


def _stack(rows: Iterable[Sequence[Box]], label_height: float, bend_height: float) -> None:
    """Place the layers below each other; wires that go far sideways get more room to bend."""
    top = 0.0
    for row in rows:
        floor = top + max(box.height for box in row)
        for box in row:
            box.top, box.floor = top, floor
        ways = [abs(port.x - peer.x) for box in row for port in box.outputs for peer in port.peers]
        top = floor + label_height + bend_height + min(max(ways, default=0.0) / 8, 60)


def _fold(rows: Sequence[Sequence[Box]]) -> None:
    """Put the left edge at 0; break a high picture into columns of equally many layers, side by side."""
    boxes = [box for row in rows for box in row]
    width, height = max(box.right for box in boxes) - min(box.left for box in boxes), boxes[-1].floor
    num_columns = max(round((height / (width + 2 * GAP)) ** 0.5), 1) if height > FOLD_FROM else 1
    num_rows = -(-len(rows) // num_columns)
    left = 0.0
    for first in range(0, len(rows), num_rows):
        column = [box for row in rows[first : first + num_rows] for box in row]
        right, down = left - min(box.left for box in column), COLUMN_GAP * (num_columns > 1) - column[0].top
        for box in column:
            box.left, box.top, box.floor = box.left + right, box.top + down, box.floor + down
        left = max(box.right for box in column) + COLUMN_GAP


# A DAG as a self-contained SVG: boxes for nodes, arrows with types and shapes for wires. No fonts, no scripts.


MARGIN = 28.0
HEADER_HEIGHT = 108.0
LABEL_HEIGHT = 40.0  # two lines of type and shape on an arrow
BEND_HEIGHT = 26.0
FRAME_TITLE, FRAME_EDGE = 26.0, 12.0  # kept free around the nodes of a nested graph: above, and elsewhere
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
.frame { fill: #ffffff; stroke: #9aa5b1; stroke-width: 1.25; stroke-dasharray: 6 4; }
.graph { font-size: 12px; font-weight: 600; fill: #52606d; }
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


class _Area:
    """The arranged boxes of a picture, or of a frame in it; wires enter and leave a frame through boxes of no height.

    Args:
        view: what is drawn.
        frame: which nodes and frames.
        box_of: makes the box of a node, in a layer.

    Attributes:
        nodes: boxes of the nodes.
        frames: areas of the frames, and their boxes.
        outputs: boxes of what the DAG was asked for, which only the whole picture has.
        entries, exits: boxes of no height by the wires that enter and leave.
        boxes: all of them, and lanes, layer by layer.
    """

    def __init__(self, view: View, frame: Frame, box_of: Callable[[Node, int], Box]) -> None:
        self.name, self._view = frame.name, view
        self._item = {
            node: item for item in frame.items for node in (item.nodes if isinstance(item, Frame) else [item])
        }
        outside = [w for node in self._item for w in node.inputs.values() if view.source(w) not in self._item]
        self.entries = {wire: Box(0, LANE, 0.0, {}, {"": wire}) for wire in dict.fromkeys(outside)}
        layers = self._layers(frame)
        last = 1 + max(layers.values())
        outgoing = [wire for node in self._item for wire in node.outputs.values() if frame.name and self._leaves(wire)]
        self.exits = {wire: Box(last, LANE, 0.0, {"": wire}, {}) for wire in outgoing}
        self.outputs = [
            Box(last, len(name) * MONO * 11 + 28, 26, {name: wire}, {})
            for wire, name in ({} if frame.name else view.outputs).items()
        ]
        self.nodes: dict[Node, Box] = {}
        self.frames: dict[_Area, Box] = {}
        items: list[Box] = []
        for item, layer in layers.items():
            if isinstance(item, Frame):
                area = _Area(view, item, box_of)
                self.frames[area] = area.box(layer)
                items.append(self.frames[area])
            else:
                self.nodes[item] = box_of(item, layer)
                items.append(self.nodes[item])
        boxes = [*self.entries.values(), *items, *self.exits.values(), *self.outputs]
        self.boxes = arrange(boxes, LABEL_HEIGHT, BEND_HEIGHT)
        self.width = max(box.right for box in self.boxes)
        # A wire that goes on in another column ends in a circle, below the labels of its last layer.
        self.height = max(box.floor + bool(box.outputs) * (LABEL_HEIGHT + 2 * RADIUS) for box in self.boxes)

    def box(self, layer: int) -> Box:
        """The box that stands for the area among those around it."""
        width = max(self.width + 2 * FRAME_EDGE, len(self.name) * BOLD * 12 + 2 * FRAME_EDGE)
        ends = [{str(n): wire for n, wire in enumerate(wires)} for wires in (self.entries, self.exits)]
        box = Box(layer, width, FRAME_TITLE + self.height + FRAME_EDGE, *ends)
        for ports, inner in ((box.inputs, self.entries), (box.outputs, self.exits)):
            for port, end in zip(ports, inner.values(), strict=True):
                port.offset = FRAME_EDGE + end.left + end.width / 2
        return box

    def _layers(self, frame: Frame) -> dict[Node | Frame, int]:
        """Each item's layer: below all that it takes wires from. What a frame takes may come after some of its nodes,
        so that a second pass can be needed."""
        layers = dict.fromkeys(frame.items, 1 if self.entries else 0)
        links = [
            (self._item[self._view.source(wire)], item)
            for node, item in self._item.items()
            for wire in node.inputs.values()
            if wire not in self.entries
        ]
        while late := [(a, b) for a, b in links if a is not b and layers[b] <= layers[a]]:
            for source, item in late:
                layers[item] = max(layers[item], layers[source] + 1)
        return layers

    def _leaves(self, wire: NmTensor) -> bool:
        return wire in self._view.outputs or any(node not in self._item for node, _ in self._view.readers(wire))


class _Drawing:
    """The SVG elements for each part of a picture."""

    def __init__(self, view: View, title: str, notes: Mapping[str, Note]) -> None:
        self._view, self._title, self._notes = view, title, notes
        self._numbers: dict[object, int] = {}
        self._area = _Area(view, view.frame, self._box)

    def svg(self) -> str:
        """The whole file."""
        header, header_width = self._header()
        inner = max(self._area.width, header_width)
        width, height = inner + 2 * MARGIN, HEADER_HEIGHT + self._area.height + MARGIN
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        name = _escaped(self._title or "DAG")
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">',
            f"<title>{name}</title>\n<style>\n{_STYLE}\n</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *header,
            f'<g transform="translate({MARGIN + (inner - self._area.width) / 2:.1f} {HEADER_HEIGHT:.1f})">',
            *self._parts(self._area),
        ]
        return "\n".join([*parts, "</g>", "</svg>\n"])

    def _parts(self, area: _Area) -> Iterator[str]:
        for box in area.frames.values():
            yield _rect(box.left, box.top, box.width, box.height, 'class="frame"', 9)
        yield from self._wires(area.boxes)
        for box in (*area.nodes.values(), *area.frames.values()):
            yield from (line for port in box.outputs for line in self._label(port))
        yield from (line for node, box in area.nodes.items() for line in self._node(node, box))
        yield from (line for box in area.outputs for line in _output(box))
        for inner, box in area.frames.items():
            yield from self._frame(inner, box)

    def _frame(self, area: _Area, box: Box) -> Iterator[str]:
        """The content of the frame of a nested graph, and its name."""
        yield f'<g transform="translate({box.left + FRAME_EDGE:.1f} {box.top + FRAME_TITLE:.1f})">'
        for end in area.entries.values():
            yield f'<path class="wire" d="M {end.left + end.width / 2:.1f} {-FRAME_TITLE} V 0"/>'
        for end in area.exits.values():
            edge = area.height + FRAME_EDGE
            yield f'<path class="wire" d="M {end.left + end.width / 2:.1f} {end.top:.1f} V {edge:.1f}"/>'
        yield from self._parts(area)
        yield "</g>"
        yield _text("graph", box.left + FRAME_EDGE, box.top + 17, area.name)

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
        """The lines in a box below the names."""
        note = self._notes.get(node.name)
        return [line for line in (self._view.weights_line(node), note.text if note else "") if line]

    def _meaning(self, node: Node) -> tuple[str, str]:
        """The meaning of a box's colour, and its attributes."""
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
        meanings = dict(map(self._meaning, self._view.nodes))
        for title in sorted(meanings, key=lambda title: (roles.get(title, len(roles)), title)):
            lines += [_rect(x, 70, 14, 14, meanings[title], 3), _text("note", x + 20, 81, title)]
            x += 34 + len(title) * PLAIN * 11
        return lines, max(len(self._title) * BOLD * 18, len(note) * PLAIN * 12, x - MARGIN)

    def _wires(self, boxes: Iterable[Box]) -> Iterator[str]:
        pairs = [(port, peer) for box in boxes for port in box.outputs for peer in port.peers]
        for port, peer in pairs:
            start, bend, tip = port.box.top + port.box.height, port.box.floor + LABEL_HEIGHT, peer.box.top
            end = tip - 6 * bool(peer.box.height)  # inside the arrowhead, so that its tip is sharp
            draws_start = peer is port.peers[0]  # a line drawn twice looks thicker than the others
            if end > bend:
                yield _curve(port.x, peer.x, start if draws_start else bend, bend, end)
            else:
                number = self._numbers.setdefault(port.wire, len(self._numbers) + 1)
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
    return escape("".join(letter if letter >= " " or letter == "\n" else "\ufffd" for letter in text))


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
