"""The options of a training: a class for each group, what a configuration gives in their place, the policy they make.

`nemo_asr/argparse.py` has the parser, and checks them. A configuration gives them in the keys of WeNet's.
"""

from __future__ import annotations

import inspect
import os
import re
import resource
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from nemo_asr.run.arguments import Workers
from nemo_asr.run.options import Terminal
from nemo_asr.wenet_keys import load_model_config
from nemo_lite import logging
from nemo_lite.base.config import Config, check_call, override, raise_if, shown
from nemo_lite.base.errors import counted, did_you_mean
from nemo_lite.base.options import Names, OneLineParser, not_negative_float, option, option_group, our_name, user_path
from nemo_lite.base.ranges import Between, NotNegativeFloat, NotNegativeInt, PositiveFloat, PositiveInt, ShareBelow1
from nemo_lite.core.trackers import TRACKERS
from nemo_lite.utils.argparse import LR_POLICY, OPTIMIZER
from nemo_lite.utils.lr_policies import LRPolicy, NoamAnnealing, WarmupLR, get_all_lr_classes, get_lr_policy
from nemo_lite.utils.optimizers import OPTIMIZERS

# WeNet's name of an optimizer, ours, and the weight decay that it has there where the file gives none.
_WENETS_OPTIMIZERS = {"adam": ("adam", 0.0), "adamw": ("adam_w", 0.01)}
# Of policies without an end: WeNet's, and that of NVIDIA's configurations of Conformer.
_USUAL_WARMUP: Mapping[type[LRPolicy], int] = {WarmupLR: 25000, NoamAnnealing: 10000}
# Options that say the same in another way: a configuration's number of epochs is none where steps are given.
_IN_PLACE_OF = {"num_epochs": "max_steps", "batch_size": "global_batch_size"}
TRACKER = Names(lambda: ["tensorboard", *TRACKERS])


# What is free on a device: bytes, as its driver states them, and the share that tensors get. The rest is the driver's
# context, kernels' workspaces, and what torch's allocator keeps between blocks.
MEMORIES: Mapping[str, int] = {
    "h200": 143_771 << 20,
    "h100": 81_559 << 20,
    "a100": 81_920 << 20,
    "a100_40": 40_960 << 20,
    "l4": 23_034 << 20,
    "t4": 15_360 << 20,
}
_UNITS = {"gib": 1 << 30, "gb": 10**9, "mib": 1 << 20, "mb": 10**6}


def memory(text: str) -> tuple[str, int]:
    """An argparse type: the name of a device, ``cpu``, or a size with its unit; the name, and its bytes."""
    name = text.lower()
    if name in MEMORIES:
        return name, MEMORIES[name]
    if name == "cpu":
        return name, own_memory()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([gm]i?b)", name)
    if match is None or float(match[1]) == 0:
        known = ", ".join([*MEMORIES, "cpu"])
        place = "where a run computes is --placement CPU, GPU or AllGpu"
        raise ArgumentTypeError(f"{text!r} is none of {known}, and no size such as 24GiB; {place}")
    return text, int(float(match[1]) * _UNITS[match[2]])


def own_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may have: the machine's, or fewer by a control group (containers, Slurm) or ulimit -v.

    Args:
        root: of the system's files.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    groups = root / "sys/fs/cgroup"
    # Version 2 has one tree, version 1 one for memory. A container may see its group as the root.
    for tree, file in ((groups, "memory.max"), (groups / "memory", "memory.limit_in_bytes")):
        with suppress(OSError):
            paths = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines()]
            for folder in {above for path in paths for above in Path("/", path.strip("/"), file).parents}:
                with suppress(OSError, ValueError):  # there is no such group here, or it has no limit: "max"
                    limits.append(int((tree / folder.relative_to("/") / file).read_text()))
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def module_lr(text: str) -> tuple[str, float]:
    """An argparse type: ``MODULE=LR``."""
    module, equals, rate = text.partition("=")
    if not module or not equals:
        raise ArgumentTypeError(f"{text!r} is not MODULE=LR, such as JasperEncoder=0.002")
    return module, not_negative_float(rate)


