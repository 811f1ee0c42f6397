"""ModelCard: what a trained model says about itself, as JSON. Weights and folders are in other files."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

import nemo_lite
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.recipe.recipe import Recipe
from nemo_asr.recipe.registry import TASKS
from nemo_asr.recipe.wiring import connect
from nemo_asr.scoring.calibration import Calibration
from nemo_asr.text.subwords.vocabulary import Subwords
from nemo_asr.transcription.windows import stride_of
from nemo_lite.errors import CheckpointError
from nemo_lite.untrusted import FileKind, parse_json, read_bytes

# Any: values of JSON.

FORMAT = "nemo_lite model"
VERSION = 1
CARD = "model.json"
METRICS = ("wer", "cer", "error", "loss")  # what a Rate holds
_KIND = FileKind("the model card", 8 << 20, CheckpointError, "give a model folder")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
_SHA256 = "sha256"  # of the other fields; a field of the file, not of the card


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The error rates of a model on one set of utterances.

    Attributes:
        set: the name of the set.
        wer, cer: word and character error rate, as fractions.
        error: of a classifier, the share of recordings that were given another class.
        loss: mean over the utterances.
        utterances: how many.
        digest: a hash of the utterances' numbers.
        manifests: the SHA-256 of each manifest file by its name.
    """

    set: str
    wer: float | None = None
    cer: float | None = None
    error: float | None = None
    loss: float | None = None
    utterances: int | None = None
    digest: str = ""
    manifests: dict[str, str] = {}

    def __str__(self) -> str:
        known = ("WER", self.wer), ("CER", self.cer), ("error rate", self.error)
        rates = [f"{name} {rate:.2%}" for name, rate in known if rate is not None]
        return f"{' '.join(rates) or 'not scored'} on {self.set}"


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a model folder.

    Attributes:
        name: its name in the folder.
        sha256: of its content.
        bytes: its size.
    """

    name: str
    sha256: str
    bytes: int


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a trained model says about itself: ``model.json`` of a model folder.

    Attributes:
        name: the model's name in its configuration.
        task: ``transcription`` or ``classification``.
        labels: the vocabulary, without the blank; or the classes.
        sample_rate: samples a second.
        frame_seconds: how much audio one frame of log-probabilities stands for.
        parameters: how many trained numbers.
        step, epoch: of the training.
        rates: one entry for each evaluated set; the first set chose the model.
        versions: of nemo_lite, torch and Python that wrote it.
        licence: of the weights, as the user says it.
        config: the file of the configuration.
        tokenizer: the SentencePiece model whose pieces the labels are; None where they are characters.
        weights: the file of each module's weights, by the module's name.
        calibration: of the confidences of words; None: they are as the model gives them.
    """

    format: str = FORMAT
    version: int = VERSION
    name: str = ""
    task: str = TASKS[0]
    labels: list[str] = []
    sample_rate: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    frame_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    parameters: Annotated[int, msgspec.Meta(ge=0)] = 0
    step: Annotated[int, msgspec.Meta(ge=0)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0
    rates: list[Rate] = []
    versions: dict[str, str] = {}
    licence: str = ""
    config: StoredFile | None = None
    tokenizer: StoredFile | None = None
    weights: dict[str, StoredFile] = {}
    calibration: Calibration | None = None

    @property
    def files(self) -> list[StoredFile]:
        """All files that belong to the model, beside ``model.json``."""
        return [file for file in (self.config, self.tokenizer, *self.weights.values()) if file is not None]

    def progress(self) -> str:
        """``step 348 (epoch 12), WER 3.13% on dev``."""
        return ", ".join([f"step {self.step} (epoch {self.epoch})", *(str(rate) for rate in self.rates[:1])])


def describe(recipe: Recipe, licence: str = "") -> ModelCard:
    """The card of a model of this recipe; step, epoch, rates and files are left to who has them."""
    return ModelCard(
        name=recipe.name,
        task=recipe.task,
        labels=recipe.labels,
        sample_rate=recipe.sample_rate,
        frame_seconds=frame_seconds(recipe),
        versions=versions(),
        licence=licence,
        tokenizer=None if recipe.tokenizer is None else stored_tokenizer(recipe.tokenizer),
    )


def stored_tokenizer(tokenizer: Subwords) -> StoredFile:
    """The file that a tokenizer is in a model folder."""
    return StoredFile(f"tokenizer-{tokenizer.sha256[:8]}.model", tokenizer.sha256, len(tokenizer.model))


def frame_seconds(recipe: Recipe) -> float:
    """How much audio one frame of a model's log-probabilities stands for; 0 where its modules do not tell.

    A classifier has none: 0.
    """
    if recipe.task != TASKS[0]:
        return 0.0
    log_probs = connect(recipe.model(with_weights=False), SpeechPorts(recipe.sample_rate)).log_probs
    return round((stride_of(log_probs) or 0) / recipe.sample_rate, 6)


def versions() -> dict[str, str]:
    """Of what a model is written with."""
    return {"nemo_lite": nemo_lite.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def card_to_json(card: ModelCard) -> bytes:
    """The card as indented JSON, with the SHA-256 of what it says: labels that a disk has changed must not be read."""
    fields: dict[str, Any] = msgspec.to_builtins(card)
    return msgspec.json.format(msgspec.json.encode({**fields, _SHA256: _digest_of(fields)}), indent=1)


def _digest_of(fields: dict[str, Any]) -> str:
    plain = {name: value for name, value in fields.items() if name != _SHA256}
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def card_from_json(text: bytes, place: str) -> ModelCard:
    """Read a card.

    Raises:
        CheckpointError: it is of another format or of a newer version, a field is missing or wrong, or it is not what
            was written. A card without a SHA-256, of an earlier version or changed by hand, is read as it is if all
            its keys are known.
    """
    try:
        head = parse_json(text, place, _KIND)
        if not isinstance(head, dict):
            raise CheckpointError("this is no model card", place=place, wanted="an object")
        kind, version = head.get("format"), head.get("version")
        if kind != FORMAT or not isinstance(version, int) or version > VERSION:
            raise CheckpointError(
                "this is no model that can be read here",
                place=place,
                got=f'format "{kind}", version {version}',
                wanted=f'format "{FORMAT}", version up to {VERSION}',
                remedy="install the nemo_lite that wrote it" if kind == FORMAT else "give a model folder",
            )
        unknown = sorted(head.keys() - set(ModelCard.__struct_fields__))
        if unknown and _SHA256 not in head:  # it may be this key whose name is damaged
            got = f'no "{_SHA256}", and the unknown key "{unknown[0][:60]}"'
            remedy = "copy the folder again, or remove that key"
            raise CheckpointError("the card was changed or damaged", place=place, got=got, remedy=remedy)
        if head.get(_SHA256, _digest_of(head)) != _digest_of(head):
            problem, remedy = "the card was changed or damaged", f'copy the folder again, or remove "{_SHA256}" from it'
            raise CheckpointError(problem, place=place, got="another SHA-256 than the card's own", remedy=remedy)
        if any(map(_CONTROL.search, _texts_in(head))):
            problem = "a text in the card has control characters, which can change what a terminal shows"
            raise CheckpointError(problem, place=place, remedy="remove them, if you trust who wrote it")
        return msgspec.json.decode(text, type=ModelCard)
    except msgspec.MsgspecError as error:
        raise CheckpointError("the file is damaged", place=place, got=str(error)) from None


def _texts_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value if isinstance(value, list) else chain(*value.items()):
            yield from _texts_in(each)


def read_card(path: Path) -> ModelCard:
    """The card in this file.

    Raises:
        CheckpointError: the file cannot be read or is no card.
    """
    return card_from_json(read_bytes(path, _KIND), str(path))
