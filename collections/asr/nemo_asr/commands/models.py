"""Show what a trained model is, or make a model folder of older weights."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_asr.recipe.recipe import load_recipe
from nemo_asr.trained.card import CARD, ModelCard, Rate, card_to_json
from nemo_asr.trained.folder import StoredModel, read_model
from nemo_asr.trained.model import load_model
from nemo_lite.errors import UsageError
from nemo_lite.utils.argparse import OneLineParser


def main(arguments: Sequence[str]) -> None:
    """``show MODEL`` or ``convert SOURCE FOLDER``.

    Raises:
        CheckpointError: there is no model, it is damaged, or it does not fit its configuration.
        UsageError: the folder to write has a model already, or cannot be written to.
    """
    parser = OneLineParser(prog="nemo-lite models", description=__doc__)
    commands = parser.add_subparsers(metavar="show | convert", required=True)
    where = "a run's folder, a model folder, a folder of checkpoints or a .nemo file of NeMo"
    show = commands.add_parser("show", help="labels, sample rate, error rates, sizes; hashes are verified")
    show.add_argument("model", help=where)
    show.add_argument("--json", action="store_true", help="print model.json as it is")
    show.set_defaults(run=_show)
    convert = commands.add_parser("convert", help="write a model folder")
    convert.add_argument("source", help=f"{where}, also one of NeMo 0.x (*.pt)")
    convert.add_argument("folder", type=Path, help="the model folder to write")
    convert.add_argument("--model_config", help="YAML file, or the name of one; where the source carries none")
    convert.add_argument("--licence", help="licence of the weights")
    convert.set_defaults(run=_convert)
    options = parser.parse_args(arguments)
    options.run(options)


def _show(options: Namespace) -> None:
    stored = read_model(options.model)
    if options.json:
        print(card_to_json(stored.card).decode())
    else:
        print("\n".join(_described(stored)))


def _described(stored: StoredModel) -> Iterator[str]:
    card = stored.card
    yield f"{card.name or 'a model without a name'}, {stored.place}"
    yield f"trained      step {card.step}, epoch {card.epoch}"
    if card.labels:
        yield f"labels       {len(card.labels)}: {' '.join(map(_label, card.labels))}"
        yield f"audio        {card.sample_rate} Hz; {1000 * card.frame_seconds:g} ms a frame of log-probabilities"
    yield from (f"rates        {_rate(rate)}" for rate in card.rates)
    numbers = {name: sum(each.numel() for each in tensors.values()) for name, tensors in stored.weights.items()}
    yield from (f"weights      {name}: {number:,} numbers" for name, number in numbers.items())
    yield from _files(card)
    yield f"licence      {card.licence or 'not said'}"
    yield f"written by   {', '.join(f'{name} {version}' for name, version in card.versions.items()) or 'not said'}"


def _files(card: ModelCard) -> Iterator[str]:
    for file in card.files:  # read_model has compared each with its hash
        yield f"file         {file.name}  {file.bytes / 2**20:.1f} MiB  SHA-256 {file.sha256[:16]}... as written"


def _label(label: str) -> str:
    return label if label.strip() else repr(label)


def _rate(rate: Rate) -> str:
    size = f", {rate.utterances} utterances" if rate.utterances is not None else ""
    hashes = ", ".join(f"{name} {sha256[:16]}..." for name, sha256 in rate.manifests.items())
    return f"{rate}{size}{f'; SHA-256 of {hashes}' if hashes else ''}"


def _convert(options: Namespace) -> None:
    target = options.folder.expanduser()
    if (target / CARD).exists():
        raise UsageError("there is a model already", place=str(target), remedy="give another folder")
    recipe = load_recipe(options.model_config) if options.model_config else None
    card = load_model(options.source, recipe=recipe).save(target, licence=options.licence)
    print(f"{target}: {card.name}, {card.progress()}")
