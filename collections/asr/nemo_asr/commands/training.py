"""TrainingRun: a training of the speech scripts, made from their options; how it is recorded, and its sets scored.

``examples/asr/jasper.py`` shows its use.
"""

from __future__ import annotations

import platform
import shlex
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import nemo_lite
from nemo_asr.argparse import evaluation_steps, steps_of_run
from nemo_asr.commands.batch_finding import BatchFinding
from nemo_asr.commands.guarding import Guard
from nemo_asr.data.check import tell_of_little, warn_of_leaks, warn_of_long
from nemo_asr.data.evaluated_sets import ScoredClasses, ScoredSet
from nemo_asr.data.scored_texts import have_words
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.models.jasper import set_batch_norm_momentum
from nemo_asr.options import policy_of
from nemo_asr.run.options import unique_tags
from nemo_asr.run.text.labels import main_metric
from nemo_asr.scoring.nemo_lines import monitor_asr_train_progress, monitor_classification_training_progress
from nemo_asr.scoring.report.page import try_report
from nemo_asr.scoring.report.records import METRICS_FILE as METRICS
from nemo_asr.scoring.report.records import RunRecords, read_records
from nemo_asr.tasks.families import ClassWires
from nemo_asr.tasks.family import Wires, connect
from nemo_asr.tasks.fitting import leave_out_infeasible, leave_out_long, refuse_long, warn_of_infeasible
from nemo_asr.tasks.recipe import (
    Recipe,
    labels_are_auto,
    labels_for,
    load_class_recipe,
    load_recipe,
    task_of,
    with_labels,
)
from nemo_asr.trained.best import AveragedModelCallback, BestModelCallback, order_of_ranking
from nemo_asr.trained.calibrating import hear_set, store_heard
from nemo_asr.trained.fine_tuning import Initialised, init_from, recipe_of
from nemo_asr.trained.folder import CARD, MODEL, about_checkpoint
from nemo_asr.trained.licences import licence_of
from nemo_asr.trained.lora import QUERIES_AND_VALUES, add_lora, has_lora
from nemo_asr.trained.model import TrainedModel, check_goes_on, describe, labels_of_run, trained_modules
from nemo_lite import (
    CheckpointCallback,
    Dag,
    DataLayerNM,
    EvaluatorCallback,
    NeuralModuleFactory,
    NmTensor,
    SimpleLossLoggerCallback,
    logging,
)
from nemo_lite.base.errors import NemoLiteError, UnknownNameError, UsageError
from nemo_lite.base.files import check_writable_folder
from nemo_lite.base.options import factory_arguments
from nemo_lite.core import EarlyStoppingCallback, Metric, UnfreezeCallback
from nemo_lite.core.callbacks import LossBalanceCallback, TrackingCallback
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.callbacks.loss_balance import tell_of_gradients, weak_at_first
from nemo_lite.core.show import show_plan, show_precision
from nemo_lite.core.trackers import (
    TRACKERS,
    MetricsFile,
    TensorboardTracker,
    TerminalLines,
    Tracker,
    Trackers,
)


def is_classifier(model_config: str | None) -> bool:
    """Whether a configuration is that of a classifier; what is wrong with it, reading it as one of texts will say."""
    try:
        return bool(model_config) and task_of(str(model_config)) == "classification"
    except NemoLiteError:
        return False


