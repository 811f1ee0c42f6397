"""metrics.jsonl of a run: its records, as the curves and the summary of a report need them. Read only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nemo_lite.core.trackers import Record, read_metrics

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class GuardedSet:
    """A set with the model that a fine-tuning started from, and with the one that it keeps. Rates are fractions.

    Attributes:
        name: of the set.
        is_guard: it is not to be forgotten; else it is what is to be learnt.
        num_utterances: how many.
        before, after: error rates, with the ends of their 95 % intervals.
        difference: after less before: above 0, the kept model is worse; with the interval of the paired difference.
        verdict: what can be said of it, see `nemo_asr.commands.guarding`.
    """

    name: str
    is_guard: bool
    num_utterances: int
    before: float
    before_low: float
    before_high: float
    after: float
    after_low: float
    after_high: float
    difference: float
    difference_low: float
    difference_high: float
    verdict: str


@dataclass
class RunRecords:
    """The records of a run, by kind.

    A run that is started again goes on in the same file. Where it goes on from an earlier step than it had reached, its
    records replace those of the later steps.

    Attributes:
        start: the last start: arguments, versions, precision, world_size.
        num_starts: how often the run was started.
        train: records about training, by step.
        evaluations: by set, records of its evaluations, by step.
        model: the last record about the best model.
        guards: by model, the last record of what it has won and forgotten.
        end: how the last start ended; None where it did not.
        seconds: how long all starts took together; one that was killed took until its last record.
    """

    start: Record | None = None
    num_starts: int = 0
    train: dict[int, Record] = field(default_factory=dict)
    evaluations: dict[str, dict[int, Record]] = field(default_factory=dict)
    model: Record | None = None
    guards: dict[str, Record] = field(default_factory=dict)
    end: Record | None = None
    seconds: float = 0.0
    _seconds_before: float = 0.0  # the last start
    _is_first_step: bool = True

    def add(self, record: Record) -> None:
        """Take one more record; kinds that are not known, and records without a step, are passed over."""
        kind, step = record.get("kind"), record.get("step")
        if kind == "start":
            self.start, self.end, self.num_starts = record, None, self.num_starts + 1
            self._is_first_step, self._seconds_before = True, self.seconds
        elif kind == "end":
            self.end = record
        elif kind == "model":
            self.model = record
        elif kind == "guard":  # comes behind the end
            self.guards[str(record.get("path", ""))] = record
            return
        elif kind in ("train", "evaluation") and isinstance(step, int):
            if self._is_first_step:  # what an earlier start did from there on is done again
                self._is_first_step = False
                for records in (self.train, *self.evaluations.values()):
                    for later in [recorded for recorded in records if recorded >= step]:
                        del records[later]
            if kind == "train":
                self.train[step] = record
            else:
                self.evaluations.setdefault(str(record.get("set", "")), {})[step] = record
        took = number_of(record, "seconds") if kind == "end" else _seconds_between(self.start, record)
        self.seconds = self._seconds_before + (took or 0.0)


def number_of(record: Record | None, key: str) -> float | None:
    """A finite number of a record, or None."""
    value = (record or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _seconds_between(start: Record | None, record: Record) -> float | None:
    """The seconds from one record to another by their times, or None where one has none."""
    try:
        first, last = (datetime.fromisoformat(line["time"].replace("Z", "+00:00")) for line in (start or {}, record))
        return (last - first).total_seconds()
    except (KeyError, ValueError, AttributeError, TypeError):
        return None


def read_records(path: Path) -> RunRecords:
    """The records of a file.

    Raises:
        UsageError: the file cannot be read.
    """
    records = RunRecords()
    for record in read_metrics(path):
        records.add(record)
    return records
