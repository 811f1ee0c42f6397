"""The schemas that a model's YAML may have, read into parts: a class and its arguments for each role. No checks.

A section is either the arguments of the class that its key names (NeMo 0.9), or ``header`` and ``init_params`` (since
0.10). A file that is one header itself is a model: its ``init_params`` hold the sections. What a header names is
looked up among the classes known here; nothing is imported because a file says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_asr.data.audio_to_text import AudioToTextDataLayer
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.features.augmentation import MultiplyBatch, SpectrogramAugmentation
from nemo_asr.features.preprocessors import (
    AudioToMelSpectrogramPreprocessor,
    AudioToMFCCPreprocessor,
    AudioToSpectrogramPreprocessor,
)
from nemo_asr.models.jasper import JasperDecoderForCTC, JasperEncoder
from nemo_asr.models.losses import CTCLossNM
from nemo_lite.config import Config, shown, unknown_key
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.errors import did_you_mean

_CLASSES_OF_ROLE: dict[str, tuple[type[NeuralModule], ...]] = {
    "data layer": (AudioToTextDataLayer,),
    "preprocessor": (
        AudioToMelSpectrogramPreprocessor,
        AudioToSpectrogramPreprocessor,
        AudioToMFCCPreprocessor,
    ),
    "augmentation": (SpectrogramAugmentation,),
    "multiplier": (MultiplyBatch,),
    "encoder": (JasperEncoder,),
    "decoder": (JasperDecoderForCTC,),
    "loss": (CTCLossNM,),
    "greedy": (GreedyCTCDecoder,),
}
_ROLES = {cls: role for role, classes in _CLASSES_OF_ROLE.items() for cls in classes}
_CLASSES: dict[str, type[NeuralModule]] = {cls.__name__: cls for cls in _ROLES}
_WITH_DEFAULTS = ("decoder", "loss", "greedy")
_NEEDED = ("preprocessor", "encoder")

_PACKAGES = ("nemo_asr", "nemo_lite", "nemo")
_MODELS = ("ASRConvCTCModel", "QuartzNet", "JasperNet")
_MODEL_ROLES = {
    "preprocessor_params": "preprocessor",
    "encoder_params": "encoder",
    "decoder_params": "decoder",
    "spec_augment_params": "augmentation",
}
_FIRST_GENERATION = "AudioPreprocessing"
_LOG_OF_FEAT_TYPE = {"logfbank": True, "fbank": False}

MODEL_KEYS = ("model", "name", "sample_rate", "labels")


@dataclass(frozen=True)
class Part:
    """A class, the arguments that the file has for it, and those that follow from the file's older spelling."""

    target: type[NeuralModule]
    params: Config
    implied: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Parts:
    """The parts of a file by role (the data layer has two: train, eval), and what is wrong with its sections."""

    config: Config
    by_role: dict[str, Part] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, role: str, part: Part, section: Config, key: str) -> None:
        if role in self.by_role:
            first = self.by_role[role].params
            remark = f"the file has another one on line {first.line()}, {first.path}"
            self.problems.append(f"{section.place(key)}: {section.path_of(key)} is a second {role}; {remark}")
        self.by_role.setdefault(role, part)


def read_parts(config: Config) -> Parts:
    """The parts of a model's file, whichever schema it has.

    Those that the file leaves out and that need nothing of it are there with no arguments.
    """
    parts = Parts(config)
    if "header" in config and "init_params" in config:
        _read_model(parts)
    else:
        for key in config:
            if key not in MODEL_KEYS:
                _read_section(parts, key)
    nothing = config.without(*config)
    for role in ("train", "eval"):
        parts.by_role.setdefault(role, Part(AudioToTextDataLayer, nothing))
    for role in _WITH_DEFAULTS:
        parts.by_role.setdefault(role, Part(_CLASSES_OF_ROLE[role][0], nothing))
    for role in _NEEDED:
        if role not in parts.by_role and not parts.problems:
            example = _CLASSES_OF_ROLE[role][0].__name__
            parts.problems.append(f"{config.place()}: the {role}'s section is missing, such as {example}")
    return parts


