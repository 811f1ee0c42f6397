"""What pictures and tables of a DAG show: its nodes in their graphs, their purposes, shapes and weights as texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from nemo_lite.base.errors import counted
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
