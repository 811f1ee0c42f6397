"""The command-line options of the speech scripts, in the spellings of both NeMo generations. No training in here."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemo_asr.arguments import WORKERS
from nemo_asr.options import TRAINING, USE
from nemo_asr.options import unique_tags as unique_tags
from nemo_asr.shipped import config_path
from nemo_asr.text.labels import METRICS
from nemo_asr.training_options import (
    add_fine_tuning_options,
    add_policy_options,
    add_regularization_options,
    check_fine_tuning,
    check_regularization,
    check_what_is_left,
    policy_problem,
    take_from_configuration,
)
from nemo_asr.training_options import (
    refuse_options_of_texts as refuse_options_of_texts,
)
from nemo_lite import DeviceType, logging
from nemo_lite.config import Between
from nemo_lite.core.trackers import TRACKERS
from nemo_lite.errors import UsageError
from nemo_lite.utils.argparse import (
    LaunchedParser,
    Names,
    NemoArgParser,
    add_saving_options,
    add_training_precision_options,
    fold_precision,
    not_negative_float,
    not_negative_int,
    number_within,
    positive_int,
)
from nemo_lite.utils.launch import ProcessInfo
from nemo_lite.utils.nemo_logging import LEVELS, STYLES
from nemo_lite.utils.optimizers import OPTIMIZERS

# The first generation's name of an option -> the name it has now.
_OLDER = {
    "train_manifest": "train_dataset",
    "batch_per_step": "iter_per_step",
    "logdir": "work_dir",
    "save_freq": "checkpoint_save_freq",
}
_VAL_MANIFESTS = ("val_manifest1", "val_manifest2", "val_manifest3")
# An option -> those of which it needs one, because otherwise it would have no effect.
_NEEDS = {
    "best_to_keep": ("eval_datasets",),
    "eval_freq": ("eval_datasets",),
    "seeds": ("eval_datasets",),
    "eval_batch_size": ("eval_datasets",),
    "synced_bn_groupsize": ("synced_bn",),
    "allow_feature_change": ("init_from",),
}
_DEFAULT_BATCH_SIZE = 64
MOST_STEPS_BETWEEN_EVALUATIONS = 1000  # where --eval_freq does not say it
_DEFAULT_NAME = "Jasper"
_DEFAULT_FOLDER = "runs"  # where nothing says where the results go

# What some of the common options are in these scripts.
_HELP = {
    "train_dataset": "manifest to train on; several are separated by commas",
    "eval_datasets": "manifests to evaluate, each a set of its own",
    "model_config": "YAML file of the model, or the name of one that comes with nemo_lite: quartznet15x5 (default: the "
    "configuration of the model in --init_from)",
    "batch_size": f"items per training batch and process (default: {_DEFAULT_BATCH_SIZE})",
    "eval_freq": f"optimizer steps between evaluations (default: an epoch, at most {MOST_STEPS_BETWEEN_EVALUATIONS})",
    "checkpoint_dir": "folder for checkpoints (default: WORK_DIR/EXP_NAME/checkpoints)",
    "tensorboard_dir": "folder for events (default: WORK_DIR/EXP_NAME/tensorboard)",
}


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

    help_pages = TRAINING

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Some of the common options mean less, or more, in these scripts: they are defined anew.
        super().__init__(*args, conflict_handler="resolve", **kwargs)
        for action in self._actions:
            action.help = _HELP.get(action.dest, action.help)
        self.add_run_options(DeviceType)
        self._add_run_folders()
        add_data_options(self)
        add_language_option(self)
        self._add_tracking_options()
        self._add_training_options()
        add_fine_tuning_options(self)
        add_regularization_options(self)
        add_saving_options(self)
        self._add_older_options()
        self.set_defaults(optimizer="novograd", lr=0.02, weight_decay=0.001, lr_policy="CosineAnnealing")
        self.set_defaults(eval_freq=None)

    def _add_run_folders(self) -> None:
        add = self.add_argument
        add("--plan", action="store_true", help="print and save the DAGs and the schedule, then exit")
        name_help = (
            "name of the run: its results go to WORK_DIR/EXP_NAME, without --work_dir to ./EXP_NAME, without both to "
            f"{_DEFAULT_FOLDER}/{_DEFAULT_NAME} (default: {_DEFAULT_NAME})"
        )
        add("--exp_name", help=name_help)
        add("--create_tb_writer", action=BooleanOptionalAction, help="write TensorBoard events (default: to a folder)")
        add("--num_workers", type=number_within(WORKERS, int), help="processes that load data (default: the model's)")
        add("--worker_timeout", type=not_negative_float, help="seconds a batch may take in them (600; 0: no limit)")
        add_metric_option(self)
        add_report_option(self, "WORK_DIR/EXP_NAME/report.html at the end")

    def _add_tracking_options(self) -> None:
        _add_log_options(self)
        add = self.add_argument
        add("--log_freq", type=positive_int, default=25, help="steps between log lines about training")
        add(
            "--track",
            nargs="+",
            choices=Names(lambda: ("tensorboard", *TRACKERS)),
            default=[],
            help="record the run there too",
        )

    def _add_training_options(self) -> None:
        add = self.add_argument
        add("--beta1", type=_beta, help="first decay rate of the optimizer")
        add("--beta2", type=_beta, help="second decay rate of the optimizer")
        add_policy_options(self, not_negative_int, not_negative_float)
        add("--random_seed", "--seed", type=not_negative_int, help="seed of every random draw (default: 0)")
        seeds_help = "train with so many seeds, one after the other; the end is a table of mean and spread (default: 1)"
        add("--seeds", type=positive_int, default=1, help=seeds_help)
        add("--global_batch_size", type=positive_int, help="items per step of all processes, not --batch_size")
        add("--synced_bn", action="store_true", help="batch statistics of all processes together")
        group_help = "processes that share batch statistics (default: 0, all)"
        add("--synced_bn_groupsize", type=not_negative_int, default=0, help=group_help)
        uneven_help = (
            "what becomes of an epoch's last batches where not all processes have one: take some items twice, "
            "leave them out, let the others wait, or stop"
        )
        add("--uneven", choices=("pad", "drop", "join", "error"), default="pad", help=uneven_help)
        static_help = "tell torch's DistributedDataParallel that every step takes the same path through the model"
        add("--static_graph", action="store_true", help=static_help)
        compression_help = "type in which processes exchange gradients: half the traffic, rounded (default: their own)"
        add("--gradient_compression", choices=("bfloat16",), help=compression_help)

    def _add_older_options(self) -> None:
        add = self.add_argument_group("options of the first generation").add_argument
        for older, newer in _OLDER.items():
            kind = positive_int if newer in ("iter_per_step", "checkpoint_save_freq") else str
            add(f"--{older}", type=kind, help=f"older name of --{newer}")
        for manifest in _VAL_MANIFESTS:
            add(f"--{manifest}", default="", help="one more of --eval_datasets")
        add_training_precision_options(self, positive_int)
        add("--num_gpus", type=positive_int, help="processes that the launcher started, one for each GPU; checked")

    def check(self, parsed: Any) -> None:
        """The older options are folded into those they became, and everything is checked."""
        _set_log(parsed)
        super().check(parsed)
        process = self.process_of(parsed)
        self._fold_older_options(parsed)
        self._check_needed(parsed)
        if parsed.model_config:
            parsed.model_config = str(config_path(parsed.model_config))
        take_from_configuration(self, parsed)
        self._check_num_gpus(parsed, process)
        parsed.num_processes = process.world_size if process else 1
        self._fold_batch_size(parsed, parsed.num_processes)
        fold_precision(self, parsed)
        self._fold_betas(parsed)
        if problem := policy_problem(parsed):
            self.error(problem)
        self._fold_seed(parsed)
        self._fold_folders(parsed)
        self._check_seeds(parsed)
        self._check_trackers(parsed)
        check_fine_tuning(self, parsed)
        check_regularization(self, parsed)
        self.check_checkpoints(parsed)
        check_what_is_left(self, parsed)

    def _fold_older_options(self, parsed: Any) -> None:
        for older, newer in _OLDER.items():
            value = parsed.__dict__.pop(older)
            if value is not None and getattr(parsed, newer) != self.get_default(newer):
                self.error(f"--{older} is the older name of --{newer}; give one of them")
            if value is not None:
                setattr(parsed, newer, value)
        older_sets = [parsed.__dict__.pop(manifest) for manifest in _VAL_MANIFESTS]
        parsed.eval_datasets = [*(parsed.eval_datasets or ()), *filter(None, older_sets)]

    def _check_needed(self, parsed: Any) -> None:
        if not parsed.model_config and not parsed.init_from:
            self.error("--model_config is missing")
        if not parsed.train_dataset:
            self.error("--train_dataset is missing")
        if (parsed.num_epochs is None) == (parsed.max_steps is None):
            got = "neither" if parsed.num_epochs is None else "both"
            self.error(f"how long to train must be said once: got {got}, wanted --num_epochs or --max_steps")
        for option, needed in _NEEDS.items():
            if getattr(parsed, option) != self.get_default(option) and not any(getattr(parsed, n) for n in needed):
                self.error(f"--{option} has no effect without --{' or --'.join(needed)}; leave it out")

    def _check_num_gpus(self, parsed: Any, process: ProcessInfo | None) -> None:
        num_gpus, started = parsed.num_gpus, process.world_size if process else 1
        if num_gpus not in (None, started):
            what = f"the launcher started {started}" if process else "no launcher started this process"
            self.error(
                f"--num_gpus: {num_gpus} asked, {what}; start it with torchrun --nproc-per-node={num_gpus}, "
                "or leave the option out"
            )

    def _fold_batch_size(self, parsed: Any, num_processes: int) -> None:
        together = parsed.global_batch_size
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

    def _fold_seed(self, parsed: Any) -> None:
        if parsed.cudnn_benchmark and parsed.random_seed is not None:
            self.error("--random_seed contradicts --cudnn_benchmark, with which runs differ; leave one out")
        if not parsed.cudnn_benchmark and parsed.random_seed is None:
            parsed.random_seed = 0

    def _check_seeds(self, parsed: Any) -> None:
        if parsed.plan or parsed.precision_check:  # the same for every seed
            parsed.seeds = 1
        if parsed.seeds == 1:
            return
        if parsed.cudnn_benchmark:
            self.error("--seeds contradicts --cudnn_benchmark, with which runs have no seed; leave one out")
        for option in ("load_dir", "checkpoint_dir", "tensorboard_dir"):
            if getattr(parsed, option):
                self.error(f"--seeds gives each run its own folders; leave --{option} out")
        parsed.tells_for_all = self.acts_for_all(parsed)

    def _check_trackers(self, parsed: Any) -> None:
        if self.acts_for_all(parsed):
            for package in [TRACKERS[name].package for name in parsed.track if name in TRACKERS]:
                if package and find_spec(package) is None:
                    self.error(f"argument --track: {package} is not installed; pip install {package}")

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
            option = "--track tensorboard" if "tensorboard" in parsed.track else "--create_tb_writer"
            self.error(f"{option} needs a folder for the events; give --work_dir, --exp_name or --tensorboard_dir")
        if parsed.create_tb_writer is False and parsed.tensorboard_dir:
            self.error("--no-create_tb_writer contradicts --tensorboard_dir; leave one out")
        if parsed.create_tb_writer is None:
            parsed.create_tb_writer = has_folder
        parsed.exp_name = parsed.exp_name or _DEFAULT_NAME
        parsed.run_dir = Path(parsed.work_dir or "").expanduser() / parsed.exp_name if has_run_dir else None


class EvalArgParser(LaunchedParser):
    """The options of scripts that use a trained model."""

    help_pages = USE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_argument("--model_config", help="YAML file to use instead of the model's own; it must fit the model")
        self.add_argument("--batch_size", type=positive_int, default=64, help="utterances in a batch")
        load_help = "the model: a run's folder, a model folder or one of checkpoints; nemo-lite eval MODEL is the same"
        self.add_run_options(DeviceType, load_dir=load_help)
        _add_log_options(self)

    def check(self, parsed: Any) -> None:
        """The log is as asked for from here on."""
        _set_log(parsed)
        super().check(parsed)
        fold_precision(self, parsed)


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


def add_report_option(parser: ArgumentParser, page: str) -> None:
    """Whether a page about the results is written."""
    help_text = f"write {page}: curves, error rates, the worst utterances"
    parser.add_argument("--report", action=BooleanOptionalAction, default=True, help=help_text)


def add_data_options(parser: ArgumentParser) -> None:
    """How manifests are read."""
    strict_help = (
        "a duration that is not its file's, a path that does not start at the manifest's folder, or a line without "
        "a text is an error"
    )
    parser.add_argument("--strict_data", action="store_true", help=strict_help)


def add_metric_option(parser: ArgumentParser) -> None:
    """``--eval_metric``: ``wer``, ``cer``, or None for what :func:`nemo_asr.text.main_metric` says of the labels."""
    help_text = "error rate that comes first (default: by the labels; cer where texts have no words, as in Chinese)"
    parser.add_argument("--eval_metric", choices=METRICS, help=help_text)


def add_language_option(parser: ArgumentParser) -> None:
    """``--language``: the key ``language`` of the configuration, as ``--set`` gives it."""
    text = "language of the texts: en, de, zh, ... or none (default: what the script of the labels tells)"
    setting, add = 'language="{}"'.format, parser.add_argument
    add("--language", dest="overrides", metavar="CODE", action="append", type=setting, default=[], help=text)


def _add_log_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--log_level", choices=LEVELS, help="least level of the lines that are shown (default: info)")
    style_help = (
        "lines on the terminal: messages alone, or with NeMo's heads and banners (default: NEMO_LITE_LOG_STYLE)"
    )
    add("--log_style", choices=STYLES, help=style_help)


def _set_log(parsed: Any) -> None:
    logging.set_style(parsed.log_style)
    if parsed.log_level:
        logging.setLevel(parsed.log_level.upper())


_beta = number_within(Between(0, 1, below=True), float)