def _read_section(parts: Parts, key: str) -> None:
    section = parts.config[key]
    if isinstance(section, Config) and "header" in section:
        part = _part_with_header(parts, parts.config, key)
        if part is not None:
            _add(parts, part, key)
    elif key in _CLASSES or key == _FIRST_GENERATION:
        if isinstance(section, Config):
            _add(parts, Part(_CLASSES.get(key, AudioToMelSpectrogramPreprocessor), section), key)
        elif section is not None:  # an empty section of an optional module switches it off
            parts.problems.append(f"{parts.config.place(key)}: {key} holds no mapping of arguments")
    elif not parts.config.anchored(key):
        parts.problems.append(unknown_key(parts.config, key, [*_CLASSES, *MODEL_KEYS]))


def _add(parts: Parts, part: Part, key: str) -> None:
    role = _ROLES[part.target]
    if role != "data layer":
        parts.add(role, _without_feat_type(parts, part), parts.config, key)
        return
    shared = part.params.without("train", "eval")
    named = [name for name in ("train", "eval") if key.endswith(f"_{name}")]
    for name in named or ("train", "eval"):
        own = part.params.get(name)
        if own is not None and not isinstance(own, Config):
            place, path = part.params.place(name), part.params.path_of(name)
            parts.problems.append(f"{place}: {path} holds no mapping of arguments")
        params = shared.overlaid(own) if isinstance(own, Config) else shared
        parts.add(name, Part(part.target, params), parts.config, key)


def _without_feat_type(parts: Parts, part: Part) -> Part:
    """The first generation's ``feat_type`` says whether mel features are logarithms."""
    if part.target is not AudioToMelSpectrogramPreprocessor or "feat_type" not in part.params:
        return part
    kind = part.params["feat_type"]
    if kind not in _LOG_OF_FEAT_TYPE:
        place, path = part.params.place("feat_type"), part.params.path_of("feat_type")
        remedy = did_you_mean(str(kind), _LOG_OF_FEAT_TYPE)
        parts.problems.append(f"{place}: {path} is {shown(kind)}, wanted {' or '.join(_LOG_OF_FEAT_TYPE)}{remedy}")
    implied = {"log": _LOG_OF_FEAT_TYPE.get(str(kind), True)}
    return Part(part.target, part.params.without("feat_type"), implied)


def _read_model(parts: Parts) -> None:
    config = parts.config
    _class_name(parts, config, _MODELS)
    for key in config:
        if key not in ("header", "init_params"):
            parts.problems.append(unknown_key(config, key, ["header", "init_params"]))
    sections = config["init_params"]
    if not isinstance(sections, Config):
        parts.problems.append(f"{config.place('init_params')}: init_params holds no sections")
        return
    for key, section in sections.items():
        if key not in _MODEL_ROLES:
            parts.problems.append(unknown_key(sections, key, _MODEL_ROLES))
        elif section is not None:
            part = _part_with_header(parts, sections, key)
            if part is not None and _ROLES[part.target] == _MODEL_ROLES[key]:
                parts.add(_MODEL_ROLES[key], part, sections, key)
            elif part is not None:
                problem = f"{sections.path_of(key)} names {part.target.__name__}, which is no {_MODEL_ROLES[key]}"
                parts.problems.append(f"{sections.place(key)}: {problem}")


def _part_with_header(parts: Parts, parent: Config, key: str) -> Part | None:
    section = parent[key]
    if not isinstance(section, Config) or "header" not in section:
        parts.problems.append(f"{parent.place(key)}: {parent.path_of(key)} has no header that names its class")
        return None
    for other in section:
        if other not in ("header", "init_params"):
            parts.problems.append(unknown_key(section, other, ["header", "init_params"]))
    name = _class_name(parts, section, _CLASSES)
    params = section.get("init_params")
    if params is None:
        params = section.without(*section)
    if not isinstance(params, Config):
        place = section.place("init_params")
        parts.problems.append(f"{place}: {section.path_of('init_params')} holds no mapping of arguments")
        return None
    return Part(_CLASSES[name], params) if name in _CLASSES else None


def _class_name(parts: Parts, section: Config, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The class that a header names; '' and a problem, if it is none of the known ones."""
    header = section["header"]
    spec = header.get("full_spec") if isinstance(header, Config) else None
    if not isinstance(spec, str):
        parts.problems.append(
            f"{section.place('header')}: {section.path_of('header')} has no full_spec, the class' name"
        )
        return ""
    package, name = spec.split(".")[0], spec.rsplit(".")[-1]
    if package in _PACKAGES and name in known:
        return name
    remedy = did_you_mean(name, known) or f"; known: {', '.join(known)}"
    path = section.path_of("header", "full_spec")
    parts.problems.append(f'{section.place("header", "full_spec")}: {path} "{spec}" is not a class for this{remedy}')
    return ""
