"""Recipe: a model's YAML file, checked, and the modules that it makes."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import msgspec

from nemo_asr.augmentation import perturbation_types
from nemo_asr.data.dataset import Reading
from nemo_asr.data.labelled import classes_of
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.arguments import source_argument
from nemo_asr.run.manifest import Manifest, ManifestPaths, weighted_paths
from nemo_asr.run.options import LOSS_SETTING
from nemo_asr.run.text.parser import TextReading
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.shipped import config_path
from nemo_asr.tasks.connection_check import ConnectionCheck, constructor_problem, references_in
from nemo_asr.tasks.family import Model, family_of
from nemo_asr.tasks.registry import DATA_ROLES, ModuleSection, ModuleSections
from nemo_asr.text.proposal import AUTO, PUNCTUATED, Proposal, propose_labels
from nemo_asr.wenet_keys import load_model_config
from nemo_lite import DataLayerNM, NeuralModule, TrainableNM, logging
from nemo_lite.backends.pytorch.nm import without_weights
from nemo_lite.base.config import Config, build, override, parse_config, raise_if, shown
from nemo_lite.base.errors import ConfigError, NemoLiteError, UsageError
from nemo_lite.core import Reference
from nemo_lite.core.neural_module import keywords_of

_SHOWN_SETTING = 300  # characters of a value that was set, in the log
_SMOOTHING = "label_smoothing"  # a setting of the loss that has an option of its own

# load_recipe: a model's YAML into modules that fit each other. Sections are read in ``registry`` and checked in
# ``connection_check``, which builds all modules without weights and connects them; ``Recipe.model`` builds them anew.


# Any: which class a method gives is said by the file.
@dataclass(frozen=True)
class Recipe:
    """A checked model file. Each method builds a new module.

    Attributes:
        name: the model's name, or the file's without its ending.
        sample_rate: samples a second, the same in all parts.
        labels: the vocabulary, without the blank; of a classifier, the classes.
        config: what the file says, with what was set from outside: ``recipe_from_text(recipe.config.as_yaml(), name)``
            makes the same recipe. Values that are only there to be repeated are left out.
        family: the name of the model's family, such as ``ctc``.
        tokenizer: the subwords that the labels are, which cut texts; None where the labels are characters.
    """

    name: str
    sample_rate: int
    labels: list[str]
    config: Config
    family: str
    _parts: Mapping[str, ModuleSection]
    _derived: Mapping[str, Mapping[str, Any]]
    tokenizer: Subwords | None = None

    def data_layer(
        self, manifest: str | os.PathLike[str] | Sequence[str], training: bool, **overrides: Any
    ) -> DataLayerNM:
        """A data layer over a manifest, with the arguments for training or for evaluation.

        Args:
            manifest: where the data are: the first argument of the data layer's class.
            training: which of the two.
            overrides: arguments that win over the file's: ``batch_size``, ``num_workers``.

        Raises:
            DataError: data that cannot be used; for training also a text that is missing or empty.
            UsageError: the weight of a set is out of range; its class has no argument for an override; ``batch_size``
                is left out then.
        """
        role = "train" if training else "eval"
        part = self._parts[role]
        source, known = source_argument(part.target), keywords_of(part.target.__init__)
        if source == "manifest_filepath":
            weighted_paths(manifest)  # a mistake in it is none of the configuration's
        for name in [name for name in overrides if known is not None and name not in (*known, "batch_size")]:
            place, remedy = part.params.place(), f"leave --{name} out, or give its constructor a parameter {name}"
            raise UsageError(f"{part.target.__name__} takes no {name}", place=place, remedy=remedy)
        if not training and known is not None and "shuffle" in known and "shuffle" not in part.params:
            overrides = {"shuffle": False, **overrides}  # the default is for training, and told to have no effect here
        module: DataLayerNM = self._build(role, **{source: manifest, **overrides})
        if training and isinstance(module, SpeechDataLayer):
            module.require_texts()
        return module

    @property
    def reading(self) -> Reading:
        """How the data layer for evaluation reads recordings. Transcription and exported models read them so too."""
        part = self._parts["eval"]
        defaults = {name: parameter.default for name, parameter in signature(part.target).parameters.items()}
        trims, through_ints = (part.params.get(name, defaults.get(name)) for name in ("trim_silence", "int_values"))
        return Reading(self.sample_rate, trim_silence=trims is True, int_values=through_ints is True)

    @property
    def text_reading(self) -> TextReading:
        """How the data layer for evaluation reads texts; where it does not say, as `AudioToTextDataLayer` does."""
        part = self._parts["eval"]
        defaults = {name: parameter.default for name, parameter in signature(part.target).parameters.items()}
        values = {**defaults, **self._derived["eval"], **part.params}
        return msgspec.convert(
            {name: values[name] for name in TextReading.__struct_fields__ if name in values}, TextReading
        )

    def data_layer_class(self, training: bool) -> type:
        """The class of the data layer for training or for evaluation."""
        return self._parts["train" if training else "eval"].target

    def difference(self, other: Recipe) -> tuple[str, str, str] | None:
        """The first setting of the modules in which two recipes differ: its name, the value here, and the other's.

        How data are read, the labels and the smoothing of labels do not count.
        """
        mine, theirs = self._settings(), other._settings()
        for name in dict.fromkeys([*mine, *theirs]):
            one, another = mine.get(name), theirs.get(name)
            if one is not another and one != another:  # a default may be anything: NaN, which is not equal to itself
                here, there = (shown(of[name]) if name in of else "nothing" for of in (mine, theirs))
                return name, here, there
        return None

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"model": self.config["model"]} if "model" in self.config else {}
        for role, part in self._parts.items():
            if role not in DATA_ROLES:
                name = part.target.__name__
                parameters = signature(part.target).parameters.values()
                defaults = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
                values = {**defaults, **part.implied, **part.params.plain()}
                values.pop("label_smoothing", None)
                settings[name] = "a section"
                settings |= _flat(name, values)
        return settings

    @property
    def task(self) -> str:
        """``transcription`` or ``classification``, as its family says."""
        return family_of(self.family).task

    def model(self, with_weights: bool = True, intermediate_ctc: float = 0.0) -> Model:
        """All modules but the data layers; without weights, encoder and decoders can be shown but not run.

        Args:
            with_weights: make weights.
            intermediate_ctc: the weight of intermediate CTC in the training loss, from 0 (none), below 1; of the block
                ``intermediate_block`` of the encoder where the file has it, else of that of half the depth.

        Raises:
            UsageError: the recipe is a classifier's; intermediate CTC of a family or an encoder that has none, or with
                a weight out of range.
        """
        self._check_task("transcription", "nemo-lite train and eval find the right script, code calls classifier()")
        return self._model(with_weights, intermediate_ctc)

    def _model(self, with_weights: bool, intermediate_ctc: float = 0.0) -> Model:
        roles = [role for role in family_of(self.family).roles if role in self._parts]
        modules: dict[str, NeuralModule] = {}
        intermediate: dict[str, NeuralModule] = {}
        for role in self._behind_references(["encoder", *roles]):  # this order decides which weights are drawn first
            if role in modules:
                continue
            target = self._parts[role].target
            references = {name: Reference(modules[name]) for name in references_in(target)}
            with without_weights(not with_weights and issubclass(target, TrainableNM)):
                if role == "encoder" and intermediate_ctc:
                    modules[role], intermediate = self._encoder_with_intermediate(intermediate_ctc)
                else:
                    modules[role] = self._build(role, **references)
        return Model.of(modules, self.family, intermediate)

    def _behind_references(self, roles: Iterable[str]) -> Iterator[str]:
        """The roles, each behind those that it refers to; some more than once."""
        for role in roles:
            yield from self._behind_references(references_in(self._parts[role].target))
            yield role

    def _encoder_with_intermediate(self, weight: float) -> tuple[NeuralModule, dict[str, NeuralModule]]:
        if not 0 < weight < 1:
            raise UsageError("intermediate_ctc is out of range", got=str(weight), wanted="a number from 0, below 1")
        part = self._parts["encoder"]
        if "intermediate_block" not in signature(part.target).parameters:
            problem, place = "the encoder gives no intermediate output", self.config.place()
            remedy = "train without intermediate CTC, or with an encoder that takes intermediate_block"
            raise UsageError(problem, place=place, got=part.target.__name__, remedy=remedy)
        block = part.params.get("intermediate_block")
        encoder = self._build("encoder", intermediate_block=-1 if block is None else block)
        channels = encoder.output_ports["intermediate"].axes[1].size
        return encoder, family_of(self.family).intermediate(channels, len(self.labels), weight, self.loss)

    def classifier(self, with_weights: bool = True) -> Model:
        """As :meth:`model`, of a recipe of classes.

        Raises:
            UsageError: the recipe is that of a model that transcribes.
        """
        self._check_task("classification", "its data layer decides: one of recordings with classes")
        return self._model(with_weights)

    def with_head(self, head: str) -> Recipe:
        """The recipe of a model that has one of the ``heads`` of this one's family alone."""
        family = family_of(self.family).heads[head]
        if family == self.family:
            return self
        roles = family_of(family).roles
        left_out = [
            part.target.__name__
            for role, part in self._parts.items()
            if role not in (*roles, *DATA_ROLES) or (role in ("loss", "search") and part.family != family)
        ]
        text = f"family: {family}\n{self.config.without('family', *left_out).as_yaml()}"
        return recipe_from_text(text, self.name, tokenizer=self.tokenizer, for_training=False)

    def _check_task(self, task: str, remedy: str) -> None:
        if self.task != task:
            problem = "the configuration is for another task"
            raise UsageError(problem, place=self.config.place(), got=self.task, wanted=task, remedy=remedy)

    def preprocessor(self) -> Any:
        """Waveform to features."""
        return self._build("preprocessor")

    def spec_augmentation(self) -> Any:
        """Masks in features; None if the file has no section for it."""
        return self._build("augmentation")

    def multiply_batch(self) -> Any:
        """Repeats a batch; None if the file has no section for it."""
        return self._build("multiplier")

    def encoder(self) -> Any:
        """Features to encoded frames."""
        return self._build("encoder")

    def decoder(self) -> Any:
        """Encoded frames to log-probabilities of the labels and the blank."""
        return self._build("decoder")

    def loss(self) -> Any:
        """Log-probabilities and texts to the loss."""
        return self._build("loss")

    def search(self) -> Any:
        """Log-probabilities to each frame's best label."""
        return self._build("search")

    def _build(self, role: str, **overrides: Any) -> Any:
        if role not in self._parts:
            return None
        part, arguments = self._parts[role], {**self._derived[role], **overrides}
        try:
            return build(part.target, part.params.without(*arguments), **arguments)
        except (NemoLiteError, BrokenPipeError):
            raise
        except Exception as error:  # a class of a user's own may raise anything
            raise ConfigError(constructor_problem(part, error)) from error


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a model's file, in any schema of NeMo 0.x.

    Everything is checked before anything is built: each section against the constructor that it is for, and the
    sections against each other, by connecting them.

    Args:
        path: the file, or the name of a configuration that comes with the package.
        overrides: values that win over the file's, each ``KEY=VALUE``, see ``nemo_lite.base.config.override``. What was
            set is logged.

    Raises:
        ConfigError: all that is wrong with it, one line each with file, line and column: unknown sections and keys,
            wrong types and values, labels given twice, sections that disagree about the sample rate or the labels, and
            modules that do not fit each other. What is wrong with an override has ``--set KEY=VALUE`` as its place.
    """
    path = config_path(path)
    return _recipe(load_model_config(path), path.stem, overrides, folder=str(path.parent))


def recipe_from_text(
    text: str,
    name: str,
    overrides: Sequence[str] = (),
    *,
    tokenizer: Subwords | None = None,
    for_training: bool = True,
) -> Recipe:
    """As ``load_recipe``, from a text.

    Args:
        text: a file's content.
        name: stands for the file in messages.
        overrides: as there.
        tokenizer: that of the model whose configuration it is: used in place of the file that the text names.
        for_training: without it, perturbations that are not registered are an error only where a data layer for
            training is made: a model does not need them.

    Raises:
        ConfigError: as there.
    """
    config = parse_config(text, name)
    return _recipe(config, Path(name).stem, overrides, carried=tokenizer, for_training=for_training)


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The values in mappings and lists by dotted names; a list of numbers or texts is one value."""
    if isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    return {key: each for own, inner in value.items() for key, each in _flat(f"{name}.{own}", inner).items()}


