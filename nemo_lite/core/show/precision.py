"""How far each node of a DAG is from float32, as a table and as colours of its picture. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.show.svg import Note, write_svg
from nemo_lite.errors import counted
from nemo_lite.utils import logging
from nemo_lite.utils.files import make_writable_folder, write_atomically

_HEADER = ("node", "module", "computed in", "error", "of the largest", "smallest", "largest", "")
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
    """What a node gave in a half type, beside what it gave in float32, over some batches.

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
        rows = [_HEADER, *map(_row, self.nodes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        ruler = "  ".join("-" * width for width in widths[:-1])
        batches = counted(self.num_batches, "batch", "batches")
        return "\n".join([f"{self.about}; compared with float32 over {batches}", "", lines[0], ruler, *lines[1:]])

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
        write_atomically(folder / "precision.txt", lambda path: path.write_text(text, encoding="utf-8"))
        report.write_svg(folder / "precision.svg", report.about.partition(";")[0])
        logging.info("Saved precision.txt and precision.svg in %s", folder)


def _row(node: NodePrecision) -> tuple[str, ...]:
    numbers = [f"{node.error:.2e}", f"{node.relative_error:.2%}", f"{node.smallest:.2e}", f"{node.largest:.2e}"]
    if not node.dtypes:
        return node.name, node.module, "-", "", "", "", "", ""
    return node.name, node.module, ", ".join(node.dtypes), *numbers, "" if node.is_finite else "not finite"


def _note(node: NodePrecision) -> Note:
    share = node.relative_error if node.is_finite else float("inf")
    # A NaN is below nothing.
    _, meaning, fill, border = next((each for each in _COLOURS if share < each[0]), _COLOURS[-1])
    return Note(f"{', '.join(node.dtypes)}: {node.relative_error:.2%}", meaning, fill, border)
