"""EvaluatorCallback: when to evaluate a DAG while training, and where its results go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.ranges import PositiveInt, numbers_checked
from nemo_lite.core.callbacks.action_state import ActionState, Evaluated, EvaluationResult, TbWriter
from nemo_lite.core.callbacks.base import ActionCallback, TagOwners, as_wires, older_names
from nemo_lite.core.callbacks.metrics import Metric, directions_of
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.trackers import WandbTracker, curves_of, fetch_number, is_number, number
from nemo_lite.utils import logging

# Any: values of wires and results are what the user's functions make of them.


@dataclass
class _SoFar:
    """The history of a run.

    Attributes:
        is_stale: the weights may differ from those evaluated last.
        num_steps: steps done; 0 before the first step of this run.
        has_begun: an epoch has started.
        num_evaluated: how many steps were done at the last evaluation that came to its end; ``None`` before it.
        is_resumed: the run goes on from a checkpoint that knows the above, and no epoch of it has started.
    """

    is_stale: bool = True
    num_steps: int = 0
    has_begun: bool = False
    num_evaluated: int | None = None
    is_resumed: bool = False


class Collected(dict[str, Any]):
    """The values that the user's functions collect in an evaluation.

    Attributes:
        positions: of the evaluated items in data order, known to ``user_epochs_done_callback``; ``None`` where
            the data layer does not number them.
    """

    positions: Sequence[int] | None = None


class EvaluatorCallback(ActionCallback):
    """Evaluates a DAG over its own data layer: before the first step, while training, and at the end.

    It evaluates after every ``eval_step``-th step (100, 200, 300), after each ``eval_epoch``-th epoch, and at the end
    unless the weights are those evaluated last. The evaluation at the start costs one pass over the data, shows where
    training began, and an evaluation that cannot work ends the run there instead of hours later. A run that is resumed
    has no such evaluation; what was due when it was interrupted, or was interrupted itself, it makes up for.

    With several ranks each evaluates its part of the data. The user's functions get the values of all, in data order,
    on rank 0, which alone logs and writes. How many items were scored, each once, and a hash of their ids are
    logged: equal lines mean the same set, whatever the number of ranks.

    There are two ways to say what is computed, and both may be given: ``metrics``, and NeMo's two functions, which get
    the values of the wires.

    Args:
        eval_tensors: the wires to evaluate, beside those of the metrics.
        user_iter_callback: called for each round of batches, one of each process, with (values, ``collected``).
            ``values`` holds, by the wire's ``unique_name``, a list with one value for each process that had a batch,
            and ``"IS_FROM_DIST_EVAL"``: whether there are several ranks. ``collected`` is a dictionary that starts
            empty at each evaluation: a :class:`Collected`.
        user_epochs_done_callback: called at the end with ``collected``; returns results by tag, or ``None``.
        tb_writer: where results go; by default the factory's writer.
        tb_writer_func: called with (writer, results, step) instead of writing numbers as scalars, texts as texts.
        eval_step: how many steps lie between evaluations; by default 1, or none when ``eval_epoch`` is given.
        eval_epoch: how many epochs lie between evaluations.
        wandb_name: also record results in a Weights & Biases run of this name.
        wandb_project: the same, by the project's name.
        eval_at_start: evaluate before the first step. Without it there is no evaluation at step 0.
        name: of what is evaluated, in ``state["evaluation"]`` and before its tags in TensorBoard (``dev-clean/wer``);
            by default the data layer's name, and tags as they are.
        metrics: the metrics by the tag of their result.
        higher_is_better: of results of ``user_epochs_done_callback``, by tag: whether a high value is good.

    Attributes:
        higher_is_better: the same, with what the metrics say.

    Raises:
        UsageError: a frequency below 1, something that is not a wire, no wire at all, one of the two functions without
            the other, a metric that does not say in which direction it is good, or wandb is asked for and not
            installed.
    """

    @older_names(tensorboard_writer="tb_writer")
    @numbers_checked
    def __init__(
        self,
        eval_tensors: NmTensor | Sequence[NmTensor] = (),
        user_iter_callback: Callable[[dict[str, Any], dict[str, Any]], object] | None = None,
        user_epochs_done_callback: Callable[[Collected], Mapping[str, Any] | None] | None = None,
        tb_writer: TbWriter | None = None,
        tb_writer_func: Callable[[Any, Mapping[str, Any], int], object] | None = None,
        eval_step: PositiveInt | None = None,
        eval_epoch: PositiveInt | None = None,
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        eval_at_start: bool = True,
        name: str | None = None,
        metrics: Mapping[str, Metric] | None = None,
        higher_is_better: Mapping[str, bool] | None = None,
    ) -> None:
        self._metrics = dict(metrics or {})
        wires = as_wires(eval_tensors, "EvaluatorCallback", "eval_tensors")
        wires += [wire for metric in self._metrics.values() for wire in metric.wires.values()]
        self.eval_tensors = list(dict.fromkeys(wires))
        if not self.eval_tensors:
            raise UsageError("eval_tensors is empty", place="EvaluatorCallback", wanted="the wires to evaluate")
        if (user_iter_callback is None) != (user_epochs_done_callback is None) or not (metrics or user_iter_callback):
            wanted = "metrics, or user_iter_callback and user_epochs_done_callback"
            raise UsageError("it is not said what is computed", place="EvaluatorCallback", wanted=wanted)
        self.higher_is_better = {**(higher_is_better or {}), **directions_of(self._metrics)}
        self.user_iter_callback, self.user_done_callback = user_iter_callback, user_epochs_done_callback
        self.tb_writer, self.tb_writer_func = tb_writer, tb_writer_func
        self._eval_step = 1 if eval_step is None and eval_epoch is None else eval_step
        self._eval_epoch, self._eval_at_start = eval_epoch, eval_at_start
        uses_wandb = wandb_name is not None or wandb_project is not None
        self._wandb = WandbTracker(wandb_project, wandb_name, place="EvaluatorCallback") if uses_wandb else None
        self._name = name
        self._label, self._tags = "EvaluatorCallback", TagOwners()
        self._so_far, self._not_finite = _SoFar(), set[str]()

    def wanted_wires(self) -> Sequence[NmTensor]:
        """None: its wires belong to another DAG than the training."""
        return ()

    def evaluated_wires(self) -> Sequence[NmTensor]:
        """The wires to evaluate."""
        return self.eval_tensors

    def compare_with_training(self, dag: Dag) -> None:
        """See :func:`differences_from_training`."""
        evaluation = Dag(self.eval_tensors)
        wrong, without_effect = differences_from_training(dag, evaluation)
        name = self._name or evaluation.data_layer.label
        for text in wrong:
            logging.warning("Evaluation %s: %s", name, text)
        for text in without_effect:
            logging.info("Evaluation %s: %s", name, text)

    def fingerprint(self) -> Mapping[str, object]:
        """When it evaluates: all ranks take part."""
        when = {"eval_step": self._eval_step, "eval_epoch": self._eval_epoch, "eval_at_start": self._eval_at_start}
        return {**when, "metrics": [*self._metrics]} if self._metrics else when

    def join(self, label: str, tags: TagOwners) -> None:
        """Learn its name in a list of callbacks, and who else of the list writes evaluation results."""
        self._label, self._tags = label, tags
        if self._name is not None:
            tags.higher_is_better[self._name] = self.higher_is_better

    def on_action_start(self) -> None:
        """Forget an earlier run."""
        self._so_far, self._not_finite = _SoFar(), set()

    def on_epoch_start(self) -> None:
        """Evaluate before the first step; here and not earlier, so that a checkpoint has been restored."""
        if self._so_far.is_resumed:
            self._so_far.is_resumed = False
            # What the run was interrupted before, or in. Nothing has been made yet: the step is the checkpoint's.
            is_due = self._is_due_after(self.step) or (self.action.is_epoch_over and self._is_due_at(self.epoch_num))
            if is_due and self._so_far.num_evaluated != self.step:
                self._evaluate("Evaluation", self.step)
        elif not self._so_far.has_begun and self._eval_at_start:
            self._evaluate("Evaluation before the first step", self.step)
        self._so_far.has_begun = True

    def on_iteration_end(self) -> None:
        """Evaluate after every ``eval_step``-th step."""
        self._so_far.is_stale, self._so_far.num_steps = True, self.step + 1
        if self._is_due_after(self._so_far.num_steps):
            self._evaluate("Evaluation", self._so_far.num_steps)

    def on_epoch_end(self) -> None:
        """Evaluate after every ``eval_epoch``-th epoch."""
        if self._is_due_at(self.epoch_num + 1) and self._so_far.is_stale:
            self._evaluate("Evaluation", self._so_far.num_steps)

    def state_dict(self) -> Mapping[str, object]:
        """Which evaluation was the last."""
        return {"num_evaluated": self._so_far.num_evaluated}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Evaluate at the steps at which the uninterrupted run would: not at the start, unless one was due there."""
        num_evaluated = state.get("num_evaluated")
        last = num_evaluated if isinstance(num_evaluated, int) else None
        self._so_far = _SoFar(is_resumed=True, num_steps=self.step, num_evaluated=last)

    def _is_due_after(self, num_steps: int) -> bool:
        return bool(self._eval_step and num_steps and num_steps % self._eval_step == 0)

    def _is_due_at(self, num_epochs: int) -> bool:
        return bool(self._eval_epoch and num_epochs % self._eval_epoch == 0)

    def on_action_end(self) -> None:
        """Evaluate the weights as they are now, unless that has been done."""
        if self._so_far.is_stale:
            self._evaluate("Final evaluation", self._so_far.num_steps or self.step)
        self.action.on_first(curves_of(self.tb_writer, self.action).close)
        # For the next action, which may be an evaluation alone; a checkpoint that is still to be saved has its state.
        self._so_far = _SoFar(num_evaluated=self._so_far.num_evaluated)

    def evaluate_now(self, state: ActionState, num_steps: int) -> None:
        """Evaluate the weights as they are. All ranks call it, inside an action.

        Args:
            state: of the action.
            num_steps: steps done before, for the result.
        """
        self.action = state
        self._evaluate("Evaluation", num_steps)

    @property
    def _log(self) -> Callable[..., None]:
        """Of a named evaluation only the values are shown, unless the log is to look like NeMo's."""
        return logging.info if self._name is None or logging.style == "nemo" else logging.debug

    def _evaluate(self, what: str, step: int) -> None:
        if self.action.interrupted_by:  # it would be left at its first batch
            return
        started = time.perf_counter()
        self.action.on_first(lambda: self._log("%s %s", what, "." * 30))
        evaluated: Evaluated = self.action.evaluate(self.eval_tensors)
        names = [wire.unique_name for wire in self.eval_tensors]
        is_distributed = self.action.world_size > 1
        collected = Collected()
        num_batches = 0
        for metric in self._metrics.values():
            metric.reset()
        for values in evaluated:
            num_batches += len(values[0])
            by_name: dict[str, Any] = dict(zip(names, values, strict=True))
            for metric in self._metrics.values():
                for index in range(len(values[0])):
                    metric.update(**{key: by_name[wire.unique_name][index] for key, wire in metric.wires.items()})
            if self.user_iter_callback is not None:
                self.user_iter_callback({**by_name, "IS_FROM_DIST_EVAL": is_distributed}, collected)
        self._so_far.is_stale = False
        self.action.publish(lambda: self._finish(evaluated, num_batches, collected, step, started))
        if not self.action.interrupted_by:
            self._so_far.num_evaluated = self._so_far.num_steps or step

    def _finish(
        self, evaluated: Evaluated, num_batches: int, collected: Collected, step: int, started: float
    ) -> EvaluationResult:
        # Before the user's function, which may fail where nothing was collected.
        self._certify(evaluated, num_batches)
        collected.positions = evaluated.items
        results = dict((self.user_done_callback and self.user_done_callback(collected)) or {})
        if num_batches:
            of_metrics: dict[str, float] = {}
            for tag, metric in self._metrics.items():
                metric.positions = evaluated.items
                of_metrics |= metric.tagged_values(tag)
            results |= of_metrics
            if of_metrics and not self._tags.are_recorded:  # a script has nothing else that shows them
                shown = ", ".join(f"{tag} {number(float(value))}" for tag, value in of_metrics.items())
                logging.info("%s at step %d: %s", self._name or "Evaluation", step, shown)
        self._write({f"{self._name}/{tag}" if self._name else tag: value for tag, value in results.items()}, step)
        seconds = time.perf_counter() - started
        self._log("Evaluation time: %.1f seconds", seconds)
        name = self._name or Dag(self.eval_tensors).data_layer.label
        values = {tag: plain for tag, value in results.items() if (plain := _plain(value)) is not None}
        self._warn_of_not_finite(name, values, step)
        return EvaluationResult(
            name=name,
            step=self._so_far.num_steps or step,
            values=values,
            num_items=evaluated.num_items,
            digest=evaluated.digest,
            seconds=seconds,
            higher_is_better={tag: self.higher_is_better[tag] for tag in results if tag in self.higher_is_better},
        )

    def _certify(self, evaluated: Evaluated, num_batches: int) -> None:
        if not num_batches:
            logging.warning("%s evaluated nothing: its data layer gave no batch", self._label)
            return
        scored = f"{num_batches} batches" if evaluated.num_items is None else f"{evaluated.num_items} items"
        self._log("Evaluated %s%s", scored, f", ids {evaluated.digest}" if evaluated.digest else "")

    def _warn_of_not_finite(self, name: str, values: Mapping[str, float | str], step: int) -> None:
        """Tell each value that is infinite or NaN, the first time that it is."""
        bad = {tag: value for tag, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
        if told := ", ".join(f"{tag} is {value}" for tag, value in bad.items() if tag not in self._not_finite):
            problem = "Evaluation %s at step %d: %s; the run goes on, files get null for it, and it is never the best"
            logging.warning(problem, name, step, told)
        self._not_finite |= bad.keys()

    def _write(self, results: Mapping[str, object], step: int) -> None:
        if not results:
            return
        self._tags.claim(results, self._label)
        curves, remedy = curves_of(self.tb_writer, self.action), "write it with tb_writer_func"
        if curves.writer is not None and self.tb_writer_func is not None:
            self.tb_writer_func(curves.writer, results, step)
        elif curves.writer is not None:
            numbers = {
                tag: value if isinstance(value, str) else fetch_number(value, tag, self._label, remedy)
                for tag, value in results.items()
            }
            curves.write_numbers(numbers, step)
        if self._wandb is not None:
            self._wandb.write_numbers(results, step)


def differences_from_training(training: Dag, evaluation: Dag) -> tuple[list[str], list[str]]:
    """How an evaluation DAG differs from the training DAG in what should be the same.

    Modules that both share are the same. Others are compared with those of their class in training.

    Returns:
        What makes the results wrong, and what has no effect; one text each.
    """
    wrong = _differences(evaluation.data_layer, [training.data_layer], evaluation.data_node.name)
    without_effect: list[str] = []
    if evaluation.data_layer.init_params.get("shuffle") is True:
        without_effect.append("shuffle=True has no effect in evaluation: every item comes once, in order")
    trained = list(training.modules.values())
    for name, module in evaluation.modules.items():
        same_class = [other for other in trained if type(other) is type(module)]
        if module.training_only:
            without_effect.append(f"{name} ({type(module).__name__}) has no effect in evaluation")
        elif same_class and module not in trained:
            wrong += _differences(module, same_class, name)
    return wrong, without_effect


def _differences(module: NeuralModule, trained: Sequence[NeuralModule], name: str) -> list[str]:
    """How a module differs from those of its class in training; nothing, if it is equal to one of them."""
    if module.num_weights:
        return [f"{name} ({type(module).__name__}) has weights of its own, which are not trained"]
    settings = module.compared_in_evaluation()
    differences: list[list[str]] = []
    for other in trained:
        of_training = other.compared_in_evaluation()
        keys = [k for k in settings if k in of_training and not _is_same(settings[k], of_training[k])]
        if not keys:
            return []
        texts = [f"{name}.{key} is not that of training: {_shown(settings[key], of_training[key])}" for key in keys]
        differences.append(texts)
    return differences[0] if differences else []


def _is_same(evaluated: object, trained: object) -> bool:
    """Whether two arguments are equal; objects that are no plain values count as equal."""
    if isinstance(evaluated, (list, tuple)) and isinstance(trained, (list, tuple)):
        return len(evaluated) == len(trained) and all(map(_is_same, evaluated, trained))
    plain = (bool, int, float, str, type(None))
    return evaluated == trained or not (isinstance(evaluated, plain) and isinstance(trained, plain))


def _shown(evaluated: object, trained: object) -> str:
    """Both values; of lists of one length the first place where they differ."""
    if isinstance(evaluated, (list, tuple)) and isinstance(trained, (list, tuple)):
        if len(evaluated) != len(trained):
            return f"got {counted(len(evaluated), 'entry', 'entries')}, wanted {len(trained)}"
        place = next(place for place, pair in enumerate(zip(evaluated, trained, strict=True)) if not _is_same(*pair))
        return f"got {evaluated[place]!r} at {place}, wanted {trained[place]!r}"
    return f"got {evaluated!r}, wanted {trained!r}"


def _plain(value: object) -> float | str | None:
    """A text, or the number in a tensor of one element; None for what is neither."""
    if isinstance(value, str):
        return value
    return fetch_number(value, "", "") if is_number(value) else None
