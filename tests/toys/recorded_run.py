"""The records of a short run, for trackers that take them elsewhere."""

from __future__ import annotations

from typing import Any

from nemo_lite.core.trackers import Tracker, Trackers

TRAIN: dict[str, Any] = {
    "loss": 0.5,
    "lr": 0.1,
    "amount_per_second": 5.0,
    "amount_unit": "s",
    "data_wait_share": 0.0,
    "step_seconds": 2.0,
}


def record_run(*trackers: Tracker, reason: str = "finished", **arguments: object) -> None:
    """One recorded step, an evaluation and a checkpoint; ``arguments`` of the run beside the learning rate."""
    told = Trackers(trackers)
    told.record("start", arguments={"lr": 0.1, **arguments}, precision="O0", world_size=1, total_steps=2)
    told.record("train", step=1, epoch=1, **TRAIN)
    told.record("evaluation", step=1, set="dev", wer=0.25, num_items=4, digest="ab", seconds=1.0)
    told.record("checkpoint", step=2, epoch=1, path="x")
    told.record("end", step=2, epoch=1, seconds=3.0, reason=reason)
    told.close()
