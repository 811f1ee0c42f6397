"""Trackers: records of a run, and what gets them: terminal, `metrics.jsonl`, TensorBoard, Weights & Biases, MLflow.

No callback in this file: those that make records and numbers are in `callbacks/`, and read them by `fetch_number`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, TypeAlias

from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.files import (
    AppendedFile,
    FileKind,
    JsonLimits,
    finite_or_null,
    json_text,
    numbered_lines,
    parse_json,
)
from nemo_lite.utils import logging

if TYPE_CHECKING:  # a command that shows its options starts sooner without it
    from nemo_lite.core.callbacks.action_state import ActionState, TbWriter

# A record is a mapping with ``kind``, ``time`` (ISO 8601, UTC) and, by kind:
#
# - ``start``: arguments, versions, precision, world_size, total_steps (None where it is not known)
# - ``train``: step, epoch, loss, lr, amount_per_second, amount_unit, data_wait_share, step_seconds; of a loss that is a
#   sum, loss_NAME for each of its parts, before its weight
# - ``gradients``: step, norms: of a loss that is a sum, the gradient of each part, times its weight
# - ``evaluation``: step, set, the values of the evaluation by name, num_items, digest, seconds; higher_is_better where
#   metrics say so, by name
# - ``checkpoint``: step, epoch, path
# - ``model``: step, set, metric, value, path
# - ``end``: step, epoch, seconds, reason
#
# ``step`` is the number of steps done. ``epoch`` in ``train`` and ``end`` is the epoch of the last step, from 1.


# Any: values are numbers, texts, and whatever the arguments of a script are.
Record: TypeAlias = Mapping[str, Any]

FINISHED = "finished"
"""Reason of an ``end``: the number of steps or epochs asked for is reached."""
FAILED = "failed"
"""Reason of an ``end``: an error."""


def is_interruption(reason: object) -> bool:
    """Whether the reason of an ``end`` is a signal, which has its name."""
    return reason in Signals.__members__


# Where the numbers of a training step go: field of the record -> tag.
_TRAIN_TAGS = {
    "loss": "loss",
    "lr": "param/lr",
    "epoch": "misc/epoch",
    "step_seconds": "misc/step_time",
    "amount_per_second": "misc/amount_per_second",
    "data_wait_share": "misc/data_wait_share",
}
PART_OF_LOSS = "loss_"
"""Begins the fields of the parts of a loss."""
_ABOUT_AN_EVALUATION = ("kind", "time", "step", "set", "num_items")


class Tracker:
    """Gets the records of a run, on rank 0: prints them, writes them to a file, sends them to a service.

    An error in it does not end the run: it is left out from then on, after a warning. A subclass gives :meth:`write`,
    or :meth:`write_numbers` if it takes numbers alone.
    """

    def write(self, record: Record) -> None:
        """Take a record; by default its numbers, where it has such."""
        numbers = numbers_of(record)
        if numbers:
            self.write_numbers(numbers, record["step"])

    def write_numbers(self, numbers: Mapping[str, Any], step: int) -> None:
        """Take numbers of a step by tag."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, when nothing more comes."""


@dataclass(frozen=True)
class TrackerEntry:
    """A tracker that the command line knows: ``--track NAME``.

    Attributes:
        make: called with the run's name and its folder, None where it has none.
        package: the optional package that it needs; "": none.
        help: one line.
    """

    make: Callable[[str | None, Path | None], Tracker]
    package: str = ""
    help: str = ""


TRACKERS: dict[str, TrackerEntry] = {}
"""The registered trackers by name."""


def register_tracker(
    name: str, make: Callable[[str | None, Path | None], Tracker], package: str = "", help_text: str = ""
) -> None:
    """Make a tracker known to ``--track``.

    Args:
        name: its name there.
        make: called on rank 0 with the run's name and its folder (None: it has none); gives the tracker.
        package: the optional package that it needs: a command ends before the run where it is not installed.
        help_text: one line.
    """
    TRACKERS[name] = TrackerEntry(make, package, help_text)


