"""load_model: a trained model by its folder, filled with its weights: it transcribes, and is evaluated."""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import nn

import nemo_lite
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.published.catalogue import door, repository_of
from nemo_asr.run.engines import BATCH_SIZE, Prompt, TranscriptionSettings
from nemo_asr.run.options import FOREIGN_MODELS, OnnxRuntime
from nemo_asr.run.text.parser import CharParser
from nemo_asr.run.transcribe.alignment import Aligned, Alignment, SentenceCutting, align_texts
from nemo_asr.run.transcribe.driver import row_transcriber, segment_stream, transcribe
from nemo_asr.run.transcribe.inputs import Recording, one_channel, recordings_in
from nemo_asr.run.transcribe.stream import EndpointRules, FrameStream, Stream
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript
from nemo_asr.tasks.family import Model, connect, family_of
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.engine import SpeechDetector, TorchEngine, set_to_evaluation
from nemo_asr.trained.folder import (
    MODEL,
    ModelCard,
    StoredModel,
    card_in,
    check_new_model,
    foreign_format,
    local_path,
    read_model,
    stored_tokenizer,
    write_model,
)
from nemo_asr.trained.lora import save_merged
from nemo_asr.trained.streamed_model import StreamedModel, streamed_model
from nemo_asr.trained.windows import stride_of
from nemo_lite.backends.pytorch.checkpoint.fitting import fill_fitted
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError
from nemo_lite.base.files import (
    digest_of_file,
    make_writable_folder,
    temporary_name,
)
from nemo_lite.base.options import Device, Launch, arguments_of, names_of
from nemo_lite.core.neural_module import unique_names
from nemo_lite.utils import logging

if TYPE_CHECKING:
    from nemo_lite import NeuralModule, NeuralModuleFactory

# Settings that have an effect where no recording is cut, and where a text is known.
_OF_ONE_BATCH = ("batch_seconds", "decoder", "calibration")
_OF_ALIGNMENT = ("batch_size", "batch_seconds", "num_workers", "worker_timeout", "cutting", "detector", "verbose")


