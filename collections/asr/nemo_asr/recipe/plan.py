"""Before training: what will be run, in words and pictures, and which texts do not fit their frames. Reads no audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_asr.data.audio_to_text import AudioToTextDataLayer
from nemo_asr.data.preflight import Infeasible
from nemo_lite import Dag, NmTensor, logging
from nemo_lite.core.show import as_text, frames_of, write_svg
from nemo_lite.utils.files import make_writable_folder, write_atomically

MOST_LISTED = 20


def show_plan(
    dags: Mapping[str, Dag],
    lr_policy: Callable[[float, int, int], float],
    initial_lr: float,
    steps_per_epoch: int,
    total_steps: int,
    folder: Path | None = None,
) -> None:
    """Print every DAG as a table, and the schedule; with a folder, save ``plan.txt`` and ``<name>.svg`` there.

    Args:
        dags: the DAGs by name.
        lr_policy: learning rate from (initial rate, step, epoch).
        initial_lr: the initial rate.
        steps_per_epoch: optimizer steps in an epoch.
        total_steps: optimizer steps in all.
        folder: where to save; it is made.

    Raises:
        UsageError: the folder is not writable.
    """
    points = sorted({0, total_steps // 3, 2 * total_steps // 3, total_steps - 1})
    rates = [f"{lr_policy(initial_lr, step, step // steps_per_epoch):.3g} at step {step}" for step in points]
    schedule = f"{steps_per_epoch} steps an epoch, {total_steps} steps in all\nlearning rate {', '.join(rates)}"
    text = "\n\n".join([*(as_text(dag, title=name) for name, dag in dags.items()), schedule]) + "\n"
    print(text)
    if folder is None:
        return
    make_writable_folder(folder)
    write_atomically(folder / "plan.txt", lambda path: path.write_text(text, encoding="utf-8"))
    for name, dag in dags.items():
        write_svg(folder / f"{name}.svg", dag, title=name)
    logging.info("Saved plan.txt and %s in %s", ", ".join(f"{name}.svg" for name in dags), folder)


def leave_out_infeasible(data_layer: AudioToTextDataLayer, log_probs: NmTensor) -> int:
    """Train without the utterances whose frames, behind the encoder's stride, cannot hold their text; list them.

    Their CTC loss is infinite, so that every step with one of them would be lost.

    Args:
        data_layer: the utterances.
        log_probs: the wire whose time axis the text has to fit in.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    found = _list_infeasible(data_layer, log_probs, "they are left out of training")
    if found:
        data_layer.leave_out([each.row for each in found], "with a text that does not fit its frames")
    return len(found)


def warn_of_infeasible(data_layer: AudioToTextDataLayer, log_probs: NmTensor) -> int:
    """List the utterances of an evaluation set whose frames cannot hold their text; returns how many."""
    return len(_list_infeasible(data_layer, log_probs, "they count as they are recognised, and their loss is infinite"))


def _list_infeasible(data_layer: AudioToTextDataLayer, log_probs: NmTensor, consequence: str) -> list[Infeasible]:
    found = data_layer.infeasible(frames_of(Dag([log_probs]), log_probs))
    for infeasible in found[:MOST_LISTED]:
        logging.warning("%s", infeasible)
    if found:
        logging.warning(
            "%s: %d of %d texts do not fit their frames%s: %s (a smaller stride gives more frames)",
            ",".join(data_layer.manifest.paths),
            len(found),
            len(data_layer),
            f" ({len(found) - MOST_LISTED} more are not listed)" if len(found) > MOST_LISTED else "",
            consequence,
        )
    return found