class TrainingRun:
    """What the options of a training stand for: recipe, data layers, factory and modules.

    Args:
        args: what ``AsrArgParser`` gave.
        classifies: whether the model gives a class for each recording instead of a text.

    Attributes:
        recipe: the configuration: the given one, or that of the model whose weights training starts from.
        training_data: the data layer of the training set.
        evaluation_data: those of the evaluation sets, by the sets' names.
        factory: with it there is the run's folder; a plan needs none.
        model: the modules, to be connected to the data layers; see ``nemo_asr.connect``.

    Raises:
        ConfigError: the configuration has a mistake.
        DataError: a manifest cannot be used.
    """

    def __init__(self, args: Namespace, classifies: bool = False) -> None:
        self.args, self._classifies = args, classifies
        # Input is checked before the factory makes the run's folder: a start that fails leaves nothing behind. But what
        # the first process alone needs to have, the configuration of --init_from or the checkpoint that a run goes on
        # from, it can give to the others only by a factory.
        has_auto_labels = not classifies and labels_are_auto(args.model_config, args.overrides)
        is_told_by_first = has_auto_labels or not args.model_config
        early = self._make_factory() if args.num_processes > 1 and is_told_by_first else None
        if has_auto_labels:
            args.overrides = self._overrides_with_labels(early)
        if classifies:
            self.recipe = load_class_recipe(args.model_config, args.train_dataset, args.overrides)
        elif args.model_config:
            self.recipe = load_recipe(args.model_config, args.overrides)
        else:
            self.recipe = recipe_of(args.init_from, args.overrides, factory=early)
        args.eval_metric = CLASS_METRIC if classifies else args.eval_metric or main_metric(self.recipe.labels)
        args.report = args.report and not classifies  # there is no page about classes
        self.training_data = self._make_data(args.train_dataset, training=True)
        self.evaluation_data = {
            tag: self._make_data(manifest, training=False)
            for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
        }
        guarded = zip(
            unique_tags([*args.eval_datasets, *args.guard])[len(args.eval_datasets) :], args.guard, strict=True
        )
        self._guard_data = {
            tag: self._make_data(manifest, training=False, option="--guard") for tag, manifest in guarded
        }
        if args.patience and not classifies:
            tag, layer = next(iter(self.evaluation_data.items()))
            if not have_words(layer, args.score_normalizer):
                problem = "the texts of the set that decides for --patience have no words, so it has no error rate"
                raise UsageError(problem, place=tag, remedy="name another set first, or leave --patience out")
        if self._own_checkpoints and args.num_processes == 1 and not args.precision_check:
            # With several processes, the first one does it later.
            check_goes_on(self._own_checkpoints, self.recipe, self._lora)
        if args.intermediate_ctc and not classifies:  # what is refused leaves no run folder
            self.recipe.model(with_weights=False, intermediate_ctc=args.intermediate_ctc)
        self.factory = early or self._make_factory()
        if args.run_dir and (args.plan or args.precision_check):  # which the factory makes for a training only
            self.factory.on_first(lambda: check_writable_folder(args.run_dir))
        if classifies:
            self.model: Any = self.recipe.classifier(with_weights=not args.plan)
        else:
            self.model = self.recipe.model(with_weights=not args.plan, intermediate_ctc=args.intermediate_ctc)
        set_batch_norm_momentum(self.model.modules.values(), args.bn_momentum)
        # What was trained from weights stands under their licence.
        licence = self.factory.from_first(lambda: licence_of(args.init_from)) if args.init_from else ""
        self._card, self._config = describe(self.recipe, licence), self.recipe.config.as_yaml()

    def train(self, training: Wires | ClassWires, evaluations: Mapping[str, Wires | ClassWires]) -> None:
        """Train; with ``--plan`` say what would be trained, with ``--precision_check`` compare with float32.

        Args:
            training: the wires of the training DAG.
            evaluations: those of the evaluation DAGs, by the names of the sets.

        Raises:
            UsageError: options that do not fit this training.
            DistributedError: another process failed, died or hangs.
        """
        args, factory = self.args, self.factory
        loss = training.scored[0]
        if isinstance(training, Wires):
            # Texts that do not fit are left out; of texts that are in several sets there is a warning.
            leave_out_infeasible(self.training_data, training.frames, self.model.loss, factory)
            leave_out_long(self.training_data, self.model, factory)
            for tag, wires in evaluations.items():
                assert isinstance(wires, Wires)
                refuse_long(self.evaluation_data[tag], self.model, factory)
                warn_of_infeasible(self.evaluation_data[tag], wires.frames, self.model.loss, factory)
            scored = {**self.evaluation_data, **self._guard_data}
            factory.on_first(lambda: warn_of_leaks(self.training_data, scored))
        factory.on_first(lambda: warn_of_long(self.training_data))
        steps_per_epoch = factory.steps_per_epoch(self.training_data, args.iter_per_step, args.uneven)
        total_steps = steps_of_run(args, steps_per_epoch)
        lr_policy = policy_of(args, total_steps)
        dags = {"training": Dag([loss])}
        dags |= {f"evaluation_{tag}": Dag(wires.scored) for tag, wires in evaluations.items()}
        names = trained_modules(self.model)
        for name in args.module_lr:
            if name not in names:
                raise UnknownNameError("module", name, names, place="--module_lr")
        if args.plan:
            self._take_weights()  # a plan refuses what training would refuse
            schedule = lr_policy, args.lr, steps_per_epoch, total_steps
            finding = self.batch_finding(loss, evaluations)
            factory.on_first(lambda: show_plan(dags, *schedule, args.run_dir, finding.memory_told()))
            if args.find_batch:
                factory.on_first(lambda: print("\n".join(finding.batch_told(total_steps))))
            if isinstance(training, Wires) and len(training.losses) > 1:
                self._plan_gradients()
            return
        if args.precision_check:
            show_precision(factory.precision_check([loss], args.precision_check, args.load_dir), args.run_dir)
            return
        if isinstance(training, Wires) and not args.init_from:
            factory.on_first(lambda: tell_of_little(self.training_data))
        eval_step = evaluation_steps(args, steps_per_epoch)
        callbacks = [
            *self._callbacks(training, evaluations, eval_step),
            *self._fine_tuning(),
            *self._averaging(evaluations),
        ]
        guard = None
        if args.guard:  # after what refuses options: it hears all sets
            guard = Guard(
                args, factory, lambda recipe, manifest: self._make_data(manifest, training=False, recipe=recipe)
            )
            guard.before()
        factory.train(
            tensors_to_optimize=[loss],
            callbacks=callbacks,
            lr_policy=lr_policy,
            optimizer=args.optimizer,
            optimization_params={
                "num_epochs": args.num_epochs,
                "max_steps": args.max_steps,
                "lr": args.lr,
                "module_lr": args.module_lr,
                "grad_norm_clip": args.grad_norm_clip,
                "weight_decay": args.weight_decay,
                "decay_weights_only": args.decay_weights_only,
                "ema_decay": args.ema_decay,
                "betas": args.betas,
            },
            batches_per_step=args.iter_per_step,
            synced_batchnorm=args.synced_bn,
            synced_batchnorm_groupsize=args.synced_bn_groupsize,
            uneven=args.uneven,
            static_graph=args.static_graph,
            gradient_compression=args.gradient_compression,
        )
        if args.run_dir and isinstance(training, Wires) and evaluations and not args.shard_weights:
            self._note_confidence(Path(args.run_dir, MODEL, CARD))
        if guard is not None:
            guard.after()
        if args.run_dir and args.report:
            factory.on_first(lambda: try_report(args.run_dir, dags=dags))

    def batch_finding(self, loss: NmTensor, evaluations: Mapping[str, Wires | ClassWires]) -> BatchFinding:
        """The memory of this training, of a loss and evaluations: of its largest batch, and which batch fits."""
        evaluated = {tag: (wires.scored[0], self.evaluation_data[tag]) for tag, wires in evaluations.items()}
        return BatchFinding(
            self.args, self.training_data, self.factory, loss, evaluated, lambda: self._wires_with_weights().scored[0]
        )

    def _wires_with_weights(self) -> Wires:
        """Those of the training DAG, of new modules that have weights, unlike a plan's."""
        self.model = self.recipe.model(intermediate_ctc=self.args.intermediate_ctc)
        return connect(self.model, self.training_data, training=True)

    def _plan_gradients(self) -> None:
        """Say how the parts of the loss are balanced at the first step. This needs weights and audio, unlike a plan."""
        losses = self._wires_with_weights().losses
        self._take_weights()
        gradients = self.factory.loss_gradients([part.loss for part in losses.values()])
        weights = {name: part.weight for name, part in losses.items()}
        reasons = weak_at_first(part.loss for part in losses.values())
        self.factory.on_first(lambda: tell_of_gradients(gradients, weights, reasons))

    def _note_confidence(self, card: Path) -> None:
        """Write into the model's card how sure it is of words of its first evaluation set, and what it knows."""
        tag, layer = next(iter(self.evaluation_data.items()))
        if not isinstance(layer, SpeechDataLayer):
            return
        model = TrainedModel(str(card.parent), self.recipe, self.model, self._card)
        try:
            confidence, domain = hear_set(model, tag, layer, self.factory)
            self.factory.on_first(lambda: None if confidence is None else store_heard(card, tag, confidence, domain))
        except NemoLiteError as error:  # the model is written; it is worth more than this number
            logging.debug("%s", error)

    @property
    def _own_checkpoints(self) -> Path | None:
        """The folder from whose checkpoints the run goes on."""
        args = self.args
        folder = args.load_dir or args.checkpoint_dir or (args.run_dir and args.run_dir / "checkpoints")
        return Path(folder).expanduser() if folder else None

    def _overrides_with_labels(self, factory: NeuralModuleFactory | None) -> list[str]:
        """The labels of the checkpoint that the run goes on from, or else of the texts of the training set."""
        args, folder = self.args, self._own_checkpoints

        def choose() -> tuple[list[str], str]:
            if folder and (labels := labels_of_run(folder)):
                return labels, f"{len(labels)} labels, as in the checkpoint {folder}"
            proposal = labels_for(args.train_dataset, args.overrides, args.model_config)
            return proposal.labels, str(proposal)

        labels, told = factory.from_first(choose) if factory else choose()
        logging.info("labels: auto: %s", told)
        return with_labels(args.overrides, labels)

    def _make_data(
        self, manifest: str, training: bool, option: str = "--eval_datasets", recipe: Recipe | None = None
    ) -> DataLayerNM:
        """A data layer with the configuration's arguments, and those that the command line overrides.

        Args:
            manifest: its data.
            training: for training, or for evaluation.
            option: that names the manifest, for messages.
            recipe: in the place of the run's own.
        """
        args = self.args
        options: dict[str, Any] = {} if args.num_workers is None else {"num_workers": args.num_workers}
        if args.strict_data:
            options["strict_data"] = True
        batch_size = args.batch_size if training else args.eval_batch_size or args.batch_size
        layer = (recipe or self.recipe).data_layer(manifest, training=training, batch_size=batch_size, **options)
        if not training and isinstance(layer, SpeechDataLayer) and layer.utterances.weighted_sets:
            remedy = "leave the weights out: all utterances are scored once"
            raise UsageError("an evaluation set has weights", place=option, got=manifest, remedy=remedy)
        layer.worker_timeout = args.worker_timeout
        return layer

    def _make_factory(self) -> NeuralModuleFactory:
        args = self.args
        folders = {
            "log_dir": args.run_dir,
            "checkpoint_dir": args.checkpoint_dir,
            "tensorboard_dir": args.tensorboard_dir,
            "create_tb_writer": args.create_tb_writer,
            "files_to_copy": [args.model_config] if args.model_config else [],
        }
        return NeuralModuleFactory(
            amp_backend=args.amp_backend,
            cudnn_benchmark=args.cudnn_benchmark,
            random_seed=args.random_seed,
            **factory_arguments(args),
            **({} if args.plan or args.precision_check else folders),
        )

    def _callbacks(
        self, training: Wires | ClassWires, evaluations: Mapping[str, Wires | ClassWires], eval_step: int
    ) -> list[Callback]:
        """The run's records, checkpoints, each evaluation set's error rate and the best model."""
        args, factory = self.args, self.factory
        trackers = trackers_of(args, factory)
        losses = training.losses if isinstance(training, Wires) and len(training.losses) > 1 else {}
        parts = {name: part.loss for name, part in losses.items()}
        callbacks: list[Callback] = [TrackingCallback(trackers, args.log_freq, start_record(args, factory), parts)]
        if losses:
            weighted = {name: (part.loss, part.weight) for name, part in losses.items()}
            callbacks.append(LossBalanceCallback(weighted, trackers.record))
        if logging.style == "nemo":
            monitor = partial(monitor_asr_train_progress, labels=self.recipe.labels, eval_metric=args.eval_metric)
            logger = SimpleLossLoggerCallback(
                tensors=training.scored,
                print_func=monitor_classification_training_progress if self._classifies else monitor,
                get_tb_values=lambda values: [("loss", values[0])],
                step_freq=args.log_freq,
            )
            callbacks.append(logger)
        if folder := args.load_dir or factory.checkpoint_dir:
            factory.on_first(partial(check_goes_on, folder, self.recipe, self._lora))
            saving: dict[str, Any] = {
                "step_freq": args.checkpoint_save_freq,
                "epoch_freq": args.checkpoint_epoch_freq or None,
                "minutes": args.checkpoint_minutes or None,
                "checkpoints_to_keep": args.checkpoints_to_keep,
                "best_of": next(iter(evaluations), ""),
                "best_metric": args.eval_metric,
                "best_to_keep": args.best_to_keep,
                "epoch_names": False,
            }
            checkpoints = CheckpointCallback(
                folder=factory.checkpoint_dir or args.load_dir,
                load_from_folder=args.load_dir,
                force_load=args.load_dir is not None,
                allow_world_size_change=args.allow_world_size_change,
                about={**about_checkpoint(self._card, self._config, self.recipe.tokenizer), "lora": self._lora},
                record=trackers.record,
                **(saving if factory.checkpoint_dir else {}),
            )
            callbacks.append(checkpoints)
        # After the checkpoints: an evaluation that fails costs no weights.
        transcripts = args.run_dir and args.run_dir / "transcripts"
        callbacks += [
            self._evaluator(tag, wires, transcripts, name=tag, eval_step=eval_step)
            for tag, wires in evaluations.items()
        ]
        if args.patience:
            first, metric, *ties = next(iter(evaluations)), *order_of_ranking(args.eval_metric)
            callbacks.append(
                EarlyStoppingCallback(first, metric, args.patience, ties, "lowest", starts_trained=bool(args.init_from))
            )
        if args.run_dir:
            manifests = dict(zip(evaluations, args.eval_datasets, strict=True))
            callbacks.append(self._writer(args.run_dir / "model", manifests, trackers.record, bool(args.init_from)))
        return callbacks

    def _evaluator(
        self, tag: str, wires: Wires | ClassWires, transcripts: Path | None, name: str, eval_step: int | None = None
    ) -> EvaluatorCallback:
        metric, normalizer = self.args.eval_metric, self.args.score_normalizer
        scores: Metric
        if self._classifies:
            scores = ScoredClasses(wires.scored, tag)
        else:
            data_layer = self.evaluation_data[tag]
            scores = ScoredSet(wires.scored, self.recipe.labels, tag, data_layer, transcripts, metric, normalizer)
        return EvaluatorCallback(metrics={metric: scores}, name=name, eval_step=eval_step)

    def _writer(
        self, folder: Path, manifests: Mapping[str, str], record: Any, is_fine_tuned: bool
    ) -> BestModelCallback:
        settings = self.args.eval_metric, record, self.recipe.tokenizer, is_fine_tuned
        return BestModelCallback(folder, self.model, self._card, self._config, manifests, *settings)

    def _take_weights(self) -> None:
        """Start from the weights of --init_from, if it is given, unless the run goes on from its own checkpoints."""
        args = self.args
        if args.init_from:
            own = args.checkpoint_dir or (args.run_dir and args.run_dir / "checkpoints")
            change = args.allow_feature_change
            done = self.factory.on_first(lambda: init_from(args.init_from, self.model, self.recipe, own, change))
            if args.lora:
                self._train_updates(done)

    @property
    def _lora(self) -> str:
        """The options that say which updates are trained."""
        args = self.args
        layers = f" --lora_layers {' '.join(args.lora_layers)}" if args.lora_layers else ""
        return f"--lora {args.lora}{layers}" if args.lora else ""

    def _train_updates(self, done: Initialised | None) -> None:
        """Train updates of attention alone; ``done``: what became of its weights, on the first rank."""
        args, modules = self.args, trained_modules(self.model)
        told = add_lora(modules, args.lora, args.lora_layers or QUERIES_AND_VALUES)
        for each in done.modules if done else ():
            is_new = bool(each.new) or bool(each.by_label and done and done.new_labels)
            if is_new and has_lora(modules[each.name]):
                problem, got = f"--lora leaves {each.name} as it is, and it is not all trained", "; ".join(each.lines())
                raise UsageError(problem, place=args.init_from, got=got, remedy="leave --lora out")
        self.factory.on_first(lambda: logging.info("%s", told))

    def _fine_tuning(self) -> list[Callback]:
        """Take over a trained model's weights and freeze the encoder, as far as asked for; the callbacks for it."""
        self._take_weights()
        if not self.args.freeze_encoder_until:
            return []
        self.model.encoder.freeze()
        return [UnfreezeCallback([self.model.encoder], start_step=self.args.freeze_encoder_until)]

    def _averaging(self, evaluations: Mapping[str, Wires | ClassWires]) -> list[Callback]:
        """The callback that writes a model of averaged weights at the end, if one is asked for. It goes last."""
        args = self.args
        if not (args.average_last or args.average_best or args.ema_decay):
            return []
        evaluators = [self._evaluator(tag, wires, None, name=f"averaged_{tag}") for tag, wires in evaluations.items()]
        manifests = {f"averaged_{tag}": files for tag, files in zip(evaluations, args.eval_datasets, strict=True)}
        writer = self._writer(args.run_dir / "averaged", manifests, None, False)
        checkpoints = self.factory.checkpoint_dir or args.load_dir or ""
        best = Best(next(iter(evaluations)), args.eval_metric, args.average_best) if args.average_best else None
        number = args.average_best or args.average_last or 0
        return [AveragedModelCallback(writer, evaluators, number, checkpoints, best)]


