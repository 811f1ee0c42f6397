"""read_nemo: `.nemo` files of NeMo 0.11, 1.x, 2.x and 3.x as recipes of ours and the weights of each module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from nemo_asr.features import AudioToMelSpectrogramPreprocessor, generation_of
from nemo_asr.models.foreign import ForeignModel, Format
from nemo_asr.models.jasper import JasperBlockSpec
from nemo_asr.text.subwords import Subwords
from nemo_lite import NeuralModule, logging
from nemo_lite.backends.pytorch.checkpoint.tensors import read_torch_tensors
from nemo_lite.config import Config, parse_config, raise_if, shown
from nemo_lite.core.models import CONFIG_0, SUFFIX, NemoArchive
from nemo_lite.core.neural_module import classes_by_name
from nemo_lite.errors import CheckpointError, DataError

# Any: values of YAML.

_WEIGHTS_1 = "model_weights.ckpt"
_MEL = "AudioToMelSpectrogramPreprocessor"
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
}
_NEUTRAL: dict[str, Any] = {
    "quantize": False,
    "exact_pad": False,
    "stft_exact_pad": False,
    "future_context": -1,
    "add_blank": True,
    "use_grads": False,
    "mel_norm": "slaney",
}
# Classes of whole models since 1.x: those that are read, and by parts of the others' names why they are not.
_MODELS = ("EncDecCTCModel", "EncDecCTCModelBPE")
_OTHER_KINDS = {
    "Hybrid": "its encoder is a Conformer, which is not read yet",
    "RNNT": "a transducer has no CTC head",
    "MultiTask": "its decoder is a Transformer that reads text (Canary), not a CTC head",
    "speechlm": "a language model decodes it",
    "SALM": "a language model decodes it",
    ".nlp.": "a file of a language model, not of a model of speech",
    "language_modeling": "a file of a language model, not of a model of speech",
}
_FILTERS, _FILTER_TOLERANCE = "preprocessor.featurizer.fb", 1e-3
# Parts of the state of 1.x that are computed from the configuration.
_COMPUTED = ("preprocessor.", "spec_augmentation.", "spec_augment.", "loss.")


def read_nemo(path: str | Path) -> ForeignModel:
    """Read a ``.nemo`` file of either generation, in memory. Its code is not run, and nothing is unpacked to the disk.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it is no archive, holds something that a model's file does not, or lacks its weights.
        ConfigError: its configuration cannot be read, or is of a model of another kind.
    """
    archive = NemoArchive(path)
    place, files = str(archive.path), (archive.path,)
    config = parse_config(archive.config, f"{archive.path}, {archive.config_name}")
    if archive.config_name == CONFIG_0:
        names = [name for name in archive.names if name.endswith(".pt")]
        weights = {name.removesuffix(".pt"): _tensors(archive, name) for name in names}
        return ForeignModel(place, _with_nemos_numbers(config.plain()), weights, files=files)
    model = _section(config, "model")
    config = config if model is None else model
    version = _version_of(config)
    sections, labels = _translated(config, version)
    state = _tensors(archive, _WEIGHTS_1)
    _compare_filters(sections, state.get(_FILTERS), place)
    weights = _split(state, place)
    tokenizer = _tokenizer_of(archive, config)
    if tokenizer is not None:
        _check_pieces(tokenizer, labels, weights["JasperDecoderForCTC"], place)
    cuts = {"labels": labels} if tokenizer is None else {"tokenizer": "tokenizer.model"}
    recipe = {"name": archive.path.stem, **cuts, **sections}
    versions = {"NeMo": version} if config.get("nemo_version") else {}
    return ForeignModel(place, recipe, weights, tokenizer, files, versions)


def _tokenizer_of(archive: NemoArchive, config: Config) -> Subwords | None:
    """The SentencePiece model in a file; None where it has none, or, with a warning, one that is not read here.

    Raises:
        CheckpointError: the configuration names one that is not in the archive.
    """
    section = _section(config, "tokenizer")
    path = str(section.get("model_path") or "") if section is not None and section.get("type", "bpe") == "bpe" else ""
    name = path.removeprefix("nemo:")
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        if name == path:  # of the machine that trained it
            name = PurePosixPath(name).name
        else:
            problem, wanted = "tokenizer.model_path leads out of the archive", "nemo:NAME of a file in it"
            raise CheckpointError(problem, place=str(archive.path), got=path, wanted=wanted)
    if not path or (name == path and name not in archive.names):
        return None
    member = archive.read(name)
    try:
        return Subwords(member.getvalue(), member.name)
    except DataError as error:
        logging.warning("%s. The model transcribes; to train or score it add --set tokenizer=FILE", error)
        return None


def _check_pieces(tokenizer: Subwords, labels: Sequence[str], head: Mapping[str, Tensor], place: str) -> None:
    """The pieces of a tokenizer must be the outputs of the head, in their order, and the blank behind them.

    Raises:
        CheckpointError: they are not.
    """
    outputs = [len(tensor) for name, tensor in head.items() if name.endswith("weight") and tensor.dim() == 3]
    if outputs and outputs[0] != len(tokenizer) + 1:
        got, wanted = f"{len(tokenizer)} pieces", f"{outputs[0] - 1}, one for each output of the decoder but the blank"
        raise CheckpointError("its tokenizer does not fit its decoder", place=place, got=got, wanted=wanted)
    if list(labels) == list(tokenizer):
        return
    outside = [label for label in labels if label not in tokenizer]
    if outside:
        got = f"{outside[0]!r}{f' and {len(outside) - 1} more' if outside[1:] else ''}"
        raise CheckpointError("a label is outside its tokenizer's vocabulary", place=place, got=got)
    problem, got = "its labels are not its tokenizer's pieces", f"{len(labels)} labels in another order"
    raise CheckpointError(problem, place=place, got=got, wanted=f"the {len(tokenizer)} pieces")


def _version_of(config: Config) -> str:
    """The version of NeMo that wrote a file of 1.x or later; the first ones do not say it.

    Raises:
        ConfigError: it is no version.
    """
    version = str(config.get("nemo_version") or "1.0")
    try:
        generation_of(version)
    except ValueError:
        raise_if([f"{config.place('nemo_version')}: nemo_version is {shown(version)}, wanted a version such as 2.5.0"])
    return version


def _with_nemos_numbers(config: Any) -> Any:
    """A configuration of 0.11, with the frames of the NeMo that trained it, and its numbers in bands without signal."""
    try:
        preprocessor = config["init_params"]["preprocessor_params"]
        if preprocessor["header"]["full_spec"].endswith(f".{_MEL}"):
            preprocessor["init_params"].setdefault("std_floor", 0.0)
            if preprocessor["header"]["full_spec"].startswith("nemo."):  # not of a file of ours
                preprocessor["init_params"].setdefault("generation", generation_of("0.11"))
    except (KeyError, TypeError, AttributeError):
        pass  # whoever makes the modules says what is wrong
    return config


def _tensors(archive: NemoArchive, name: str) -> dict[str, Tensor]:
    member = archive.read(name)
    return read_torch_tensors(member, member.name)


def _compare_filters(sections: Mapping[str, Any], theirs: Tensor | None, place: str) -> None:
    """Warn where the mel filters that the file holds are not those that its settings give here."""
    if theirs is None or _MEL not in sections:
        return
    ours = AudioToMelSpectrogramPreprocessor(**sections[_MEL]).filters  # (bins, bands)
    theirs = theirs.float().squeeze(0).t()  # from (1, bands, bins)
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _FILTER_TOLERANCE * float(ours.max()):
        logging.warning("%s: its mel filters are not those that its settings give here; expect more errors", place)


def _split(state: Mapping[str, Tensor], place: str) -> dict[str, dict[str, Tensor]]:
    """The state of a whole model by module."""
    parts: dict[str, dict[str, Tensor]] = {"JasperEncoder": {}, "JasperDecoderForCTC": {}}
    for name, tensor in state.items():
        part, _, inner = name.partition(".")
        if part in ("encoder", "decoder"):
            parts["JasperEncoder" if part == "encoder" else "JasperDecoderForCTC"][inner] = tensor
        elif not name.startswith(_COMPUTED):
            wanted = "encoder.*, decoder.*, preprocessor.*"
            raise CheckpointError("its weights are of another kind of model", place=place, got=name, wanted=wanted)
    return parts


def _translated(config: Config, version: str) -> tuple[dict[str, Any], list[str]]:
    """The sections of a recipe for a model of 1.x, and its labels.

    Raises:
        ConfigError: it is of another kind, or has settings that the modules here do not have: all at once.
    """
    _refuse_kind(config)
    problems: list[str] = []
    sections: dict[str, Any] = {}
    modules = classes_by_name(NeuralModule)
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
        sections[name] = dict(_known_keys(config, values, modules[name].__init__, problems))
    problems += _tokenizer_problems(config)
    labels = _labels_of(config, sections, problems) if not problems else []
    raise_if(problems)
    if _MEL in sections:
        sections[_MEL] = {"std_floor": 0.0, "generation": generation_of(version), **sections[_MEL]}
    return sections, labels


def _refuse_kind(config: Config) -> None:
    """See that the class of a model is one whose CTC head is read here; a file need not name it.

    Raises:
        ConfigError: it is another one: one line with the reason.
    """
    target = str(config.get("target") or "")
    name = target.rpartition(".")[2]
    if not name or name in _MODELS:
        return
    reason = next((reason for part, reason in _OTHER_KINDS.items() if part in target), "its kind is not known here")
    raise_if([f"{config.place('target')}: the model is {name}: {reason}; read are {', '.join(_MODELS)}"])


def _section(config: Config, key: str) -> Config | None:
    section = config.get(key)
    return section if isinstance(section, Config) else None


def _known_keys(
    config: Config, section: Config, target: Callable[..., Any], problems: list[str]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a section that its class here has; others must say nothing, or what is so anyway."""
    parameters = inspect.signature(target).parameters
    for key, value in section.items():
        value = _resolved(config, value)
        if key == "jasper" and isinstance(value, Sequence):
            yield key, [dict(_known_keys(config, block, JasperBlockSpec, problems)) for block in value]
        elif key in parameters and key not in _IGNORED:
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
        target: Any = config
        for key in value[2:-1].split("."):
            target = target.get(key) if isinstance(target, Config) else None
        value = target
    return value


