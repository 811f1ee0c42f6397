"""Accuracy of a trained classifier on manifests, and of a model of speakers the equal error rate and embeddings.

    python examples/asr/classify_eval.py --load_dir runs/Jasper --eval_datasets test.json --out results

Writes OUT/<set>.classes.jsonl, a line for each recording with its class, the one that was found and its probability.
For a model with embeddings also OUT/<set>.npy, an embedding a row, and OUT/<set>_labels.npy, the speaker of each.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nemo_asr
import nemo_lite as nemo
from nemo_asr.argparse import EvalArgParser, add_data_options
from nemo_asr.options import unique_tags
from nemo_asr.scoring.rates import (
    Clusters,
    all_pairs,
    bootstrap_interval,
    class_errors,
    classification_accuracy,
    classification_confusion_matrix,
    equal_error_rate,
)
from nemo_lite.errors import reported_to_user
from nemo_lite.files import make_writable_folder, write_atomically
from nemo_lite.utils.argparse import factory_arguments

MOST_PAIRS = 5000  # recordings of which all pairs are compared


def describe_accuracy(logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """The accuracy, and the pair of classes that was confused most often."""
    (accuracy,) = classification_accuracy(logits, classes)
    confused = classification_confusion_matrix(logits, classes).fill_diagonal_(0)
    text = f"accuracy {accuracy:.2%} ({int(confused.sum())} errors in {len(classes)} recordings)"
    if confused.any():
        true, found = divmod(int(confused.argmax()), len(labels))
        text += f", most often {labels[true]} taken for {labels[found]}: {int(confused.max())}"
    return text


def describe_interval(logits: torch.Tensor, classes: torch.Tensor, clusters: Clusters | None) -> str:
    """The 95 % interval of the accuracy, by speaker or recording where they are known."""
    errors = class_errors((logits.argmax(dim=1) != classes).numpy(), clusters)
    found = bootstrap_interval(errors)
    resampled = clusters or f"{len(classes)} recordings"
    return f"95 % interval of the accuracy: {1 - found.high:.2%} to {1 - found.low:.2%}, by resampling {resampled}"


def class_lines(places: list[str], logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """A line of JSON for each recording."""
    best, found = logits.double().softmax(dim=1).max(dim=1)
    rows = zip(places, classes.tolist(), found.tolist(), best.tolist(), strict=True)
    lines = [
        {"place": place, "class": labels[true], "found": labels[index], "probability": round(probability, 6)}
        for place, true, index, probability in rows
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def describe_speakers(embeddings: torch.Tensor, classes: torch.Tensor) -> str:
    """The equal error rate over all pairs of recordings."""
    embeddings, classes = embeddings[:MOST_PAIRS], classes[:MOST_PAIRS]
    rate, threshold = equal_error_rate(*all_pairs(embeddings, classes))
    return f"equal error rate {rate:.2%} at a cosine of {threshold:.3f} (all pairs of {len(classes)} recordings)"


def main() -> None:
    """Evaluate a classifier."""
    parser = EvalArgParser(description="Accuracy of a trained classifier")
    parser.add_argument("--eval_datasets", nargs="+", required=True, help="manifests, each a set of its own")
    parser.add_argument("--out", default=".", help="folder for classes and embeddings (default: here)")
    add_data_options(parser)
    args = parser.parse_args()
    recipe = nemo_asr.load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = nemo.NeuralModuleFactory(**factory_arguments(args))
    model = nemo_asr.load_classifier(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    given: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    out = factory.on_first(lambda: make_writable_folder(Path(args.out)))
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        data_layer: Any = model.recipe.data_layer(manifest, training=False, **given)
        wires = nemo_asr.connect_classifier(model.modules, data_layer)
        asked = [wires.logits, wires.classes, *([wires.embeddings] if wires.embeddings else [])]
        batches = list(factory.infer_batches(asked))  # comes out on rank 0
        if out is None:
            continue
        logits, classes, *embeddings = (torch.cat(values) for values in zip(*batches, strict=True))
        scored = factory.get_trainer().inferred
        assert scored is not None, "infer has run"
        assert scored.items is not None, "data layers of speech number their items"
        labels, path = model.recipe.labels, out / f"{tag}.classes.jsonl"
        text = class_lines([data_layer.place_of(item) for item in scored.items], logits, classes, labels)
        write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
        print(f"{tag}: {describe_accuracy(logits, classes, labels)}")
        clusters = nemo_asr.clusters_in_data(data_layer, scored.items)
        print(f"{tag}: {describe_interval(logits, classes, clusters)}")
        print(f"{tag}: {scored.num_items} recordings, ids {scored.digest}, classes in {path}")
        if embeddings:
            np.save(out / f"{tag}.npy", embeddings[0].float().numpy())
            np.save(out / f"{tag}_labels.npy", np.array([labels[int(each)] for each in classes]))
            print(f"{tag}: {describe_speakers(embeddings[0], classes)}")


if __name__ == "__main__":
    with reported_to_user():
        main()
