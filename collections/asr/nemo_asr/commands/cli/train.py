"""Train a model; --plan shows what would be trained."""

from __future__ import annotations

from collections.abc import Sequence

import nemo_asr
from nemo_asr.argparse import AsrArgParser, refuse_options_of_texts

_TRAIN = "Train a speech recogniser, or a classifier of recordings"
_PLAN = "Show the DAGs, the schedule and the memory of a training, and train nothing"


def main(arguments: Sequence[str], program: str = "nemo-lite train", description: str = _TRAIN) -> None:
    """Train a speech recogniser, or a classifier where the configuration is that of one."""
    parser = AsrArgParser(prog=program, description=description)
    args = parser.parse_args(arguments)
    from nemo_asr.commands.training import TrainingRun, is_classifier  # imports torch, which --help does not need

    classifies = is_classifier(args.model_config)
    if classifies:
        refuse_options_of_texts(parser, args)
    if args.seeds > 1:  # each in a process of its own, which comes here again
        nemo_asr.train_seeds(args)
        return
    run = TrainingRun(args, classifies)
    connect = nemo_asr.connect_classifier if classifies else nemo_asr.connect
    training = connect(run.model, run.training_data, training=True)
    run.train(training, {tag: connect(run.model, data) for tag, data in run.evaluation_data.items()})


def plan(arguments: Sequence[str]) -> None:
    """Show the DAGs and the schedule of a training, and train nothing."""
    main([*arguments, "--plan"], "nemo-lite plan", _PLAN)
