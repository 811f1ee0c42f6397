"""The demo: train the small model on the corpus that ``nemo-lite data make synth`` made; transcribe a new recording.

    python examples/asr/demo.py --corpus data/synth --work_dir runs/demo

Runs ``nemo-lite plan``, ``train`` and ``transcribe`` as a user would. The last one gets a sentence that the speech
synthesiser says on the spot, in a voice and in words that are not in the corpus. ``curves.png`` has the curves of loss
and word error rate. ``nemo-lite demo`` does the same, and makes the corpus first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nemo_asr.commands.cli.demo import NUM_EPOCHS, WORK_DIR_HELP, run_demo
from nemo_lite.base.options import positive_int
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Train, draw, transcribe, and say where everything is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--work_dir", type=Path, required=True, help=WORK_DIR_HELP)
    parser.add_argument("--num_epochs", type=positive_int, default=NUM_EPOCHS, help="epochs to train")
    args = parser.parse_args()
    run_demo(args.corpus, args.work_dir, args.num_epochs)


if __name__ == "__main__":
    with reported_to_user():
        main()
