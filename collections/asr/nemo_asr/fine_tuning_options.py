"""Where jasper.py starts from: the options of fine-tuning, and checks. They act in ``trained/fine_tuning.py``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from nemo_lite.backends.pytorch.checkpoint import CheckpointFolder
from nemo_lite.core import RunOptions
from nemo_lite.utils.argparse import LaunchedParser, not_negative_float, positive_int


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
    found = CheckpointFolder(parsed.load_dir).latest()
    if found is None or found.step is None or found.epoch is None:  # of an older version, or of NeMo
        return
    options = RunOptions(num_epochs=parsed.num_epochs, max_steps=parsed.max_steps)
    if error := options.nothing_left(found.step, found.epoch):
        parser.error(str(error))


def _path(text: str) -> str:
    return str(Path(text).expanduser())


def _module_lr(text: str) -> tuple[str, float]:
    module, equals, rate = text.partition("=")
    if not module or not equals:
        raise ArgumentTypeError(f"{text!r} is not MODULE=LR, such as JasperEncoder=0.002")
    return module, not_negative_float(rate)
