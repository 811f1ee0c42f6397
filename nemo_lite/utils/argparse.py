"""NemoArgParser: the common options of NeMo's scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from nemo_lite.base.options import Launch, LaunchedParser, Names, option, option_group
from nemo_lite.base.ranges import NotNegativeFloat, PositiveInt
from nemo_lite.utils.lr_policies import get_all_lr_classes
from nemo_lite.utils.optimizers import OPTIMIZERS

OPTIMIZER, LR_POLICY = Names(lambda: OPTIMIZERS), Names(get_all_lr_classes)
"""Choices of an option: a file of ``--import`` may add some."""


@option_group
class NemoOptions:
    """NeMo's common options, with its defaults."""

    amp_opt_level: Literal["O0", "O1", "O2", "O3"] = option(
        "O0", "precision, from float32 (O0) and mixed (O1, O2) to half (O3)"
    )
    cudnn_benchmark: bool = option(False, "let cuDNN time its kernels; for constant shapes")
    model_config: str | None = option(None, "YAML file of the model")
    train_dataset: str | None = option(None, "training data")
    eval_datasets: list[str] | None = option(None, "evaluation data, any number of sets", nargs="*")
    batch_size: PositiveInt | None = option(None, "items per training batch and process")
    eval_batch_size: PositiveInt | None = option(None, "items per evaluation batch and process")
    eval_freq: PositiveInt = option(1000, "optimizer steps between evaluations")
    optimizer: str | None = option(None, "optimizer", choices=OPTIMIZER)
    weight_decay: NotNegativeFloat = option(0.0, "weight decay")
    num_epochs: PositiveInt | None = option(None, "epochs to train")
    max_steps: PositiveInt | None = option(None, "optimizer steps to train")
    lr: NotNegativeFloat = option(1e-3, "initial learning rate")
    lr_policy: str = option("WarmupAnnealing", "learning-rate policy", choices=LR_POLICY)
    iter_per_step: PositiveInt = option(1, "micro-batches of one optimizer step")
    work_dir: str | None = option(None, "folder for logs, curves and checkpoints")
    checkpoint_dir: str | None = option(None, "folder for checkpoints (default: WORK_DIR/checkpoints)")
    create_tb_writer: bool = option(False, "write TensorBoard events")
    tensorboard_dir: str | None = option(None, "folder for the events (default: WORK_DIR/tensorboard)")
    checkpoint_save_freq: PositiveInt = option(1000, "optimizer steps between checkpoints")


class NemoArgParser(LaunchedParser):
    """NeMo's common options; also of use in ``parents=[NemoArgParser()]``."""

    groups: ClassVar[Sequence[type]] = (Launch, NemoOptions)