class TrainedModel:
    """A model with trained weights.

    Attributes:
        place: where it was loaded from; of a published model its name.
        recipe: its configuration, for data layers.
        modules: its modules, for DAGs: ``nemo_asr.connect(model.modules, data_layer)``.
        card: labels, sample rate, step, error rates and more.
    """

    def __init__(self, place: str, recipe: Recipe, modules: Model, card: ModelCard) -> None:
        self.place, self.recipe, self.modules, self.card = place, recipe, modules, card

    def transcribe(
        self, audio: Sequence[Any], sample_rate: int | None = None, batch_size: int = BATCH_SIZE, **settings: Any
    ) -> list[Transcript]:
        """What is said in recordings, in the order given: text, words with times and confidences, duration.

        Confidences are calibrated where the card has a calibration; ``calibration=None`` gives the model's own.

        Args:
            audio: paths, content of audio files, or arrays of samples, (T,), (channels, T) or (T, channels).
            sample_rate: of the arrays, in Hz; files say their own.
            batch_size: most recordings in a batch.
            settings: of :meth:`transcribed`.

        Returns:
            A transcript for each, with ``channel="each"`` for each channel of each; on ranks above 0 nothing.

        Raises:
            DataError: recordings that cannot be read; all are named.
            UsageError: an array without a sample rate or of a kind that is no audio; a channel that can be none;
                numbers out of range; ``nbest`` of a decoder without it.
        """
        return self.transcribed(audio, audio_rate=sample_rate, batch_size=batch_size, **settings).or_error()

    def transcribed(
        self,
        audio: Sequence[Any],
        *,
        audio_rate: int | None = None,
        channel: int | str | None = None,
        factory: NeuralModuleFactory | None = None,
        head: str | None = None,
        **settings: Any,
    ) -> Transcribed:
        """As :meth:`transcribe`, with the reasons of recordings that cannot be read in the place of an error.

        Args:
            audio: also `Recording` objects, see `recordings_in`.
            audio_rate: samples a second of the arrays.
            channel: of recordings with several: one from 0, ``mix`` or None for the average of all, or ``each`` for a
                transcript of each, one after the other; then faults count these. A channel of a `Recording` comes
                before.
            factory: where and in which precision to run; by default the one made last, or a new one, in float32.
            head: of a model with several, see :meth:`with_head`.
            settings: ``decoder``, a search in the place of the model's, and all of `TranscriptionSettings`.
        """
        model = self if head is None else self.with_head(head)
        recordings = recordings_in(audio, audio_rate, channel)
        return transcribe(ModelEngine(model, factory), recordings, model._settings(**settings))

    def _settings(self, decoder: NeuralModule | None = None, **settings: Any) -> TranscriptionSettings:
        return TranscriptionSettings(**{"search": decoder, "calibration": self.card.calibration, **settings})

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
        by_frames = decoder is None or hasattr(decoder, "stream")
        of_segments = settings.keys() - {"name", "calibration", "factory", *(["decoder"] if by_frames else [])}
        if by is None:
            by = "segments" if of_segments or self.stream_problem() else "frames"
        if by == "frames":
            if of_segments:
                got = ", ".join(sorted(of_segments - {"decoder"})) or f"a decoder {type(decoder).__name__}"
                raise UsageError("settings of streams in segments", place="stream", got=got, remedy='by="segments"')
            settings = {"calibration": self.card.calibration, "domain": self.card.domain, **settings}
            return FrameStream(self.streamed(settings.pop("factory", None)), rate, rules, **settings)
        of_stream = {name: settings.pop(name) for name in ("cutting", "partial_seconds", "name") if name in settings}
        engine = ModelEngine(self, settings.pop("factory", None))
        _refuse_others(settings, _OF_ONE_BATCH, "stream")
        return segment_stream(engine, self._settings(**settings), rate, **of_stream)

    def with_head(self, head: str) -> TrainedModel:
        """The same modules as a model of one head alone; its card has no rates and calibration of the other one.

        Args:
            head: such as ``ctc``: one of those that ``nemo-lite models show`` tells.

        Raises:
            UsageError: the model has no such head.
        """
        family = family_of(self.modules.family)
        if head not in family.heads:
            wanted = " or ".join(family.heads) or "none: it has one that has no name"
            raise UsageError("the model has no such head", place=self.place, got=head, wanted=wanted)
        if len(family.heads) == 1:
            return self
        is_default = head == next(iter(family.heads))
        card = (
            self.card
            if is_default
            else msgspec.structs.replace(
                self.card, rates=[], calibration=None, streams=[], certificates=[], domain=None
            )
        )
        modules = family.with_head(head, self.modules, self.recipe.labels)
        return TrainedModel(self.place, self.recipe.with_head(head), modules, card)

    def set_language(self, language: str) -> None:
        """The language of all recordings from now on, of a model that takes it as a prompt.

        Args:
            language: one that the model knows, such as ``de-DE``, or ``auto``.

        Raises:
            UsageError: the model takes no language, or does not know this one.
        """
        self._tell("set_language", language, "the model takes no language")

    def set_target_language(self, language: str) -> None:
        """The language of all texts from now on, of a model that translates, such as Canary.

        Args:
            language: one that the model knows.

        Raises:
            UsageError: the model takes none, or does not know this one.
        """
        self._tell("set_target_language", language, "the model takes no language of texts")

    def set_punctuation(self, punctuation: bool) -> None:
        """Whether texts have punctuation marks and capital letters from now on, of a model that can be told.

        Raises:
            UsageError: the model cannot.
        """
        problem, got = "the model cannot be told whether to write punctuation", "on" if punctuation else "off"
        self._tell("set_punctuation", punctuation, problem, got)

    def set_task(self, task: str) -> None:
        """What is written of all recordings from now on, of a model that has tasks, such as Whisper.

        Args:
            task: ``transcribe``, what is said; or ``translate``, the same in English.

        Raises:
            UsageError: the model has no tasks, or not this one.
        """
        by_language = any(self._said_by_modules("set_target_language"))
        remedy = "say the language of the text instead: --target_language" if by_language else "leave it out"
        self._tell("set_task", task, "the model has no tasks", remedy=remedy)

    def set_timestamps(self, timestamps: bool) -> None:
        """Whether a model that can, such as Whisper, finds when parts of a text are said, from now on.

        Raises:
            UsageError: the model cannot.
        """
        self._tell("set_timestamps", timestamps, "the model finds no times", "timestamps")

    @property
    def languages(self) -> list[str]:
        """Those that can be set; none: the model takes no language."""
        return next(self._said_by_modules("languages"), [])

    @property
    def translates(self) -> bool:
        """Whether it can write in English what is said in other languages."""
        if tasks := [*self._said_by_modules("tasks")]:
            return "translate" in tasks[0]
        return any(self._said_by_modules("set_target_language")) and "en" in self.languages

    def with_prompt(self, prompt: Prompt) -> TrainedModel:
        """A model of the same weights with this prompt for all recordings; this one stays as it is.

        Raises:
            UsageError: the model cannot be told it.
        """
        parts = [module for module in self.modules.modules.values() if isinstance(module, nn.Module)]
        shared = {id(tensor): tensor for part in parts for tensor in (*part.parameters(), *part.buffers())}
        model = TrainedModel(self.place, self.recipe, deepcopy(self.modules, shared), self.card)
        if prompt.language:
            model.set_language(prompt.language)
        if prompt.translate:
            if not self.translates:
                raise UsageError("the model does not translate", place=self.card.name)
            if any(self._said_by_modules("tasks")):
                model.set_task("translate")
            else:
                model.set_target_language("en")
        return model

    def _said_by_modules(self, name: str) -> Iterator[Any]:
        return (getattr(module, name) for module in self.modules.modules.values() if hasattr(module, name))

    def _tell(self, method: str, value: object, problem: str, got: str = "", remedy: str = "leave it out") -> None:
        """Call a method of the module that has it; ``got`` says what was asked for where the value does not.

        Raises:
            UsageError: none has.
        """
        module = next((module for module in self.modules.modules.values() if hasattr(module, method)), None)
        if module is None:
            raise UsageError(problem, place=self.place, got=got or str(value), remedy=remedy)
        getattr(module, method)(value)

    def set_att_context_size(self, att_context_size: Sequence[int]) -> None:
        """What the attention of a Conformer sees from now on, so that it streams with that look-ahead.

        Args:
            att_context_size: encoded frames before and behind, in chunks of one more than the second.

        Raises:
            UsageError: the encoder has no attention, or the first number is no multiple of one more than the second.
        """
        encoder = self.modules.encoder
        if not hasattr(encoder, "set_default_att_context_size"):
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

    def batch_transcriber(
        self, factory: NeuralModuleFactory | None = None, **settings: Any
    ) -> Callable[[Sequence[Recording]], Transcribed]:
        """For a program that serves: see `row_transcriber`.

        Args:
            factory: where and in which precision to run; by default the one made last, or a new one, in float32.
            settings: ``batch_seconds``, ``decoder`` and ``calibration``, as of :meth:`transcribed`.
        """
        _refuse_others(settings, _OF_ONE_BATCH, "batch_transcriber")
        return row_transcriber(ModelEngine(self, factory), self._settings(**settings))

    def align(
        self,
        audio: Sequence[Any],
        texts: Sequence[str],
        sample_rate: int | None = None,
        batch_size: int = BATCH_SIZE,
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
        factory: NeuralModuleFactory | None = None,
        sentences: SentenceCutting | None = None,
        delay: float | None = None,
        **settings: Any,
    ) -> Aligned:
        """As :meth:`align`, with the reasons of recordings that cannot be aligned in the place of an error.

        Args:
            audio: also `Recording` objects, see `recordings_in`.
            texts: what is said in each.
            audio_rate: samples a second of arrays.
            channel: of recordings with several: one from 0, or ``mix``; None: the average of all.
            factory: where and in which precision to run, as of :meth:`transcribed`.
            sentences: how sentences become segments: at pauses, not too long and not too short; None: each is one.
            delay: seconds by which the model writes labels behind their sounds; None: measured where speech begins.
            settings: of `TranscriptionSettings`, but for those of a search and of its results.

        Raises:
            UsageError: a setting has no effect on an alignment; numbers out of range.
        """
        _refuse_others(settings, _OF_ALIGNMENT, "align")
        recordings = recordings_in(audio, audio_rate, one_channel(channel))
        settings_of_all = TranscriptionSettings(**settings)
        return align_texts(ModelEngine(self, factory), recordings, texts, settings_of_all, sentences, delay)

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
            save_merged(type(module).__name__, module.state_dict(), staged[name])
        if licence is not None:
            self.card = msgspec.structs.replace(self.card, licence=licence)
        self.card = write_model(path, self.card, self.recipe.config.as_yaml(), staged, self.recipe.tokenizer)
        return self.card


