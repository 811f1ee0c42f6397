"""The options of jasper.py for fine-tuning, and their checks. What they do is in ``trained/fine_tuning.py``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from nemo_lite.utils.argparse import LaunchedParser, not_negative_float, positive_int


def add_fine_tuning_options(parser: LaunchedParser) -> None:
    """Add ``--init_from``, ``--freeze_encoder_until`` and ``--module_lr``."""
    add = parser.add_argument_group("fine-tuning").add_argument
    from_help = (
        "a trained model whose weights training starts from: a run's folder, a model folder or a folder of "
        "checkpoints; steps, epochs and optimizer start anew, and labels may differ"
    )
    add("--init_from", type=_path, metavar="MODEL", help=from_help)
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


def _path(text: str) -> str:
    return str(Path(text).expanduser())


def _module_lr(text: str) -> tuple[str, float]:
    module, equals, rate = text.partition("=")
    if not module or not equals:
        raise ArgumentTypeError(f"{text!r} is not MODULE=LR, such as JasperEncoder=0.002")
    return module, not_negative_float(rate)
