"""Accuracy of classifiers, of speakers also the equal error rate, for ``nemo-lite eval`` and the scripts."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_asr.data.scored_texts import clusters_in_data
from nemo_asr.run.options import named_files, results_folder, unique_tags
from nemo_asr.scoring.classification import (
    all_pairs,
    classification_accuracy,
    classification_confusion_matrix,
    equal_error_rate,
)
from nemo_asr.scoring.intervals import Clusters, bootstrap_interval, class_errors
from nemo_asr.tasks.families import connect_classifier
from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.trained.model import load_classifier
from nemo_lite import NeuralModuleFactory
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import factory_arguments
from nemo_lite.base.outputs import InputFiles, check_output, write_output

PROGRAM = "nemo-lite eval"
MOST_PAIRS = 5000  # recordings of which all pairs are compared


def evaluate_classes(args: Namespace) -> None:
    """Evaluate a classifier: accuracy and its interval; of a model with embeddings also the equal error rate.

    Writes OUT/<set>.classes.jsonl, with embeddings also OUT/<set>.npy (N, D) and OUT/<set>_labels.npy (N,).

    Args:
        args: what the parser of ``nemo-lite eval`` gave.
    """
    recipe = load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = NeuralModuleFactory(**factory_arguments(args))
    place = results_folder(args)
    factory.on_first(lambda: _check_places(args, place))
    model = load_classifier(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    options: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    out = factory.on_first(lambda: make_writable_folder(place))
    write = partial(write_output, kind=PROGRAM, overwrite=args.overwrite)
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        data_layer: Any = model.recipe.data_layer(manifest, training=False, **options)
        wires = connect_classifier(model.modules, data_layer)
        outputs = [wires.logits, wires.classes, *([wires.embeddings] if wires.embeddings else [])]
        batches = factory.infer_batches(outputs)  # come out on rank 0
        columns = list(zip(*batches, strict=True))
        if out is None:
            continue
        logits, classes, *embeddings = map(torch.cat, columns)
        assert batches.items is not None, "data layers of speech number their items"
        labels, (path, file, file_of_labels) = model.recipe.labels, _files_of_classes(out, tag)
        text = _class_lines([data_layer.place_of(item) for item in batches.items], logits, classes, labels)
        write(path, partial(Path.write_text, data=text, encoding="utf-8"))
        print(f"{tag}: {_describe_accuracy(logits, classes, labels)}")
        clusters = clusters_in_data(data_layer, batches.items)
        print(f"{tag}: {_describe_interval(logits, classes, clusters)}")
        print(f"{tag}: {batches.num_items} recordings, ids {batches.digest}, classes in {path}")
        if embeddings:
            write(file, partial(np.save, arr=embeddings[0].float().numpy()))
            write(file_of_labels, partial(np.save, arr=np.array([labels[int(each)] for each in classes])))
            print(f"{tag}: {_describe_speakers(embeddings[0], classes)}")


def _files_of_classes(out: Path, tag: str) -> tuple[Path, Path, Path]:
    """Of a set: its classes, embeddings and their labels."""
    return out / f"{tag}.classes.jsonl", out / f"{tag}.npy", out / f"{tag}_labels.npy"


def _check_places(args: Namespace, out: Path) -> None:
    """FileInTheWayError where a file is there that would be replaced and may not be; before any work is done."""
    inputs = InputFiles(named_files(args))
    for path in [path for tag in unique_tags(args.eval_datasets) for path in _files_of_classes(out, tag)]:
        check_output(path, PROGRAM, inputs=inputs, overwrite=args.overwrite)


def _describe_accuracy(logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """The accuracy, and the pair of classes that was confused most often."""
    (accuracy,) = classification_accuracy(logits, classes)
    confused = classification_confusion_matrix(logits, classes).fill_diagonal_(0)
    text = f"accuracy {accuracy:.2%} ({int(confused.sum())} errors in {len(classes)} recordings)"
    if confused.any():
        true, confused_with = divmod(int(confused.argmax()), len(labels))
        text += f", most often {labels[true]} taken for {labels[confused_with]}: {int(confused.max())}"
    return text


def _describe_interval(logits: torch.Tensor, classes: torch.Tensor, clusters: Clusters | None) -> str:
    """The 95 % interval of the accuracy, by speaker or recording where they are known."""
    errors = class_errors((logits.argmax(dim=1) != classes).numpy(), clusters)
    interval = bootstrap_interval(errors)
    resampled = clusters or f"{len(classes)} recordings"
    return (
        f"95 % interval of the accuracy: {1 - interval.high:.2%} to {1 - interval.low:.2%}, by resampling {resampled}"
    )


def _class_lines(places: list[str], logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """A line of JSON for each recording."""
    best, predicted = logits.double().softmax(dim=1).max(dim=1)
    rows = zip(places, classes.tolist(), predicted.tolist(), best.tolist(), strict=True)
    lines = [
        {"place": place, "class": labels[true], "found": labels[index], "probability": round(probability, 6)}
        for place, true, index, probability in rows
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _describe_speakers(embeddings: torch.Tensor, classes: torch.Tensor) -> str:
    """The equal error rate over all pairs of recordings."""
    embeddings, classes = embeddings[:MOST_PAIRS], classes[:MOST_PAIRS]
    rate, threshold = equal_error_rate(*all_pairs(embeddings, classes))
    return f"equal error rate {rate:.2%} at a cosine of {threshold:.3f} (all pairs of {len(classes)} recordings)"
