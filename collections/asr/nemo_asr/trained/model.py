"""A trained model: its card, its folder, and loading it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

import nemo_lite
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.run.audio.reading import AUDIO_SUFFIXES
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting, Detector
from nemo_asr.run.calibration import Calibration, usual_confidence
from nemo_asr.run.text.labels import separator_of
from nemo_asr.run.text.subwords import Subwords, load_subwords
from nemo_asr.run.transcribe.alignment import Aligned, Alignment, SentenceCutting, align_texts
from nemo_asr.run.transcribe.frame_stream import EndpointRules, FrameStream
from nemo_asr.run.transcribe.inputs import Recording, one_channel, recordings_in
from nemo_asr.run.transcribe.stream import SegmentStream, Stream
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript
from nemo_asr.tasks.families import Model, connect
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.engine import (
    BatchTranscriber,
    SpeechDetector,
    log_probs_of_rows,
    set_to_evaluation,
    stride_of,
    transcribe,
    transcripts_or_error,
)
from nemo_asr.trained.foreign import Format
from nemo_asr.trained.hugging_face import HUGGING_FACE
from nemo_asr.trained.nemo_files import NEMO_FILES
from nemo_asr.trained.streamed_model import StreamedModel, streamed_model
from nemo_asr.trained.wenet import WENET_FOLDER
from nemo_lite.backends.pytorch.checkpoint.fitting import fitted
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, StoredCheckpoint, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module, read_tensors, save_module
from nemo_lite.base.config import Config, Source
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError
from nemo_lite.base.files import (
    FileKind,
    digest_of_file,
    make_writable_folder,
    name_in,
    parse_json,
    read_bytes,
    read_text,
    temporary_name,
    write_atomically,
)
from nemo_lite.base.helpers import newest_checkpoint_files, parse_checkpoint_name
from nemo_lite.core.neural_module import unique_names
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite import NeuralModuleFactory


# ModelCard: what a trained model says about itself, as JSON.


# Any: values of JSON.
FORMAT = "nemo_lite model"
VERSION = 1
CARD = "model.json"
METRICS = ("wer", "cer", "error", "loss")  # what a Rate holds
_KIND = FileKind("the model card", 8 << 20, CheckpointError, "give a model folder")
_SHA256 = "sha256"  # of the other fields; a field of the file, not of the card


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
    config: StoredFile | None = None
    tokenizer: StoredFile | None = None
    weights: dict[str, StoredFile] = {}
    sources: dict[str, str] = {}
    calibration: Calibration | None = None
    streams: list[StreamRate] = []

    @property
    def files(self) -> list[StoredFile]:
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


def stored_tokenizer(tokenizer: Subwords) -> StoredFile:
    """The file that a tokenizer is in a model folder."""
    return StoredFile(f"tokenizer-{tokenizer.sha256[:8]}{tokenizer.suffix}", tokenizer.sha256, len(tokenizer.model))


def versions() -> dict[str, str]:
    """Of what a model is written with."""
    return {"nemo_lite": nemo_lite.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def card_to_json(card: ModelCard) -> bytes:
    """The card as indented JSON, with the SHA-256 of what it says: labels that a disk has changed must not be read."""
    fields = _as_utf_8(msgspec.to_builtins(card))
    return msgspec.json.format(msgspec.json.encode({**fields, _SHA256: _digest_of(fields)}), indent=1)


def write_card(path: Path, card: ModelCard) -> None:
    """Write a card into a model folder, all of it or nothing.

    Raises:
        UsageError: it cannot be written.
    """
    write_atomically(path, lambda file: file.write_bytes(card_to_json(card)))


def _as_utf_8(value: Any) -> Any:
    """The same tree; in the name of a manifest a byte that is no UTF-8 becomes ``?``."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_as_utf_8(key): _as_utf_8(item) for key, item in value.items()}
    return [*map(_as_utf_8, value)] if isinstance(value, list) else value


