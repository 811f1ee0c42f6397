"""Before training: what would be run, in words and pictures, and which texts do not fit their frames. No audio is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_asr.data_layer import AudioToTextDataLayer
from nemo_lite import Dag, NmTensor, logging
from nemo_lite.core.show import as_text, frames_of, write_svg
from nemo_lite.utils.files import write_atomically

MOST_LISTED = 20


def show_plan(
    dags: Mapping[str, Dag],
    steps_per_epoch: int,
    lr_policy: Callable[[float, int, int], float],
    initial_lr: float,
    max_steps: int | None,
    num_epochs: int | None,
    folder: Path | None = None,
) -> None:
    """Print every DAG as a table and the schedule; with a folder, save ``plan.txt`` and ``<name>.svg`` there.

    Args:
        dags: the DAGs by name.
        steps_per_epoch: optimizer steps in an epoch.
        lr_policy: learning rate from (initial rate, step, epoch).
        initial_lr: the initial rate.
        max_steps: how long the run is, or
        num_epochs: how long it is.
        folder: where to save.
    """
    total = max_steps or steps_per_epoch * (num_epochs or 1)
    rates = [f"step {step}: {lr_policy(initial_lr, step, step // steps_per_epoch):.3g}" for step in _four_points(total)]
    schedule = f"{steps_per_epoch} steps an epoch, {total} steps in all\nlearning rate at " + ", ".join(rates)
    text = "\n\n".join([*(as_text(dag, title=name) for name, dag in dags.items()), schedule]) + "\n"
    print(text)
    if folder is None:
        return
    write_atomically(folder / "plan.txt", lambda path: path.write_text(text, encoding="utf-8"))
    for name, dag in dags.items():
        write_svg(folder / f"{name}.svg", dag, title=name)
    logging.info("Saved plan.txt and %s in %s", ", ".join(f"{name}.svg" for name in dags), folder)


def warn_of_infeasible(data_layer: AudioToTextDataLayer, log_probs: NmTensor) -> int:
    """List the utterances whose frames, after the encoder's stride, cannot hold their text; their CTC loss is infinite.

    Args:
        data_layer: the utterances.
        log_probs: the wire whose time axis the text has to fit in.

    Returns:
        How many there are.
    """
    found = data_layer.infeasible(frames_of(Dag([log_probs]), log_probs))
    for infeasible in found[:MOST_LISTED]:
        logging.warning("%s", infeasible)
    if found:
        more = f" ({len(found) - MOST_LISTED} more are not listed)" if len(found) > MOST_LISTED else ""
        logging.warning(
            "%d of %d texts do not fit their frames%s; steps with them are skipped: leave them out, or use a smaller stride",
            len(found),
            len(data_layer),
            more,
        )
    return len(found)


def _four_points(total: int) -> list[int]:
    return sorted({0, total // 3, 2 * total // 3, max(total - 1, 0)})
