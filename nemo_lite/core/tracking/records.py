"""Records of a run, and Trackers, which hands each to every tracker. Nothing is written in this file.

A record is a mapping with ``kind``, ``time`` (ISO 8601, UTC) and, by kind:

- ``start``: arguments, versions, precision, world_size, total_steps (None where it is not known)
- ``train``: step, epoch, loss, lr, amount_per_second, amount_unit, data_wait_share, step_seconds
- ``evaluation``: step, set, the values of the evaluation by name, num_items, digest, seconds
- ``checkpoint``: step, epoch, path
- ``model``: step, set, metric, value, path
- ``end``: step, epoch, seconds, reason

``step`` is the number of steps done. ``epoch`` in ``train`` and ``end`` is the epoch of the last step, from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from nemo_lite.utils import logging

# Any: values are numbers, texts, and whatever the arguments of a script are.
Record: TypeAlias = Mapping[str, Any]

FINISHED = "finished"
"""Reason of an ``end``: the number of steps or epochs asked for is reached."""
FAILED = "failed"
"""Reason of an ``end``: an error."""

# Where the numbers of a training step go: field of the record -> tag.
_TRAIN_TAGS = {
    "loss": "loss",
    "lr": "param/lr",
    "epoch": "misc/epoch",
    "step_seconds": "misc/step_time",
    "amount_per_second": "misc/amount_per_second",
    "data_wait_share": "misc/data_wait_share",
}
_ABOUT_AN_EVALUATION = ("kind", "time", "step", "set", "num_items")


class Tracker:
    """Gets the records of a run, on rank 0: prints them, writes them to a file, sends them to a service.

    An error in it does not end the run: it is left out from then on, after a warning.
    """

    def write(self, record: Record) -> None:
        """Take a record."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, when nothing more comes."""


class Trackers:
    """The trackers of a run.

    Args:
        trackers: in the order in which they get each record.
    """

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def record(self, kind: str, **fields: Any) -> None:
        """Hand a record of now to every tracker. With several ranks, on rank 0 only."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record = {"kind": kind, "time": now, **fields}
        for tracker in [*self._trackers]:
            try:
                tracker.write(record)
            except Exception as error:  # whatever a service throws: the run is worth more than its record
                self._trackers.remove(tracker)
                problem = "%s takes no more records of this run: %s"
                logging.warning(problem, type(tracker).__name__, " ".join(str(error).split()) or type(error).__name__)

    def close(self) -> None:
        """Tell every tracker that nothing more comes."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:
                logging.warning("%s could not be closed: %s", type(tracker).__name__, " ".join(str(error).split()))
        self._trackers = []


def numbers_of(record: Record) -> dict[str, float]:
    """The numbers of a ``train`` or ``evaluation`` record by tag: ``loss``, ``dev-clean/wer``. Empty for others."""
    if record["kind"] == "train":
        return {tag: float(record[field]) for field, tag in _TRAIN_TAGS.items()}
    if record["kind"] == "evaluation":
        numbers = {key: value for key, value in record.items() if isinstance(value, (int, float))}
        return {f"{record['set']}/{key}": float(v) for key, v in numbers.items() if key not in _ABOUT_AN_EVALUATION}
    return {}
