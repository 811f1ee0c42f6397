"""read_nemo: a ``.nemo`` file of NeMo 0.11 or 1.x as the configuration of 0.11 and the weights of each module.

Of 1.x it takes CTC models with a convolutional encoder: Jasper, QuartzNet, Citrinet. No weights are filled in here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nemo_asr.models.jasper_spec import JasperBlockSpec
from nemo_lite import NeuralModule, logging
from nemo_lite.backends.pytorch.checkpoint import read_torch_tensors
from nemo_lite.config import Config, parse_config, raise_if, shown
from nemo_lite.core.models import CONFIG_0, NemoArchive
from nemo_lite.core.neural_module import classes_by_name
from nemo_lite.errors import CheckpointError

# Any: values of YAML.

_WEIGHTS_1 = "model_weights.ckpt"
_SPEC = "nemo.collections.asr.{}"
_MODEL_SPEC = _SPEC.format("models.asrconvctcmodel.ASRConvCTCModel")
# By section of 1.x: the classes that it may name.
_SECTIONS = {
    "preprocessor": ("AudioToMelSpectrogramPreprocessor", "AudioToMFCCPreprocessor"),
    "encoder": ("ConvASREncoder", "JasperEncoder"),
    "decoder": ("ConvASRDecoder", "JasperDecoderForCTC"),
    "spec_augment": ("SpectrogramAugmentation",),
}
_NAMES_HERE = {"ConvASREncoder": "JasperEncoder", "ConvASRDecoder": "JasperDecoderForCTC"}
# Keys of 1.x that say nothing about a trained model, and those that may only have the value that leaves it as it is.
_IGNORED = {
    *("_target_", "cls", "params", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio", "name"),
    *("exact_pad", "stft_exact_pad"),
}
_NEUTRAL: dict[str, Any] = {
    "quantize": False,
    "future_context": -1,
    "add_blank": True,
    "use_grads": False,
    "mel_norm": "slaney",
}
_FILTERS, _FILTER_TOLERANCE = "preprocessor.featurizer.fb", 1e-3
# Parts of the state of 1.x that are computed from the configuration.
_COMPUTED = ("preprocessor.", "spec_augmentation.", "spec_augment.", "loss.")


class NemoFile(NamedTuple):
    """What a ``.nemo`` file holds.

    Attributes:
        place: the file.
        config: ``header`` and ``init_params``, as 0.11 has them.
        weights: the tensors of each module by its class and their own name.
    """

    place: str
    config: Mapping[str, Any]
    weights: Mapping[str, Mapping[str, Tensor]]

    @property
    def class_name(self) -> str:
        """The class that the header names; "" where it names none."""
        header = self.config.get("header")
        return str(header.get("full_spec", "")).rpartition(".")[2] if isinstance(header, Mapping) else ""

    @property
    def params(self) -> Mapping[str, Any]:
        """The arguments of the class; none where the file has none."""
        params = self.config.get("init_params")
        return params if isinstance(params, Mapping) else {}

    def weights_of(self, module: str) -> Mapping[str, Tensor]:
        """The tensors of a module.

        Raises:
            CheckpointError: the file has none.
        """
        if module not in self.weights:
            got = ", ".join(self.weights) or "no weights"
            raise CheckpointError(f"there are no weights of {module}", place=self.place, got=got)
        return self.weights[module]


def read_nemo(path: str | Path) -> NemoFile:
    """Read a ``.nemo`` file of either generation, in memory. Its code is not run, and nothing is unpacked to the disk.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it is no archive, holds something that a model's file does not, or lacks its weights.
        ConfigError: its configuration cannot be read, or is of a model of another kind.
    """
    archive = NemoArchive(path)
    config = parse_config(archive.config, f"{archive.path}, {archive.config_name}")
    if archive.config_name == CONFIG_0:
        names = [name for name in archive.names if name.endswith(".pt")]
        weights = {name.removesuffix(".pt"): _tensors(archive, name) for name in names}
        return NemoFile(str(archive.path), _with_nemos_numbers(config.plain()), weights)
    translated, state = _with_nemos_numbers(_translated(config)), _tensors(archive, _WEIGHTS_1)
    _compare_filters(translated["init_params"]["preprocessor_params"], state.get(_FILTERS), str(archive.path))
    return NemoFile(str(archive.path), translated, _split(state, str(archive.path)))


def _with_nemos_numbers(config: Any) -> Any:
    """The configuration, in which bands without signal are what they were in training."""
    try:
        preprocessor = config["init_params"]["preprocessor_params"]
        if preprocessor["header"]["full_spec"].endswith(".AudioToMelSpectrogramPreprocessor"):
            preprocessor["init_params"].setdefault("std_floor", 0.0)
    except (KeyError, TypeError, AttributeError):
        pass  # whoever makes the modules says what is wrong
    return config


def _tensors(archive: NemoArchive, name: str) -> dict[str, Tensor]:
    member = archive.read(name)
    return read_torch_tensors(member, member.name)


def _compare_filters(params: Mapping[str, Any], theirs: Tensor | None, place: str) -> None:
    """Warn where the mel filters that the file holds are not those that its settings give here."""
    ours = getattr(NeuralModule.deserialize(params), "filters", None)  # (bins, bands)
    if theirs is None or ours is None:
        return
    theirs = theirs.float().squeeze(0).t()  # from (1, bands, bins)
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _FILTER_TOLERANCE * float(ours.max()):
        logging.warning("%s: its mel filters are not those that its settings give here; expect more errors", place)


def _split(state: Mapping[str, Tensor], place: str) -> dict[str, dict[str, Tensor]]:
    """The state of a whole model by module."""
    parts: dict[str, dict[str, Tensor]] = {"JasperEncoder": {}, "JasperDecoderForCTC": {}}
    others = []
    for name, tensor in state.items():
        part, _, inner = name.partition(".")
        if part in ("encoder", "decoder"):
            parts["JasperEncoder" if part == "encoder" else "JasperDecoderForCTC"][inner] = tensor
        elif not name.startswith(_COMPUTED):
            others.append(name)
    if others:
        wanted = "encoder.*, decoder.*, preprocessor.*"
        raise CheckpointError("its weights are of another kind of model", place=place, got=others[0], wanted=wanted)
    return parts


def _translated(config: Config) -> dict[str, Any]:
    """The configuration of a model of 1.x as one of 0.11.

    Raises:
        ConfigError: it is of another kind, or has settings that the modules here do not have: all at once.
    """
    problems: list[str] = []
    sections: dict[str, Any] = {}
    known = classes_by_name(NeuralModule)
    for key, classes in _SECTIONS.items():
        section = _section(config, key)
        if section is None and key == "spec_augment":
            continue
        if section is None:
            problems.append(f"{config.place()}: {key} is missing")
            continue
        target = str(section.get("_target_", section.get("cls", key))).rpartition(".")[2]
        if target not in classes:
            wanted = " or ".join(classes)
            problems.append(
                f"{section.place()}: {key} is {target}, wanted {wanted}: only convolutional CTC models are read"
            )
            continue
        inner = _section(section, "params")
        values = section if inner is None else inner
        name = _NAMES_HERE.get(target, target)
        params = dict(_known_keys(config, values, known[name].__init__, problems))
        sections[f"{key}_params"] = {"header": {"full_spec": _SPEC.format(name)}, "init_params": params}
    problems += _tokenizer_problems(config)
    if not problems:
        _complete(config, sections, problems)
    raise_if(problems)
    return {"header": {"full_spec": _MODEL_SPEC}, "init_params": sections}


def _section(config: Config, key: str) -> Config | None:
    section = config.get(key)
    return section if isinstance(section, Config) else None


def _known_keys(
    config: Config, section: Config, target: Callable[..., Any], problems: list[str]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a section that its class here has; others must say nothing, or what is so anyway."""
    known = inspect.signature(target).parameters
    for key, value in section.items():
        value = _resolved(config, value)
        if key == "jasper" and isinstance(value, Sequence):
            yield key, [dict(_known_keys(config, each, JasperBlockSpec, problems)) for each in value]
        elif key in known and key not in _IGNORED:
            yield key, value.plain() if isinstance(value, Config) else value
        elif key not in _IGNORED and value is not None and value != _NEUTRAL.get(key):
            wanted = f", wanted {shown(_NEUTRAL[key])}" if key in _NEUTRAL else ""
            problems.append(
                f"{section.place(key)}: {section.path_of(key)} is {shown(value)}, which is not known here{wanted}"
            )


