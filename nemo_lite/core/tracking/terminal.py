"""TerminalLines: records as lines for people: one a training step, one an evaluation, a summary at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nemo_lite.core.tracking.records import FAILED, FINISHED, Record, Tracker
from nemo_lite.errors import counted
from nemo_lite.utils import logging

_GAP = "  "


@dataclass
class _Set:
    """What the ``count`` evaluations of a set gave: the last values, and the step of the best with what ranks it."""

    last: dict[str, float]
    last_step: int = 0
    best: tuple[float, ...] | None = None
    best_step: int = 0
    best_values: dict[str, float] = field(default_factory=dict)
    count: int = 0
    num_items: int | None = None


class TerminalLines(Tracker):
    """Logs a line for each training step and each evaluation that is recorded, and a summary at the end.

    Where an evaluation has beside a rate ``wer`` also ``wer_low`` and ``wer_high``, the ends of its 95 % interval, the
    summary shows them behind the rate in brackets.

    Args:
        rates: names of evaluated values that are error rates, fractions of 1; the first is the one that counts. Where
            an evaluation has none of them, its numbers are shown as they are.
        use: how to use the model: a line of the summary, where something was saved.
        if_stopped: a line at the end of the summary of a run that stopped before its last step.
        earlier: ``evaluation`` and ``model`` records of the run before it was started again, in their order: those of
            steps before the first evaluation count for what is the best.
        earlier_seconds: how long the run has taken before it was started again.
        starts_trained: the weights come from a trained model: the evaluation before the first step counts too.
    """

    def __init__(
        self,
        rates: Sequence[str] = (),
        use: str = "",
        if_stopped: str = "",
        earlier: Sequence[Record] = (),
        earlier_seconds: float = 0.0,
        starts_trained: bool = False,
    ) -> None:
        self._rates, self._use, self._if_stopped, self._earlier = rates, use, if_stopped, earlier
        self._earlier_seconds, self._starts_trained = earlier_seconds, starts_trained
        self._total_steps: int | None = None
        self._sets: dict[str, _Set] = {}
        self._model: Record | None = None
        self._checkpoint: Record | None = None
        self._has_stepped = False

    def write(self, record: Record) -> None:
        """Log what there is to say."""
        kind = record["kind"]
        if kind == "start":
            self._total_steps = record.get("total_steps")
        elif kind == "train":
            logging.info("%s", self._training(record))
        elif kind == "evaluation":
            self._note(record)
            logging.info("%s", self._evaluated(record["set"], with_count=True))
        elif kind == "model":
            self._model = record
        elif kind == "checkpoint":
            self._checkpoint = record
        elif kind == "end" and record["reason"] != FAILED:
            for line in self._summary(record):
                logging.info("%s", line)

    def _training(self, record: Record) -> str:
        total = "" if self._total_steps is None else f"/{self._total_steps}"
        return _GAP.join(
            [
                f"epoch {record['epoch']}",
                f"step {record['step']}{total}",
                f"loss {number(record['loss'])}",
                f"lr {scientific(record['lr'])}",
                f"{number(record['amount_per_second'], 3)} {record['amount_unit']}/s",
                f"data {record['data_wait_share']:.0%}".replace("%", " %"),
                *self._time_left(record),
            ]
        )

    def _time_left(self, record: Record) -> list[str]:
        """As the steps since the last line took, without evaluations; the first step of a run says little."""
        steps = 0 if self._total_steps is None else self._total_steps - record["step"]
        is_known, self._has_stepped = self._has_stepped, True
        return [] if not is_known or steps <= 0 else [f"{duration_text(steps * record['step_seconds'])} left"]

    def _note(self, record: Record) -> None:
        """Keep the numbers of an evaluation, and see whether it is the best so far: the one with the lowest rate."""
        about = ("step", "num_items", "seconds")
        values = {k: float(v) for k, v in record.items() if isinstance(v, (int, float)) and k not in about}
        if record["set"] not in self._sets:
            self._recall(record["set"], record["step"])
        found = self._sets[record["set"]]
        found.last, found.last_step, found.count = values, record["step"], found.count + 1
        found.num_items = record.get("num_items")
        # Of equal rates the other rate decides, then the loss. What keeps the best model ranks in the same way.
        numbers = [values[name] for name in (*self._rates, "loss") if name in values]
        rank = tuple(math.inf if math.isnan(value) else value for value in numbers)
        counts = found.last_step > 0 or self._starts_trained
        if counts and rank and math.isfinite(rank[0]) and (found.best is None or rank < found.best):
            found.best, found.best_step, found.best_values = rank, found.last_step, values

    def _recall(self, name: str, step: int) -> None:
        """Begin with what the run knew of a set before this step."""
        self._sets[name] = _Set({})
        for each in self._earlier:
            if each["step"] < step and each["kind"] == "model":
                self._model = self._model or each
            elif each["step"] < step and each["set"] == name:
                self._note(each)

    def _evaluated(self, name: str, with_count: bool = False) -> str:
        """The last rates of a set; ``with_count`` in the course of training, without it in the summary."""
        found = self._sets[name]
        shown = [rate for rate in self._rates if rate in found.last]
        parts = [self._rate(found, rate, with_best=rate == shown[0], in_summary=not with_count) for rate in shown]
        parts = parts or [f"{tag} {number(value)}" for tag, value in found.last.items()]
        count = [f"n={found.num_items}"] if with_count and found.num_items is not None else []
        return _GAP.join([name, *parts, *count])

    def _rate(self, found: _Set, rate: str, with_best: bool, in_summary: bool) -> str:
        text = f"{rate.upper()} {percent(found.last[rate])}" + (interval(found.last, rate) if in_summary else "")
        if not with_best or found.best is None or found.count == 1:
            return text
        if found.best_step == found.last_step:
            return f"{text} (best)"
        value = found.best[0]
        how = "ties best" if value == found.last[rate] else f"best {percent(value)}"
        return f"{text} ({how} at {found.best_step})"

    def _summary(self, record: Record) -> list[str]:
        counts = ", ".join(counted(record[each], each) for each in ("step", "epoch"))
        seconds = record["seconds"]
        done = f"{counts} in {duration_text(self._earlier_seconds + seconds)}"
        if self._earlier_seconds:
            done += f" ({duration_text(seconds)} of it since the last start)"
        lines = [f"Done: {done}" if record["reason"] == FINISHED else f"Stopped: {record['reason']}; {done}"]
        lines += [_GAP.join(["", self._evaluated(name)]) for name in self._sets]
        if any(interval(found.last, rate) for found in self._sets.values() for rate in self._rates):
            lines.append("  [...]: the 95 % interval of a rate, how far other utterances of this kind would move it")
        if self._checkpoint is not None:
            lines.append(f"Last checkpoint: {self._checkpoint['path']}")
        if self._model is not None:
            lines.append(f"{self._about_the_model(self._model)}: {self._model['path']}")
        if self._use and (self._model or self._checkpoint):
            lines.append(self._use)
        if self._if_stopped and record["reason"] != FINISHED:
            lines.append(self._if_stopped)
        return lines

    def _about_the_model(self, record: Mapping[str, object]) -> str:
        metric, value = str(record["metric"]), record["value"]
        if not isinstance(value, (int, float)):  # no set decides
            return f"Model of step {record['step']}"
        shown = percent(value) if metric in self._rates else number(value)
        found = self._sets.get(str(record["set"]))
        if found is not None and found.best_step == record["step"]:
            shown += interval(found.best_values, metric)
        start = "" if record["step"] else ": training has not made it better"
        return f"Best model ({metric.upper()} {shown} of {record['set']}, step {record['step']}{start})"


def number(value: float, digits: int = 4) -> str:
    """At most so many significant digits, and no exponent between 0.001 and a million."""
    return f"{value:.0f}" if 10 ** (digits - 1) <= abs(value) < 1e6 else f"{value:.{digits}g}"


def scientific(value: float) -> str:
    """``1.2e-2``."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def percent(rate: float) -> str:
    """A fraction of 1 as ``12.4 %``; below 1 % with two decimals."""
    return f"{100 * rate:.{1 if not rate or rate >= 0.01 else 2}f} %"


def interval(values: Mapping[str, float], rate: str) -> str:
    """`` [11.2 to 13.4]``, in percent: the interval of a rate among the values of an evaluation; "" without one."""
    ends = [values.get(f"{rate}_{end}", math.nan) for end in ("low", "high")]
    if not all(map(math.isfinite, ends)):
        return ""
    low, high = (percent(end).removesuffix(" %") for end in ends)
    return f" [{low} to {high}]"


def duration_text(seconds: float) -> str:
    """``2 h 5 min``, ``4 min 10 s`` or ``3.2 s``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
