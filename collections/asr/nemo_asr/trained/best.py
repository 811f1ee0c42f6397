"""The best model of a run, and the model of averaged weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.tasks.family import Model
from nemo_asr.trained.folder import CARD, METRICS, ModelCard, Rate, check_tokenizer, read_card, sweep_model, write_model
from nemo_asr.trained.lora import has_lora, save_merged
from nemo_asr.trained.model import trained_modules
from nemo_lite import EvaluatorCallback, NeMoCallback
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import digest_of_files, make_writable_folder, temporary_name
from nemo_lite.core.callbacks.action_state import ActionState, Best
from nemo_lite.core.callbacks.base import TagOwners
from nemo_lite.utils import logging


def order_of_ranking(metric: str) -> list[str]:
    """What models are ranked by: the rate that decides, among equal ones the other rates, then the loss."""
    return sorted(METRICS, key=lambda name: (name != metric, name == "loss"))


class BestModelCallback(NeMoCallback):
    """Writes the model folder whenever the first set is recognised with a lower error rate than ever before.

    Among equal rates the other rate decides, then the loss. Without an evaluation that gives such a rate it writes the
    last weights, at the end. Put it behind the evaluators in the list of callbacks, so that the rates of all sets are
    known when it writes. A run that goes on compares with what the folder holds; one that starts anew replaces it.

    Args:
        folder: the model folder.
        model: the modules.
        card: what the model says about itself, as ``describe`` gives it; step, epoch and rates are filled in.
        config: the configuration as YAML.
        manifests: the manifest of each evaluated set by the set's name, several joined by commas; the first decides.
        metric: ``wer`` or ``cer``; ``error`` of a classifier.
        record: called with "model" and what a record of this kind holds when a model is written: ``Trackers.record``.
        tokenizer: the subwords that the model's labels are: ``Recipe.tokenizer``.
        starts_trained: training starts from a trained model: the evaluation before the first step counts too.

    Raises:
        UsageError: the tokenizer is not the one that the card names; when training starts, the folder cannot be written
            to, or a manifest cannot be read.
        CheckpointError: when training starts, the folder's card is damaged or of a later version.
    """

    def __init__(
        self,
        folder: str | Path,
        model: Model,
        card: ModelCard,
        config: str,
        manifests: Mapping[str, str],
        metric: str = "wer",
        record: Callable[..., object] | None = None,
        tokenizer: Subwords | None = None,
        starts_trained: bool = False,
    ) -> None:
        self._folder, self._modules, self._config = Path(folder), trained_modules(model), config
        parameters = sum(weight.numel() for module in self._modules.values() for weight in module.parameters())
        self._card = msgspec.structs.replace(card, parameters=parameters)
        self._manifests, self._metric, self._record = dict(manifests), metric, record
        check_tokenizer(folder, card, tokenizer)
        self._tokenizer, self._starts_trained = tokenizer, starts_trained
        self._first = next(iter(self._manifests), "")
        self._digests: dict[str, dict[str, str]] = {}
        self._forget()

    def fingerprint(self) -> Mapping[str, object]:
        """By which rate it ranks, and from where on; folder and manifests are of rank 0's machine."""
        return {"metric": self._metric, "starts_trained": self._starts_trained}

    def _forget(self) -> None:
        """Nothing is known of the run that begins."""
        self._rates: dict[str, Rate] = {}
        self._rated_at = 0  # steps done when the rates were measured
        # What a model is ranked by, the lowest first: the rate that decides, then the other one, then the loss.
        self._best: tuple[float, ...] | None = None
        self._held: tuple[float, ...] | None = None
        self._has_model = self._is_due = self._has_stepped = False
        self._goes_on = self._is_known = False

    def on_action_start(self, state: ActionState) -> None:
        """See that the folder can be written to, what it holds, and take the manifests' digests; sweep it."""
        self._forget()
        state.on_first(lambda: sweep_model(make_writable_folder(self._folder)))
        self._has_model, self._held = state.from_first(self._read_held)
        manifests = self._manifests.items()
        self._digests = state.on_first(lambda: {name: digest_of_files(paths_in(f)) for name, f in manifests}) or {}

    def on_epoch_start(self, state: ActionState) -> None:
        """Write what the evaluation before the first step has decided."""
        self._see_where_it_starts(state)
        self._write_if_due(state)

    def on_evaluation_end(self, state: ActionState) -> None:
        """Note the rates; those of the first set decide."""
        self._see_where_it_starts(state)
        result = state.evaluation
        assert result is not None, "an evaluation has ended"
        if result.step != self._rated_at:  # those of other weights; a signal may have ended the evaluation of a set
            self._rates, self._rated_at = {}, result.step
        numbers = {name: float(value) for name, value in result.values.items() if name in METRICS}
        rate = self._rates[result.name] = Rate(
            set=result.name,
            utterances=result.num_items,
            digest=result.digest,
            manifests=self._digests.get(result.name, {}),
            **numbers,
        )
        decides = result.name == self._first and (result.step > 0 or self._starts_trained)
        rank = self._rank_of(rate)
        if decides and rank is not None and (self._best is None or rank < self._best):
            self._best, self._is_due = rank, True

    def on_step_end(self, state: ActionState) -> None:
        """Write, if it is due."""
        self._has_stepped = True
        self._write_if_due(state)

    def on_epoch_end(self, state: ActionState) -> None:
        """Write, if it is due."""
        self._write_if_due(state)

    def on_action_end(self, state: ActionState) -> None:
        """Write, if it is due, or if no evaluation has decided and there are new weights."""
        self._see_where_it_starts(state)
        has_new_weights = self._has_stepped or (self._goes_on and not self._has_model)
        self._is_due = self._is_due or (self._best is None and has_new_weights)
        self._write_if_due(state)

    def _see_where_it_starts(self, state: ActionState) -> None:
        """Where the run goes on, the rate of the model in the folder is the one to beat."""
        # At the first moment after all callbacks have started: one of them may have restored a checkpoint.
        if not self._is_known:
            self._is_known, self._goes_on = True, state.step > 0
            self._best = self._held if self._goes_on else None

    def _write_if_due(self, state: ActionState) -> None:
        if not self._is_due:
            return
        self._is_due = False
        staged = {name: self._folder / temporary_name(name, "safetensors") for name in self._modules}
        for name, module in self._modules.items():
            state.save_module(module, staged[name])
        state.on_first(lambda: self._write(state, staged))

    def _write(self, state: ActionState, staged: Mapping[str, Path]) -> None:
        for name, module in self._modules.items():
            if has_lora(module):  # the whole weights are in the file, also where ranks had them divided
                save_merged(type(module).__name__, read_tensors(staged[name]), staged[name])
        step, epoch = state.step + self._has_stepped, state.epoch + self._has_stepped
        rates = [self._rates[name] for name in self._manifests if name in self._rates and self._rated_at == step]
        card = msgspec.structs.replace(self._card, step=step, epoch=epoch, rates=rates)
        write_model(self._folder, card, self._config, staged, self._tokenizer)
        if self._record is None:
            logging.info("Saved the best model so far in %s: %s", self._folder, card.progress())
            return
        logging.debug("Saved the best model so far in %s: %s", self._folder, card.progress())
        facts = {
            "set": self._first,
            "metric": self._metric,
            "value": self._best and self._best[0],
            "path": str(self._folder),
        }
        self._record("model", step=step, **facts)

    def _rank_of(self, rate: Rate) -> tuple[float, ...] | None:
        """What a model with these rates is ranked by; None without the rate that decides."""
        numbers = [getattr(rate, name) for name in order_of_ranking(self._metric)]
        rank = tuple(math.inf if number is None or math.isnan(number) else number for number in numbers)
        return rank if math.isfinite(rank[0]) else None

    def _read_held(self) -> tuple[bool, tuple[float, ...] | None]:
        """Whether the folder holds a model, and the rank of it on the first set."""
        if not (self._folder / CARD).is_file():
            return False, None
        rates = read_card(self._folder / CARD).rates
        return True, next((self._rank_of(rate) for rate in rates if rate.set == self._first), None)


