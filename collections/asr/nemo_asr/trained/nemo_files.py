"""read_nemo: `.nemo` files of NeMo 0.11, 1.x, 2.x and 3.x as recipes of ours and the weights of each module.

Since 1.x a file is one configuration and the weights of the whole model. Read are models with a CTC head: convolutional
encoders (Jasper, QuartzNet, Citrinet), Conformer and FastConformer, and of hybrids the CTC head.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from torch import Tensor

from nemo_asr.features.augmentation import SpectrogramAugmentation
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, AudioToMFCCPreprocessor
from nemo_asr.features.spectra import generation_of
from nemo_asr.models.conformer import AttentionName, ConformerEncoder, ContextStyle
from nemo_asr.models.jasper import JasperBlockSpec, JasperDecoderForCTC, JasperEncoder
from nemo_asr.run.text.subwords import Subwords, SubwordsByLanguage, WordPieces, marked_piece
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_lite import logging
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_tensors
from nemo_lite.base.config import Config, parse_config, raise_if, shown
from nemo_lite.base.errors import CheckpointError, DataError
from nemo_lite.base.nemo_archive import CONFIG_0, SUFFIX, NemoArchive

# Any: values of YAML.

_WEIGHTS_1 = "model_weights.ckpt"
_MEL = AudioToMelSpectrogramPreprocessor.__name__
_HEAD = JasperDecoderForCTC.__name__
# By section of 1.x: the classes that it may name, and what each is here.
_CLASSES: dict[str, dict[str, type]] = {
    "preprocessor": {_MEL: AudioToMelSpectrogramPreprocessor, "AudioToMFCCPreprocessor": AudioToMFCCPreprocessor},
    "spec_augment": {"SpectrogramAugmentation": SpectrogramAugmentation},
    "encoder": {
        "ConvASREncoder": JasperEncoder,
        "JasperEncoder": JasperEncoder,
        "ConformerEncoder": ConformerEncoder,
    },
    "decoder": {"ConvASRDecoder": JasperDecoderForCTC, _HEAD: JasperDecoderForCTC},
}
# Keys of 1.x that say nothing about a trained model, and those that may only have the value that leaves it as it is.
_IGNORED = {
    *("_target_", "cls", "params", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio", "name"),
    *("use_pytorch_sdpa", "use_pytorch_sdpa_backends", "global_tokens_spacing"),
    *("subsampling_conv_chunking_factor", "pos_emb_max_len", "sync_max_audio_length"),
    *("use_vectorized_spec_augment", "use_numba_spec_augment"),
}
_NEUTRAL: dict[str, Any] = {
    "quantize": False,
    "exact_pad": False,
    "stft_exact_pad": False,
    "add_blank": True,
    "use_grads": False,
    "mel_norm": "slaney",
    "mask_value": 0.0,
    "global_tokens": 0,
    "global_attn_separate": False,
    "reduction_factor": 1,
    "conv_context_style": "regular",
}
# Kinds of encoders that are known here, of those that files name.
_KINDS = {"self_attention_model": get_args(AttentionName), "att_context_style": get_args(ContextStyle)}
# Arguments of the decoder that follow from the labels and from the encoder.
_DERIVED = ("num_classes", "feat_in")
# Classes of whole models since 1.x: those that are read, and by parts of the others' names why they are not.
_HYBRIDS = ("EncDecHybridRNNTCTCModel", "EncDecHybridRNNTCTCBPEModel")
_MODELS = ("EncDecCTCModel", "EncDecCTCModelBPE", *_HYBRIDS)
_OTHER_KINDS = {
    "Prompt": "its encoder takes the language as a prompt, which is not read",
    "RNNT": "a transducer has no CTC head",
    "MultiTask": "its decoder is a Transformer that reads text (Canary), not a CTC head",
    "SelfSupervised": "it was trained without texts and has no CTC head",
    "speechlm": "a language model decodes it",
    "SALM": "a language model decodes it",
    ".nlp.": "a file of a language model, not of a model of speech",
    "language_modeling": "a file of a language model, not of a model of speech",
}
_FILTERS, _FILTER_TOLERANCE = "preprocessor.featurizer.fb", 1e-3
# Parts of the state of 1.x that are computed from the configuration.
_COMPUTED = ("preprocessor.", "spec_augmentation.", "spec_augment.", "loss.", "encoder.pos_enc.")
_TRANSDUCER = ("decoder.", "joint.")  # of a hybrid
_NO_TOKENIZER = "The model transcribes; to train or score it add --set tokenizer=FILE"


def read_nemo(path: str | Path) -> ForeignModel:
    """Read a ``.nemo`` file of any generation, in memory. Its code is not run, and nothing is unpacked to the disk.

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
    config = _section(config, "model") or config
    version = _version_of(config)
    sections, encoder = _recipe_sections(config, version)
    labels = _labels_of(config)
    tokenizer = _tokenizer_of(archive, config)
    state = _tensors(archive, _WEIGHTS_1)
    _compare_filters(sections, state.get(_FILTERS), place)
    weights = _split(state, encoder, place)
    if tokenizer is not None:
        _check_pieces(tokenizer, labels, weights[_HEAD], place)
    else:
        labels = list(map(marked_piece, labels)) if _kind_of_tokenizer(config) == "wpe" else labels
        _check_outputs(len(labels), weights[_HEAD], "labels do", "labels", place)
    cut = {"labels": labels} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}
    recipe = {"name": archive.path.stem, **cut, **sections}
    versions = {"NeMo": version} if config.get("nemo_version") else {}
    return ForeignModel(place, recipe, weights, tokenizer, files, versions)


