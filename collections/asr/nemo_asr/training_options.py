"""Options of training: learning-rate policy, regularization, what to start from."""

from __future__ import annotations

import argparse
import inspect
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Annotated, Any

from nemo_lite import logging
from nemo_lite.config import Between, Config, check_call, load_config, override, raise_if
from nemo_lite.core import RunOptions
from nemo_lite.errors import counted, did_you_mean
from nemo_lite.utils.argparse import LaunchedParser, not_negative_float, positive_float, positive_int
from nemo_lite.utils.lr_policies import LRPolicy, WarmupLR, get_all_lr_classes, get_lr_policy
from nemo_lite.utils.optimizers import OPTIMIZERS

# Where jasper.py starts from: the options of fine-tuning, and checks. They act in ``transcribe/fine_tuning.py``.


def add_fine_tuning_options(parser: LaunchedParser) -> None:
    """Add ``--init_from``, ``--allow_feature_change``, ``--freeze_encoder_until`` and ``--module_lr``."""
    add = parser.add_argument_group("fine-tuning").add_argument
    from_help = (
        "a trained model whose weights training starts from: a run's folder, a model folder or a folder of "
        "checkpoints; steps, epochs and optimizer start anew, and labels may differ"
    )
    add("--init_from", type=_path, metavar="MODEL", help=from_help)
    features_help = "use --init_from also where its features differ from those of the configuration"
    add("--allow_feature_change", action="store_true", help=features_help)
    freeze_help = "steps in which the encoder stays as it is, its batch statistics too"
    add("--freeze_encoder_until", type=positive_int, metavar="N", help=freeze_help)
    rate_help = "learning rate of a module, instead of --lr: JasperEncoder=0.002"
    add("--module_lr", type=_module_lr, nargs="+", action="extend", metavar="MODULE=LR", help=rate_help)


def check_fine_tuning(parser: LaunchedParser, parsed: Any) -> None:
    """See that the options fit together; ``parsed.module_lr`` becomes a dictionary."""
    rates = parsed.module_lr or []
    parsed.module_lr = dict(rates)
    for module in (module for number, (module, _) in enumerate(rates) if module in dict(rates[:number])):
        parser.error(f"argument --module_lr: {module} is given twice")
    if parsed.init_from and parsed.load_dir:
        parser.error(
            "--init_from contradicts --load_dir: the first starts anew from weights, the second goes on with a run; "
            "leave one out"
        )
    parser.check_folder(parsed, "init_from", "give a run's folder, a model folder or a folder of checkpoints")


def check_what_is_left(parser: LaunchedParser, parsed: Any) -> None:
    """End the script where the checkpoint of ``--load_dir`` has all the training that is asked for.

    Training sees it as well, but then the run's folder is there.
    """
    if parsed.load_dir is None or not parser.acts_for_all(parsed):
        return
    from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder

    checkpoint = CheckpointFolder(parsed.load_dir).latest()
    if checkpoint is None or checkpoint.step is None or checkpoint.epoch is None:  # of an older version, or of NeMo
        return
    options = RunOptions(num_epochs=parsed.num_epochs, max_steps=parsed.max_steps)
    if error := options.nothing_left(checkpoint.step, checkpoint.epoch):
        parser.error(str(error))


def refuse_options_of_texts(parser: LaunchedParser, parsed: Any) -> None:
    """End the script where an option is given that a classifier's training does not have."""
    for option in _OF_TEXTS:
        if getattr(parsed, option):
            parser.error(f"--{option} is for models that transcribe; leave it out")


def _path(text: str) -> str:
    return str(Path(text).expanduser())


def _module_lr(text: str) -> tuple[str, float]:
    module, equals, rate = text.partition("=")
    if not module or not equals:
        raise ArgumentTypeError(f"{text!r} is not MODULE=LR, such as JasperEncoder=0.002")
    return module, not_negative_float(rate)


# Options of the training scripts: the learning-rate policy, and what acts against overfitting; their checks.
# A configuration may give some of them, in the keys of WeNet's.