@option_group
class TrainingData:
    """Manifests, batches, and how often to evaluate."""

    page: ClassVar[str] = "data"
    train_dataset: str | None = option(
        None, "manifest to train on; several are separated by commas, perhaps with weights (a.json:3,b.json:1)"
    )
    eval_datasets: list[str] | None = option(None, "manifests to evaluate, each a set of its own", nargs="*")
    batch_size: PositiveInt | None = option(None, "items per training batch and process (default: 64)")
    eval_batch_size: PositiveInt | None = option(None, "items per evaluation batch and process", needs="eval_datasets")
    global_batch_size: PositiveInt | None = option(None, "items per step of all processes, not --batch_size")
    iter_per_step: PositiveInt = option(1, "micro-batches of one optimizer step")
    uneven: Literal["pad", "drop", "join", "error"] = option(
        "pad",
        "what becomes of an epoch's last batches where not all processes have one: take some items twice, leave them "
        "out, let the others wait, or stop",
    )
    num_workers: Workers | None = option(None, "processes that load data (default: the model's)")
    worker_timeout: NotNegativeFloat | None = option(None, "seconds a batch may take in them (600; 0: no limit)")
    eval_freq: PositiveInt | None = option(
        None, "optimizer steps between evaluations (default: an epoch, at most 1000)", needs="eval_datasets"
    )
    patience: PositiveInt | None = option(
        None,
        "stop after so many evaluations without a lower error rate on the first evaluation set (default: never)",
        needs="eval_datasets",
    )


@option_group
class TrainedModelOptions:
    """The configuration, and weights to start from."""

    page: ClassVar[str] = "model"
    model_config: str | None = option(
        None,
        "YAML file of the model, or the name of one that comes with nemo_lite: quartznet15x5 (default: the "
        "configuration of the model in --init_from)",
    )
    load_dir: str | None = option(None, "folder of checkpoints to start from (default: the run's own)", type=user_path)
    init_from: str | None = option(
        None,
        "a trained model, its path or published name, to start from; steps, epochs and optimizer begin anew, labels "
        "may differ",
        only_for="texts",
        type=user_path,
        metavar="MODEL",
    )
    allow_feature_change: bool = option(
        False, "use --init_from also where its features differ from those of the configuration", needs="init_from"
    )
    guard: list[str] = option(
        [],
        "manifests of what --init_from can do: the end says, beside it, what the model of the run has won on "
        "--eval_datasets and forgotten on these",
        needs="init_from",
        only_for="texts",
        nargs="+",
        metavar="MANIFEST",
    )
    freeze_encoder_until: PositiveInt | None = option(
        None, "steps in which the encoder stays as it is, its batch statistics too", only_for="texts"
    )
    lora: PositiveInt | None = option(
        None,
        "train no more of modules with attention than updates of this rank of its queries and values (LoRA); they are "
        "added to the weights of the model that is written",
        needs="init_from",
        only_for="texts",
        metavar="RANK",
    )
    lora_layers: list[str] | None = option(
        None,
        "names of the linear layers that --lora trains, such as linear_q linear_k linear_v linear_out w_1 w_2",
        needs="lora",
        only_for="texts",
        nargs="+",
        metavar="NAME",
    )
    plan: bool = option(False, "print and save the DAGs and the schedule, then exit")
    find_batch: bool = option(
        False,
        "with --plan, say which batch fits: on a GPU by trying, for --device by counting bytes",
        needs="plan",
        only_for="texts",
    )
    device: tuple[str, int] | None = option(
        None,
        f"count for this memory: {', '.join(MEMORIES)}, cpu (this machine's), or a size such as 24GiB",
        needs="find_batch",
        type=memory,
    )
    rate: PositiveFloat | None = option(
        None,
        "seconds of audio that a second trains, for the hours to the end (default: the run's own)",
        needs="find_batch",
    )


