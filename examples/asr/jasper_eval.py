"""Word error rate of a trained model on manifests, with every hypothesis written beside its reference.

    python examples/asr/jasper_eval.py --load_dir runs/Jasper --eval_datasets test-clean.json test-other.json \
        --out results

Beside the transcripts lies OUT/<set>.scores.json: the rates with 95 % intervals, by speaker, by length and by word;
``--details`` prints them too. ``--compare MODEL`` evaluates a second model on the same sets, and tests whether the two
differ. ``--decoder beam`` with ``--lm``, ``--lexicon`` or ``--hotwords`` takes the place of greedy decoding, for both.

Started by torchrun, the processes share the work; the result is the same. ``nemo-lite eval`` does the same;
``jasper_infer.py`` shows the wires from audio to predictions.
"""

from __future__ import annotations

from nemo_asr.commands.cli.eval import EvalParser
from nemo_asr.commands.evaluation import evaluate_texts
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Evaluate one model, or with --compare two and whether they differ."""
    evaluate_texts(EvalParser(description="Word error rate of a trained model").parse_args())


if __name__ == "__main__":
    with reported_to_user():
        main()
