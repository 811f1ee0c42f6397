"""Word error rate of a trained model on manifests, with every hypothesis written beside its reference.

    python examples/asr/jasper_eval.py --model_config examples/asr/configs/jasper10x5dr.yaml \
        --load_dir runs/Jasper/checkpoints --eval_datasets test-clean.json test-other.json --out results
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import nemo_asr
from nemo_asr.helpers import post_process_predictions, post_process_transcripts
from nemo_asr.metrics import count_errors

import nemo_lite as nemo
from nemo_lite.errors import reported_to_user
from nemo_asr.argparse import EvalArgParser, unique_tags
from nemo_lite.utils.files import write_atomically


def evaluate(args: Namespace, recipe: nemo_asr.Recipe, factory: nemo.NeuralModuleFactory, manifest: str) -> list[dict[str, str]]:
    """Each utterance's place in the manifest, reference and hypothesis."""
    data_layer = recipe.data_layer(manifest, training=False, batch_size=args.batch_size)
    audio, audio_len, text, text_len = data_layer()
    features, features_len = recipe.preprocessor()(input_signal=audio, length=audio_len)
    encoded, encoded_len = recipe.encoder()(audio_signal=features, length=features_len)
    log_probs = recipe.decoder()(encoder_output=encoded)
    predictions = recipe.greedy()(log_probs=log_probs, log_probs_length=encoded_len)
    ids, texts, lengths = factory.infer([predictions, text, text_len], checkpoint_dir=args.load_dir)
    hypotheses = post_process_predictions(ids, recipe.labels)
    references = post_process_transcripts(texts, lengths, recipe.labels)
    places = (data_layer.place_of(item) for item in range(len(data_layer)))
    rows = zip(places, references, hypotheses, strict=True)
    return [{"place": place, "reference": said, "hypothesis": heard} for place, said, heard in rows]


def main() -> None:
    """Evaluate every set, print its error rates, and write its transcripts."""
    parser = EvalArgParser(description="Word error rate of a trained model")
    parser.add_argument("--eval_datasets", nargs="+", required=True, help="manifests, each a set of its own")
    parser.add_argument("--out", default=".", help="folder for the transcripts (default: here)")
    args = parser.parse_args()
    recipe = nemo_asr.load_recipe(args.model_config)
    factory = nemo.NeuralModuleFactory(local_rank=args.local_rank, optimization_level=args.amp_opt_level)
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        rows = evaluate(args, recipe, factory, manifest)
        said, heard = ([row[key] for row in rows] for key in ("reference", "hypothesis"))
        words, characters = count_errors(heard, said), count_errors(heard, said, use_cer=True)
        path = Path(args.out) / f"{tag}.transcripts.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(path, lambda file, lines=lines: file.write_text(lines, encoding="utf-8"))
        print(f"{tag}: WER {words.rate:.2%}, CER {characters.rate:.2%} ({words}); {len(rows)} utterances in {path}")


if __name__ == "__main__":
    with reported_to_user():
        main()
