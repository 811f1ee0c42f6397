"""Options of training that a configuration gives, in the keys of WeNet's, and the learning-rate policy they make."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_lite import logging
from nemo_lite.base.config import Config, check_call, load_config, override, raise_if
from nemo_lite.base.errors import counted, did_you_mean
from nemo_lite.base.options import OneLineParser
from nemo_lite.base.ranges import NotNegativeFloat, NotNegativeInt, PositiveInt, ShareBelow1
from nemo_lite.utils.lr_policies import LRPolicy, NoamAnnealing, WarmupLR, get_all_lr_classes, get_lr_policy
from nemo_lite.utils.optimizers import OPTIMIZERS

# WeNet's name of an optimizer, ours, and the weight decay that it has there where the file gives none.
_WENETS_OPTIMIZERS = {"adam": ("adam", 0.0), "adamw": ("adam_w", 0.01)}
# Of policies without an end: WeNet's, and that of NVIDIA's configurations of Conformer.
_USUAL_WARMUP: Mapping[type[LRPolicy], int] = {WarmupLR: 25000, NoamAnnealing: 10000}


def take_from_configuration(parser: OneLineParser, parsed: Namespace) -> None:
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
        parsed.warmup_steps = _USUAL_WARMUP.get(get_all_lr_classes()[parsed.lr_policy], 0)


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
    if "train_dataset" in config:
        try:
            options["train_dataset"] = ",".join(_sets_in(config["train_dataset"]))
        except ValueError:
            wanted = "a manifest, a list of them, or a mapping of manifests to weights"
            problems.append(f"{config.place('train_dataset')}: train_dataset: wanted {wanted}")
    raise_if(problems)
    if (name := options.get("optimizer")) in _WENETS_OPTIMIZERS:
        options["optimizer"], decay = _WENETS_OPTIMIZERS[name]
        options.setdefault("weight_decay", decay)
    if betas := options.pop("betas", None):
        options["beta1"], options["beta2"] = betas
    return options


def _sets_in(value: Any) -> list[str]:
    """The manifests that a configuration names, each with its weight as ``--train_dataset`` has it."""
    if isinstance(value, str) and value:
        return [value]
    if isinstance(value, Config) and value:
        return [f"{path}:{weight}" for path, weight in value.items()]
    if isinstance(value, list) and value:
        return [part for each in value for part in _sets_in(each)]
    raise ValueError


def _optimizer_options(
    lr: NotNegativeFloat = 0, weight_decay: NotNegativeFloat = 0, betas: tuple[ShareBelow1, ShareBelow1] = (0, 0)
) -> None:
    """The keys of ``optim_conf``."""


def _policy_options(
    warmup_steps: NotNegativeInt = 0,
    hold_steps: NotNegativeInt = 0,
    min_lr: NotNegativeFloat = 0,
    d_model: PositiveInt = 512,
) -> None:
    """The keys of ``scheduler_conf``."""


def policy_problem(parsed: Namespace) -> str | None:
    """Why the options do not fit together, in a sentence; or None."""
    parameters = inspect.signature(get_all_lr_classes()[parsed.lr_policy]).parameters
    for option in ("hold_steps", "min_lr", "d_model"):
        if getattr(parsed, option) is not None and option not in parameters:
            return f"--{option} has no effect with --lr_policy {parsed.lr_policy}; leave it out"
    if parsed.min_lr is not None and parsed.min_lr > parsed.lr:
        return f"--min_lr {parsed.min_lr:g} is above --lr {parsed.lr:g}; lower it, or raise --lr"
    return None


def policy_of(parsed: Namespace, total_steps: int) -> LRPolicy:
    """The policy of the options; a warning where the learning rate never falls.

    Without ``--hold_steps`` a hold policy decays from where the warm-up ends. The policy's own default is NeMo's: it
    counts the decay from step 0, so the rate drops where the warm-up ends.
    """
    options = {name: getattr(parsed, name) for name in ("warmup_steps", "min_lr", "d_model")}
    options["hold_steps"] = parsed.hold_steps or 0
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
