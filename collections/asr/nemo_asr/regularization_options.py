"""Options of jasper.py against overfitting, and their checks. They act in the recipe, the loss and the optimizer."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from nemo_lite.utils.argparse import LaunchedParser, not_negative_float

# Those that a classifier's training does not have.
OF_TRANSCRIPTION = ("label_smoothing", "intermediate_ctc")


def add_regularization_options(parser: LaunchedParser) -> None:
    """Add ``--decay_weights_only``, ``--label_smoothing`` and ``--intermediate_ctc``."""
    add = parser.add_argument_group("regularization").add_argument
    decay_help = "weight decay of weights alone, not of biases and normalisation"
    add("--decay_weights_only", action="store_true", help=decay_help)
    smoothing_help = "share of the training loss that pulls each frame towards equal probabilities of all labels"
    add("--label_smoothing", type=_share, default=0.0, help=smoothing_help)
    intermediate_help = "share of the training loss that is the CTC loss of the encoder's middle block"
    add("--intermediate_ctc", type=_share, default=0.0, help=intermediate_help)


def check_regularization(parser: LaunchedParser, parsed: Any) -> None:
    """See that the options have an effect; label smoothing becomes a setting of the configuration."""
    if parsed.decay_weights_only and not parsed.weight_decay:
        parser.error("--decay_weights_only has no effect with --weight_decay 0; leave it out")
    if parsed.label_smoothing:
        parsed.overrides = [*parsed.overrides, f"CTCLossNM.label_smoothing={parsed.label_smoothing}"]


def _share(text: str) -> float:
    value = not_negative_float(text)
    if value >= 1:
        raise ArgumentTypeError(f"{text!r} is not below 1")
    return value