NEMO_FILES = Format("a .nemo file", lambda path: path.suffix == SUFFIX and path.is_file(), read_nemo)


def _section(config: Config, key: str) -> Config | None:
    section = config.get(key)
    return section if isinstance(section, Config) else None


def _tensors(archive: NemoArchive, name: str) -> dict[str, Tensor]:
    member = archive.read(name)
    return read_torch_tensors(member, member.name)


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


# Since 1.x: the configuration as the sections of a recipe.


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


def _recipe_sections(config: Config, version: str) -> tuple[dict[str, Any], str]:
    """The sections of a recipe by the names of their classes, and the name of the encoder's.

    Raises:
        ConfigError: it is of another kind, or has settings that the modules here do not have: all at once.
    """
    _refuse_kind(config)
    problems: list[str] = []
    sections: dict[str, dict[str, Any]] = {}
    encoder = ""
    for key, classes in _CLASSES.items():
        section = _ctc_decoder(config) if key == "decoder" else _section(config, key)
        if section is None and key != "spec_augment":
            problems.append(f"{config.place()}: {key} is missing")
        if section is None:
            continue
        target = str(section.get("_target_", section.get("cls", key))).rpartition(".")[2]
        if target in classes:
            values = _section(section, "params") or section
            name = classes[target].__name__
            sections[name] = dict(_known_arguments(config, values, classes[target], problems))
            encoder = name if key == "encoder" else encoder
        elif key == "spec_augment":
            logging.warning("%s: its augmentation %s is not known here and is left out", section.place(), target)
        else:
            problems.append(f"{section.place()}: {key} is {target}, wanted {' or '.join(classes)}")
    kind = _kind_of_tokenizer(config)
    if kind not in ("", "bpe", "wpe", "agg"):
        problems.append(f"{config.place('tokenizer')}: tokenizer.type is {shown(kind)}, wanted bpe, wpe or agg")
    raise_if(problems)
    for argument in (*_DERIVED, "vocabulary"):  # a recipe has its labels once
        sections[_HEAD].pop(argument, None)
    if _MEL in sections:
        sections[_MEL] = {"std_floor": 0.0, "generation": generation_of(version), **sections[_MEL]}
    return sections, encoder


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


def _ctc_decoder(config: Config) -> Config | None:
    """The section of the CTC head; of a hybrid it is below ``aux_ctc``."""
    auxiliary = _section(config, "aux_ctc")
    return _section(config if auxiliary is None else auxiliary, "decoder")


