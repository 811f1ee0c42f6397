"""The folder of a trained model: weights, configuration, and the card that commits them. It builds no modules.

Each file has the start of its SHA-256 in its name, so a file is never overwritten by another content: the folder holds
the old model until the moment in which ``model.json`` is replaced, and the new one from then on.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from torch import Tensor

from nemo_asr.models.pretrained.layouts import read_nemo
from nemo_asr.text.subwords.vocabulary import Subwords, load_subwords
from nemo_asr.trained.card import (
    CARD,
    METRICS,
    ModelCard,
    StoredFile,
    card_from_json,
    card_to_json,
    read_card,
    stored_tokenizer,
)
from nemo_lite.backends.pytorch.checkpoint import (
    CheckpointFolder,
    StoredCheckpoint,
    read_checkpoint,
    read_tensors,
)
from nemo_lite.config import Config
from nemo_lite.config.values import Source
from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.untrusted import FileKind, read_text
from nemo_lite.utils.digests import digest_of_file
from nemo_lite.utils.files import make_writable_folder, write_atomically
from nemo_lite.utils.helpers import newest_checkpoint_files, parse_checkpoint_name

_CONFIG = FileKind("the model's configuration", 1 << 20, CheckpointError, "copy the folder again")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*-[0-9a-f]{8}\.(safetensors|yaml|model)")
# Where a run has its model and its checkpoints.
MODEL, CHECKPOINTS = "model", "checkpoints"
NEMO = ".nemo"


class StoredModel(NamedTuple):
    """What a model folder or a checkpoint holds.

    Attributes:
        place: the folder, or the checkpoint in it.
        card: what it says about itself.
        config: the configuration as YAML; "" in checkpoints of older versions and of NeMo 0.x.
        weights: the tensors of each module, by name.
        tokenizer: the subwords that its labels are; None where they are characters.
    """

    place: str
    card: ModelCard
    config: str
    weights: Mapping[str, Mapping[str, Tensor]]
    tokenizer: Subwords | None = None


def find_model(path: str | Path) -> Path:
    """The model folder, the folder of checkpoints or the ``.nemo`` file that a path stands for.

    A run's folder stands for its model, and where it has none yet, for its checkpoints.

    Raises:
        CheckpointError: there is neither.
    """
    path = Path(path).expanduser()
    if path.is_file() and path.suffix == NEMO:
        return path
    for folder in (path, path / MODEL):
        if (folder / CARD).is_file():
            return folder
    for folder in (path, path / CHECKPOINTS):
        if not CheckpointFolder(folder).is_empty():
            return folder
    if (path / CHECKPOINTS).is_dir():
        problem, remedy = "this run has not saved a model yet", "let it train until its first checkpoint"
        raise CheckpointError(problem, place=str(path), remedy=remedy)
    problem = "there is no model in this folder" if path.is_dir() else "this is no folder"
    got = "" if path.is_dir() else "a file" if path.exists() else "nothing"
    wanted = "a run's folder, a model folder, a folder of checkpoints or a .nemo file"
    raise CheckpointError(problem, place=str(path), got=got, wanted=wanted)


def read_model(path: str | Path) -> StoredModel:
    """Read a model folder, the newest checkpoint of a folder, or a ``.nemo`` file, whatever :func:`find_model` finds.

    Raises:
        CheckpointError: there is none, or a file of it is missing or not the one that was written.
    """
    folder = find_model(path)
    if folder.is_file():
        stored = read_nemo(folder)
        config = Config(stored.config, Source(stored.place)).as_yaml()
        return StoredModel(stored.place, ModelCard(), config, stored.weights)
    return _read_folder(folder) if (folder / CARD).is_file() else _read_checkpoint(folder)


def write_model(
    folder: str | Path,
    card: ModelCard,
    config: str,
    staged: Mapping[str, Path],
    tokenizer: Subwords | None = None,
) -> ModelCard:
    """Make a model folder of weights that are there already; the model that it held before goes.

    Args:
        folder: created where it is missing.
        card: what the model says about itself; its files are filled in.
        config: the configuration as YAML.
        staged: for each module its file of weights, in the folder; it is moved to its name.
        tokenizer: the subwords that its labels are.

    Returns:
        The card as it was written.

    Raises:
        UsageError: the folder or the disk cannot be written to, or the card names a tokenizer that is not given.
    """
    check_tokenizer(folder, card, tokenizer)
    file = card.tokenizer
    folder = make_writable_folder(folder)
    before = read_card(folder / CARD).files if (folder / CARD).is_file() else []
    config_file = folder / ".config.yaml"
    write_atomically(config_file, lambda file: file.write_text(config, encoding="utf-8"))
    if tokenizer is not None and file is not None:
        content = tokenizer.model
        write_atomically(folder / file.name, lambda path: path.write_bytes(content))
    weights = {name: _named_by_content(file, name) for name, file in staged.items()}
    card = msgspec.structs.replace(card, config=_named_by_content(config_file, "config"), weights=weights)
    write_atomically(folder / CARD, lambda file: file.write_bytes(card_to_json(card)))
    for old in {each.name for each in before if _NAME.fullmatch(each.name)} - {each.name for each in card.files}:
        (folder / old).unlink(missing_ok=True)
    return card


def check_tokenizer(folder: str | Path, card: ModelCard, tokenizer: Subwords | None) -> None:
    """Raise UsageError where the tokenizer that is to be written is not the one that the card names."""
    if card.tokenizer != (None if tokenizer is None else stored_tokenizer(tokenizer)):
        wanted = "recipe.tokenizer" if card.tokenizer else "none"
        raise UsageError("the tokenizer is not the one that the model's card names", place=str(folder), wanted=wanted)


def sweep_model(folder: Path) -> None:
    """Remove files of ours that no card lists: of a run that was killed while it wrote them."""
    listed = {each.name for each in read_card(folder / CARD).files} if (folder / CARD).is_file() else set()
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.yaml"), *folder.glob("*.model")]:
        if file.name in listed:
            continue
        if file.name.startswith(".") or (_NAME.fullmatch(file.name) and file.stem.endswith(digest_of_file(file)[:8])):
            file.unlink(missing_ok=True)


def about_checkpoint(card: ModelCard, config: str, tokenizer: Subwords | None = None) -> dict[str, object]:
    """What each checkpoint of a run says about the model: ``CheckpointCallback(about=...)``."""
    carried = {} if tokenizer is None else {"tokenizer": base64.b64encode(tokenizer.model).decode()}
    return {"model": msgspec.to_builtins(card), "config": config, **carried}


def _named_by_content(file: Path, name: str) -> StoredFile:
    """Move a file to the name that its content gives it."""
    sha256 = digest_of_file(file)
    stored = StoredFile(f"{name}-{sha256[:8]}{file.suffix}", sha256, file.stat().st_size)
    os.replace(file, file.with_name(stored.name))
    return stored


def _read_folder(folder: Path) -> StoredModel:
    card = read_card(folder / CARD)
    try:
        return _read_files(folder, card)
    except (CheckpointError, OSError):
        newer = read_card(folder / CARD)
        if newer == card:
            raise
    return _read_files(folder, newer)  # a run that trains has replaced the model meanwhile


def _read_files(folder: Path, card: ModelCard) -> StoredModel:
    for file in card.files:
        _verify(folder, file)
    if card.config is None or not card.weights:
        raise CheckpointError("the card lists no configuration or no weights", place=str(folder / CARD))
    config = read_text(folder / card.config.name, _CONFIG)
    weights = {name: read_tensors(folder / file.name) for name, file in card.weights.items()}
    tokenizer = load_subwords(folder / card.tokenizer.name) if card.tokenizer else None
    return StoredModel(str(folder), card, config, weights, tokenizer)


def _verify(folder: Path, file: StoredFile) -> None:
    """See that a file is the one that was written."""
    path = folder / file.name
    if not _NAME.fullmatch(file.name):
        raise CheckpointError("the card lists a name that no model file has", place=str(folder / CARD), got=file.name)
    if not path.is_file():
        raise CheckpointError("a file of the model is missing", place=str(path), remedy="copy the whole folder")
    if path.stat().st_size != file.bytes or digest_of_file(path) != file.sha256:
        remedy = "copy the folder again; the file was changed or damaged"
        raise CheckpointError("the hash does not match that in model.json", place=str(path), remedy=remedy)


def _read_checkpoint(folder: Path) -> StoredModel:
    if not CheckpointFolder(folder).sets() and any(folder.glob("*.pt")):
        return _read_checkpoint_of_nemo(folder)
    found = read_checkpoint(folder)
    card = ModelCard(step=found.step or 0, epoch=found.epoch or 0)
    if "model" in found.about:
        known = {"step": card.step, "epoch": card.epoch, "rates": _rates(found)}
        card = card_from_json(msgspec.json.encode({**found.about["model"], **known}), found.name)
    config, tokenizer = str(found.about.get("config", "")), _tokenizer_in(found, card)
    return StoredModel(found.name, card, config, found.weights, tokenizer)


def _tokenizer_in(found: StoredCheckpoint, card: ModelCard) -> Subwords | None:
    """The tokenizer that a checkpoint carries, and that its card names."""
    if card.tokenizer is None:
        return None
    try:
        tokenizer = Subwords(base64.b64decode(str(found.about.get("tokenizer", "")), validate=True), found.name)
    except (binascii.Error, ValueError) as error:  # a DataError is one
        raise CheckpointError("the tokenizer in it is missing or damaged", place=found.name, got=str(error)) from None
    if tokenizer.sha256 != card.tokenizer.sha256:
        raise CheckpointError("the tokenizer in it is not the one that it was trained with", place=found.name)
    return tokenizer


def _rates(found: StoredCheckpoint) -> list[dict[str, object]]:
    """The error rates that were measured with the weights of a checkpoint, as a card has them."""
    measured = [each for each in found.evaluations if each.get("step") == found.step]
    return [
        {"set": each.get("name", ""), "utterances": each.get("num_items"), "digest": each.get("digest", "")}
        | {name: value for name, value in each.get("values", {}).items() if name in METRICS}
        for each in measured
    ]


def _read_checkpoint_of_nemo(folder: Path) -> StoredModel:
    """The newest ``<Module>-STEP-<n>.pt`` files of NeMo 0.x; they say nothing about the model."""
    names = [name for path in folder.glob("*.pt") if (name := parse_checkpoint_name(path.name))]
    modules = sorted({name.module for name in names} - {"trainer"})
    found = newest_checkpoint_files(modules, folder, suffixes=(".pt",))
    newest = max((name for _, name in found), key=lambda name: name.number)
    card = ModelCard(step=newest.number) if newest.kind == "STEP" else ModelCard(epoch=newest.number)
    weights = {name.module: read_tensors(path) for path, name in found}
    return StoredModel(str(folder / newest.tag), card, "", weights)
