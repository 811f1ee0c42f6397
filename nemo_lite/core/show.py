"""A DAG as a picture (SVG), as a table and as Mermaid; the plan of a run; the report of precision."""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from html import escape
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import counted
from nemo_lite.base.files import make_writable_folder, write_atomically
from nemo_lite.base.outputs import write_output
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import LossType, NestedUse, NmTensor
from nemo_lite.core.shapes import definitions, symbolic_shapes, written
from nemo_lite.core.shapes import frames_of as frames_of
from nemo_lite.utils import logging

# A DAG as rows of texts, from which tables and pictures are made.


class Role(Enum):
    """The purpose of a module, and its colours: a muted fill for dark text, a darker border of the same hue."""

    DATA = ("data layer", "#dfebf7", "#4f7cac")
    PREPROCESSOR = ("preprocessor", "#e0f0e6", "#4c8c64")
    AUGMENTATION = ("augmentation", "#fbf0d5", "#b08a2e")
    TRAINABLE = ("trainable", "#ebe4f5", "#7a5ea8")
    LOSS = ("loss", "#f8e1de", "#b65b50")
    OTHER = ("other", "#eceff2", "#788594")

    def __init__(self, title: str, fill: str, border: str) -> None:
        self.title, self.fill, self.border = title, fill, border


class Frame:
    """A use of a nested graph, around whose nodes a box is drawn; or the whole picture, which has no name.

    Attributes:
        name: the graph's.
        items: its nodes and the frames in it, in the order of the nodes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[Node | Frame] = []

    @property
    def nodes(self) -> list[Node]:
        """Its nodes, those in frames included."""
        return [node for item in self.items for node in (item.nodes if isinstance(item, Frame) else [item])]


def _framed(nodes: Iterable[Node]) -> Frame:
    """Nodes in the frames of the graphs that they were nested in."""
    frames: dict[tuple[NestedUse, ...], Frame] = {(): Frame("")}
    for node in nodes:
        path = node.call.nested_in
        for depth, use in enumerate(path):
            if path[: depth + 1] not in frames:
                frames[path[: depth + 1]] = Frame(use.name)
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
        self._first_of = {node.module: node for node in reversed(self.nodes)}
        wires = dict.fromkeys(dag.outputs)
        names = Counter(wire.name for wire in wires)
        self.outputs = {w: w.name if names[w.name] == 1 else f"{self.source(w).name}.{w.name}" for w in wires}

    def source(self, wire: NmTensor) -> Node:
        """The node that gives a wire."""
        return self._node_of[wire.call]

    def readers(self, wire: NmTensor) -> list[tuple[Node, str]]:
        """The nodes of this DAG that take a wire, each with its input port."""
        return [(self._node_of[call], port) for call, port in wire.readers if call in self._node_of]

    def shared_with(self, node: Node) -> Node | None:
        """The first node of the same module, or None if this node is the first."""
        first = self._first_of[node.module]
        return None if first is node else first

    def role(self, node: Node) -> Role:
        """The purpose of a node's module."""
        module = node.module
        if node is self.dag.data_node:
            return Role.DATA
        if module.training_only:
            return Role.AUGMENTATION
        if any(isinstance(ntype.elements_type, LossType) for ntype in module.output_ports.values()):
            return Role.LOSS
        if module.converts is not None:
            return Role.PREPROCESSOR
        return Role.TRAINABLE if module.is_trainable() or module.num_weights else Role.OTHER

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


# A DAG as an SVG picture: where nodes stand, and the drawing.


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
        name = _xml_text(self._title or "DAG")
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
        yield f"<g><title>{_xml_text(self._tooltip(node))}</title>"
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


def _xml_text(text: str) -> str:
    """Text for XML, which does not allow control characters."""
    return escape("".join(letter if letter >= " " or letter == "\n" else "\ufffd" for letter in text))


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_xml_text(text)}</text>'


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


# A DAG as a table of plain text.


_HEADER = ("node", "module, and where its ports lead", "shapes and types", "parameters")
MOST_TARGETS = 6  # readers of a wire that are listed
Row = tuple[str, str, str, str]


def as_text(dag: Dag, title: str = "") -> str:
    """A table with a line for each node (module, shapes, parameters) and one for each of its ports.

    ``<- [1] x``: the wire comes from port ``x`` of node 1. ``-> [2] y``: it goes to port ``y`` of node 2.
    """
    view = View(dag)
    sizes = [f"{name} = {meaning}" for name, meaning in view.legend.items()]
    head = f"{title}: {view.summary()}" if title else view.summary()
    return "\n".join([head, *sizes, "", *_table(_HEADER, list(_rows(view)))])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns; a ruler stands under the titles that are not empty."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    ruler = ["-" * width if title else "" for title, width in zip(header, widths, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, ruler, *rows)
    ]


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


# A DAG as a Mermaid flowchart, which Markdown pages draw.


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


def _boxes(view: View, frame: Frame, ids: Mapping[str, str], indent: str, numbers: Iterator[int]) -> Iterator[str]:
    for item in frame.items:
        if isinstance(item, Frame):
            yield f'{indent}subgraph g{next(numbers)}["{_mermaid_text(item.name)}"]'
            yield from _boxes(view, item, ids, indent + "    ", numbers)
            yield f"{indent}end"
        else:
            role = view.role(item)
            open_, close = ("[(", ")]") if role is Role.DATA else ("[", "]")
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


# show_plan: the DAGs and the schedule of a run, printed and drawn before it starts. No data is read.