def _known_arguments(
    config: Config, section: Config, target: Callable[..., Any], problems: list[str]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a section that its class here has; others must say nothing, or what is so anyway."""
    parameters = inspect.signature(target).parameters
    for key, value in section.items():
        value = _resolved(config, value)
        if key == "jasper" and isinstance(value, Sequence):
            problems += [problem for block in value for problem in _future_problems(block)]
            yield key, [dict(_known_arguments(config, block, JasperBlockSpec, problems)) for block in value]
        elif key in _KINDS and value not in _KINDS[key]:
            wanted = " or ".join(_KINDS[key])
            problems.append(f"{section.place(key)}: {section.path_of(key)} is {shown(value)}, wanted {wanted}")
        elif key in parameters and key not in _IGNORED:
            yield key, value.plain() if isinstance(value, Config) else value
        elif key not in _IGNORED and value is not None and value != _NEUTRAL.get(key):
            wanted = f", wanted {shown(_NEUTRAL[key])}" if key in _NEUTRAL else ""
            problems.append(
                f"{section.place(key)}: {section.path_of(key)} is {shown(value)}, which is not known here{wanted}"
            )


def _future_problems(block: Config) -> Iterator[str]:
    """NeMo pads dilated convolutions with a future context by other numbers of zeros, which moves their frames."""
    dilation = block.get("dilation", 1)
    dilation = dilation[0] if isinstance(dilation, Sequence) else dilation
    if block.get("future_context", -1) >= 0 and dilation > 1:
        place, wanted = block.place("future_context"), "wanted dilation 1"
        yield f"{place}: a future_context of dilated convolutions is not read; {wanted}"


def _resolved(config: Config, value: Any) -> Any:
    """A value, where it stands for that of another key: ``${model_defaults.filters}``, ``${model.sample_rate}``."""
    for _ in range(8):
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        target: Any = config
        for key in value[2:-1].removeprefix("model.").split("."):
            target = target.get(key) if isinstance(target, Config) else None
        value = target
    return value


def _labels_of(config: Config) -> list[str]:
    """The labels that the configuration lists.

    Raises:
        ConfigError: it lists none.
    """
    decoder = _ctc_decoder(config)
    listed = (
        _resolved(config, place.get(key)) for place, key in ((decoder, "vocabulary"), (config, "labels")) if place
    )
    labels = next((found for found in listed if isinstance(found, list) and found), None)
    if labels is None:
        raise_if([f"{config.place()}: decoder.vocabulary is missing, the list of the model's labels"])
    return list(map(str, labels or ()))


# The tokenizer, and the weights of each module.


def _kind_of_tokenizer(config: Config) -> str:
    """bpe, wpe or agg; "" where the labels are characters."""
    section = _section(config, "tokenizer")
    return "" if section is None else str(section.get("type", "bpe")).lower()


def _tokenizer_of(archive: NemoArchive, config: Config) -> Subwords | None:
    """What cuts texts into the labels; None where these are characters, or, with a warning, where it is not read here.

    Raises:
        CheckpointError: the configuration names a file that is not in the archive.
    """
    section = _section(config, "tokenizer")
    if section is None:
        return None
    if _kind_of_tokenizer(config) != "agg":
        return _tokenizer_in(archive, section)
    languages = _section(section, "langs")
    if languages is None:
        problem, wanted = "its tokenizer of several languages has none", "tokenizer.langs"
        raise CheckpointError(problem, place=str(archive.path), wanted=wanted)
    read = {language: _tokenizer_in(archive, each) for language, each in languages.items() if isinstance(each, Config)}
    known = {language: tokenizer for language, tokenizer in read.items() if tokenizer is not None}
    return SubwordsByLanguage.joined(known) if len(known) == len(read) else None


def _tokenizer_in(archive: NemoArchive, section: Config) -> Subwords | None:
    key = "vocab_path" if section.get("type", "bpe") == "wpe" else "model_path"
    path = str(section.get(key) or "")
    name = path.removeprefix("nemo:")
    if not path.startswith("nemo:"):  # of the machine that trained it, or of an early file
        name = PurePosixPath(path).name
        if name not in archive.names:
            logging.warning("%s: the tokenizer is not in it. %s", archive.path, _NO_TOKENIZER)
            return None
    elif PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        problem, wanted = f"{section.path_of(key)} leads out of the archive", "nemo:NAME of a file in it"
        raise CheckpointError(problem, place=str(archive.path), got=path, wanted=wanted)
    member = archive.read(name)
    try:
        return Subwords(member.getvalue(), member.name)
    except DataError as error:
        logging.warning("%s. %s", error, _NO_TOKENIZER)
        return None


def _check_pieces(tokenizer: Subwords, labels: Sequence[str], head: Mapping[str, Tensor], place: str) -> None:
    """The pieces of a tokenizer must be the outputs of the head, in their order.

    Raises:
        CheckpointError: they are not.
    """
    _check_outputs(len(tokenizer), head, "tokenizer does", "pieces", place)
    pieces = _pieces_as_listed(tokenizer)
    if list(labels) == pieces:
        return
    outside = [label for label in labels if label not in pieces]
    if outside:
        got = f"{outside[0]!r}{f' and {len(outside) - 1} more' if outside[1:] else ''}"
        raise CheckpointError("a label is outside its tokenizer's vocabulary", place=place, got=got)
    if isinstance(tokenizer, WordPieces) and sorted(labels) == sorted(pieces):
        return  # transformers lists such a vocabulary in any order; the file has the order of the ids
    problem, got = "its labels are not its tokenizer's pieces", f"{len(labels)} labels in another order"
    raise CheckpointError(problem, place=place, got=got, wanted=f"the {len(pieces)} pieces")


def _pieces_as_listed(tokenizer: Subwords) -> list[str]:
    """The pieces as a configuration of NeMo lists them: those of WordPiece within words begin with ##."""
    if isinstance(tokenizer, SubwordsByLanguage):
        return [piece for each in tokenizer.languages.values() for piece in _pieces_as_listed(each)]
    return tokenizer.model.decode().split() if isinstance(tokenizer, WordPieces) else list(tokenizer)


def _check_outputs(number: int, head: Mapping[str, Tensor], which: str, what: str, place: str) -> None:
    """Labels or pieces must be as many as the outputs of the head without the blank."""
    outputs = [len(tensor) for name, tensor in head.items() if name.endswith("weight") and tensor.dim() == 3]
    if outputs and outputs[0] != number + 1:
        got, wanted = f"{number} {what}", f"{outputs[0] - 1}, one for each output of the decoder but the blank"
        raise CheckpointError(f"its {which} not fit its decoder", place=place, got=got, wanted=wanted)


def _compare_filters(sections: Mapping[str, Any], theirs: Tensor | None, place: str) -> None:
    """Warn where the mel filters that the file holds are not those that its settings give here."""
    if theirs is None or _MEL not in sections:
        return
    ours = AudioToMelSpectrogramPreprocessor(**sections[_MEL]).filters  # (bins, bands)
    theirs = theirs.float().squeeze(0).t()  # from (1, bands, bins)
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _FILTER_TOLERANCE * float(ours.max()):
        logging.warning("%s: its mel filters are not those that its settings give here; expect more errors", place)


def _split(state: Mapping[str, Tensor], encoder: str, place: str) -> dict[str, dict[str, Tensor]]:
    """The state of a whole model by module.

    Raises:
        CheckpointError: it has a part that no CTC model has.
    """
    parts: dict[str, dict[str, Tensor]] = {encoder: {}, _HEAD: {}}
    is_hybrid = any(name.startswith("ctc_decoder.") for name in state)
    head = "ctc_decoder" if is_hybrid else "decoder"
    num_left = 0
    for name, tensor in state.items():
        part, _, inner = name.partition(".")
        if name.startswith(_COMPUTED):
            continue
        if part in ("encoder", head):
            parts[encoder if part == "encoder" else _HEAD][inner] = tensor
        elif is_hybrid and name.startswith(_TRANSDUCER):
            num_left += 1
        else:
            wanted = "encoder.*, decoder.*, preprocessor.*"
            raise CheckpointError("its weights are of another kind of model", place=place, got=name, wanted=wanted)
    if is_hybrid:
        logging.info("%s: its CTC head is read; the %d tensors of its transducer are left out", place, num_left)
    return parts