def _digest_of(fields: dict[str, Any]) -> str:
    plain = {name: value for name, value in fields.items() if name != _SHA256}
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def card_from_json(text: bytes, place: str) -> ModelCard:
    """Read a card.

    Raises:
        CheckpointError: it is of another format or of a newer version, a field is missing or wrong, or it is not what
            was written. A card without a SHA-256, of an earlier version or changed by hand, is read as it is.
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
        if head.get(_SHA256, _digest_of(head)) != _digest_of(head):
            problem, remedy = "the card was changed or damaged", f'copy the folder again, or remove "{_SHA256}" from it'
            raise CheckpointError(problem, place=place, got="another SHA-256 than the card's own", remedy=remedy)
        return msgspec.json.decode(text, type=ModelCard)
    except msgspec.MsgspecError as error:
        raise CheckpointError("the file is damaged", place=place, got=str(error)) from None


def read_card(path: Path) -> ModelCard:
    """The card in this file.

    Raises:
        CheckpointError: the file cannot be read or is no card.
    """
    return card_from_json(read_bytes(path, _KIND), str(path))


# The folder of a trained model: weights, configuration, and the card that commits them. It builds no modules.
# Each file has the start of its SHA-256 in its name, so a file is never overwritten by another content: the folder
# holds the old model until the moment in which ``model.json`` is replaced, and the new one from then on.


_CONFIG = FileKind("the model's configuration", 1 << 20, CheckpointError, "copy the folder again")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*-[0-9a-f]{8}\.(safetensors|yaml|model|txt|json)")
_PATTERNS = ("*.safetensors", "*.yaml", "tokenizer-*")
# Where a run has its model and its checkpoints.
MODEL, CHECKPOINTS = "model", "checkpoints"
# Files of other toolkits: what reads them.
FORMATS = (NEMO_FILES, HUGGING_FACE, WENET_FOLDER)


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


def foreign_format(path: str | Path) -> Format | None:
    """What reads this file or folder of another toolkit; None where it is none of those."""
    path = Path(path).expanduser()
    return next((each for each in FORMATS if each.matches(path)), None)


def find_model(path: str | Path) -> Path:
    """The model folder, the folder of checkpoints, or the file or folder of another toolkit that a path stands for.

    A run's folder stands for its model, and where it has none yet, for its checkpoints.

    Raises:
        CheckpointError: there is neither.
    """
    path = Path(path).expanduser()
    for folder in (path, path / MODEL):
        if (folder / CARD).is_file():
            return folder
    if foreign_format(path) is not None:
        return path
    for folder in (path, path / CHECKPOINTS):
        if not CheckpointFolder(folder).is_empty():
            return folder
    if (path / CHECKPOINTS).is_dir():
        problem, remedy = "this run has not saved a model yet", "let it train until its first checkpoint"
        raise CheckpointError(problem, place=str(path), remedy=remedy)
    problem = "there is no model in this folder" if path.is_dir() else "this is no model"
    got = "" if path.is_dir() else "a file" if path.exists() else "the name of nothing that is here"
    others = ", ".join(each.name for each in FORMATS)
    wanted = f"a run's folder, a model folder, a folder of checkpoints, {others}"
    is_name = not path.exists() and path.suffix.lower() not in AUDIO_SUFFIXES
    remedy = "models are not downloaded by name: docs/en/published_models.md tells which files are read" * is_name
    raise CheckpointError(problem, place=str(path), got=got, wanted=wanted, remedy=remedy)


def read_model(path: str | Path) -> StoredModel:
    """Read what :func:`find_model` finds: a model folder, the newest checkpoint of a folder, another toolkit's model.

    Raises:
        CheckpointError: there is none, or a file of it is missing or not the one that was written.
    """
    folder = find_model(path)
    if not (folder / CARD).is_file() and (reader := foreign_format(folder)) is not None:
        stored = reader.read(folder)
        config = Config(stored.config, Source(stored.place)).as_yaml()
        card = ModelCard(versions=dict(stored.versions), sources={file.name: "" for file in stored.files})
        return StoredModel(stored.place, card, config, stored.weights, stored.tokenizer)
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
    config_file = folder / temporary_name("config", "yaml")
    write_atomically(config_file, lambda file: file.write_text(config, encoding="utf-8"))
    if tokenizer is not None and file is not None:
        content = tokenizer.model
        write_atomically(folder / file.name, lambda path: path.write_bytes(content))
    weights = {name: _named_by_content(file, name) for name, file in staged.items()}
    card = msgspec.structs.replace(card, config=_named_by_content(config_file, "config"), weights=weights)
    write_card(folder / CARD, card)
    kept = {file.name for file in card.files}
    for old in before:
        if old.name not in kept and _NAME.fullmatch(old.name):
            (folder / old.name).unlink(missing_ok=True)
    return card


def check_tokenizer(folder: str | Path, card: ModelCard, tokenizer: Subwords | None) -> None:
    """Raise UsageError where the tokenizer that is to be written is not the one that the card names."""
    if card.tokenizer != (None if tokenizer is None else stored_tokenizer(tokenizer)):
        wanted = "recipe.tokenizer" if card.tokenizer else "none"
        raise UsageError("the tokenizer is not the one that the model's card names", place=str(folder), wanted=wanted)


def sweep_model(folder: Path) -> None:
    """Remove files of ours that no card lists: of a run that was killed while it wrote them."""
    listed = {stored.name for stored in read_card(folder / CARD).files} if (folder / CARD).is_file() else set()
    for file in [file for pattern in _PATTERNS for file in folder.glob(pattern)]:
        if file.name in listed:
            continue
        is_staged = name_in(file.name, file.suffix.removeprefix(".")) is not None
        if is_staged or (_NAME.fullmatch(file.name) and file.stem.endswith(digest_of_file(file)[:8])):
            file.unlink(missing_ok=True)


def about_checkpoint(card: ModelCard, config: str, tokenizer: Subwords | None = None) -> dict[str, object]:
    """What each checkpoint of a run says about the model: ``CheckpointCallback(about=...)``."""
    carried = {} if tokenizer is None else {"tokenizer": base64.b64encode(tokenizer.model).decode()}
    return {"model": _as_utf_8(msgspec.to_builtins(card)), "config": config, **carried}


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
    checkpoint = read_checkpoint(folder)
    card = ModelCard(step=checkpoint.step or 0, epoch=checkpoint.epoch or 0)
    if "model" in checkpoint.about:
        progress = {"step": card.step, "epoch": card.epoch, "rates": _rates(checkpoint)}
        card = card_from_json(msgspec.json.encode({**checkpoint.about["model"], **progress}), checkpoint.name)
    config, tokenizer = str(checkpoint.about.get("config", "")), _tokenizer_in(checkpoint, card)
    return StoredModel(checkpoint.name, card, config, checkpoint.weights, tokenizer)


def _tokenizer_in(checkpoint: StoredCheckpoint, card: ModelCard) -> Subwords | None:
    """The tokenizer that a checkpoint carries, and that its card names."""
    if card.tokenizer is None:
        return None
    try:
        tokenizer = Subwords(
            base64.b64decode(str(checkpoint.about.get("tokenizer", "")), validate=True), checkpoint.name
        )
    except (binascii.Error, ValueError) as error:  # a DataError is one
        raise CheckpointError(
            "the tokenizer in it is missing or damaged", place=checkpoint.name, got=str(error)
        ) from None
    if tokenizer.sha256 != card.tokenizer.sha256:
        raise CheckpointError("the tokenizer in it is not the one that it was trained with", place=checkpoint.name)
    return tokenizer


def _rates(checkpoint: StoredCheckpoint) -> list[dict[str, object]]:
    """The error rates that were measured with the weights of a checkpoint, as a card has them."""
    measured = [evaluation for evaluation in checkpoint.evaluations if evaluation.get("step") == checkpoint.step]
    return [
        {
            "set": evaluation.get("name", ""),
            "utterances": evaluation.get("num_items"),
            "digest": evaluation.get("digest", ""),
        }
        | {name: value for name, value in evaluation.get("values", {}).items() if name in METRICS}
        for evaluation in measured
    ]


def _read_checkpoint_of_nemo(folder: Path) -> StoredModel:
    """The newest ``<Module>-STEP-<n>.pt`` files of NeMo 0.x; they say nothing about the model."""
    names = [name for path in folder.glob("*.pt") if (name := parse_checkpoint_name(path.name))]
    modules = sorted({name.module for name in names} - {"trainer"})
    newest_files = newest_checkpoint_files(modules, folder, suffixes=(".pt",))
    newest = max((name for _, name in newest_files), key=lambda name: name.number)
    card = ModelCard(step=newest.number) if newest.kind == "STEP" else ModelCard(epoch=newest.number)
    weights = {name.module: read_tensors(path) for path, name in newest_files}
    return StoredModel(str(folder / newest.tag), card, "", weights)


# load_model: a trained model by its folder, filled with its weights: it transcribes, and is evaluated.


class TrainedModel:
    """A model with trained weights.

    Attributes:
        place: where it was loaded from.
        recipe: its configuration, for data layers.
        modules: its modules, for DAGs: ``nemo_asr.connect(model.modules, data_layer)``.
        card: labels, sample rate, step, error rates and more.
    """

    def __init__(self, place: str, recipe: Recipe, modules: Model, card: ModelCard) -> None:
        self.place, self.recipe, self.modules, self.card = place, recipe, modules, card

    def transcribe(
        self, audio: Sequence[Any], sample_rate: int | None = None, batch_size: int = 16, **settings: Any
    ) -> list[Transcript]:
        """What is said in recordings, in the order given: text, words with times and confidences, duration.

        Confidences are calibrated where the card has a calibration; ``calibration=None`` gives the model's own.

        Args:
            audio: paths, or arrays of samples, (T,), (channels, T) or (T, channels).
            sample_rate: of the arrays, in Hz; files say their own.
            batch_size: most recordings in a batch.
            settings: ``channel`` (0, 1, ..., ``mix`` or ``each``), ``batch_seconds``, ``num_workers``,
                ``worker_timeout``, ``factory``, ``verbose``, ``decoder`` and ``nbest``: see `nemo_asr.transcribe`'s
                ``transcribe``.

        Returns:
            A transcript for each, with ``channel="each"`` for each channel of each; on ranks above 0 nothing.

        Raises:
            DataError: recordings that cannot be read; all are named.
            UsageError: an array without a sample rate or of a kind that is no audio.
        """
        return transcripts_or_error(self.transcribed(audio, audio_rate=sample_rate, batch_size=batch_size, **settings))

    def transcribed(self, audio: Sequence[Any], **settings: Any) -> Transcribed:
        """As :meth:`transcribe`, with the reasons of recordings that cannot be read in the place of an error.

        Args:
            audio: also `nemo_asr.transcribe`'s ``Recording`` objects.
            settings: of `nemo_asr.transcribe`'s ``transcribe``.
        """
        card, reading = self.card, self.recipe.reading
        of_model = {"trim_silence": reading.trim_silence, "int_values": reading.int_values}
        settings = {"calibration": card.calibration, **of_model, **settings}
        return transcribe(self.modules, card.labels, card.sample_rate, audio, **settings)

    def stream(
        self,
        sample_rate: int | None = None,
        by: Literal["frames", "segments"] | None = None,
        rules: EndpointRules | None = None,
        **settings: Any,
    ) -> Stream:
        """Transcribe audio while it arrives: ``accept(samples)`` and ``finish()`` give partial and final texts.

        By frames, the text is that of the whole recording, and what has been computed is not computed again. Models
        that see the whole utterance stream in segments, each of which is a recording for itself.

        Args:
            sample_rate: of the samples; by default the model's.
            by: ``frames`` or ``segments``; None: by frames, where the model can and no setting is for segments.
            rules: by frames, when parts end.
            settings: ``name``, ``calibration``, ``factory`` and ``decoder``, as of `transcribe`: by frames a
                `BeamSearchCTCDecoder`; in segments ``cutting`` and ``partial_seconds`` of `SegmentStream`, and
                ``batch_seconds``.

        Raises:
            UsageError: the model or the decoder cannot stream by frames, and is asked to; settings that are for
                segments alone.
        """
        rate = sample_rate or self.card.sample_rate
        decoder = settings.get("decoder")
        by_frames = isinstance(decoder, BeamSearchCTCDecoder | None)
        of_segments = settings.keys() - {"name", "calibration", "factory", *(["decoder"] if by_frames else [])}
        if by is None:
            by = "segments" if of_segments or self.stream_problem() else "frames"
        if by == "frames":
            if of_segments:
                got = ", ".join(sorted(of_segments - {"decoder"})) or f"a decoder {type(decoder).__name__}"
                raise UsageError("settings of streams in segments", place="stream", got=got, remedy='by="segments"')
            settings = {"calibration": self.card.calibration, **settings}
            return FrameStream(self.streamed(settings.pop("factory", None)), rate, rules, **settings)
        of_stream = {name: settings.pop(name) for name in ("cutting", "partial_seconds", "name") if name in settings}
        separator = separator_of(self.card.labels)
        batches = self.batch_transcriber(**settings)

        def transcribe(recording: Recording) -> Transcript:
            return transcripts_or_error(batches([recording]))[0]

        return SegmentStream(transcribe, rate, separator=separator, **of_stream)

    def set_att_context_size(self, att_context_size: Sequence[int]) -> None:
        """What the attention of a Conformer sees from now on, so that it streams with that look-ahead.

        Args:
            att_context_size: encoded frames before and behind, in chunks of one more than the second.

        Raises:
            UsageError: the encoder has no attention, or the first number is no multiple of one more than the second.
        """
        encoder = self.modules.encoder
        if not isinstance(encoder, ConformerEncoder):
            problem, wanted = "att_context_size is for attention", "a ConformerEncoder"
            raise UsageError(problem, place=self.card.name, got=type(encoder).__name__, wanted=wanted)
        encoder.set_default_att_context_size(att_context_size)

    def stream_problem(self) -> str:
        """Why the model cannot stream by frames; empty if it can."""
        try:
            self.streamed()
        except UsageError as error:
            return str(error)
        return ""

    def streamed(self, factory: NeuralModuleFactory | None = None) -> StreamedModel:
        """The model as it runs in chunks, for many `FrameStream` objects; it is set to evaluation mode.

        Args:
            factory: where to run; by default where its modules are.

        Raises:
            UsageError: it cannot, with the reason.
        """
        streamed = streamed_model(self.modules, self.card.labels, self.card.sample_rate)
        if factory is not None:
            streamed.dag.to(factory.device)
        return streamed

    def batch_transcriber(self, factory: NeuralModuleFactory | None = None, **settings: Any) -> BatchTranscriber:
        """For a program that serves: see `BatchTranscriber`.

        Args:
            factory: where and in which precision to run; by default the one made last, or a new one, in float32.
            settings: ``batch_seconds``, ``decoder`` and ``calibration``, as of `transcribe`.
        """
        card, reading = self.card, self.recipe.reading
        of_model = {"trim_silence": reading.trim_silence, "int_values": reading.int_values}
        settings = {"calibration": card.calibration, **of_model, **settings}
        factory = factory or nemo_lite.NeuralModuleFactory.get_default_factory() or nemo_lite.NeuralModuleFactory()
        return BatchTranscriber(self.modules, card.labels, card.sample_rate, factory=factory, **settings)

    def align(
        self,
        audio: Sequence[Any],
        texts: Sequence[str],
        sample_rate: int | None = None,
        batch_size: int = 16,
        **settings: Any,
    ) -> list[Alignment]:
        """When the words of known texts are said in recordings, in the order given.

        Args:
            audio: as of :meth:`transcribe`.
            texts: what is said in each.
            sample_rate: of arrays, in Hz.
            batch_size: most recordings, or parts of them, in a batch.
            settings: of :meth:`aligned`.

        Returns:
            An alignment for each: ``segments`` with their ``words`` and ``labels``; on ranks above 0 nothing.

        Raises:
            DataError: recordings that cannot be read, texts that the labels cannot spell or that are longer than their
                recordings; all are named.
            UsageError: not as many texts as recordings; an array without a sample rate or of a kind that is no audio.
        """
        return self.aligned(audio, texts, audio_rate=sample_rate, batch_size=batch_size, **settings).or_error()

    def aligned(
        self,
        audio: Sequence[Any],
        texts: Sequence[str],
        *,
        audio_rate: int | None = None,
        channel: int | str | None = None,
        cutting: Cutting | None = DEFAULT_CUTTING,
        detector: Detector | None = None,
        sentences: SentenceCutting | None = None,
        delay: float | None = None,
        **settings: Any,
    ) -> Aligned:
        """As :meth:`align`, with the reasons of recordings that cannot be aligned in the place of an error.

        Args:
            audio: also `nemo_asr.transcribe`'s ``Recording`` objects.
            texts: what is said in each.
            audio_rate: samples a second of arrays.
            channel: of recordings with several: one from 0, or ``mix``; None: the average of all.
            cutting: where recordings are cut into parts, as by `transcribe`; None: they are computed as they are.
            detector: says where somebody speaks, likewise.
            sentences: how sentences become segments: at pauses, not too long and not too short; None: each is one.
            delay: seconds by which the model writes labels behind their sounds; None: measured where speech begins.
            settings: ``batch_size``, ``batch_seconds``, ``num_workers`` and ``factory``, as of `transcribe`.
        """
        card, reading = self.card, self.recipe.reading
        return align_texts(
            recordings_in(audio, audio_rate, one_channel(channel)),
            texts,
            self.recipe.text_reading.new_parser(self.recipe.tokenizer or card.labels),
            card.labels,
            lambda rows, faults: log_probs_of_rows(
                self.modules,
                card.sample_rate,
                rows,
                faults,
                trim_silence=reading.trim_silence,
                int_values=reading.int_values,
                **settings,
            ),
            cutting=cutting,
            detector=detector,
            sentences=sentences,
            delay=delay,
        )

    def speech_detector(self) -> SpeechDetector:
        """Of a classifier one of whose classes is ``speech``: says where somebody speaks, for ``transcribe``.

        Raises:
            UsageError: no class is ``speech``.
        """
        return SpeechDetector(self.modules, self.card.labels, self.card.sample_rate, self.place)

    def save(self, folder: str | Path, licence: str | None = None) -> ModelCard:
        """Write a model folder; a model that is there already is replaced.

        Args:
            folder: created where it is missing.
            licence: of the weights; by default as the card has it.

        Returns:
            The card that was written.

        Raises:
            UsageError: the folder or the disk cannot be written to.
        """
        path = make_writable_folder(Path(folder))
        staged = {}
        for name, module in trained_modules(self.modules).items():
            staged[name] = path / temporary_name(name, "safetensors")
            save_module(module, staged[name])
        if licence is not None:
            self.card = msgspec.structs.replace(self.card, licence=licence)
        self.card = write_model(path, self.card, self.recipe.config.as_yaml(), staged, self.recipe.tokenizer)
        return self.card


def load_model(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedModel:
    """Load a trained model; the log says from which file and step. Its modules are in evaluation mode.

    Args:
        path: a run's folder (its best model, or its newest checkpoint where it has no model yet), a model folder, or a
            folder of checkpoints.
        recipe: a configuration to use instead of the model's own; its labels, sample rate and shapes must be the
            model's.
        factory: where several ranks run: rank 0 reads, the others need not have the files.
        overrides: values that win over the model's own configuration, each ``KEY=VALUE``; see ``load_recipe``.

    Raises:
        CheckpointError: there is no model, a file of it is missing or damaged, it carries no configuration and none is
            given, or it does not fit the given one.
    """
    stored, recipe = read_with_recipe(path, recipe=recipe, factory=factory, overrides=overrides)
    return _filled(stored, recipe, recipe.model())


def load_classifier(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedModel:
    """As :func:`load_model`, of a classifier: ``nemo_asr.connect_classifier(model.modules, data_layer)`` makes DAGs.

    Raises:
        CheckpointError: as ``load_model``.
        UsageError: the model transcribes.
    """
    stored, recipe = read_with_recipe(path, recipe=recipe, factory=factory, overrides=overrides)
    if recipe.task == "transcription":
        raise UsageError("the model transcribes", place=str(path), wanted="a classifier of recordings")
    return _filled(stored, recipe, recipe.classifier())


def read_with_recipe(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> tuple[StoredModel, Recipe]:
    """What :func:`load_model`, with these arguments and errors, reads before it makes modules."""
    packed = factory.from_first(lambda: _packed(read_model(path))) if factory else _packed(read_model(path))
    place, card_text, config, weights, model = packed
    card, tokenizer = card_from_json(card_text, place), Subwords(model, place) if model else None
    if recipe is None:
        if not config:
            remedy = "give the model's configuration as well (--model_config)"
            raise CheckpointError("the checkpoint carries no configuration", place=place, remedy=remedy)
        recipe = recipe_from_text(
            config, f"{place} (configuration)", overrides, tokenizer=tokenizer, for_training=False
        )
        _compare(recipe, card, place, "leave --set out")
    else:
        _compare(recipe, card, place, "leave --model_config out: the model carries its own")
    return StoredModel(place, completed(card, recipe), config, weights, tokenizer), recipe


def completed(card: ModelCard, recipe: Recipe) -> ModelCard:
    """The card of a model that does not describe itself: of an older version, of NeMo 0.x or of another toolkit."""
    if card.labels:
        return card
    made = describe(recipe)
    kept = {"step": card.step, "epoch": card.epoch, "versions": card.versions or made.versions, "sources": card.sources}
    return msgspec.structs.replace(made, **kept)


def import_model(source: str | Path, folder: str | Path | None = None, licence: str | None = None) -> TrainedModel:
    """Write a model folder of another toolkit's model; its card has the SHA-256 of each file that was read.

    Args:
        source: a file or folder of one of :data:`FORMATS`.
        folder: the folder to write; by default, beside a file, its name without the ending, and in a folder ``model``,
            which then stands for it.
        licence: of the weights, as the user says it.

    Raises:
        CheckpointError, ConfigError: the source is none, or cannot be read.
        UsageError: there is a model in the folder already, or it cannot be written to.
    """
    path = Path(source).expanduser()
    target = (
        Path(folder).expanduser() if folder is not None else path / MODEL if path.is_dir() else path.with_suffix("")
    )
    if (target / CARD).exists():
        raise UsageError("there is a model already", place=str(target), remedy="give another folder: --to DIR")
    if foreign_format(path) is None:
        wanted = " or ".join(each.name for each in FORMATS)
        got = "a folder" if path.is_dir() else "a file" if path.exists() else "nothing"
        raise CheckpointError("there is nothing to import", place=str(path), got=got, wanted=wanted)
    model = load_model(path)
    digests = {name: digest_of_file(path / name if path.is_dir() else path) for name in model.card.sources}
    written_by = {**versions(), **model.card.versions}
    model.card = msgspec.structs.replace(model.card, sources=digests, versions=written_by)
    model.save(target, licence=licence)
    logging.info("Wrote %s", target)
    return TrainedModel(str(target), model.recipe, model.modules, model.card)


def _filled(stored: StoredModel, recipe: Recipe, modules: Model) -> TrainedModel:
    """The model of these modules, which get their weights.

    Raises:
        CheckpointError: weights of a module are missing or do not fit.
    """
    place = stored.place
    for name, module in trained_modules(modules).items():
        if name not in stored.weights:
            got = ", ".join(stored.weights)
            raise CheckpointError(f"there are no weights of {name}", place=place, got=got)
        fill_module(module, fitted(module, stored.weights[name], f"{place}, {name}"))
    # How long another toolkit trained its model is not known.
    is_foreign = bool(stored.card.sources) and not stored.card.step
    logging.info("Loaded %s%s", place, "" if is_foreign else f": {stored.card.progress()}")
    set_to_evaluation(modules)
    return TrainedModel(place, recipe, modules, stored.card)


def labels_of_run(folder: str | Path) -> list[str] | None:
    """The labels of the model in a run's newest checkpoint; None where there is no checkpoint, or it says none."""
    checkpoint = CheckpointFolder(folder).latest()
    if checkpoint is None or "model" not in checkpoint.about:
        return None
    return card_from_json(msgspec.json.encode(checkpoint.about["model"]), str(checkpoint)).labels or None