def _recipe(
    config: Config,
    stem: str,
    overrides: Sequence[str],
    folder: str = "",
    carried: Subwords | None = None,
    for_training: bool = True,
) -> Recipe:
    name = ""
    if any(setting.startswith(LOSS_SETTING) for setting in overrides):
        loss = ModuleSections(config).by_role.get("loss")
        name = "loss" if loss is None else loss.target.__name__
        overrides = [re.sub(f"^{re.escape(LOSS_SETTING)}", f"{name}.", setting) for setting in overrides]
    config = override(config, overrides)
    parts = ModuleSections(config)
    checked = dict(parts.by_role)
    if not for_training:
        for role in DATA_ROLES:
            # Perturbations of which some are not registered are not looked at, unless one was set from outside.
            params = checked[role].params
            perturbations = params.get("augmentor")
            are_known = not isinstance(perturbations, Config) or perturbations.keys() <= perturbation_types.keys()
            if not are_known and not params.overridden("augmentor"):
                checked[role] = replace(checked[role], params=params.without("augmentor"))
    check = ConnectionCheck(config, checked, family_of(parts.family), folder, carried)
    problems = [*parts.problems, *check.problems]
    raise_if(problem.replace(f"--set {name}.{_SMOOTHING}=", f"--{_SMOOTHING} ") for problem in problems)
    for setting in overrides:
        logging.info("Set in the configuration: %s", textwrap.shorten(setting, _SHOWN_SETTING, placeholder="..."))
    name = config.get("model", config.get("name", stem))
    resolved = config.without(*parts.repeated)
    # The data layer for training keeps its perturbations: it says what is wrong with them when it is made.
    by_role = {**checked, "train": parts.by_role["train"]}
    return Recipe(
        name, check.sample_rate, check.labels, resolved, parts.family, by_role, check.derived, check.tokenizer
    )


