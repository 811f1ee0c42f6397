"""ModelCard: what a trained model says about itself, as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import torch

import nemo_lite
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.run.calibration import Calibration, usual_confidence
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.tasks.families import connect
from nemo_asr.tasks.recipe import Recipe
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.engine import stride_of
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import FileKind, JsonLimits, finite_or_null, read_bytes, write_atomically
from nemo_lite.base.verified import RecordKind, VerifiedFile

FORMAT = "nemo_lite model"
VERSION = 1
CARD = "model.json"
METRICS = ("wer", "cer", "error", "loss")  # what a Rate holds


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The error rates of a model on one set of utterances.

    Attributes:
        set: the name of the set.
        wer, cer: word and character error rate, as fractions.
        error: of a classifier, the share of recordings that were given another class.
        loss: mean over the utterances.
        confidence: mean of the words that the model heard in some of the utterances, not calibrated; of the first set.
        utterances: how many.
        digest: a hash of the utterances' numbers.
        manifests: the SHA-256 of each manifest file by its name.
    """

    set: str
    wer: float | None = None
    cer: float | None = None
    error: float | None = None
    loss: float | None = None
    confidence: float | None = None
    utterances: int | None = None
    digest: str = ""
    manifests: dict[str, str] = {}

    def __str__(self) -> str:
        named_rates = ("WER", self.wer), ("CER", self.cer), ("error rate", self.error)
        rates = [f"{name} {rate:.2%}" for name, rate in named_rates if rate is not None]
        return f"{' '.join(rates) or 'not scored'} on {self.set}"


class StreamRate(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's streams by frames are worth on one set of utterances; times are in seconds.

    Attributes:
        set: the name of the set.
        search: the options of a beam search in the place of the model's own search; empty: its own.
        context: of a Conformer's attention, encoded frames before and behind; None where there is none.
        chunk_seconds: of audio that came together.
        look_ahead: audio that a frame waits for.
        latency, latency_95: from the end of a frame to when its label is known; the median, and what 95 % stay below.
        real_time_factor: of the computing.
        utterances: how many.
        equal: how many of their texts are those of the whole recording.
        metric: wer or cer.
        rate, whole_rate: of the streams, and of whole recordings, as fractions.
        difference: the 95 % interval of the first less the second.
    """

    set: str
    search: str = ""
    context: list[int] | None = None
    chunk_seconds: float = 0.0
    look_ahead: float = 0.0
    latency: float = 0.0
    latency_95: float = 0.0
    real_time_factor: float = 0.0
    utterances: int = 0
    equal: int = 0
    metric: str = "wer"
    rate: float = 0.0
    whole_rate: float = 0.0
    difference: list[float] = []


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a trained model says about itself: ``model.json`` of a model folder.

    Attributes:
        name: the model's name in its configuration.
        task: ``transcription`` or ``classification``.
        labels: the vocabulary, without the blank; or the classes.
        sample_rate: samples a second.
        frame_seconds: how much audio one frame of log-probabilities stands for; 0 where the modules do not tell.
        parameters: how many trained numbers.
        step, epoch: of the training.
        rates: one entry for each evaluated set; the first set chose the model.
        versions: of nemo_lite, torch and Python that wrote it.
        licence: of the weights, as the user says it.
        config: the file of the configuration.
        tokenizer: the file that cuts texts into the labels; None where they are characters.
        weights: the file of each module's weights, by the module's name.
        sources: of a model of another toolkit: the SHA-256 of each file that it was imported from, by the file's name.
        calibration: of the confidences of words; None: they are as the model gives them.
        streams: what its streams are worth, by set and context; see ``nemo-lite eval --stream``.
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
    config: VerifiedFile | None = None
    tokenizer: VerifiedFile | None = None
    weights: dict[str, VerifiedFile] = {}
    sources: dict[str, str] = {}
    calibration: Calibration | None = None
    streams: list[StreamRate] = []

    @property
    def files(self) -> list[VerifiedFile]:
        """All files that belong to the model, beside ``model.json``."""
        return [file for file in (self.config, self.tokenizer, *self.weights.values()) if file is not None]

    def usual_confidence(self) -> tuple[str, float] | None:
        """The first set whose words' mean confidence is known, and that confidence, calibrated as transcripts are."""
        rates = ((rate.set, rate.confidence) for rate in self.rates)
        return usual_confidence(rates, self.calibration)

    def progress(self) -> str:
        """``step 348 (epoch 12), WER 3.13% on dev``."""
        return ", ".join([f"step {self.step} (epoch {self.epoch})", *(str(rate) for rate in self.rates[:1])])


def describe(recipe: Recipe, licence: str = "") -> ModelCard:
    """The card of a model of this recipe; step, epoch, rates and files are left to who has them."""
    num_samples = None  # of a frame; a classifier has no frames
    if recipe.task == TASKS[0]:
        num_samples = stride_of(connect(recipe.model(with_weights=False), SpeechPorts(recipe.sample_rate)).frames)
    return ModelCard(
        name=recipe.name,
        task=recipe.task,
        labels=recipe.labels,
        sample_rate=recipe.sample_rate,
        frame_seconds=round((num_samples or 0) / recipe.sample_rate, 6),
        versions=versions(),
        licence=licence,
        tokenizer=None if recipe.tokenizer is None else stored_tokenizer(recipe.tokenizer),
    )


def stored_tokenizer(tokenizer: Subwords) -> VerifiedFile:
    """The file that a tokenizer is in a model folder."""
    return VerifiedFile(f"tokenizer-{tokenizer.sha256[:8]}{tokenizer.suffix}", tokenizer.sha256, len(tokenizer.model))


def versions() -> dict[str, str]:
    """Of what a model is written with."""
    return {"nemo_lite": nemo_lite.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def completed(card: ModelCard, recipe: Recipe) -> ModelCard:
    """The card of a model that does not describe itself: of a script, of NeMo 0.x or of another toolkit."""
    if card.labels:
        return card
    made = describe(recipe)
    kept = {"step": card.step, "epoch": card.epoch, "versions": card.versions or made.versions, "sources": card.sources}
    return msgspec.structs.replace(made, **kept)


def _digested(content: Mapping[str, object]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


KIND = RecordKind(
    FileKind("the model card", 8 << 20, CheckpointError, "give a model folder"),
    FORMAT,
    VERSION,
    ModelCard,
    _digested,
    JsonLimits(),
    may_be_edited=True,  # a licence, a name
)


def plain_card(card: ModelCard) -> dict[str, object]:
    """The fields as plain values for JSON; in the name of a manifest a byte that is no UTF-8 becomes ``?``."""
    text = json.dumps(finite_or_null(msgspec.to_builtins(card)), ensure_ascii=False)
    fields: dict[str, object] = json.loads(text.encode(errors="replace"))
    return fields


def card_to_json(card: ModelCard) -> str:
    """The card as indented JSON, with the SHA-256 of what it says: labels that a disk has changed must not be read."""
    return KIND.text(plain_card(card))


def write_card(path: Path, card: ModelCard) -> None:
    """Write a card into a model folder, all of it or nothing.

    Raises:
        UsageError: it cannot be written.
    """
    write_atomically(path, lambda file: file.write_text(card_to_json(card), encoding="utf-8"))


def read_card(path: Path) -> ModelCard:
    """The card in this file.

    Raises:
        CheckpointError: it cannot be read, is of another format or of a newer version, a field is wrong, or it is not
            what was written. A card without a SHA-256, changed by hand, is read as it is.
    """
    return KIND.read(read_bytes(path, KIND.file), path)
