"""Options of jasper.py against overfitting, and their checks. They act in the recipe, the loss and the optimizer."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from nemo_lite.utils.argparse import LaunchedParser, not_negative_float, positive_int

# Those that a classifier's training does not have.
OF_TRANSCRIPTION = ("label_smoothing", "intermediate_ctc", "average_last", "ema_decay")


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
        parsed.overrides = [*parsed.overrides, f"CTCLossNM.label_smoothing={parsed.label_smoothing}"]


def _share(text: str) -> float:
    value = not_negative_float(text)
    if value >= 1:
        raise ArgumentTypeError(f"{text!r} is not below 1")
    return value