# Those that a classifier's training does not have.
_OF_TEXTS = (
    *("init_from", "freeze_encoder_until", "eval_metric", "precision_check"),
    *("label_smoothing", "intermediate_ctc", "average_last", "ema_decay"),
)
LOSS_SETTING = "loss."
"""Begins a setting that a recipe applies to its loss, whichever class that is."""
# Keys of a configuration that give options of training, as WeNet's configurations have them.
TRAINING_KEYS = ("optim", "optim_conf", "scheduler", "scheduler_conf", "lr_policy")
# WeNet's name of an optimizer, ours, and the weight decay that it has there where the file gives none.
_WENETS_OPTIMIZERS = {"adam": ("adam", 0.0), "adamw": ("adam_w", 0.01)}
_WENETS_WARMUP = 25000
_Rate = Annotated[float, Between(0, 3.4e38)]
_Steps = Annotated[int, Between(0, 2**63 - 1)]
_Beta = Annotated[float, Between(0, 1, below=True)]


def add_regularization_options(parser: LaunchedParser) -> None:
    """Add the options: ``--decay_weights_only`` to ``--ema_decay``."""
    add = parser.add_argument_group("regularization").add_argument
    decay_help = "weight decay of weights alone, not of biases and normalisation"
    add("--decay_weights_only", action="store_true", help=decay_help)
    smoothing_help = "share of the training loss that pulls each frame towards equal probabilities of all labels"
    add("--label_smoothing", type=_share, default=0.0, help=smoothing_help)
    intermediate_help = "share of the training loss that is the CTC loss of the encoder's middle block"
    add("--intermediate_ctc", type=_share, default=0.0, help=intermediate_help)
    last_help = "at the end, also write WORK_DIR/EXP_NAME/averaged: the mean of the last N checkpoints, which are kept"
    add("--average_last", type=positive_int, metavar="N", help=last_help)
    ema_help = "the same of a moving average of the weights over all steps, such as 0.999"
    add("--ema_decay", type=_share, metavar="X", help=ema_help)


def check_regularization(parser: LaunchedParser, parsed: Any) -> None:
    """See that the options have an effect; label smoothing becomes a setting of the configuration."""
    if parsed.decay_weights_only and not parsed.weight_decay:
        parser.error("--decay_weights_only has no effect with --weight_decay 0; leave it out")
    if parsed.average_last and parsed.ema_decay:
        parser.error("--average_last contradicts --ema_decay: a run writes one averaged model; leave one out")
    if (parsed.average_last or parsed.ema_decay) and not parsed.run_dir:
        option = "average_last" if parsed.average_last else "ema_decay"
        parser.error(f"--{option} has no effect without --work_dir or --exp_name; leave it out")
    if parsed.average_last == 1:
        parser.error("argument --average_last: 1 checkpoint is no average; give 2 or more")
    parsed.checkpoints_to_keep = max(parsed.checkpoints_to_keep, parsed.average_last or 0)
    parsed.ema_decay = parsed.ema_decay or None
    if parsed.label_smoothing:
        parsed.overrides = [*parsed.overrides, f"{LOSS_SETTING}label_smoothing={parsed.label_smoothing}"]


def _share(text: str) -> float:
    value = not_negative_float(text)
    if value >= 1:
        raise ArgumentTypeError(f"{text!r} is not below 1")
    return value


def add_policy_options(parser: argparse.ArgumentParser, steps: Any, rate: Any) -> None:
    """Add ``--warmup_steps``, ``--hold_steps``, ``--min_lr``, ``--grad_norm_clip`` and ``--bn_momentum``.

    Args:
        parser: has ``--lr`` and ``--lr_policy`` already.
        steps: the argparse type of a number of steps.
        rate: the one of a learning rate.
    """
    add = parser.add_argument
    warmup_help = "steps in which the learning rate rises (default: 0; with warmuplr 25000, as in WeNet)"
    add("--warmup_steps", type=steps, help=warmup_help)
    hold_help = "steps after the warm-up in which the rate stays at --lr, with a Hold policy (default: 0)"
    add("--hold_steps", type=steps, help=hold_help)
    add("--min_lr", type=rate, help="learning rate at the end (default: the policy's, mostly 0)")
    add("--grad_norm_clip", type=positive_float, help="largest norm of a step's gradients (default: no limit)")
    momentum_help = "weight of a new batch in the running batch statistics, 0 to 1 (default: the model's, 0.1)"
    add("--bn_momentum", type=_momentum, help=momentum_help)