class ModelEngine(TorchEngine):
    """A loaded model as an engine, see `Engine`; arguments and errors of the factory are those of `TorchEngine`."""

    def __init__(self, model: TrainedModel, factory: NeuralModuleFactory | None = None) -> None:
        card, reading = model.card, model.recipe.reading
        super().__init__(
            model.modules,
            card.labels,
            card.sample_rate,
            factory,
            trim_silence=reading.trim_silence,
            int_values=reading.int_values,
        )
        self.loaded, self.calibration = model, card.calibration
        self.domain = card.domain
        self.languages, self.translates = model.languages, model.translates

    def with_prompt(self, prompt: Prompt) -> ModelEngine:
        """See `Engine`."""
        return ModelEngine(self.loaded.with_prompt(prompt), self._factory)

    def new_parser(self) -> CharParser:
        """See `Engine`."""
        recipe = self.loaded.recipe
        return recipe.text_reading.new_parser(recipe.tokenizer or self.labels)

    def frame_model(self) -> StreamedModel:
        """See `Engine`."""
        return self.loaded.streamed(self._factory)

    def usual_confidence(self) -> tuple[str, float] | None:
        """See `Engine`."""
        return self.loaded.card.usual_confidence()


def load_model(
    path: str | Path,
    *,
    recipe: Recipe | None = None,
    factory: NeuralModuleFactory | None = None,
    overrides: Sequence[str] = (),
) -> TrainedModel:
    """Load a trained model; the log says from which file and step. Its modules are in evaluation mode.

    Args:
        path: a run's folder (its best model, or its newest checkpoint where it has no model yet), a model folder, a
            folder of checkpoints, a model of another toolkit, or the name of a published one, which is downloaded.
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
    if factory is None:
        stored = read_model(path)
    else:
        stored = StoredModel.unpacked(factory.from_first(lambda: read_model(path).packed()))
    if repository_of(path) is not None:  # its user does not know the folder in the cache
        stored = stored._replace(place=str(path))
    place = stored.place
    if recipe is not None:
        _compare(recipe, stored.card, place, "leave --model_config out: the model carries its own")
    elif stored.config:
        name = f"{place} (configuration)"
        recipe = recipe_from_text(stored.config, name, overrides, tokenizer=stored.tokenizer, for_training=False)
        _compare(recipe, stored.card, place, "leave --set out")
    else:
        remedy = "give the model's configuration as well (--model_config)"
        raise CheckpointError("the checkpoint carries no configuration", place=place, remedy=remedy)
    return stored._replace(card=completed(stored.card, recipe)), recipe


def completed(card: ModelCard, recipe: Recipe) -> ModelCard:
    """The card of a model that does not describe itself: of a script, of NeMo 0.x or of another toolkit."""
    if card.labels:
        return card
    made = describe(recipe, card.licence)
    kept = {"step": card.step, "epoch": card.epoch, "versions": card.versions or made.versions, "sources": card.sources}
    return msgspec.structs.replace(made, **kept)


def import_model(source: str | Path, folder: str | Path | None = None, licence: str | None = None) -> TrainedModel:
    """Write a model folder of another toolkit's model; its card has the SHA-256 of each file that was read.

    Args:
        source: a file or folder of one of :data:`FORMATS`, or the name of a published model.
        folder: the folder to write; by default, beside a file, its name without the ending, and in a folder ``model``,
            which then stands for it. Of a published model it is its name, in the working directory.
        licence: of the weights, as the user says it; by default, of a published model by name, as its publisher does.

    Raises:
        CheckpointError, ConfigError: the source is none, or cannot be read.
        UsageError: there is a model in the folder already, or it cannot be written to.
    """
    path = Path(source).expanduser()
    repository = repository_of(source)
    if folder is not None:
        target = Path(folder).expanduser()
    elif repository is not None:
        target = Path(Path(repository.name).name)
    else:
        target = path / MODEL if path.is_dir() else path.with_suffix("")
    if repository is None and foreign_format(path) is None:
        got = "a folder" if path.is_dir() else "a file" if path.exists() else "nothing"
        wanted, remedy = ", ".join(FOREIGN_MODELS), door(source)
        raise CheckpointError("there is nothing to import", place=str(path), got=got, wanted=wanted, remedy=remedy)
    check_new_model(target)
    path = local_path(source)
    model = load_model(source)
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
        fill_fitted(module, stored.weights[name], f"{place}, {name}")
    set_to_evaluation(modules)
    model = TrainedModel(place, recipe, modules, stored.card)
    # How long another toolkit trained its model is not known.
    is_foreign = bool(stored.card.sources) and not stored.card.step
    logging.info("Loaded %s%s", place, "" if is_foreign else f": {stored.card.progress()}")
    return model


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


def versions() -> dict[str, str]:
    """Of what a model is written with."""
    return {"nemo_lite": nemo_lite.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def labels_of_run(folder: str | Path) -> list[str] | None:
    """The labels of the model in a run's newest checkpoint; None where there is no checkpoint, or it says none."""
    checkpoint = CheckpointFolder(folder).latest()
    card = card_in(checkpoint) if checkpoint else None
    return card.labels or None if card else None


