"""The command lines of the speech scripts, in the spellings of both NeMo generations. No training in here.

`nemo_asr/run/options.py` and `nemo_asr/options.py` have the options; here is what they mean together.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, ClassVar

from nemo_asr.options import (
    FirstGeneration,
    Logging,
    Optimisation,
    Regularization,
    SavingOptions,
    TrainedModelOptions,
    TrainingData,
    policy_problem,
    take_from_configuration,
)
from nemo_asr.published.catalogue import door, repository_of
from nemo_asr.run.options import (
    LOSS_SETTING,
    MODEL_PATHS,
    Configuration,
    MetricOptions,
    ReadingOptions,
    StoredModelOptions,
    Terminal,
)
from nemo_asr.run.options import unique_tags as unique_tags
from nemo_asr.shipped import config_path
from nemo_lite import logging
from nemo_lite.base.errors import UsageError
from nemo_lite.base.options import (
    Compilation,
    Device,
    Launch,
    LaunchedParser,
    OneLineParser,
    TrainingPrecision,
    fold_precision,
)
from nemo_lite.core import RunOptions
from nemo_lite.core.trackers import TRACKERS
from nemo_lite.utils.argparse import NemoArgParser
from nemo_lite.utils.optimizers import OPTIMIZERS

_LAUNCHING = "devices, precision, several processes and machines"
MOST_STEPS_BETWEEN_EVALUATIONS = 1000  # where --eval_freq does not say it
_DEFAULT_BATCH_SIZE = 64
_DEFAULT_NAME = "Jasper"
_DEFAULT_FOLDER = "runs"  # where nothing says where the results go
# The first generation's name of an option -> the name it has now.
_OLDER_NAMES = {
    "train_manifest": "train_dataset",
    "batch_per_step": "iter_per_step",
    "logdir": "work_dir",
    "save_freq": "checkpoint_save_freq",
}
_VAL_MANIFESTS = ("val_manifest1", "val_manifest2", "val_manifest3")


class AsrArgParser(NemoArgParser):
    """NeMo's common options and those of its speech scripts.

    The first generation's ``--train_manifest --val_manifest1 .. 3 --batch_per_step --logdir --save_freq`` and
    ``--disable_mixed_precision`` mean the same as ``--train_dataset --eval_datasets --iter_per_step --work_dir
    --checkpoint_save_freq`` and ``--amp_opt_level O0``. What cannot be used, contradicts another option or would have
    no effect ends the script with one line and exit code 2, before anything is read or written.

    The result has, beside the options: ``run_dir``, the run's folder or None; ``betas``, the optimizer's where they are
    given; ``placement`` as a `DeviceType`; ``random_seed``, None with ``--cudnn_benchmark``; ``batch_size`` of one
    process, also with ``--global_batch_size``; ``num_processes``; with ``--seeds`` also ``tells_for_all``: whether this
    process prints and writes what is said once for all.
    """

    groups = (
        *(
            TrainingData,
            ReadingOptions,
            MetricOptions,
            TrainedModelOptions,
            Configuration,
            Optimisation,
            Regularization,
            SavingOptions,
        ),
        *(Device, TrainingPrecision, Compilation, Launch, Logging, FirstGeneration),
    )
    most_used = """
        model_config train_dataset eval_datasets num_epochs batch_size lr warmup_steps work_dir exp_name set load_dir
        init_from plan find_batch
    """
    pages = {
        "data": "manifests, batches, and how often to evaluate",
        "model": "the configuration, modules of your own, weights to start from",
        "optimisation": "how long, learning rate, optimizer, batch statistics",
        "regularization": "against overfitting: decay, smoothing, further losses, averages of weights",
        "saving": "folders and checkpoints",
        "launching": _LAUNCHING,
        "logging": "lines in the terminal, curves, trackers",
        "older": "options of NeMo's first generation",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A script may define some of the options anew.
        super().__init__(*args, conflict_handler="resolve", **kwargs)

    def check(self, parsed: Any) -> None:
        """The older options are folded into those they became, and everything is checked."""
        _set_log(parsed)
        super().check(parsed)
        process = self.process_of(parsed)
        parsed.num_processes = process.world_size if process else 1
        self._fold_older_options(parsed)
        if not parsed.model_config and not parsed.init_from:
            self.error("--model_config is missing; give a file or a name such as digits, or --init_from MODEL")
        if parsed.model_config:
            parsed.model_config = str(config_path(parsed.model_config))
        take_from_configuration(self, parsed)
        if (parsed.num_epochs is None) == (parsed.max_steps is None):
            got = "neither" if parsed.num_epochs is None else "both"
            self.error(f"how long to train must be said once: got {got}, wanted --num_epochs or --max_steps")
        self.check_needs(parsed)
        if not parsed.train_dataset:
            self.error("--train_dataset is missing; give a manifest, which nemo-lite data make writes")
        if parsed.num_gpus not in (None, parsed.num_processes):
            started = f"the launcher started {process.world_size}" if process else "no launcher started this process"
            self.error(
                f"--num_gpus: {parsed.num_gpus} asked, {started}; start it with torchrun "
                f"--nproc-per-node={parsed.num_gpus}, or leave the option out"
            )
        self._fold_batch_size(parsed)
        fold_precision(self, parsed)
        self._fold_betas(parsed)
        if problem := policy_problem(parsed):
            self.error(problem)
        if parsed.cudnn_benchmark and parsed.random_seed is not None:
            self.error("--random_seed contradicts --cudnn_benchmark, with which runs differ; leave one out")
        if not parsed.cudnn_benchmark and parsed.random_seed is None:
            parsed.random_seed = 0
        self._fold_folders(parsed)
        self._check_seeds(parsed)
        if self.acts_for_all(parsed):
            for package in [TRACKERS[name].package for name in parsed.track if name in TRACKERS]:
                if package and find_spec(package) is None:
                    self.error(f"argument --track: {package} is not installed; pip install {package}")
        self._check_fine_tuning(parsed)
        self._check_regularization(parsed)
        self.check_checkpoints(parsed)
        self._check_what_is_left(parsed)

    def _fold_older_options(self, parsed: Any) -> None:
        for older, newer in _OLDER_NAMES.items():
            value = parsed.__dict__.pop(older)
            if value is not None and getattr(parsed, newer) != self.get_default(newer):
                self.error(f"--{older} is the older name of --{newer}; give one of them")
            if value is not None:
                setattr(parsed, newer, value)
                self.given.add(newer)
        older_sets = [parsed.__dict__.pop(manifest) for manifest in _VAL_MANIFESTS]
        parsed.eval_datasets = [*(parsed.eval_datasets or ()), *filter(None, older_sets)]

    def _fold_batch_size(self, parsed: Any) -> None:
        together, num_processes = parsed.global_batch_size, parsed.num_processes
        if together is None:
            parsed.batch_size = parsed.batch_size or _DEFAULT_BATCH_SIZE
            return
        if parsed.batch_size != self.get_default("batch_size"):
            self.error("--global_batch_size contradicts --batch_size; leave one out")
        num_batches = num_processes * parsed.iter_per_step
        parsed.batch_size, remainder = divmod(together, num_batches)
        if remainder:
            near = [size for size in (together - remainder, together - remainder + num_batches) if size]
            self.error(
                f"--global_batch_size {together} does not divide by {num_batches} ({num_processes} processes x "
                f"--iter_per_step {parsed.iter_per_step}); {' and '.join(map(str, near))} would"
            )

    def _fold_betas(self, parsed: Any) -> None:
        """``parsed.betas``: what --beta1 and --beta2 say, for one that is not given the optimizer's own; or None."""
        betas = (parsed.beta1, parsed.beta2)
        parsed.betas = None
        if betas == (None, None):
            return
        defaults = OPTIMIZERS[parsed.optimizer].get("betas")
        if not (isinstance(defaults, tuple) and len(defaults) == 2):
            self.error(f"--beta1 and --beta2 have no effect with --optimizer {parsed.optimizer}; leave them out")
        parsed.betas = tuple(d if g is None else g for g, d in zip(betas, defaults, strict=True))

    def _fold_folders(self, parsed: Any) -> None:
        if "tensorboard" in parsed.track:
            if parsed.create_tb_writer is False:
                self.error("--no-create_tb_writer contradicts --track tensorboard; leave one out")
            parsed.create_tb_writer = True
        keeps_nothing = parsed.plan or parsed.precision_check or parsed.checkpoint_dir
        if not parsed.work_dir and not parsed.exp_name and not keeps_nothing:
            parsed.work_dir = _DEFAULT_FOLDER
        has_run_dir = bool(parsed.work_dir or parsed.exp_name)
        has_folder = has_run_dir or bool(parsed.tensorboard_dir)
        if parsed.create_tb_writer and not has_folder:
            name = "--track tensorboard" if "tensorboard" in parsed.track else "--create_tb_writer"
            self.error(f"{name} needs a folder for the events; give --work_dir, --exp_name or --tensorboard_dir")
        if parsed.create_tb_writer is False and parsed.tensorboard_dir:
            self.error("--no-create_tb_writer contradicts --tensorboard_dir; leave one out")
        if parsed.create_tb_writer is None:
            parsed.create_tb_writer = has_folder
        parsed.exp_name = parsed.exp_name or _DEFAULT_NAME
        path = PurePath(parsed.exp_name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            self.error(
                f"argument --exp_name: {parsed.exp_name!r} leads out of --work_dir; give a name, and another --work_dir"
            )
        parsed.run_dir = Path(parsed.work_dir or "").expanduser() / parsed.exp_name if has_run_dir else None

    def _check_seeds(self, parsed: Any) -> None:
        if parsed.plan or parsed.precision_check:  # the same for every seed
            parsed.seeds = 1
        if parsed.seeds == 1:
            return
        if parsed.cudnn_benchmark:
            self.error("--seeds contradicts --cudnn_benchmark, with which runs have no seed; leave one out")
        for name in ("load_dir", "checkpoint_dir", "tensorboard_dir"):
            if getattr(parsed, name):
                self.error(f"--seeds gives each run its own folders; leave --{name} out")
        parsed.tells_for_all = self.acts_for_all(parsed)

    def _check_fine_tuning(self, parsed: Any) -> None:
        """``parsed.module_lr`` becomes a dictionary."""
        rates = parsed.module_lr or []
        parsed.module_lr = dict(rates)
        for module in (module for number, (module, _) in enumerate(rates) if module in dict(rates[:number])):
            self.error(f"argument --module_lr: {module} is given twice")
        if parsed.init_from and parsed.load_dir:
            self.error(
                "--init_from contradicts --load_dir: the first starts anew from weights, the second goes on with a "
                "run; leave one out"
            )
        for name in ("freeze_encoder_until", "shard_weights"):
            if parsed.lora and getattr(parsed, name):
                self.error(f"--lora contradicts --{name}; leave one out")
        if parsed.guard and not parsed.run_dir:
            self.error("--guard has no effect without --work_dir or --exp_name, where the model is kept; leave it out")
        for manifest in (manifest for manifest in parsed.guard if manifest in parsed.eval_datasets):
            self.error(
                f"argument --guard: {manifest} is one of --eval_datasets, of which the first decides about the best "
                "model; leave it out of one"
            )
        # Of another toolkit it may be a file; one that is no model is refused where models are read.
        if parsed.init_from is not None and repository_of(parsed.init_from) is None:
            remedy = f"give {MODEL_PATHS}; {door(parsed.init_from)}"
            self.check_folder(parsed, "init_from", remedy, or_file=True)

    def _check_regularization(self, parsed: Any) -> None:
        """Label smoothing becomes a setting of the configuration."""
        if parsed.decay_weights_only and not parsed.weight_decay:
            self.error("--decay_weights_only has no effect with --weight_decay 0; leave it out")
        averages = [name for name in ("average_last", "average_best", "ema_decay") if getattr(parsed, name)]
        if len(averages) > 1:
            first, second, *_ = averages
            self.error(f"--{first} contradicts --{second}: a run writes one averaged model; leave one out")
        if averages and not parsed.run_dir:
            self.error(f"--{averages[0]} has no effect without --work_dir or --exp_name; leave it out")
        for name in ("average_last", "average_best"):
            if getattr(parsed, name) == 1:
                self.error(f"argument --{name}: 1 checkpoint is no average; give 2 or more")
        parsed.checkpoints_to_keep = max(parsed.checkpoints_to_keep, parsed.average_last or 0)
        parsed.best_to_keep = max(parsed.best_to_keep, parsed.average_best or 0)
        parsed.ema_decay = parsed.ema_decay or None
        if parsed.label_smoothing:
            parsed.overrides = [*parsed.overrides, f"{LOSS_SETTING}label_smoothing={parsed.label_smoothing}"]

    def _check_what_is_left(self, parsed: Any) -> None:
        """End the script where the checkpoint of ``--load_dir`` has all the training that is asked for.

        Training sees it as well, but then the run's folder is there.
        """
        if parsed.load_dir is None or not self.acts_for_all(parsed):
            return
        from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder

        checkpoint = CheckpointFolder(parsed.load_dir).latest()
        if checkpoint is None or checkpoint.step is None or checkpoint.epoch is None:  # NeMo's
            return
        options = RunOptions(num_epochs=parsed.num_epochs, max_steps=parsed.max_steps)
        if error := options.nothing_left(checkpoint.step, checkpoint.epoch):
            self.error(str(error))


class EvalArgParser(LaunchedParser):
    """The options of scripts that use a trained model."""

    groups: ClassVar[Sequence[type]] = (StoredModelOptions, Configuration, Device, Compilation, Launch, Terminal)
    most_used = "load_dir eval_datasets out compare details decoder batch_size model_config placement"
    pages = {
        "data": "manifests, batches, results",
        "decoding": "beam search, lexicon, language model, hot words",
        "model": "what is loaded, modules of your own",
        "launching": _LAUNCHING,
        "logging": "lines in the terminal",
    }

    def check(self, parsed: Any) -> None:
        """The log is as asked for from here on."""
        _set_log(parsed)
        super().check(parsed)
        fold_precision(self, parsed)


def refuse_options_of_texts(parser: OneLineParser, parsed: Any) -> None:
    """End the script where an option is given that is only for models that transcribe."""
    for member in parser.members:
        for_texts = member.metadata["only_for"] == "texts"
        if for_texts and getattr(parsed, member.name) != parser.get_default(member.name):
            parser.error(f"--{member.name} is for models that transcribe; leave it out")


def add_data_options(parser: OneLineParser) -> None:
    """How manifests are read."""
    parser.add_options(ReadingOptions)


def add_metric_option(parser: OneLineParser) -> None:
    """``--eval_metric``: ``wer``, ``cer``, or None for what :func:`nemo_asr.text.main_metric` says of the labels."""
    parser.add_options(MetricOptions)


def _set_log(parsed: Any) -> None:
    logging.set_style(parsed.log_style)
    if parsed.log_level:
        logging.setLevel(parsed.log_level.upper())


def steps_of_run(parsed: Any, steps_per_epoch: int | None) -> int:
    """Optimizer steps of a whole run.

    Raises:
        UsageError: it is to train for epochs, and the data layer does not know how long they are.
    """
    if parsed.max_steps:
        return int(parsed.max_steps)
    if steps_per_epoch is None:
        raise UsageError("the data layer does not know how many batches an epoch has", remedy="give --max_steps")
    return int(steps_per_epoch * parsed.num_epochs)


def evaluation_steps(parsed: Any, steps_per_epoch: int | None) -> int:
    """Optimizer steps between evaluations: what the options say, or an epoch, but not too many."""
    most = MOST_STEPS_BETWEEN_EVALUATIONS
    return int(parsed.eval_freq or min(most, steps_per_epoch or most))