def take_from_configuration(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Take the options that ``--model_config`` gives by `TRAINING_KEYS`; an option of the command line wins.

    Without ``optim_conf.weight_decay``, ``optim: adam`` has none and ``optim: adamw`` 0.01, as in WeNet.

    Args:
        parser: knows the defaults; a value that differs from its default was given on the command line.
        parsed: changed.

    Raises:
        ConfigError: one line for each key or value that cannot be used.
    """
    if parsed.model_config and Path(parsed.model_config).is_file():  # reading the model says that it is missing
        options = _options_in(override(load_config(parsed.model_config), parsed.overrides))
        for option, value in options.items():
            if getattr(parsed, option) == parser.get_default(option):
                setattr(parsed, option, value)
    if parsed.warmup_steps is None:
        parsed.warmup_steps = _WENETS_WARMUP if get_all_lr_classes()[parsed.lr_policy] is WarmupLR else 0


def _options_in(config: Config) -> dict[str, Any]:
    problems: list[str] = []
    options: dict[str, Any] = {}
    for key, option, names in (
        ("optim", "optimizer", [*OPTIMIZERS, *_WENETS_OPTIMIZERS]),
        ("scheduler", "lr_policy", get_all_lr_classes()),
        ("lr_policy", "lr_policy", get_all_lr_classes()),
    ):
        if key not in config:
            continue
        name = config[key]
        if name not in names:
            remedy = did_you_mean(str(name), names) or f"; known: {', '.join(names)}"
            problems.append(f'{config.place(key)}: {key} "{name}" is not known{remedy}')
        elif options.setdefault(option, name) != name:
            problems.append(f"{config.place(key)}: {key} is {name}, and scheduler is {options[option]}; leave one out")
    for key, allowed in (("optim_conf", _optimizer_options), ("scheduler_conf", _policy_options)):
        section = config.get(key)
        if isinstance(section, Config):
            problems += check_call(section, allowed)
            options |= section.plain()
        elif section is not None:
            problems.append(f"{config.place(key)}: {key} holds no mapping of arguments")
    raise_if(problems)
    if (name := options.get("optimizer")) in _WENETS_OPTIMIZERS:
        options["optimizer"], decay = _WENETS_OPTIMIZERS[name]
        options.setdefault("weight_decay", decay)
    if betas := options.pop("betas", None):
        options["beta1"], options["beta2"] = betas
    return options


def _optimizer_options(lr: _Rate = 0, weight_decay: _Rate = 0, betas: tuple[_Beta, _Beta] = (0, 0)) -> None:
    """The keys of ``optim_conf``."""


def _policy_options(warmup_steps: _Steps = 0, hold_steps: _Steps = 0, min_lr: _Rate = 0) -> None:
    """The keys of ``scheduler_conf``."""


def policy_problem(parsed: argparse.Namespace) -> str | None:
    """Why the options do not fit together, in a sentence; or None."""
    parameters = inspect.signature(get_all_lr_classes()[parsed.lr_policy]).parameters
    for option in ("hold_steps", "min_lr"):
        if getattr(parsed, option) is not None and option not in parameters:
            return f"--{option} has no effect with --lr_policy {parsed.lr_policy}; leave it out"
    if parsed.min_lr is not None and parsed.min_lr > parsed.lr:
        return f"--min_lr {parsed.min_lr:g} is above --lr {parsed.lr:g}; lower it, or raise --lr"
    return None


def policy_of(parsed: argparse.Namespace, total_steps: int) -> LRPolicy:
    """The policy of the options; a warning where the learning rate never falls.

    Without ``--hold_steps`` a hold policy decays from where the warm-up ends. The policy's own default is NeMo's: it
    counts the decay from step 0, so the rate drops where the warm-up ends.
    """
    options = {"warmup_steps": parsed.warmup_steps, "hold_steps": parsed.hold_steps or 0, "min_lr": parsed.min_lr}
    parameters = inspect.signature(get_all_lr_classes()[parsed.lr_policy]).parameters
    arguments = {name: value for name, value in options.items() if name in parameters and value is not None}
    policy = get_lr_policy(parsed.lr_policy, total_steps=total_steps, **arguments)
    warmup_steps = getattr(policy, "warmup_steps", 0)
    if warmup_steps >= total_steps:
        problem = "The run has %s, and the learning rate rises in all of them; give --warmup_steps %d"
        logging.warning(problem, counted(total_steps, "step"), total_steps // 10)
    elif warmup_steps + (parsed.hold_steps or 0) >= total_steps:
        problem = "The run has %s, and the learning rate never falls; lower --hold_steps"
        logging.warning(problem, counted(total_steps, "step"))
    return policy


def _momentum(text: str) -> float:
    value = positive_float(text)
    if value > 1:
        raise ArgumentTypeError(f"{text!r} is above 1")
    return value