# What is known of a configuration before its recipe is made: its task, and the classes that its data decide.


def task_of(path: str | os.PathLike[str]) -> str:
    """``transcription`` or ``classification``: what the configuration in this file is for.

    Raises:
        ConfigError: the file cannot be read.
    """
    return family_of(ModuleSections(load_model_config(path)).family).task


def load_class_recipe(path: str | os.PathLike[str], manifest: ManifestPaths, overrides: Sequence[str] = ()) -> Recipe:
    """As ``load_recipe``; labels that the file lacks, or that are ``auto``, are a manifest's classes, sorted as texts.

    Args:
        path: the file, or the name of a configuration that comes with the package.
        manifest: the training set.
        overrides: values that win over the file's, each ``KEY=VALUE``.

    Raises:
        ConfigError, DataError: what is wrong with the file, or with the manifest.
    """
    overrides = [setting for setting in overrides if setting != f"labels={AUTO}"]
    set_keys = [setting.split("=")[0] for setting in overrides]
    config = load_model_config(path)
    sections = [config, *(value for value in config.values() if isinstance(value, Config))]
    sections += [inner for section in sections if isinstance(inner := section.get("init_params"), Config)]
    has_labels = any(section.get("labels", AUTO) != AUTO for section in sections)
    if "labels" not in set_keys and not has_labels:
        classes = sorted(set(classes_of(Manifest.open(manifest, lenient=True))))
        overrides = [*overrides, f"labels={json.dumps(classes, ensure_ascii=False)}"]
    return load_recipe(path, overrides)