class Trackers:
    """The trackers of a run.

    Args:
        trackers: in the order in which they get each record.
    """

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def record(self, kind: str, **fields: object) -> None:
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
        tags = {**_TRAIN_TAGS, **{key: key for key in record if key.startswith(PART_OF_LOSS)}}
        return {tag: float(record[key]) for key, tag in tags.items()}
    if record["kind"] == "evaluation":
        numbers = {key: value for key, value in record.items() if isinstance(value, (int, float))}
        return {f"{record['set']}/{key}": float(v) for key, v in numbers.items() if key not in _ABOUT_AN_EVALUATION}
    return {}


class TensorboardTracker(Tracker):
    """Writes numbers and texts as curves; of records ``loss``, ``param/lr`` and ``misc/...`` of the training steps.

    Evaluations are written by their ``EvaluatorCallback``.

    Args:
        writer: the factory's ``tb_writer``; None: nothing is written.

    Attributes:
        writer: see above.
    """

    def __init__(self, writer: TbWriter | None) -> None:
        self.writer = writer

    def write(self, record: Record) -> None:
        """Write a training step."""
        if record["kind"] == "train":
            super().write(record)

    def write_numbers(self, numbers: Mapping[str, Any], step: int) -> None:
        """Write scalars, and texts."""
        if self.writer is None:
            return
        for tag, value in numbers.items():
            if isinstance(value, str):
                self.writer.add_text(tag, value, step)
            else:
                self.writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Put everything on disk; the writer stays open for others who share it."""
        if self.writer is not None and hasattr(self.writer, "flush"):
            self.writer.flush()


class WandbTracker(Tracker):
    """Records arguments, training steps and evaluations; a run that the script has begun is used.

    Where and as whom is up to the package: ``wandb login``, ``WANDB_MODE=offline``, ``WANDB_ENTITY``. The run begins
    with its first values.

    Args:
        project: the project's name.
        name: the run's name.
        folder: where the package keeps its files; by default it decides.
        args: hyperparameters to keep with the run: a mapping, or what an argument parser gives.
        place: who records, for the error.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        folder: str | Path | None = None,
        args: object = None,
        place: str = "WandbTracker",
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("Weights & Biases is not installed", place=place, remedy="pip install wandb") from None
        self._wandb: Any = wandb
        self._run = {"name": name, "project": project} | ({} if folder is None else {"dir": str(folder)})
        self._args = args
        self._has_begun = self._is_own = False
        self._exit_code = 0

    def begin(self) -> None:
        """Begin the run, or join the one that is there. The second time nothing happens."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._wandb.run is None:
            self._wandb.init(**self._run)
            self._is_own = True
        else:
            logging.info("Logging to the Weights & Biases run that is open already")
        if self._args is not None:
            self._wandb.config.update(self._args)

    def write(self, record: Record) -> None:
        """Record what has numbers; the start gives the hyperparameters."""
        if record["kind"] == "start":
            self.begin()
            self._wandb.config.update({key: value for key, value in record.items() if key not in ("kind", "time")})
        if record["kind"] == "end":
            self._exit_code = int(record["reason"] == FAILED)
        super().write(record)

    def write_numbers(self, numbers: Mapping[str, object], step: int) -> None:
        """Record values of a step."""
        self.begin()
        self._wandb.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._is_own = False
            self._wandb.finish(exit_code=self._exit_code)


_LONGEST_PARAMETER = 500  # characters that every store of MLflow takes


class MlflowTracker(Tracker):
    """Records arguments, training steps and evaluations; where is up to the package: ``MLFLOW_TRACKING_URI``.

    Args:
        experiment: the experiment's name.
        name: the run's name.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, experiment: str | None = None, name: str | None = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise UsageError("MLflow is not installed", place="MlflowTracker", remedy="pip install mlflow") from None
        self._mlflow: Any = mlflow
        self._experiment, self._name = experiment, name
        self._status = "FINISHED"

    def write(self, record: Record) -> None:
        """Record what has numbers; the start gives the parameters."""
        if record["kind"] == "start":
            if self._experiment is not None:
                self._mlflow.set_experiment(self._experiment)
            self._mlflow.start_run(run_name=self._name)
            self._mlflow.log_params(_parameters(record))
        if record["kind"] == "end":
            self._status = "FAILED" if record["reason"] == FAILED else "FINISHED"
        super().write(record)

    def write_numbers(self, numbers: Mapping[str, object], step: int) -> None:
        """Record numbers of a step."""
        self._mlflow.log_metrics(dict(numbers), step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run(self._status)


def _parameters(record: Record) -> dict[str, str]:
    """The fields of a record as short texts, those of a mapping in it by their own names."""
    fields: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            fields.update({f"{key}.{inner}": inner_value for inner, inner_value in value.items()})
        elif key not in ("kind", "time"):
            fields[key] = value
    return {key: str(value)[:_LONGEST_PARAMETER] for key, value in fields.items()}


register_tracker("wandb", lambda name, folder: WandbTracker(None, name, folder), "wandb", "Weights & Biases")
register_tracker("mlflow", lambda name, folder: MlflowTracker(None, name), "mlflow", "MLflow")


_KIND = FileKind("the file of metrics", 1 << 36, UsageError)  # read line by line
_LIMITS = JsonLimits(surrogates=True, constants=True)


class MetricsFile(Tracker):
    """Appends each record to a file, one JSON object a line, as it comes. A run that goes on appends to its file.

    Numbers that are not finite become ``null``, as JSON has none. What JSON cannot hold (a path) becomes a text.
    Where the file cannot be written, one warning says so, and each further record is tried.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = AppendedFile(path, logging.warning)
        self._has_written = False

    def write(self, record: Record) -> None:
        """Append one line."""
        line = json_text(finite_or_null(record), default=str)
        # A process that was killed may have left half a line.
        lead = "" if self._has_written or _ends_a_line(self._file.path) else "\n"
        self._has_written |= self._file.append(f"{lead}{line}\n".encode())


def read_metrics(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a file that :class:`MetricsFile` wrote; a line cut off by a kill is passed over.

    Raises:
        UsageError: there is no such file.
    """
    for place, line in numbered_lines(path, _KIND):
        try:
            record = parse_json(line, place, _KIND, _LIMITS)
        except UsageError:
            continue
        if isinstance(record, dict) and "kind" in record:
            yield record


def _ends_a_line(path: Path) -> bool:
    """Whether the next line can begin at the end of the file."""
    try:
        # Not waiting for the other end of a pipe, which is no regular file and cannot be sought in.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            return file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END) >= 0 and file.read(1) == b"\n")
    except OSError:
        return True


_GAP = "  "


@dataclass
class _Set:
    """The ``count`` evaluations of a set: the last values, the step of the best with what ranks it, by which values.

    ``at_start`` is what ranks the evaluation of untrained weights, which is no best one.
    """

    last: dict[str, float]
    last_step: int = 0
    at_start: tuple[float, ...] | None = None
    best: tuple[float, ...] | None = None
    best_step: int = 0
    best_values: dict[str, float] = field(default_factory=dict)
    judged_by: list[str] = field(default_factory=list)
    count: int = 0
    num_items: int | None = None


class TerminalLines(Tracker):
    """Logs a line for each training step and each evaluation that is recorded, and a summary at the end.

    Where an evaluation has beside a rate ``wer`` also ``wer_low`` and ``wer_high``, the ends of its 95 % interval, the
    summary shows them behind the rate in brackets.

    Args:
        rates: names of evaluated values that are error rates, fractions of 1; the first is the one that counts. Where
            an evaluation has none of them, its numbers are shown as they are, and the first metric counts.
        use: how to use the model: a line of the summary, where something was saved.
        if_interrupted: a line at the end of the summary of a run that a signal has stopped.
        earlier: ``evaluation`` and ``model`` records of the run before it was started again, in their order: those of
            steps before the first evaluation count for what is the best.
        earlier_seconds: how long the run has taken before it was started again.
        starts_trained: the weights come from a trained model: the evaluation before the first step counts too.
    """

    def __init__(
        self,
        rates: Sequence[str] = (),
        use: str = "",
        if_interrupted: str = "",
        earlier: Sequence[Record] = (),
        earlier_seconds: float = 0.0,
        starts_trained: bool = False,
    ) -> None:
        self._rates, self._use, self._if_interrupted, self._earlier = rates, use, if_interrupted, earlier
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
                f"loss {number(record['loss'])}{self._parts_of_loss(record)}",
                f"lr {scientific(record['lr'])}",
                f"{number(record['amount_per_second'], 3)} {record['amount_unit']}/s",
                f"data {record['data_wait_share']:.0%}".replace("%", " %"),
                *self._time_left(record),
            ]
        )

    def _parts_of_loss(self, record: Record) -> str:
        """`` (ctc 1.2, attention 0.8)``; nothing of a loss that is no sum."""
        parts = {key.removeprefix(PART_OF_LOSS): value for key, value in record.items() if key.startswith(PART_OF_LOSS)}
        return f" ({', '.join(f'{name} {number(value)}' for name, value in parts.items())})" if parts else ""

    def _time_left(self, record: Record) -> list[str]:
        """As the steps since the last line took, without evaluations; the first step of a run says little."""
        steps = 0 if self._total_steps is None else self._total_steps - record["step"]
        is_known, self._has_stepped = self._has_stepped, True
        return [] if not is_known or steps <= 0 else [f"{duration_text(steps * record['step_seconds'])} left"]

    def _note(self, record: Record) -> None:
        """Keep the numbers of an evaluation, and see whether it is the best so far."""
        no_values = ("step", "num_items", "seconds")
        values = {k: float(v) for k, v in record.items() if isinstance(v, (int, float)) and k not in no_values}
        if record["set"] not in self._sets:
            self._recall(record["set"], record["step"])
        evaluated = self._sets[record["set"]]
        evaluated.last, evaluated.last_step, evaluated.count = values, record["step"], evaluated.count + 1
        evaluated.num_items = record.get("num_items")
        directions = record.get("higher_is_better") or {}
        evaluated.judged_by = [name for name in self._rates if name in values]
        if not evaluated.judged_by:
            evaluated.judged_by = [name for name in directions if name in values][:1]
        # Of equal rates the other rate decides, then the loss. What keeps the best model ranks in the same way.
        names = [name for name in (*evaluated.judged_by, "loss") if name in values]
        numbers = [-values[name] if directions.get(name) else values[name] for name in names]
        rank = tuple(math.inf if math.isnan(value) else value for value in numbers)
        counts = evaluated.last_step > 0 or self._starts_trained
        if not counts:
            evaluated.at_start = rank or None
        if counts and rank and math.isfinite(rank[0]) and (evaluated.best is None or rank < evaluated.best):
            evaluated.best, evaluated.best_step, evaluated.best_values = rank, evaluated.last_step, values

    def _recall(self, name: str, step: int) -> None:
        """Begin with what the run knew of a set before this step."""
        self._sets[name] = _Set({})
        for record in self._earlier:
            if record["step"] < step and record["kind"] == "model":
                self._model = self._model or record
            elif record["step"] < step and record["set"] == name:
                self._note(record)

    def _evaluated(self, name: str, with_count: bool = False) -> str:
        """The last rates of a set; ``with_count`` in the course of training, without it in the summary."""
        evaluated = self._sets[name]
        shown = [rate for rate in self._rates if rate in evaluated.last]
        parts = [self._rate(evaluated, rate, in_summary=not with_count) for rate in shown]
        parts = parts or [
            f"{tag} {number(value)}{self._best_of(evaluated, tag, number)}" for tag, value in evaluated.last.items()
        ]
        count = [f"n={evaluated.num_items}"] if with_count and evaluated.num_items is not None else []
        return _GAP.join([name, *parts, *count])

    def _rate(self, evaluated: _Set, rate: str, in_summary: bool) -> str:
        ends = interval(evaluated.last, rate) if in_summary else ""
        return f"{rate.upper()} {percent(evaluated.last[rate])}{ends}{self._best_of(evaluated, rate, percent)}"

    def _best_of(self, evaluated: _Set, name: str, as_text: Callable[[float], str]) -> str:
        """`` (best)``, or where the best value was; "" for values that do not decide."""
        if name not in evaluated.judged_by[:1] or evaluated.best is None or evaluated.count == 1:
            return ""
        # A first line of training may be worse than that of step 0, where nothing was learnt yet.
        is_best_of_all = evaluated.at_start is None or evaluated.best[0] <= evaluated.at_start[0]
        best = "best" if is_best_of_all else "best of training"
        if evaluated.best_step == evaluated.last_step:
            return f" ({best})"
        value = evaluated.best_values[name]
        how = f"ties {best}" if value == evaluated.last[name] else f"{best} {as_text(value)}"
        return f" ({how} at {evaluated.best_step})"

    def _summary(self, record: Record) -> list[str]:
        counts = ", ".join(counted(record[unit], unit) for unit in ("step", "epoch"))
        seconds = record["seconds"]
        done = f"{counts} in {duration_text(self._earlier_seconds + seconds)}"
        if self._earlier_seconds:
            done += f" ({duration_text(seconds)} of it since the last start)"
        lines = [f"Done: {done}" if record["reason"] == FINISHED else f"Stopped: {record['reason']}; {done}"]
        lines += [_GAP.join(["", self._evaluated(name)]) for name in self._sets]
        if any(interval(evaluated.last, rate) for evaluated in self._sets.values() for rate in self._rates):
            lines.append("  [...]: the 95 % interval of a rate, how far other utterances of this kind would move it")
        if self._checkpoint is not None:
            lines.append(f"Last checkpoint: {self._checkpoint['path']}")
        if self._model is not None:
            lines.append(f"{self._about_the_model(self._model)}: {self._model['path']}")
        if self._use and (self._model or self._checkpoint):
            lines.append(self._use)
        if self._if_interrupted and is_interruption(record["reason"]):
            lines.append(self._if_interrupted)
        return lines

    def _about_the_model(self, record: Mapping[str, object]) -> str:
        metric, value = str(record["metric"]), record["value"]
        if not isinstance(value, (int, float)):  # no set decides
            return f"Model of step {record['step']}"
        shown = percent(value) if metric in self._rates else number(value)
        evaluated = self._sets.get(str(record["set"]))
        if evaluated is not None and evaluated.best_step == record["step"]:
            shown += interval(evaluated.best_values, metric)
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
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_seconds} s"


def is_number(value: object) -> bool:
    """Whether it is one number, plain or in a tensor; the tensor is not read."""
    if isinstance(value, (int, float)):
        return True
    return hasattr(value, "item") and (value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)) == 1


def fetch_number(value: object, name: str, place: str, remedy: str = "") -> float:
    """The number in a tensor of one element. A host sync: logging steps only.

    Raises:
        UsageError: it is not a single number.
    """
    if isinstance(value, (int, float)):
        return float(value)
    if is_number(value) and hasattr(value, "item"):
        return float(value.item())
    got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
    raise UsageError(f'"{name}" is not a single number', place=place, got=got, remedy=remedy)


def curves_of(tb_writer: TbWriter | None, state: ActionState) -> TensorboardTracker:
    """What writes curves: by the callback's own writer, or the factory's; without either it writes nothing."""
    return TensorboardTracker(state.tb_writer if tb_writer is None else tb_writer)