def check_goes_on(folder: str | Path, recipe: Recipe, lora: str = "") -> None:
    """See that the checkpoint from which a run would go on is of a model with these labels and this configuration.

    How data are read may differ. ``lora``: the options that say which updates are trained; "": none.

    Raises:
        CheckpointError: it is not. Nothing is said where there is no checkpoint, or one that says nothing about it.
    """
    checkpoint = CheckpointFolder(folder).latest()
    card = card_in(checkpoint) if checkpoint else None
    if checkpoint is None or card is None:
        return
    remedy = "give the configuration that the run began with, or another --exp_name"
    _compare(recipe, card, str(checkpoint), remedy)
    if (begun := checkpoint.about.get("lora", "")) != lora:
        problem, place = "the run did not begin with these updates of attention", str(checkpoint)
        got, wanted = lora or "no --lora", f"{begun or 'no --lora'} as in the checkpoint"
        raise CheckpointError(problem, place=place, got=got, wanted=wanted, remedy="give these, or another --exp_name")
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


def _refuse_others(settings: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    if others := [name for name in settings if name not in known]:
        raise UsageError("settings without an effect", place=place, got=", ".join(others), wanted=", ".join(known))


# What `nemo_asr.run.engines` asks of a runtime.


def refuse_options(paths: Sequence[str], args: Namespace) -> None:
    """UsageError for options that only ONNX files know."""
    unknown = [f"--{name}" for name in sorted(names_of(OnnxRuntime)) if getattr(args, name)]
    if unknown:
        problem, remedy = "only an ONNX file knows these options", "leave them out, or give a file of nemo-lite export"
        raise UsageError(problem, got=", ".join(unknown), remedy=remedy)


def open_engines(paths: Sequence[str], args: Namespace) -> list[ModelEngine]:
    """Trained models, on the device and the ranks of the options."""
    factory = nemo_lite.NeuralModuleFactory(**arguments_of(args, *([Launch] if "launcher" in args else []), Device))
    models = (load_model(path, factory=factory) for path in paths)
    head = getattr(args, "head", None)
    chosen = [model if head is None else model.with_head(head) for model in models]
    for model in chosen:
        tell_prompt(model, args)
    return [ModelEngine(model, factory) for model in chosen]


def tell_prompt(model: TrainedModel, args: Namespace) -> None:
    """Set what `PromptOptions` say, where a command has them.

    Raises:
        UsageError: the model cannot be told it.
    """
    for name, tell in (
        ("prompt_language", model.set_language),
        ("target_language", model.set_target_language),
        ("punctuation", lambda value: model.set_punctuation(value == "on")),
        ("prompt_task", model.set_task),
        ("timestamps", lambda value: model.set_timestamps(True) if value else None),
        ("att_context_size", model.set_att_context_size),
    ):
        if (value := getattr(args, name, None)) is not None:
            tell(value)


def open_stream_engine(path: str, args: Namespace) -> ModelEngine:
    """A trained model for streams by frames."""
    (engine,) = open_engines([path], args)
    return engine


def open_detector(path: str) -> SpeechDetector:
    """A classifier one of whose classes is ``speech``."""
    return load_classifier(path).speech_detector()