class AveragedModelCallback(NeMoCallback):
    """At the end of a training, evaluates the averaged weights and writes them as a model of their own.

    The run's weights, checkpoints and best model stay as they are. Statistics of batch norm are estimated again on the
    training data. Put it last in the list of callbacks, so that the last checkpoint has been saved. A run that a signal
    interrupts writes nothing.

    Args:
        writer: writes the model folder; it ranks by the first of ``evaluators``, by the name it has there.
        evaluators: evaluate the averaged weights; not in the list of callbacks themselves.
        last: average so many of the newest checkpoints; 0: take the moving average (``ema_decay``).
        checkpoints: the folder of the checkpoints.
        best: average the best checkpoints in the place of the newest ones.

    Raises:
        UsageError: fewer than two checkpoints to average; when training ends, no moving average.
        CheckpointError: when training ends, no checkpoint to average.
    """

    def __init__(
        self,
        writer: BestModelCallback,
        evaluators: Sequence[EvaluatorCallback],
        last: int = 0,
        checkpoints: str | Path = "",
        best: Best | None = None,
    ) -> None:
        if last < 0 or last == 1:
            wanted = "2 or more checkpoints, or 0 for the moving average"
            raise UsageError("that is no average", place="AveragedModelCallback", got=f"last={last}", wanted=wanted)
        self._writer, self._evaluators, self._last, self._checkpoints = writer, evaluators, last, checkpoints
        self._best = best
        self._has_stepped = False

    def fingerprint(self) -> Mapping[str, object]:
        """What is averaged: all ranks take part."""
        return {"average": self._last, "best_of": self._best and self._best.evaluation}

    def join(self, label: str, tags: TagOwners) -> None:
        """Let the evaluators know who records their results."""
        for evaluator in self._evaluators:
            evaluator.join(label, tags)

    def on_action_start(self, state: ActionState) -> None:
        """See that the folder can be written to."""
        self._has_stepped = False
        self._writer.on_action_start(state)

    def on_epoch_start(self, state: ActionState) -> None:
        """Note where the run starts."""
        self._writer.on_epoch_start(state)

    def on_step_end(self, state: ActionState) -> None:
        """Note that there are new weights."""
        self._has_stepped = True
        self._writer.on_step_end(state)

    def on_evaluation_end(self, state: ActionState) -> None:
        """Note the rates of the averaged weights."""
        self._writer.on_evaluation_end(state)

    def on_action_end(self, state: ActionState) -> None:
        """Average, evaluate, write."""
        if state.interrupted_by or state.averaging is None:
            return
        with state.averaging.applied(self._best or self._last, self._checkpoints) as words:
            state.on_first(lambda: logging.info("Averaged: %s", words))
            for evaluator in self._evaluators:
                evaluator.evaluate_now(state, state.step + self._has_stepped)
            self._writer.on_action_end(state)