@option_group
class Optimisation:
    """How long, learning rate, optimizer, batch statistics."""

    page: ClassVar[str] = "optimisation"
    num_epochs: PositiveInt | None = option(None, "epochs to train")
    max_steps: PositiveInt | None = option(None, "optimizer steps to train")
    lr: NotNegativeFloat = option(0.02, "initial learning rate")
    lr_policy: str = option("CosineAnnealing", "learning-rate policy", choices=LR_POLICY)
    warmup_steps: NotNegativeInt | None = option(
        None, "steps in which the learning rate rises (default: 0; warmuplr has 25000, NoamAnnealing 10000)"
    )
    hold_steps: NotNegativeInt | None = option(
        None, "steps after the warm-up in which the rate stays at --lr, with a Hold policy (default: 0)"
    )
    min_lr: NotNegativeFloat | None = option(None, "learning rate at the end (default: the policy's, mostly 0)")
    d_model: PositiveInt | None = option(
        None, "channels of the encoder, of which the rate of NoamAnnealing depends (default: 512)"
    )
    module_lr: list[tuple[str, float]] | None = option(
        None,
        "learning rate of a module, instead of --lr: JasperEncoder=0.002",
        type=module_lr,
        nargs="+",
        action="extend",
        metavar="MODULE=LR",
    )
    optimizer: str = option("novograd", "optimizer", choices=OPTIMIZER)
    weight_decay: NotNegativeFloat = option(0.001, "weight decay")
    beta1: ShareBelow1 | None = option(None, "first decay rate of the optimizer")
    beta2: ShareBelow1 | None = option(None, "second decay rate of the optimizer")
    grad_norm_clip: PositiveFloat | None = option(None, "largest norm of a step's gradients (default: no limit)")
    random_seed: NotNegativeInt | None = option(
        None, "seed of every random draw (default: 0)", "--random_seed", "--seed"
    )
    seeds: PositiveInt = option(
        1,
        "train with so many seeds, one after the other; the end is a table of mean and spread (default: 1)",
        needs="eval_datasets",
    )
    cudnn_benchmark: bool = option(False, "let cuDNN time its kernels; for constant shapes")
    bn_momentum: Annotated[float, Between(0, 1, above=True)] | None = option(
        None, "weight of a new batch in the running batch statistics, 0 to 1 (default: the model's, 0.1)"
    )
    synced_bn: bool = option(False, "batch statistics of all processes together")
    synced_bn_groupsize: NotNegativeInt = option(
        0, "processes that share batch statistics (default: 0, all)", needs="synced_bn"
    )
    static_graph: bool = option(
        False, "tell torch's DistributedDataParallel that every step takes the same path through the model"
    )
    gradient_compression: Literal["bfloat16"] | None = option(
        None, "type in which processes exchange gradients: half the traffic, rounded (default: their own)"
    )


@option_group
class Regularization:
    """Against overfitting: decay, smoothing, further losses, averages of weights."""

    page: ClassVar[str] = "regularization"
    decay_weights_only: bool = option(False, "weight decay of weights alone, not of biases and normalisation")
    label_smoothing: ShareBelow1 = option(
        0.0,
        "share of the training loss that pulls each frame towards equal probabilities of all labels",
        only_for="texts",
    )
    intermediate_ctc: ShareBelow1 = option(
        0.0, "share of the training loss that is the CTC loss of the encoder's middle block", only_for="texts"
    )
    average_last: PositiveInt | None = option(
        None,
        "at the end, also write WORK_DIR/EXP_NAME/averaged: the mean of the last N checkpoints, which are kept",
        only_for="texts",
    )
    average_best: PositiveInt | None = option(
        None,
        "the same of the N checkpoints with the lowest error rate on the first evaluation set, which are kept",
        only_for="texts",
        needs="eval_datasets",
    )
    ema_decay: ShareBelow1 | None = option(
        None, "the same of a moving average of the weights over all steps, such as 0.999", only_for="texts"
    )


@option_group
class SavingOptions:
    """Folders, and when checkpoints are saved and how many stay; ``CheckpointCallback`` explains that."""

    page: ClassVar[str] = "saving"
    work_dir: str | None = option(None, "folder for logs, curves and checkpoints")
    exp_name: str | None = option(
        None,
        "name of the run: its results go to WORK_DIR/EXP_NAME, without --work_dir to ./EXP_NAME, without both to "
        "runs/Jasper (default: Jasper)",
    )
    checkpoint_dir: str | None = option(None, "folder for checkpoints (default: WORK_DIR/EXP_NAME/checkpoints)")
    checkpoint_save_freq: PositiveInt | None = option(None, "also save after every so many optimizer steps")
    checkpoint_epoch_freq: NotNegativeInt = option(1, "epochs between checkpoints; 0: none by epochs")
    checkpoint_minutes: NotNegativeFloat = option(
        15.0, "save when the last checkpoint is so many minutes old; 0: not by time"
    )
    checkpoints_to_keep: PositiveInt = option(4, "how many of the newest checkpoints stay")
    best_to_keep: PositiveInt = option(
        2, "how many of the best by the first evaluation set stay, beside the newest", needs="eval_datasets"
    )
    allow_world_size_change: bool = option(
        False, "go on from a checkpoint that another number of processes saved; what that changes is logged"
    )
    report: bool = option(
        True, "write WORK_DIR/EXP_NAME/report.html at the end: curves, error rates, the worst utterances"
    )