def _tokenizer_problems(config: Config) -> list[str]:
    tokenizer = _section(config, "tokenizer")
    kind = tokenizer.get("type", "bpe") if tokenizer is not None else "bpe"
    if tokenizer is None or kind in ("bpe", "wpe"):
        return []
    return [
        f"{tokenizer.place('type')}: tokenizer.type is {shown(kind)}, wanted bpe or wpe: its pieces are not known here"
    ]


def _labels_of(config: Config, sections: dict[str, Any], problems: list[str]) -> list[str]:
    """The labels of a model; they are taken out of the decoder's section, since a recipe has them once."""
    decoder = sections["JasperDecoderForCTC"]
    labels = decoder.pop("vocabulary", None) or config.get("labels")
    for derived in ("num_classes", "feat_in"):
        decoder.pop(derived, None)
    if not isinstance(labels, list):
        problems.append(f"{config.place()}: decoder.vocabulary is missing, the list of the model's labels")
        return []
    tokenizer = _section(config, "tokenizer")
    if tokenizer is not None and tokenizer.get("type", "bpe") == "wpe":
        labels = [_with_word_mark(str(label)) for label in labels]
    return list(labels)


def _with_word_mark(piece: str) -> str:
    """A WordPiece (``the``, ``##ing``) as SentencePiece writes it: the mark is at the beginning of a word."""
    return piece.removeprefix("##") if piece.startswith("##") else f"\u2581{piece}"


NEMO_FILES = Format("a .nemo file", lambda path: path.suffix == SUFFIX and path.is_file(), read_nemo)
