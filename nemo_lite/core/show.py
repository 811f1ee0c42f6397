"""A DAG as a table; the plan of a run; the report of precision. Pictures: `picture` and `mermaid`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nemo_lite.base.errors import counted
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.outputs import write_output
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.picture import Note, View
from nemo_lite.core.picture import as_mermaid as as_mermaid
from nemo_lite.core.picture import as_svg as as_svg
from nemo_lite.core.picture import write_svg as write_svg
from nemo_lite.core.shapes import frames_of as frames_of
from nemo_lite.core.shapes import symbolic_shapes as symbolic_shapes
from nemo_lite.utils import logging

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
    memory: str = "",
) -> None:
    """Print every DAG as a table, and the schedule; with a folder, save ``plan.txt`` and ``<name>.svg`` there.

    Args:
        dags: the DAGs by name.
        lr_policy: learning rate from (initial rate, step, epoch).
        initial_lr: the initial rate.
        steps_per_epoch: optimizer steps in an epoch; None where nobody knows.
        total_steps: optimizer steps in all.
        folder: where to save; it is made.
        memory: a line about the memory of a step.

    Raises:
        UsageError: the folder is not writable.
    """
    points = sorted({0, total_steps // 3, 2 * total_steps // 3, total_steps - 1})
    of_epoch = steps_per_epoch or total_steps
    rates = [f"{lr_policy(initial_lr, step, step // of_epoch):.3g} at step {step}" for step in points]
    memory = f"\n{memory}" if memory else ""
    epoch = f"{counted(steps_per_epoch, 'step')} an epoch, " if steps_per_epoch else ""
    schedule = f"{epoch}{counted(total_steps, 'step')} in all\nlearning rate {', '.join(rates)}{memory}"
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