def check_goes_on(folder: str | Path, recipe: Recipe) -> None:
    """See that the checkpoint from which a run would go on is of a model with these labels and this configuration.

    How data are read may differ.

    Raises:
        CheckpointError: it is not. Nothing is said where there is no checkpoint, or one that says nothing about it.
    """
    checkpoint = CheckpointFolder(folder).latest()
    if checkpoint is None or "model" not in checkpoint.about:
        return
    remedy = "give the configuration that the run began with, or another --exp_name"
    card = card_from_json(msgspec.json.encode(checkpoint.about["model"]), str(checkpoint))
    _compare(recipe, card, str(checkpoint), remedy)
    with suppress(ConfigError):  # of a version that knew other keys
        text, name = str(checkpoint.about.get("config", "")), f"{checkpoint} (configuration)"
        before = recipe_from_text(text, name, tokenizer=recipe.tokenizer, for_training=False)
        if (found := recipe.difference(before)) is not None:
            setting, got, wanted = found
            problem = "the configuration is not the one with which this run began"
            got, wanted = f"{setting} {got}", f"{wanted} as in {checkpoint}"
            remedy += "; to start anew from its weights use --init_from with another --exp_name"
            raise CheckpointError(problem, place=recipe.config.place(), got=got, wanted=wanted, remedy=remedy)


