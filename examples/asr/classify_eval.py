"""Accuracy of a trained classifier on manifests, and of a model of speakers the equal error rate and embeddings.

    python examples/asr/classify_eval.py --load_dir runs/Jasper --eval_datasets test.json --out results

Writes OUT/<set>.classes.jsonl, a line for each recording with its class, the one that was found and its probability.
For a model with embeddings also OUT/<set>.npy, an embedding a row, and OUT/<set>_labels.npy, the speaker of each.
``nemo-lite eval`` does the same.
"""

from __future__ import annotations

from nemo_asr.argparse import EvalArgParser, add_data_options
from nemo_asr.commands.class_evaluation import evaluate_classes
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Evaluate a classifier."""
    parser = EvalArgParser(description="Accuracy of a trained classifier")
    parser.add_argument("--eval_datasets", nargs="+", required=True, help="manifests, each a set of its own")
    parser.add_argument("--out", help="folder for classes and embeddings (default: results/NAME, by the model's name)")
    parser.add_argument("--overwrite", action="store_true", help="replace files that no evaluation wrote")
    add_data_options(parser)
    evaluate_classes(parser.parse_args())


if __name__ == "__main__":
    with reported_to_user():
        main()