def _resolved(config: Config, value: Any) -> Any:
    """A value, where it stands for that of another key: ``${model_defaults.filters}``."""
    for _ in range(8):
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        found: Any = config
        for key in value[2:-1].split("."):
            found = found.get(key) if isinstance(found, Config) else None
        value = found
    return value


def _tokenizer_problems(config: Config) -> list[str]:
    tokenizer = _section(config, "tokenizer")
    kind = tokenizer.get("type", "bpe") if tokenizer is not None else "bpe"
    if tokenizer is None or kind in ("bpe", "wpe"):
        return []
    return [
        f"{tokenizer.place('type')}: tokenizer.type is {shown(kind)}, wanted bpe or wpe: its pieces are not known here"
    ]


def _complete(config: Config, sections: dict[str, Any], problems: list[str]) -> None:
    """Fill in what 1.x says elsewhere: labels, their number and the width of the encoder's output."""
    decoder = sections["decoder_params"]["init_params"]
    labels = decoder.get("vocabulary") or config.get("labels")
    if not isinstance(labels, list):
        problems.append(f"{config.place()}: decoder.vocabulary is missing, the list of the model's labels")
        return
    tokenizer = _section(config, "tokenizer")
    if tokenizer is not None and tokenizer.get("type", "bpe") == "wpe":
        labels = [_with_word_mark(str(label)) for label in labels]
    decoder["vocabulary"], decoder["num_classes"] = list(labels), len(labels)
    decoder["feat_in"] = decoder.get("feat_in") or sections["encoder_params"]["init_params"]["jasper"][-1]["filters"]


def _with_word_mark(piece: str) -> str:
    """A WordPiece (``the``, ``##ing``) as SentencePiece writes it: the mark is at the beginning of a word."""
    return piece.removeprefix("##") if piece.startswith("##") else f"\u2581{piece}"