@option_group
class Logging(Terminal):
    """Lines in the terminal, curves, trackers."""

    log_freq: PositiveInt = option(25, "steps between log lines about training")
    track: list[str] = option([], "record the run there too", nargs="+", choices=TRACKER)
    create_tb_writer: bool | None = option(None, "write TensorBoard events (default: to a folder)")
    tensorboard_dir: str | None = option(None, "folder for events (default: WORK_DIR/EXP_NAME/tensorboard)")


@option_group
class FirstGeneration:
    """The options of NeMo's first generation."""

    page: ClassVar[str] = "older"
    train_manifest: str | None = option(None, "older name of --train_dataset")
    val_manifest1: str = option("", "one more of --eval_datasets")
    val_manifest2: str = option("", "one more of --eval_datasets")
    val_manifest3: str = option("", "one more of --eval_datasets")
    batch_per_step: PositiveInt | None = option(None, "older name of --iter_per_step")
    logdir: str | None = option(None, "older name of --work_dir")
    save_freq: PositiveInt | None = option(None, "older name of --checkpoint_save_freq")
    num_gpus: PositiveInt | None = option(None, "processes that the launcher started, one for each GPU; checked")


def take_from_configuration(parser: OneLineParser, parsed: Namespace) -> None:
    """Take the options that ``--model_config`` gives by `TRAINING_KEYS`; an option of the command line wins.

    Without ``optim_conf.weight_decay``, ``optim: adam`` has none and ``optim: adamw`` 0.01, as in WeNet.

    Args:
        parser: knows what was given on the command line.
        parsed: changed.

    Raises:
        ConfigError: one line for each key or value that cannot be used.
    """
    if parsed.model_config and Path(parsed.model_config).is_file():  # reading the model says that it is missing
        options = _options_in(override(load_model_config(parsed.model_config), parsed.overrides))
        if not parsed.eval_datasets:
            options.pop("eval_batch_size", None)
        for option_name, value in options.items():
            if parser.given.isdisjoint((option_name, _IN_PLACE_OF.get(option_name))):
                setattr(parsed, option_name, value)
    if parsed.warmup_steps is None:
        parsed.warmup_steps = _USUAL_WARMUP.get(get_all_lr_classes()[parsed.lr_policy], 0)


def _options_in(config: Config) -> dict[str, Any]:
    problems: list[str] = []
    options: dict[str, Any] = {}
    for key, option_name, names in (
        ("optim", "optimizer", [*OPTIMIZERS, *_WENETS_OPTIMIZERS]),
        ("scheduler", "lr_policy", get_all_lr_classes()),
        ("lr_policy", "lr_policy", get_all_lr_classes()),
    ):
        if key not in config:
            continue
        name = config[key]
        if not isinstance(name, str) or name not in names:
            remedy = did_you_mean(str(name), names) or f"; known: {', '.join(names)}"
            problems.append(f"{config.place(key)}: {key} {shown(name)} is not known{remedy}")
        elif options.setdefault(option_name, name) != name:
            scheduler = options[option_name]
            problems.append(f"{config.place(key)}: {key} is {name}, and scheduler is {scheduler}; leave one out")
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
    numbers = config.without(*(key for key in config if key not in inspect.signature(_numbers).parameters))
    problems += check_call(numbers, _numbers)
    options |= {our_name(key): value for key, value in numbers.items()}
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


def _numbers(
    batch_size: PositiveInt = 1,
    eval_batch_size: PositiveInt = 1,
    accum_grad: PositiveInt = 1,
    grad_clip: PositiveFloat = 1,
    max_epoch: PositiveInt = 1,
    log_interval: PositiveInt = 1,
    save_interval: PositiveInt = 1,
) -> None:
    """Keys that are numbers."""


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
    for option_name in ("hold_steps", "min_lr", "d_model"):
        if getattr(parsed, option_name) is not None and option_name not in parameters:
            return f"--{option_name} has no effect with --lr_policy {parsed.lr_policy}; leave it out"
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
