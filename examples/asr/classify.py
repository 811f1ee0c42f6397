"""Train a classifier of recordings: which command, speech or background, which speaker.

    python examples/asr/classify.py --model_config examples/asr/configs/speech_commands.yaml \
        --train_dataset train.json --eval_datasets dev.json --num_epochs 30 --work_dir runs

A line of a manifest names the class under ``command``, ``target`` or ``label``. Where the configuration has no
``labels``, the classes are those of the training set. ``nemo-lite train`` does the same.
"""

from __future__ import annotations

import nemo_asr
from nemo_asr.argparse import AsrArgParser, refuse_options_of_texts
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Train, or with --plan say what would be trained."""
    parser = AsrArgParser(description="Train a classifier of recordings")
    args = parser.parse_args()
    refuse_options_of_texts(parser, args)
    if args.seeds > 1:  # each in a process of its own, which comes here again
        nemo_asr.train_seeds(args)
        return
    run = nemo_asr.TrainingRun(args, classifies=True)
    training = nemo_asr.connect_classifier(run.model, run.training_data, training=True)
    evaluations = {tag: nemo_asr.connect_classifier(run.model, data) for tag, data in run.evaluation_data.items()}
    run.train(training, evaluations)


if __name__ == "__main__":
    with reported_to_user():
        main()
