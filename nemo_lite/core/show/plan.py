"""show_plan: the DAGs and the schedule of a run, printed and drawn before it starts. No data is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.show.svg import write_svg
from nemo_lite.core.show.text import as_text
from nemo_lite.errors import counted
from nemo_lite.utils import logging
from nemo_lite.utils.files import make_writable_folder, write_atomically


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
    write_atomically(folder / "plan.txt", lambda path: path.write_text(text, encoding="utf-8"))
    for name, dag in dags.items():
        write_svg(folder / f"{name}.svg", dag, title=name)
    logging.info("Saved plan.txt and %s in %s", ", ".join(f"{name}.svg" for name in dags), folder)