def labels_are_auto(path: str | os.PathLike[str] | None, overrides: Sequence[str] = ()) -> bool:
    """Whether a configuration leaves its labels to the texts of the training set: ``auto`` or ``auto_punctuated``.

    Args:
        path: the file, or the name of a configuration that comes with the package; None: one that has its labels.
        overrides: values that win over the file's, each ``KEY=VALUE``.

    Raises:
        ConfigError: the file cannot be read, or it has a tokenizer as well, whose pieces are the labels.
    """
    config = override(load_model_config(path), overrides) if path else None
    labels = _setting("labels", overrides) if config is None else config.get("labels")
    is_auto = labels in (AUTO, PUNCTUATED)
    if is_auto and config is not None and config.get("tokenizer") is not None:
        raise ConfigError(
            f"{config.place('labels')}: labels is {labels}, and tokenizer gives labels; leave one of them out"
        )
    return is_auto


def _setting(key: str, overrides: Sequence[str]) -> str | None:
    """The last value that overrides give a key; None: none."""
    values = [value.strip("\"'") for name, _, value in (each.partition("=") for each in overrides) if name == key]
    return values[-1] if values else None


def with_labels(overrides: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Overrides with these labels in the place of those that overrides give."""
    others = [setting for setting in overrides if not setting.startswith("labels=")]
    return [*others, f"labels={json.dumps(list(labels), ensure_ascii=False)}"]


def labels_for(manifest: ManifestPaths, overrides: Sequence[str] = (), path: str | None = None) -> Proposal:
    """The labels that the texts of a training set need.

    Args:
        manifest: the training set.
        overrides: of the configuration; its ``language`` decides how numbers are read, its ``labels`` whether case and
            punctuation are kept.
        path: of the configuration.

    Raises:
        DataError: what is wrong with the manifest, or no text has a letter.
    """
    config = override(load_model_config(path), overrides) if path else {}
    language, labels = (_setting(key, overrides) or config.get(key) for key in ("language", "labels"))
    return propose_labels(Manifest.open(manifest, lenient=True).texts(), language, labels == PUNCTUATED)
