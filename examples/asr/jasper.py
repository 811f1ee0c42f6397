"""Train a speech recogniser, Jasper or QuartzNet say: one training DAG, any number of validation DAGs.

    python examples/asr/jasper.py --model_config examples/asr/configs/jasper10x5dr.yaml \
        --train_dataset train-a.json,train-b.json --eval_datasets dev-clean.json dev-other.json \
        --num_epochs 100 --work_dir runs

``--plan`` prints and saves the DAGs and the schedule, and exits before any audio is read. ``--precision_check 10``
compares each node with float32 and exits. ``--seeds 3`` trains three times, and prints mean and spread of the rates.
``--import my_encoder.py`` makes modules of your own known. Started by torchrun, Slurm or MPI, it trains on all their
processes.

``nemo-lite train`` does the same; copy this file to change what is connected, or how it is trained.
"""

from __future__ import annotations

import nemo_asr
from nemo_asr.argparse import AsrArgParser
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Train, or with --plan say what would be trained."""
    args = AsrArgParser(description="Train a speech recogniser").parse_args()
    if args.seeds > 1:  # each in a process of its own, which comes here again
        nemo_asr.train_seeds(args)
        return
    run = nemo_asr.TrainingRun(args)
    # The wires of a DAG are the outputs of its modules: audio and texts -> features -> encoder -> decoder -> loss.
    training = nemo_asr.connect(run.model, run.training_data, training=True)
    evaluations = {tag: nemo_asr.connect(run.model, data_layer) for tag, data_layer in run.evaluation_data.items()}
    run.train(training, evaluations)


if __name__ == "__main__":
    with reported_to_user():
        main()
