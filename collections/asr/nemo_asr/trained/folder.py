"""The folder of a trained model: weights, configuration, tokenizer, and the card that commits them. No module is built.

The card, ``model.json``, is the record of the folder, and what the model says about itself.

Each file has the start of its SHA-256 in its name, so a file is never overwritten by another content: the folder holds
the old model until the moment in which ``model.json`` is replaced, and the new one from then on. Checkpoints and files
of other toolkits are read as such a model too.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from torch import Tensor

from nemo_asr.published.catalogue import DOOR, door, repository_of, stated_licence
from nemo_asr.published.hub import fetch
from nemo_asr.run.calibration import Calibration, usual_confidence
from nemo_asr.run.options import MODEL_PATHS
from nemo_asr.run.text.subwords import Subwords, load_subwords
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_asr.trained.hugging_face import HUGGING_FACE, check_kind
from nemo_asr.trained.lora import merged
from nemo_asr.trained.nemo_files import NEMO_FILES
from nemo_asr.trained.wenet import WENET_FOLDER
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, StoredCheckpoint, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.record import TRAINER, CheckpointSet
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.backends.pytorch.checkpoint.tensors import read_safetensors
from nemo_lite.base.config import Config, Source
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError
from nemo_lite.base.files import (
    FileKind,
    JsonLimits,
    check_writable_folder,
    digest_of_file,
    finite_or_null,
    make_writable_folder,
    name_in,
    read_text,
    temporary_name,
    write_atomically,
)
from nemo_lite.base.helpers import newest_checkpoint_files, parse_checkpoint_name
from nemo_lite.base.verified import RecordKind, VerifiedFile, delete_listed

FORMAT = "nemo_lite model"
VERSION = 1
CARD = "model.json"
METRICS = ("wer", "cer", "error", "loss")  # what a Rate holds
_CONFIG = FileKind("the model's configuration", 1 << 20, CheckpointError, "copy the folder again")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*-[0-9a-f]{8}\.(safetensors|yaml|model|txt|json)")
_PATTERNS = ("*.safetensors", "*.yaml", "tokenizer-*")
# Where a run has its model and its checkpoints.
MODEL, CHECKPOINTS = "model", "checkpoints"
# Files of other toolkits: what reads them. Help and errors name them by `run.options.FOREIGN_MODELS`.
FORMATS = (NEMO_FILES, HUGGING_FACE, WENET_FOLDER)
Packed = tuple[str, dict[str, object], str, Mapping[str, Mapping[str, Tensor]], bytes]


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
        rate, whole_rate: of the streams, and of whole recordings, as fractions; None: the set has no words.
        difference: the 95 % interval of the first less the second; empty without rates.
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
    rate: float | None = None
    whole_rate: float | None = None
    difference: list[float] = []


class CertifiedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run a model.

    Attributes:
        name: what differs from recordings that are heard alone.
        differing: of how many recordings text, times or duration are others; None: the model cannot be run so.
        problem: why not.
    """

    name: str
    differing: int | None = None
    problem: str = ""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model's transcripts depend on how it is run; see ``nemo-lite eval --certify``.

    Attributes:
        set: the name of the set.
        search: the options of a beam search in the place of the model's own search; empty: its own.
        utterances: how many of it were heard in each way.
        device, precision: where and how that was computed, by which torch.
        settings: the ways.
    """

    set: str
    search: str = ""
    utterances: int = 0
    device: str = ""
    precision: str = ""
    torch: str = ""
    settings: list[CertifiedSetting] = []

    @property
    def differing(self) -> int:
        """Recordings that differ, in all settings together."""
        return sum(setting.differing or 0 for setting in self.settings)

    @property
    def num_ways(self) -> int:
        """The settings in which the model can be run."""
        return sum(setting.differing is not None for setting in self.settings)


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
        certificates: whether its transcripts depend on how it is run, by set.
        domain: what it has shown to know: recordings outside are marked; None: that is not known.
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
    certificates: list[Certificate] = []
    domain: Domain | None = None

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


KIND = RecordKind(
    FileKind("the model card", 8 << 20, CheckpointError, "give a model folder"),
    FORMAT,
    VERSION,
    ModelCard,
    partial(json.dumps, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
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
    return KIND.read(path)


def read_card_of(path: Path, heard: ModelCard) -> ModelCard:
    """The card in this file, to be written with what was found about a model, given by the card that it had.

    Raises:
        CheckpointError: it cannot be read.
        UsageError: it is of other weights: a training goes on, and has put a better model there.
    """
    card = read_card(path)
    if card.weights != heard.weights:
        problem, remedy = "the model was replaced while it was heard; its card stays as it is", "give the command again"
        got, wanted = f"that of step {card.step}", f"that of step {heard.step}"
        raise UsageError(problem, place=str(path.parent), got=got, wanted=wanted, remedy=remedy)
    return card


def store_in_card(
    path: str | Path, heard: ModelCard, field: str, found: Sequence[StreamRate] | Sequence[Certificate]
) -> Path:
    """Write what was found about a model into its card, in the place of that of the same sets and search.

    Args:
        path: of the model.
        heard: its card when it was heard.
        field: of the card: ``streams`` or ``certificates``.
        found: what goes there.

    Returns:
        The card's file.

    Raises:
        UsageError: it is no model folder, cannot be written to, or holds another model by now.
    """
    file = card_file(path)
    card = read_card_of(file, heard)
    replaced = {(each.set, each.search) for each in found}
    kept = [each for each in getattr(card, field) if (each.set, each.search) not in replaced]
    write_card(file, msgspec.structs.replace(card, **{field: [*kept, *found]}))
    return file


class StoredModel(NamedTuple):
    """What a model folder or a checkpoint holds.

    Attributes:
        place: the folder, or the checkpoint in it.
        card: what it says about itself.
        config: the configuration as YAML; "" in checkpoints of scripts and of NeMo 0.x.
        weights: the tensors of each module, by name.
        tokenizer: the subwords that its labels are; None where they are characters.
    """

    place: str
    card: ModelCard
    config: str
    weights: Mapping[str, Mapping[str, Tensor]]
    tokenizer: Subwords | None = None

    def packed(self) -> Packed:
        """As plain values, which travel to other ranks."""
        tokenizer = b"" if self.tokenizer is None else self.tokenizer.model
        return self.place, plain_card(self.card), self.config, self.weights, tokenizer

    @classmethod
    def unpacked(cls, packed: Packed) -> StoredModel:
        """The model of what :meth:`packed` gave."""
        place, card, config, weights, tokenizer = packed
        subwords = Subwords(tokenizer, place) if tokenizer else None
        return cls(place, msgspec.convert(card, ModelCard), config, weights, subwords)


def foreign_format(path: str | Path) -> Format | None:
    """What reads this file or folder of another toolkit; None where it is none of those."""
    path = Path(path).expanduser()
    return next((kind for kind in FORMATS if kind.matches(path)), None)


def local_path(model: str | Path) -> Path:
    """A path, or for ``hf:OWNER/NAME`` and the name of a published model the path in the cache, where it is fetched to.

    Raises:
        ModelNotFoundError, CheckpointError, UsageError: it cannot be fetched, see `nemo_asr.published.hub.fetch`.
    """
    repository = repository_of(model)
    return Path(model).expanduser() if repository is None else fetch(repository, check=check_kind)


def find_model(path: str | Path) -> Path:
    """The model folder, the folder of checkpoints, or the file or folder of another toolkit that a path stands for.

    A run's folder stands for its model, and where it has none yet, for its checkpoints. A published model is fetched
    (:func:`local_path`).

    Raises:
        CheckpointError: there is neither, or a published model cannot be fetched.
    """
    name, path = str(path), local_path(path)
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
    raise CheckpointError(problem, place=str(path), got=got, wanted=MODEL_PATHS, remedy=door(name))


def card_file(path: str | Path) -> Path:
    """The card in a model's folder, to be written again.

    Raises:
        CheckpointError: there is no model.
        UsageError: it is no model folder.
    """
    # A published model is not downloaded for that.
    if repository_of(path) is None and (card := find_model(path) / CARD).is_file():
        return card
    problem, remedy = "only a model folder has a card to write to", "make one: nemo-lite models import, or convert"
    raise UsageError(problem, place=str(path), got="checkpoints, or another toolkit's model", remedy=remedy)


def read_model(path: str | Path) -> StoredModel:
    """Read what :func:`find_model` finds: a model folder, the newest checkpoint of a folder, another toolkit's model.

    Raises:
        CheckpointError: there is none, or a file of it is missing or damaged.
    """
    folder = find_model(path)
    if (folder / CARD).is_file():
        return _read_folder(folder)
    if (kind := foreign_format(folder)) is not None:
        foreign = _read_foreign(kind, folder)
        config = Config(foreign.config, Source(foreign.place)).as_yaml()
        sources = {file.name: "" for file in foreign.files}
        card = ModelCard(versions=dict(foreign.versions), sources=sources, licence=stated_licence(path))
        return StoredModel(foreign.place, card, config, foreign.weights, foreign.tokenizer)
    if not CheckpointFolder(folder).sets() and any(folder.glob("*.pt")):
        return _read_files_of_nemo(folder)
    return _read_checkpoint(folder)


def _read_foreign(kind: Format, path: Path) -> ForeignModel:
    try:
        return kind.read(path)
    except (CheckpointError, ConfigError) as error:
        if DOOR not in error.remedy:
            error.remedy = f"{error.remedy}; {DOOR}" if error.remedy else DOOR
        raise


def _read_folder(folder: Path) -> StoredModel:
    card = read_card(folder / CARD)
    while True:
        try:
            return _read_files(folder, card)
        except (CheckpointError, OSError):
            before, card = card, read_card(folder / CARD)
            if card == before:
                raise
            # A run that trains has replaced the model meanwhile.


def _read_files(folder: Path, card: ModelCard) -> StoredModel:
    """The model of a card, each file of which is compared with what was written."""
    if card.config is None or not card.weights:
        raise CheckpointError("the card lists no configuration or no weights", place=str(folder / CARD))
    for file in card.files:
        if not _NAME.fullmatch(file.name):
            problem = "the card lists a name that no model file has"
            raise CheckpointError(problem, place=str(folder / CARD), got=file.name)
        if difference := file.problem(folder, contents=True):
            problem, remedy = "a file of the model is missing or damaged", "copy the whole folder again"
            raise CheckpointError(problem, place=str(folder / file.name), got=difference, remedy=remedy)
    config = read_text(folder / card.config.name, _CONFIG)
    weights = {name: read_safetensors(folder / file.name) for name, file in card.weights.items()}
    tokenizer = load_subwords(folder / card.tokenizer.name) if card.tokenizer else None
    return StoredModel(str(folder), card, config, weights, tokenizer)


def _read_checkpoint(folder: Path) -> StoredModel:
    """The newest checkpoint of a folder, with the rates that were measured with its weights."""
    checkpoint = read_checkpoint(folder)
    step, epoch, place = checkpoint.step or 0, checkpoint.epoch or 0, checkpoint.name
    measured = [result for result in checkpoint.evaluations if result.get("step") == checkpoint.step]
    rates = [
        {"set": result.get("name", ""), "utterances": result.get("num_items"), "digest": result.get("digest", "")}
        | {name: value for name, value in result.get("values", {}).items() if name in METRICS}
        for result in measured
    ]
    card = card_in(checkpoint, step=step, epoch=epoch, rates=rates) or ModelCard(step=step, epoch=epoch)
    tokenizer = None
    if card.tokenizer is not None:
        try:
            carried = base64.b64decode(str(checkpoint.about.get("tokenizer", "")), validate=True)
            tokenizer = Subwords(carried, place)
        except (binascii.Error, ValueError) as error:  # a DataError is one
            raise CheckpointError("the tokenizer in it is missing or damaged", place=place, got=str(error)) from None
        if tokenizer.sha256 != card.tokenizer.sha256:
            raise CheckpointError("the tokenizer in it is not the one that it was trained with", place=place)
    weights = {name: merged(tensors) for name, tensors in checkpoint.weights.items()}
    return StoredModel(place, card, str(checkpoint.about.get("config", "")), weights, tokenizer)


def card_in(checkpoint: CheckpointSet | StoredCheckpoint, **progress: object) -> ModelCard | None:
    """The card that a checkpoint of :func:`about_checkpoint` carries; None where it says nothing about the model.

    Args:
        progress: fields in the place of those that were known when the run began.

    Raises:
        CheckpointError: what it says is no card.
    """
    if "model" not in checkpoint.about:
        return None
    try:
        return msgspec.convert({**checkpoint.about["model"], **progress}, ModelCard)
    except (TypeError, msgspec.ValidationError) as error:
        place = checkpoint.name if isinstance(checkpoint, StoredCheckpoint) else str(checkpoint)
        raise CheckpointError(f"what it says about the model cannot be read: {error}", place=place) from None


def _read_files_of_nemo(folder: Path) -> StoredModel:
    """The newest ``<Module>-STEP-<n>.pt`` files of NeMo 0.x; they say nothing about the model."""
    names = [name for path in folder.glob("*.pt") if (name := parse_checkpoint_name(path.name))]
    modules = sorted({name.module for name in names} - {TRAINER})
    newest_files = newest_checkpoint_files(modules, folder, suffixes=(".pt",))
    newest = max((name for _, name in newest_files), key=lambda name: name.number)
    card = ModelCard(step=newest.number) if newest.kind == "STEP" else ModelCard(epoch=newest.number)
    weights = {name.module: read_tensors(path) for path, name in newest_files}
    return StoredModel(str(folder / newest.tag), card, "", weights)


def about_checkpoint(card: ModelCard, config: str, tokenizer: Subwords | None = None) -> dict[str, object]:
    """What each checkpoint of a run says about the model: ``CheckpointCallback(about=...)``."""
    carried = {} if tokenizer is None else {"tokenizer": base64.b64encode(tokenizer.model).decode()}
    return {"model": plain_card(card), "config": config, **carried}


def check_new_model(folder: str | Path, remedy: str = "give another folder: --to DIR") -> None:
    """See that a model can be written to a folder, before one is downloaded or read for it.

    Raises:
        UsageError: there is a model already, or the folder cannot be created or written to.
    """
    folder = Path(folder).expanduser()
    if (folder / CARD).exists():
        raise UsageError("there is a model already", place=str(folder), remedy=remedy)
    check_writable_folder(folder)


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
    folder = make_writable_folder(folder)
    listed = _listed_in(folder)
    config_file = folder / temporary_name("config", "yaml")
    write_atomically(config_file, lambda file: file.write_text(config, encoding="utf-8"))
    if tokenizer is not None:
        content = tokenizer.model
        write_atomically(folder / stored_tokenizer(tokenizer).name, lambda file: file.write_bytes(content))
    weights = {name: _named_by_content(file, name) for name, file in staged.items()}
    card = msgspec.structs.replace(card, config=_named_by_content(config_file, "config"), weights=weights)
    write_card(folder / CARD, card)
    kept = {file.name for file in card.files}
    delete_listed(folder, (name for name in listed - kept if _NAME.fullmatch(name)))
    return card


def stored_tokenizer(tokenizer: Subwords) -> VerifiedFile:
    """The file that a tokenizer is in a model folder."""
    return VerifiedFile(f"tokenizer-{tokenizer.sha256[:8]}{tokenizer.suffix}", tokenizer.sha256, len(tokenizer.model))


def check_tokenizer(folder: str | Path, card: ModelCard, tokenizer: Subwords | None) -> None:
    """Raise UsageError where the tokenizer that is to be written is not the one that the card names."""
    if card.tokenizer != (None if tokenizer is None else stored_tokenizer(tokenizer)):
        wanted = "recipe.tokenizer" if card.tokenizer else "none"
        raise UsageError("the tokenizer is not the one that the model's card names", place=str(folder), wanted=wanted)


def sweep_model(folder: Path) -> None:
    """Remove files of ours that no card lists: of a run that was killed while it wrote them."""
    listed = _listed_in(folder)
    for file in [file for pattern in _PATTERNS for file in folder.glob(pattern) if file.name not in listed]:
        is_staged = name_in(file.name, file.suffix.removeprefix(".")) is not None
        if is_staged or (_NAME.fullmatch(file.name) and file.stem.endswith(digest_of_file(file)[:8])):
            file.unlink(missing_ok=True)


def _listed_in(folder: Path) -> set[str]:
    """The names of the files that the card in a folder lists; none where there is no card."""
    return {file.name for file in read_card(folder / CARD).files} if (folder / CARD).is_file() else set()


def _named_by_content(file: Path, name: str) -> VerifiedFile:
    """Move a file to the name that its content gives it."""
    sha256 = digest_of_file(file)
    stored = VerifiedFile(f"{name}-{sha256[:8]}{file.suffix}", sha256, file.stat().st_size)
    os.replace(file, file.with_name(stored.name))
    return stored
