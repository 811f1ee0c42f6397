"""Where the boxes and wires of a layered picture go: geometry only, top to bottom, the same for the same input.

The classical steps of Sugiyama, Tagawa and Toda ("Methods for visual understanding of hierarchical system structures",
1981): layers are given; a wire that passes a layer gets a lane in it; each layer is ordered by the positions of its
neighbours, and placed as near to them as its order allows (least squares).
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

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
    given = [(box.layer, port.wire) for box in boxes for port in box.outputs]
    lanes = [
        Box(layer, LANE, 0.0, {"": wire}, {"": wire})
        for above, wire in given
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