CLASS_METRIC = "error"
"""What counts of a classifier: the share of recordings that it gives another class."""


def trackers_of(args: Namespace, factory: NeuralModuleFactory) -> Trackers:
    """The terminal, RUN/metrics.jsonl, TensorBoard, and the services of ``--track``; with several ranks on rank 0.

    Args:
        args: what ``AsrArgParser`` gave.
        factory: the run's.

    Raises:
        UsageError: a service's package is not installed.
    """

    def trackers() -> Trackers:
        chosen: list[Tracker] = []
        if logging.style == "plain":  # else a SimpleLossLoggerCallback writes lines and events, as NeMo's scripts do
            chosen.append(_terminal(args))
            if factory.tb_writer is not None:
                chosen.append(TensorboardTracker(factory.tb_writer))
        if args.run_dir is not None:
            chosen.append(MetricsFile(args.run_dir / METRICS))
        chosen += [TRACKERS[name].make(args.exp_name, args.run_dir) for name in args.track if name in TRACKERS]
        return Trackers(chosen)

    return factory.on_first(trackers) or Trackers()


def _terminal(args: Namespace) -> TerminalLines:
    saved, run = args.run_dir or args.checkpoint_dir, args.run_dir
    of_classes = args.eval_metric == CLASS_METRIC
    words = ("Evaluate: nemo-lite eval", "--eval_datasets MANIFEST")
    verb, what = words if of_classes else ("Transcribe: nemo-lite transcribe", "FILES")
    use = f"{verb} {shlex.quote(str(saved))} {what}" if saved else ""
    report = f"Report so far: nemo-lite report {shlex.quote(str(run))}" if run and args.report else ""
    # The one that counts comes first.
    rates = [CLASS_METRIC] if of_classes else sorted(("wer", "cer"), key=lambda rate: rate != args.eval_metric)
    records = read_records(run / METRICS) if run and (run / METRICS).is_file() else RunRecords()
    evaluations = [each for of_set in records.evaluations.values() for each in of_set.values()]
    earlier = [*evaluations, *([records.model] if records.model else [])]
    return TerminalLines(rates, use, report, earlier, records.seconds, starts_trained=bool(args.init_from))


def start_record(args: Namespace, factory: NeuralModuleFactory) -> dict[str, Any]:
    """What the record of a run's start says beside its steps: arguments, versions, precision."""
    versions = {"nemo_lite": nemo_lite.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"arguments": plain_arguments(args), "versions": versions, "precision": factory.optim_level.short}


def plain_arguments(args: Namespace) -> dict[str, Any]:
    """The options as values that JSON can hold, by name; those that it cannot hold as texts."""
    return {name: value if _is_plain(value) else str(value) for name, value in sorted(vars(args).items())}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
