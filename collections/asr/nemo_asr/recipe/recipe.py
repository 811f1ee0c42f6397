"""load_recipe: a model's YAML into modules that fit each other. Schemas are read in ``recipe_sections``.

Everything is checked before anything is built: each section against the constructor that it is for, and the sections
against each other. All that is wrong is told at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from nemo_asr.data.audio_to_text import AudioToTextDataLayer
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.features.augmentation import MultiplyBatch, SpectrogramAugmentation
from nemo_asr.features.base import AudioPreprocessor
from nemo_asr.models.jasper import JasperDecoderForCTC, JasperEncoder
from nemo_asr.models.jasper_spec import block_problems
from nemo_asr.models.losses import CTCLossNM
from nemo_asr.recipe.sections import MODEL_KEYS, Part, Parts, read_parts
from nemo_asr.text.parser import vocabulary
from nemo_lite.config import Config, build, check_call, load_config, raise_if, shown
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.errors import ConfigError

M = TypeVar("M")

DEFAULT_SAMPLE_RATE = 16000

# The argument that says how many features a preprocessor gives; where none does, they follow from others.
_FEATURES_KEYS = ("features", "n_mfcc")


@dataclass(frozen=True)
class Recipe:
    """A checked model file. Each method builds a new module.

    Attributes:
        name: the model's name, or the file's without its ending.
        sample_rate: samples a second, the same in all parts.
        labels: the vocabulary, without the blank.
    """

    name: str
    sample_rate: int
    labels: list[str]
    _parts: Mapping[str, Part]
    _given: Mapping[str, Mapping[str, Any]]

    def data_layer(self, manifest: str | Sequence[str], training: bool, **overrides: Any) -> AudioToTextDataLayer:
        """A data layer over a manifest, with the arguments for training or for evaluation.

        Args:
            manifest: as `AudioToTextDataLayer` takes it.
            training: which of the two.
            overrides: arguments that win over the file's: ``batch_size``, ``num_workers``.
        """
        role = "train" if training else "eval"
        given = {**self._given[role], "manifest_filepath": manifest, **overrides}
        return build(AudioToTextDataLayer, self._parts[role].params.without(*given), **given)

    def preprocessor(self) -> AudioPreprocessor:
        """Waveform to features."""
        return self._made(AudioPreprocessor, "preprocessor")

    def spec_augmentation(self) -> SpectrogramAugmentation | None:
        """Masks in features, if the file has any."""
        return self._made(SpectrogramAugmentation, "augmentation") if "augmentation" in self._parts else None

    def multiply_batch(self) -> MultiplyBatch | None:
        """Repeats a batch, if the file asks for it."""
        return self._made(MultiplyBatch, "multiplier") if "multiplier" in self._parts else None

    def encoder(self) -> JasperEncoder:
        """Features to encoded frames."""
        return self._made(JasperEncoder, "encoder")

    def decoder(self) -> JasperDecoderForCTC:
        """Encoded frames to log-probabilities of the labels and the blank."""
        return self._made(JasperDecoderForCTC, "decoder")

    def loss(self) -> CTCLossNM:
        """Connectionist temporal classification over the labels."""
        return self._made(CTCLossNM, "loss")

    def greedy(self) -> GreedyCTCDecoder:
        """Log-probabilities to each frame's best label."""
        return self._made(GreedyCTCDecoder, "greedy")

    def _made(self, kind: type[M], role: str) -> M:
        part = self._parts[role]
        module = build(part.target, part.params, **self._given[role])
        assert isinstance(module, kind)
        return module


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read and check a model's file, in any schema of NeMo 0.x.

    Raises:
        ConfigError: all that is wrong with it, one line each with file, line and column: unknown sections and keys,
            wrong types and values, labels given twice, sections that disagree about the sample rate, the features or
            the labels.
    """
    config = load_config(path)
    parts = read_parts(config)
    check = _Check(config, parts)
    raise_if([*parts.problems, *check.problems])
    name = config.get("model", config.get("name", Path(path).stem))
    return Recipe(name, check.sample_rate, check.labels, parts.by_role, check.given)


def _model_keys(
    model: str = "", name: str = "", sample_rate: int = DEFAULT_SAMPLE_RATE, labels: Sequence[Any] = ()
) -> None:
    """The keys of a file that belong to no module."""


class _Check:
    """The parts against their constructors and against each other.

    Attributes:
        problems: one line each.
        given: for each role the arguments that follow from other parts, where its own section leaves them out.
    """

    def __init__(self, config: Config, parts: Parts) -> None:
        self._config, self._parts = config, parts.by_role
        model = config.without(*(key for key in config if key not in MODEL_KEYS))
        self.problems = check_call(model, _model_keys)
        self.given: dict[str, dict[str, Any]] = {}
        self.sample_rate = self._sample_rate(model)
        self.labels = self._labels(model)
        for role in ("train", "eval"):
            self._fits(role, {"manifest_filepath", "batch_size"}, labels=self.labels, sample_rate=self.sample_rate)
        preprocessor = self._preprocessor()
        self._decoder(self._encoder(preprocessor))
        self._tried("loss", num_classes=len(self.labels))
        for role in ("augmentation", "multiplier", "greedy"):
            self._tried(role)

    def _sample_rate(self, model: Config) -> int:
        roles = ("train", "eval", "preprocessor")
        holders = [model, *(self._parts[role].params for role in roles if role in self._parts)]
        said = [holder for holder in holders if type(holder.get("sample_rate")) is int]
        for other in said[1:]:
            if other["sample_rate"] != said[0]["sample_rate"]:
                self.problems.append(f"{_placed(other, 'sample_rate')}, {_said(said[0], 'sample_rate')}")
        return int(said[0]["sample_rate"]) if said else DEFAULT_SAMPLE_RATE

    def _labels(self, model: Config) -> list[str]:
        places = [(model, "labels"), *((self._parts[role].params, "labels") for role in ("train", "eval"))]
        places.append((self._parts["decoder"].params, "vocabulary"))
        said = [(holder, key) for holder, key in places if isinstance(holder.get(key), list)]
        if not said:
            self.problems.append(f"{self._config.place()}: labels is missing, the list of the model's characters")
            return []
        first, first_key = said[0]
        for other, key in said[1:]:
            if other[key] != first[first_key]:
                where = f"{first.path_of(first_key)} (line {first.line(first_key)})"
                self.problems.append(f"{other.place(key)}: {other.path_of(key)} is not the same as {where}")
        try:
            return list(vocabulary(first[first_key], lambda index: first.place(first_key, index)))
        except ConfigError as error:
            self.problems += error.problems
            return []

    def _preprocessor(self) -> AudioPreprocessor | None:
        module = self._tried("preprocessor", "cpu", sample_rate=self.sample_rate)
        return module if isinstance(module, AudioPreprocessor) else None

    def _encoder(self, preprocessor: AudioPreprocessor | None) -> Config | None:
        """The last block of an encoder that is right."""
        num_features, splicing = (preprocessor.num_features, preprocessor.frame_splicing) if preprocessor else (1, 1)
        encoder = self._tried("encoder", feat_in=num_features, frame_splicing=splicing)
        if encoder is None:
            return None
        target = self._parts["encoder"].params
        if preprocessor:
            source = self._parts["preprocessor"].params
            if target.get("feat_in", num_features) != num_features:
                self.problems.append(_features_differ(source, num_features, target))
            if target.get("frame_splicing", splicing) != splicing:
                place, path = source.place("frame_splicing"), source.path_of("frame_splicing")
                self.problems.append(f"{place}: {path} is {splicing}, {_said(target, 'frame_splicing')}")
        last: Config = target["jasper"][-1]
        return last

    def _decoder(self, last_block: Config | None) -> None:
        params, num_labels = self._parts["decoder"].params, len(self.labels)
        feat_in = last_block["filters"] if last_block else 0
        different = []
        if last_block and params.get("feat_in", feat_in) != feat_in:
            different.append(f"{_placed(params, 'feat_in')}, {_said(last_block, 'filters')}")
        if num_labels and params.get("num_classes", num_labels) != num_labels:
            different.append(f"{_placed(params, 'num_classes')}, the number of labels is {num_labels}")
        self.problems += different
        fits = self._fits("decoder", feat_in=feat_in, num_classes=num_labels, vocabulary=self.labels)
        if fits and not different and last_block and num_labels:
            self._built("decoder")

    def _tried(self, role: str, device: str = "meta", **wanted: Any) -> NeuralModule | None:
        """The part's module for a trial, if the file has the part and nothing is wrong with it."""
        if role in self._parts and self._fits(role, **wanted):
            return self._built(role, device)
        return None

    def _fits(self, role: str, later: Collection[str] = (), **wanted: Any) -> bool:
        """Whether a part fits its constructor, with what other parts say and what the script will say later."""
        part = self._parts[role]
        given = {key: value for key, value in {**part.implied, **wanted}.items() if key not in part.params}
        problems = check_call(part.params, part.target, given=given.keys() | set(later) - part.params.keys())
        blocks = part.params.get("jasper")
        if blocks == []:
            problems.append(f"{part.params.place('jasper')}: {part.params.path_of('jasper')} has no blocks")
        elif isinstance(blocks, list) and all(isinstance(block, Config) for block in blocks):
            problems += block_problems(blocks)
        self.given[role] = given
        self.problems += problems
        return not problems

    def _built(self, role: str, device: str = "meta") -> NeuralModule | None:
        """A trial, for what only the constructor knows. On the meta device it takes neither memory nor time."""
        try:
            with torch.device(device):
                return build(self._parts[role].target, self._parts[role].params, **self.given[role])
        except ConfigError as error:
            self.problems += error.problems
            return None


def _features_differ(source: Config, num_features: int, target: Config) -> str:
    key = next((key for key in _FEATURES_KEYS if key in source), None)
    ours = f"{source.path_of(key)} is {num_features}" if key else f"{source.path} gives {num_features} features"
    return f"{source.place(*([key] if key else []))}: {ours}, {_said(target, 'feat_in')}"


def _placed(section: Config, key: str) -> str:
    return f"{section.place(key)}: {section.path_of(key)} is {shown(section[key])}"


def _said(section: Config, key: str) -> str:
    return f"{section.path_of(key)} is {shown(section[key])} (line {section.line(key)})"
