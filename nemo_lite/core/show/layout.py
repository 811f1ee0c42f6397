"""Where the boxes and wires of a layered picture go: geometry only, top to bottom, the same for the same input.

The classical steps of Sugiyama, Tagawa and Toda ("Methods for visual understanding of hierarchical system structures",
1981): layers are given; a wire that crosses a layer gets a place in it; orders with few crossings are searched by
barycentres; then each layer is placed as near to its neighbours as its order allows (least squares).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

GAP = 36.0  # between neighbours of a layer, pixels
LANE = 16.0  # width of a wire that passes a layer
LANE_GAP = 20.0  # between it and its neighbours
FOLD_FROM = 2000.0  # a picture of this height is broken into columns
TRACK = 10.0  # between wires that lead to the next column
SWEEPS = 13  # an odd number, so that the last goes down; pictures of tens of boxes stop changing after a few


@dataclass(eq=False)
class Box:
    """A rectangle with ports at its upper and lower edge, each named by the wire that is attached to it.

    Attributes:
        layer: its row, from 0.
        width: pixels.
        height: pixels.
        inputs: wires it takes, from left to right; the layout may put them in another order.
        outputs: wires it gives, from left to right.
        left: where it is, pixels; set by the layout.
        top: likewise.
    """

    layer: int
    width: float
    height: float
    inputs: list[Hashable] = field(default_factory=list)
    outputs: list[Hashable] = field(default_factory=list)
    left: float = 0.0
    top: float = 0.0

    def port(self, ports: Sequence[Hashable], index: int) -> float:
        """How far a port is from the left edge: ports are spread evenly."""
        return self.width * (index + 0.5) / max(len(ports), 1)


@dataclass(frozen=True)
class Segment:
    """A piece of a wire from one layer to the next, between two boxes (or lanes) at these ports."""

    wire: Hashable
    upper: Box
    upper_port: int
    lower: Box
    lower_port: int

    @property
    def upper_x(self) -> float:
        """Where it leaves."""
        return self.upper.left + self.upper.port(self.upper.outputs, self.upper_port)

    @property
    def lower_x(self) -> float:
        """Where it arrives."""
        return self.lower.left + self.lower.port(self.lower.inputs, self.lower_port)


class ColumnChange(NamedTuple):
    """How a wire goes from the foot of one column to the head of the next: along here, up there, and along above."""

    foot: float
    gutter: float
    head: float


@dataclass
class Picture:
    """A finished layout.

    Attributes:
        segments: the pieces of all wires.
        lanes: boxes that stand for wires passing a layer.
        tops: upper edge of each layer.
        heights: height of each layer.
        changes: the segments that lead to the top of the next column, and how.
        width: of the whole, pixels.
        height: likewise.
    """

    segments: list[Segment]
    lanes: set[Box]
    tops: list[float]
    heights: list[float]
    changes: dict[Segment, ColumnChange]
    width: float
    height: float


def arrange(boxes: Sequence[Box], label_height: float, bend_height: float) -> Picture:
    """Place boxes; a wire goes from the box that has it among its outputs to all that have it among their inputs.

    Args:
        boxes: in an order that is a good first guess; inputs come from boxes of higher layers only.
        label_height: pixels kept free below the boxes of a layer, where wires run straight down.
        bend_height: least pixels below that, where wires run sideways.
    """
    layers, lanes = _with_lanes(boxes)
    _order(layers)
    for box in boxes:
        _order_inputs(box, layers)
    segments = _segments(layers)
    _place(layers, segments)
    for _ in range(2):  # once more, for lanes that stood in the way of others
        _straighten(layers, lanes)
    tops, heights = _stack(layers, segments, label_height, bend_height)
    changes = _fold(layers, segments, tops, heights, label_height)
    width = max(box.left + box.width for box in boxes)
    height = max(top + height for top, height in zip(tops, heights, strict=True))
    foot = max((change.foot for change in changes.values()), default=0.0)
    return Picture(segments, lanes, tops, heights, changes, width, max(height, foot))


def _with_lanes(boxes: Sequence[Box]) -> tuple[list[list[Box]], set[Box]]:
    """The boxes by layer, with a lane in each layer that a wire passes on its way down."""
    layers: list[list[Box]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    last: dict[Hashable, int] = {}
    for box in boxes:
        layers[box.layer].append(box)
        for wire in box.inputs:
            last[wire] = max(last.get(wire, 0), box.layer)
    lanes: set[Box] = set()
    for box in boxes:
        for wire in box.outputs:
            for layer in range(box.layer + 1, last.get(wire, 0)):
                lane = Box(layer, LANE, 0.0, [wire], [wire])
                layers[layer].append(lane)
                lanes.add(lane)
    return layers, lanes


def _segments(layers: Sequence[Sequence[Box]]) -> list[Segment]:
    found = []
    for upper_row, lower_row in pairwise(layers):
        above = {wire: (box, index) for box in upper_row for index, wire in enumerate(box.outputs)}
        for box in lower_row:
            for index, wire in enumerate(box.inputs):
                found.append(Segment(wire, *above[wire], box, index))
    return found


# Order


def _order(layers: list[list[Box]]) -> None:
    """Put each layer in an order with few crossings: by barycentres of its neighbours, down and up; the best stays."""
    best, fewest = [list(row) for row in layers], _crossings(layers)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for index in range(1, len(layers)) if down else range(len(layers) - 2, -1, -1):
            _sort_by_neighbours(layers[index], layers[index - 1 if down else index + 1], down)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(row) for row in layers], crossings
        if not fewest:
            break
    layers[:] = best


def _positions(row: Sequence[Box], lower_edge: bool) -> dict[Hashable, list[float]]:
    """Where the ports of each wire are along a layer, counted in boxes."""
    found: dict[Hashable, list[float]] = defaultdict(list)
    for position, box in enumerate(row):
        ports = box.outputs if lower_edge else box.inputs
        for index, wire in enumerate(ports):
            found[wire].append(position + (index + 0.5) / len(ports))
    return found


def _sort_by_neighbours(row: list[Box], neighbours: Sequence[Box], down: bool) -> None:
    there = _positions(neighbours, lower_edge=down)
    centres: dict[Box, float] = {}
    for position, box in enumerate(row):
        wires = box.inputs if down else box.outputs
        found = [place for wire in wires for place in there.get(wire, [])]
        centres[box] = sum(found) / len(found) if found else position
    row.sort(key=centres.__getitem__)


def _order_inputs(box: Box, layers: Sequence[Sequence[Box]]) -> None:
    """Take the inputs in the order in which their wires come from above."""
    if box.layer:
        there = _positions(layers[box.layer - 1], lower_edge=True)
        box.inputs.sort(key=lambda wire: there[wire][0])


def _crossings(layers: Sequence[Sequence[Box]]) -> int:
    """How many pairs of wires cross. Inputs of one box do not cross: they will be put in order."""
    total = 0
    for upper_row, lower_row in pairwise(layers):
        there = _positions(upper_row, lower_edge=True)
        ends = [sorted(there[wire][0] for wire in box.inputs) for box in lower_row]
        seen: list[float] = []
        for row_ends in ends:
            total += sum(1 for end in row_ends for before in seen if before > end)
            seen += row_ends
    return total


# Coordinates


def _place(layers: Sequence[Sequence[Box]], segments: Sequence[Segment]) -> None:
    """Give every box its ``left``: as near to its neighbours as the order of its layer allows.

    The layers go to those above and to those below in turn, and to those above at last: what has one input stands
    right below it.
    """
    above: dict[Box, list[Segment]] = defaultdict(list)
    below: dict[Box, list[Segment]] = defaultdict(list)
    for segment in segments:
        above[segment.lower].append(segment)
        below[segment.upper].append(segment)
    for row in layers:
        _settle(row, {})
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in layers if down else layers[::-1]:
            _settle(row, {box: _wish(box, (above if down else below)[box], down) for box in row})
    leftmost = min(box.left for row in layers for box in row)
    for row in layers:
        for box in row:
            box.left -= leftmost


def _wish(box: Box, segments: Sequence[Segment], down: bool) -> float:
    """Where a box would have to be for its segments to run straight down, on average."""
    shifts = [segment.upper_x - segment.lower_x for segment in segments]
    mean = sum(shifts) / max(len(shifts), 1)
    return box.left + mean if down else box.left - mean


def _settle(row: Sequence[Box], wishes: Mapping[Box, float]) -> None:
    """Move the boxes of a layer to their wishes, in order and apart: the least sum of squared distances.

    Neighbours that would overlap form a block, which goes to the mean wish of its members (pool adjacent violators).
    """
    offsets = [0.0]
    for box, following in pairwise(row):
        offsets.append(offsets[-1] + box.width + _gap(box, following))
    blocks: list[tuple[float, int]] = []  # mean of (wish - offset), number of boxes
    for box, shift in zip(row, offsets, strict=True):
        mean, number = wishes.get(box, box.left) - shift, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, number = (mean * number + before * many) / (number + many), number + many
        blocks.append((mean, number))
    means = [mean for mean, number in blocks for _ in range(number)]
    for box, shift, mean in zip(row, offsets, means, strict=True):
        box.left = mean + shift


def _gap(left: Box, right: Box) -> float:
    """The space between neighbours; lanes, which have no height, need less."""
    return GAP if left.height and right.height else LANE_GAP


def _straighten(layers: Sequence[Sequence[Box]], lanes: set[Box]) -> None:
    """Put the lanes of a wire below each other where the boxes beside them leave room: one bend instead of several."""
    chains: dict[Hashable, list[tuple[Box, float, float]]] = defaultdict(list)
    for row in layers:
        for before, box, after in zip([None, *row], row, [*row[1:], None], strict=False):
            if box in lanes:
                low = before.left + before.width + _gap(before, box) if before else -math.inf
                high = after.left - _gap(box, after) - box.width if after else math.inf
                chains[box.inputs[0]].append((box, low, high))
    for chain in chains.values():
        low, high = max(low for _, low, _ in chain), min(high for _, _, high in chain)
        if low <= high:
            left = min(max(chain[0][0].left, low), high)
            for box, _, _ in chain:
                box.left = left


def _stack(
    layers: Sequence[Sequence[Box]], segments: Sequence[Segment], label_height: float, bend_height: float
) -> tuple[list[float], list[float]]:
    """Upper edge and height of each layer; wires that go far sideways get more room to bend."""
    reach = [0.0] * len(layers)
    for segment in segments:
        layer = segment.upper.layer
        reach[layer] = max(reach[layer], abs(segment.upper_x - segment.lower_x))
    tops, heights, top = [], [], 0.0
    for row, sideways in zip(layers, reach, strict=True):
        height = max(box.height for box in row)
        for box in row:
            box.top = top
        tops.append(top)
        heights.append(height)
        top += height + label_height + bend_height + min(sideways / 8, 60)
    return tops, heights


def _fold(
    layers: Sequence[Sequence[Box]],
    segments: Sequence[Segment],
    tops: list[float],
    heights: Sequence[float],
    label_height: float,
) -> dict[Segment, ColumnChange]:
    """Break a high and narrow picture into columns of equally many layers, side by side."""
    width = max(box.left + box.width for row in layers for box in row)
    if tops[-1] + heights[-1] < FOLD_FROM:
        return {}
    num_columns = max(round((tops[-1] / (width + 2 * GAP)) ** 0.5), 1)
    rows = -(-len(layers) // num_columns)
    crossing = [s for s in segments if s.lower.layer % rows == 0]
    crossing.sort(key=lambda segment: -segment.upper_x)
    head = 2 * TRACK * (1 + max(Counter(s.lower.layer for s in crossing).values(), default=0))
    edges, left = [], 0.0
    for first in range(0, len(layers), rows):
        edges.append(_move_column(layers[first : first + rows], left, head - tops[first]))
        tops[first : first + rows] = [top + head - tops[first] for top in tops[first : first + rows]]
        left = edges[-1] + GAP + head
    floor = max(top + height for top, height in zip(tops, heights, strict=True)) + label_height
    changes: dict[Segment, ColumnChange] = {}
    taken: Counter[int] = Counter()
    for segment in crossing:
        column = segment.upper.layer // rows
        taken[column] += 1
        step = TRACK * taken[column]
        changes[segment] = ColumnChange(floor + step, edges[column] + step, head - TRACK - step)
    return changes


def _move_column(layers: Sequence[Sequence[Box]], left: float, down: float) -> float:
    """Move a column to its place; its right edge."""
    shift = left - min(box.left for row in layers for box in row)
    for row in layers:
        for box in row:
            box.left += shift
            box.top += down
    return max(box.left + box.width for row in layers for box in row)