def trained_modules(model: Model) -> dict[str, nn.Module]:
    """The modules that have weights, by the name under which they are saved."""
    parts = model.modules.values()
    named = unique_names([part for part in parts if isinstance(part, nn.Module) and part.state_dict()])
    return {name: module for name, module in named.items() if isinstance(module, nn.Module)}


def _packed(stored: StoredModel) -> tuple[str, bytes, str, Mapping[str, Mapping[str, Tensor]], bytes]:
    """As plain values, which travel to other ranks."""
    tokenizer = b"" if stored.tokenizer is None else stored.tokenizer.model
    return stored.place, card_to_json(stored.card), stored.config, stored.weights, tokenizer


def _compare(recipe: Recipe, card: ModelCard, place: str, remedy: str) -> None:
    """Labels, tokenizer and sample rate of a configuration that was given or changed must be the model's.

    Raises:
        CheckpointError: they are not.
    """
    if not card.labels:
        return
    remedy += "; to train on with other labels use --init_from"
    source = recipe.config.place
    if recipe.sample_rate != card.sample_rate:
        problem, got = "the sample rate is not the model's", f"{recipe.sample_rate} Hz"
        wanted = f"{card.sample_rate} Hz as in {place}"
        raise CheckpointError(problem, place=source("sample_rate"), got=got, wanted=wanted, remedy=remedy)
    if recipe.labels != card.labels:
        problem, (got, wanted) = "the labels are not the model's", _first_difference(recipe.labels, card.labels)
        wanted = f"{wanted} as in {place}"
        place_of_labels = source("labels" if recipe.tokenizer is None else "tokenizer")
        raise CheckpointError(problem, place=place_of_labels, got=got, wanted=wanted, remedy=remedy)
    mine, theirs = recipe.tokenizer, card.tokenizer
    if mine is not None and theirs is not None and mine.sha256 != theirs.sha256:
        problem = "the tokenizer is not the model's: its pieces are the same, and their scores are not"
        got, wanted = f"SHA-256 {mine.sha256[:16]}...", f"{theirs.sha256[:16]}... as in {place}"
        raise CheckpointError(problem, place=source("tokenizer"), got=got, wanted=wanted, remedy=remedy)


def _first_difference(mine: list[str], theirs: list[str]) -> tuple[str, str]:
    if len(mine) != len(theirs):
        extra = sorted({*mine} ^ {*theirs})
        listed = f", different: {', '.join(map(repr, extra[:8]))}" if extra else ""
        return f"{len(mine)} labels{listed}", f"{len(theirs)} labels"
    index = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    return f"{mine[index]!r} as label {index}", repr(theirs[index])