def _write_of_plan(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file of a plan. One that was not written here, or was changed since, stays: FileInTheWayError."""
    write_output(path, write, "nemo-lite plan", remedy="move it away, or choose another folder")


def show_plan(
    dags: Mapping[str, Dag],
    lr_policy: Callable[[float, int, int], float],
    initial_lr: float,
    steps_per_epoch: int | None,
    total_steps: int,
    folder: Path | None = None,
) -> None:
    """Print every DAG as a table, and the schedule; with a folder, save ``plan.txt`` and ``<name>.svg`` there.

    Args:
        dags: the DAGs by name.
        lr_policy: learning rate from (initial rate, step, epoch).
        initial_lr: the initial rate.
        steps_per_epoch: optimizer steps in an epoch; None where nobody knows.
        total_steps: optimizer steps in all.
        folder: where to save; it is made.

    Raises:
        UsageError: the folder is not writable.
    """
    points = sorted({0, total_steps // 3, 2 * total_steps // 3, total_steps - 1})
    of_epoch = steps_per_epoch or total_steps
    rates = [f"{lr_policy(initial_lr, step, step // of_epoch):.3g} at step {step}" for step in points]
    epoch = f"{counted(steps_per_epoch, 'step')} an epoch, " if steps_per_epoch else ""
    schedule = f"{epoch}{counted(total_steps, 'step')} in all\nlearning rate {', '.join(rates)}"
    text = "\n\n".join([*(as_text(dag, title=name) for name, dag in dags.items()), schedule]) + "\n"
    print(text)
    if folder is None:
        return
    make_writable_folder(folder)
    _write_of_plan(folder / "plan.txt", lambda path: path.write_text(text, encoding="utf-8"))
    for name, dag in dags.items():
        _write_of_plan(folder / f"{name}.svg", partial(write_svg, dag=dag, title=name))
    logging.info("Saved plan.txt and %s in %s", ", ".join(f"{name}.svg" for name in dags), folder)


# How far each node of a DAG is from float32, as a table and as colours of its picture. Nothing is computed here.


_PRECISION_HEADER = ("node", "module", "computed in", "error", "of the largest", "smallest", "largest", "")
# Upper bounds of the relative error, with what a node below is called, and its fill and border.
_COLOURS = (
    (1e-12, "as in float32", "#eceff2", "#788594"),
    (1e-3, "error below 0.1 %", "#e0f0e6", "#4c8c64"),
    (1e-2, "below 1 %", "#fbf0d5", "#b08a2e"),
    (1e-1, "below 10 %", "#fbe0c8", "#c0732c"),
    (float("inf"), "10 % and more, or not finite", "#f8d3ce", "#b3362b"),
)


@dataclass(frozen=True)
class NodePrecision:
    """The values of a node in a half type, compared with those in float32, over some batches.

    Attributes:
        name: the node.
        module: its class.
        dtypes: the floating types of its operations' results, without conversions, or of what it hands on; empty if
            it gives no floating values.
        error: the largest difference of a value from float32.
        relative_error: the same as a share of the node's largest magnitude in float32.
        smallest: the smallest magnitude above 0 that it gave.
        largest: the largest magnitude that it gave.
        is_finite: all that it gave is finite.
    """

    name: str
    module: str
    dtypes: tuple[str, ...]
    error: float
    relative_error: float
    smallest: float
    largest: float
    is_finite: bool


@dataclass(frozen=True)
class PrecisionReport:
    """A DAG in a level, compared with float32 on the same weights and batches, in evaluation mode.

    Attributes:
        dag: what ran.
        about: the level, as the log of a training says it.
        num_batches: how many batches ran.
        nodes: one entry for each node behind the data layer, in order.
    """

    dag: Dag
    about: str
    num_batches: int
    nodes: Sequence[NodePrecision]

    def as_text(self) -> str:
        """A table with a line for each node."""
        batches = counted(self.num_batches, "batch", "batches")
        head = f"{self.about}; compared with float32 over {batches}"
        return "\n".join([head, "", *_table(_PRECISION_HEADER, [_row(node) for node in self.nodes])])

    def write_svg(self, path: str | Path, title: str = "") -> None:
        """Write the picture of the DAG, coloured by the relative error."""
        write_svg(path, self.dag, title, {node.name: _note(node) for node in self.nodes if node.dtypes})


def show_precision(report: PrecisionReport | None, folder: Path | None = None) -> None:
    """Print the table; with a folder, save ``precision.txt`` and ``precision.svg`` there.

    Args:
        report: None, on ranks above 0, shows nothing.
        folder: it is made.

    Raises:
        UsageError: the folder is not writable.
    """
    if report is None:
        return
    text = report.as_text() + "\n"
    print(text)
    if folder is not None:
        make_writable_folder(folder)
        _write_of_plan(folder / "precision.txt", lambda path: path.write_text(text, encoding="utf-8"))
        _write_of_plan(folder / "precision.svg", partial(report.write_svg, title=report.about.partition(";")[0]))
        logging.info("Saved precision.txt and precision.svg in %s", folder)


def _row(node: NodePrecision) -> tuple[str, ...]:
    numbers = [f"{node.error:.2e}", f"{node.relative_error:.2%}", f"{node.smallest:.2e}", f"{node.largest:.2e}"]
    if not node.dtypes:
        return node.name, node.module, "-", "", "", "", "", ""
    return node.name, node.module, ", ".join(node.dtypes), *numbers, "" if node.is_finite else "not finite"


def _note(node: NodePrecision) -> Note:
    share = node.relative_error if node.is_finite else float("inf")
    # A NaN is below nothing.
    _, meaning, fill, border = next((entry for entry in _COLOURS if share < entry[0]), _COLOURS[-1])
    return Note(f"{', '.join(node.dtypes)}: {node.relative_error:.2%}", meaning, fill, border)
