"""read_nemo: `.nemo` files of NeMo 0.11, 1.x, 2.x and 3.x as recipes of ours and the weights of each module.

Since 1.x a file is one configuration and the weights of the whole model. Read are convolutional encoders (Jasper,
QuartzNet, Citrinet), Conformer and FastConformer, with a CTC head, a transducer, or both (hybrids), and Canary. What
only files of transducers say is in `nemo_transducers.py`, what only files of Canary say in `nemo_prompted.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, get_args

from torch import Tensor

from nemo_asr.features.augmentation import SpectrogramAugmentation
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, AudioToMFCCPreprocessor
from nemo_asr.features.spectra import generation_of
from nemo_asr.models.conformer import AttentionName, ConformerEncoder, ContextStyle
from nemo_asr.models.jasper import JasperBlockSpec, JasperDecoderForCTC, JasperEncoder
from nemo_asr.models.transducer.joint import JointnetSpec, RNNTJoint
from nemo_asr.models.transducer.prediction import (
    PrednetSpec,
    RNNTDecoder,
    StatelessSpec,
    StatelessTransducerDecoder,
)
from nemo_asr.models.transducer.prompt import LanguagePrompt
from nemo_asr.run.text.subwords import Subwords, SubwordsByLanguage, WordPieces, marked_piece
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_asr.trained.nemo_config import resolved, section_at, section_of
from nemo_asr.trained.nemo_prompted import read_nemo_decoder
from nemo_asr.trained.nemo_transducers import further_arguments, prompt_arguments, refuse_adapters
from nemo_asr.trained.prompted_models import DECODER
from nemo_lite import logging
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_tensors
from nemo_lite.base.config import Config, parse_config, raise_if, shown
from nemo_lite.base.errors import CheckpointError, DataError
from nemo_lite.base.nemo_archive import CONFIG_0, SUFFIX, NemoArchive

# Any: values of YAML.

_WEIGHTS_1 = "model_weights.ckpt"
_MEL = AudioToMelSpectrogramPreprocessor.__name__
_HEAD = JasperDecoderForCTC.__name__
_JOINT = RNNTJoint.__name__


class _Part(NamedTuple):
    """A module of a model since 1.x: where its section is, how the names of its tensors begin, and what it may be."""

    path: str
    prefix: str
    classes: Mapping[str, type]
    is_needed: bool = True


_ENCODER = _Part(
    "encoder",
    "encoder",
    {"ConvASREncoder": JasperEncoder, "JasperEncoder": JasperEncoder, "ConformerEncoder": ConformerEncoder},
)
_CTC_CLASSES = {"ConvASRDecoder": JasperDecoderForCTC, _HEAD: JasperDecoderForCTC}
_PARTS = (
    _Part(
        "preprocessor",
        "",
        {_MEL: AudioToMelSpectrogramPreprocessor, "AudioToMFCCPreprocessor": AudioToMFCCPreprocessor},
    ),
    _Part("spec_augment", "", {"SpectrogramAugmentation": SpectrogramAugmentation}, is_needed=False),
    _ENCODER,
)
_CTC_PARTS = (*_PARTS, _Part("decoder", "decoder", _CTC_CLASSES))
_PREDICTION_CLASSES = {"RNNTDecoder": RNNTDecoder, "StatelessTransducerDecoder": StatelessTransducerDecoder}
_TRANSDUCER_PARTS = (
    *_PARTS,
    _Part("decoder", "decoder", _PREDICTION_CLASSES),
    _Part("joint", "joint", {_JOINT: RNNTJoint}),
)
_PROMPT = "prompt_kernel"  # has no section
_PROMPTED_PARTS = (*_PARTS,)  # `read_nemo_decoder` reads the decoder
_HYBRID_PARTS = (*_TRANSDUCER_PARTS, _Part("aux_ctc.decoder", "ctc_decoder", _CTC_CLASSES))
# Arguments that are sections themselves.
_INNER: dict[tuple[type, str], type] = {
    (RNNTDecoder, "prednet"): PrednetSpec,
    (StatelessTransducerDecoder, "prednet"): StatelessSpec,
    (RNNTJoint, "jointnet"): JointnetSpec,
}
# Keys of 1.x that say nothing about a trained model, and those that may only have the value that leaves it as it is.
_IGNORED = {
    *("_target_", "cls", "params", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio", "name"),
    *("use_pytorch_sdpa", "use_pytorch_sdpa_backends", "global_tokens_spacing"),
    *("subsampling_conv_chunking_factor", "pos_emb_max_len", "sync_max_audio_length"),
    *("use_vectorized_spec_augment", "use_numba_spec_augment"),
    *("log_softmax", "preserve_memory", "fuse_loss_wer", "fused_batch_size", "experimental_fuse_loss_wer"),
    "masking_prob",  # `further_arguments` reads it
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
    "blank_as_pad": True,
    "random_state_sampling": False,
    "pred_rnn_layers": 1,
}
# Kinds of encoders that are known here, of those that files name.
_KINDS = {"self_attention_model": get_args(AttentionName), "att_context_style": get_args(ContextStyle)}
# Arguments of decoders and joint networks that follow from the labels and from the encoder.
_DERIVED = ("num_classes", "feat_in", "vocabulary", "vocab_size", "num_extra_outputs")
# Classes of whole models since 1.x: those that are read, and by parts of the others' names why they are not.
_MODELS = (
    *("EncDecCTCModel", "EncDecCTCModelBPE", "EncDecRNNTModel", "EncDecRNNTBPEModel"),
    *("EncDecHybridRNNTCTCModel", "EncDecHybridRNNTCTCBPEModel"),
    *("EncDecRNNTBPEModelWithPrompt", "EncDecHybridRNNTCTCBPEModelWithPrompt"),
    "EncDecMultiTaskModel",
    *("EncDecRNNTBPEEOUModel", "EncDecHybridRNNTCTCBPEEOUModel"),  # with labels for ends of utterances
)
_OTHER_KINDS = {
    "MultiTalker": "it takes speakers as a further input",
    "SelfSupervised": "it was trained without texts and has no head",
    "speechlm": "a language model decodes it",
    "SALM": "a language model decodes it",
    ".nlp.": "a file of a language model, not of a model of speech",
    "language_modeling": "a file of a language model, not of a model of speech",
}
_FILTERS, _FILTER_TOLERANCE = "preprocessor.featurizer.fb", 1e-3
# Parts of the state of 1.x that are computed from the configuration.
_COMPUTED = ("preprocessor.", "spec_augmentation.", "spec_augment.", "loss.", "encoder.pos_enc.")
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
    config = section_of(config, "model") or config
    version = _version_of(config)
    _refuse_kind(config)
    parts = _parts_of(config)
    sections, classes = _recipe_sections(config, parts, version)
    versions = {"NeMo": version} if config.get("nemo_version") else {}
    tokenizer = _tokenizer_of(archive, config)
    state = _tensors(archive, _WEIGHTS_1)
    _compare_filters(sections, state.get(_FILTERS), place)
    if parts is _PROMPTED_PARTS:
        if tokenizer is None:
            raise CheckpointError("its tokenizer cannot be read", place=place, wanted="one of SentencePiece")
        mine = {name: tensor for name, tensor in state.items() if name.startswith(("encoder.", *_COMPUTED))}
        weights = _split(mine, {"encoder": classes["encoder"]}, place)
        decoder = read_nemo_decoder(config, tokenizer, {name: state[name] for name in state.keys() - mine}, place)
        cut = {"tokenizer": f"tokenizer{decoder.tokenizer.suffix}"}
        of_decoder = {"name": archive.path.stem, "family": "attention", **cut, **sections, **decoder.sections}
        weights |= {DECODER: decoder.weights}
        return ForeignModel(place, of_decoder, weights, decoder.tokenizer, files, versions)
    labels = _labels_of(config)
    prefixes = {part.prefix: classes[part.path] for part in parts if part.prefix}
    if any(name.startswith(f"{_PROMPT}.") for name in state):
        prefixes[_PROMPT] = LanguagePrompt.__name__
        sections[LanguagePrompt.__name__] = prompt_arguments(config, state)
    weights = _split(state, prefixes, place)
    _check_outputs(labels if tokenizer is None else tokenizer, weights, sections, place)
    if tokenizer is not None:
        _check_pieces(tokenizer, labels, place)
    elif _kind_of_tokenizer(config) == "wpe":
        labels = list(map(marked_piece, labels))
    kind = {} if parts is _CTC_PARTS else {"family": "hybrid" if parts is _HYBRID_PARTS else "transducer"}
    in_labels = {"labels": labels} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}
    recipe = {"name": archive.path.stem, **kind, **in_labels, **sections}
    return ForeignModel(place, recipe, weights, tokenizer, files, versions)


NEMO_FILES = Format("a .nemo file", lambda path: path.suffix == SUFFIX and path.is_file(), read_nemo)


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


def _parts_of(config: Config) -> tuple[_Part, ...]:
    """The modules of a model, by its class; a file need not name that, and then by its sections."""
    target = str(config.get("target") or "")
    if "MultiTask" in target or section_of(config, "transf_decoder") is not None:
        return _PROMPTED_PARTS
    if "Hybrid" in target or section_of(config, "aux_ctc") is not None:
        return _HYBRID_PARTS
    return _TRANSDUCER_PARTS if "RNNT" in target or section_of(config, "joint") is not None else _CTC_PARTS


def _recipe_sections(
    config: Config, parts: Sequence[_Part], version: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The sections of a recipe by the names of their classes, and by the path of each section the name of its class.

    Raises:
        ConfigError: it has settings that the modules here do not have: all at once.
    """
    problems: list[str] = []
    sections: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for part in parts:
        section = section_at(config, part.path)
        if section is None and part.is_needed:
            problems.append(f"{config.place()}: {part.path} is missing")
        if section is None:
            continue
        target = str(section.get("_target_", section.get("cls", part.path))).rpartition(".")[2]
        if target in part.classes:
            values, cls = section_of(section, "params") or section, part.classes[target]
            names[part.path] = cls.__name__
            sections[cls.__name__] = dict(_known_arguments(config, values, cls, problems))
            wrong = [key for owner, key in _INNER if owner is cls and section_of(values, key) is None]
            problems += [
                f"{section.place()}: {part.path}.{key} is {shown(values.get(key))}, wanted a section" for key in wrong
            ]
        elif not part.is_needed:
            logging.warning("%s: its augmentation %s is not known here and is left out", section.place(), target)
        else:
            problems.append(f"{section.place()}: {part.path} is {target}, wanted {' or '.join(part.classes)}")
    kind = _kind_of_tokenizer(config)
    if kind not in ("", "bpe", "wpe", "agg"):
        problems.append(f"{config.place('tokenizer')}: tokenizer.type is {shown(kind)}, wanted bpe, wpe or agg")
    is_transducer = parts in (_TRANSDUCER_PARTS, _HYBRID_PARTS)
    further = further_arguments(config, problems) if is_transducer else {}
    raise_if(problems)
    for path in names.keys() - {"preprocessor", "spec_augment", "encoder"}:
        for argument in _DERIVED:  # a recipe has its labels once
            sections[names[path]].pop(argument, None)
    if is_transducer:
        states = sections[names["decoder"]]["prednet"].get("pred_hidden")
        sections[_JOINT]["jointnet"].pop("encoder_hidden", None)
        sections[_JOINT]["jointnet"]["pred_hidden"] = states
    for name, arguments in further.items():
        sections[name] = {**sections.get(name, {}), **arguments}
    if _MEL in sections:
        sections[_MEL] = {"std_floor": 0.0, "generation": generation_of(version), **sections[_MEL]}
    return sections, names


def _refuse_kind(config: Config) -> None:
    """See that the class of a model is one that is read here; a file need not name it.

    Raises:
        ConfigError: it is another one: one line with the reason.
    """
    target = str(config.get("target") or "")
    name = target.rpartition(".")[2]
    if not name or name in _MODELS:
        return
    reason = next((reason for part, reason in _OTHER_KINDS.items() if part in target), "its kind is not known here")
    raise_if([f"{config.place('target')}: the model is {name}: {reason}; read are {', '.join(_MODELS)}"])


def _known_arguments(
    config: Config, section: Config, target: Callable[..., Any], problems: list[str]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a section that its class here has; others must say nothing, or what is so anyway."""
    parameters = inspect.signature(target).parameters
    for key, value in section.items():
        value = resolved(config, value)
        if key == "jasper" and isinstance(value, Sequence):
            problems += [problem for block in value for problem in _future_problems(block)]
            yield key, [dict(_known_arguments(config, block, JasperBlockSpec, problems)) for block in value]
        elif isinstance(target, type) and (target, key) in _INNER and isinstance(value, Config):
            yield key, dict(_known_arguments(config, value, _INNER[target, key], problems))
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


def _labels_of(config: Config) -> list[str]:
    """The labels that the configuration lists.

    Raises:
        ConfigError: it lists none.
    """
    holders = [section_at(config, path) for path in ("aux_ctc.decoder", "joint", "decoder")]
    places = [*((holder, "vocabulary") for holder in holders), (config, "labels")]
    listed = (resolved(config, place.get(key)) for place, key in places if place)
    labels = next((found for found in listed if isinstance(found, list) and found), None)
    if labels is None:
        raise_if([f"{config.place()}: decoder.vocabulary is missing, the list of the model's labels"])
    return list(map(str, labels or ()))


# The tokenizer, and the weights of each module.


def _kind_of_tokenizer(config: Config) -> str:
    """bpe, wpe or agg; "" where the labels are characters."""
    section = section_of(config, "tokenizer")
    return "" if section is None else str(section.get("type", "bpe")).lower()


def _tokenizer_of(archive: NemoArchive, config: Config) -> Subwords | None:
    """What cuts texts into the labels; None where these are characters, or, with a warning, where it is not read here.

    Raises:
        CheckpointError: the configuration names a file that is not in the archive.
    """
    section = section_of(config, "tokenizer")
    if section is None:
        return None
    if _kind_of_tokenizer(config) != "agg":
        return _tokenizer_in(archive, section)
    languages = section_of(section, "langs")
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


def _check_pieces(tokenizer: Subwords, labels: Sequence[str], place: str) -> None:
    """The pieces of a tokenizer must be the labels, in their order.

    Raises:
        CheckpointError: they are not.
    """
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


def _check_outputs(
    labels: Sequence[str] | Subwords,
    weights: Mapping[str, Mapping[str, Tensor]],
    sections: Mapping[str, Any],
    place: str,
) -> None:
    """Labels or pieces must be as many as the outputs of each head without the blank, durations and big blanks.

    Raises:
        CheckpointError: they are not.
    """
    which, what = ("labels do", "labels") if isinstance(labels, list) else ("tokenizer does", "pieces")
    joint = sections.get(_JOINT, {})
    durations = len(joint.get("durations", ())), len(joint.get("big_blank_durations", ()))
    further = "".join(
        f" and {number} {kind}" for number, kind in zip(durations, ("durations", "big blanks"), strict=True) if number
    )
    for head, its_name, dimensions, extra, others in (
        (_HEAD, "decoder", 3, 0, ""),
        (_JOINT, "joint network", 2, sum(durations), further),
    ):
        outputs = [
            len(tensor)
            for name, tensor in weights.get(head, {}).items()
            if name.endswith("weight")
            and name.startswith(("decoder_layers", "joint_net"))
            and tensor.dim() == dimensions
        ]
        if outputs and outputs[0] != len(labels) + 1 + extra:
            got = f"{len(labels)} {what}"
            wanted = f"{outputs[0] - 1 - extra}, one for each output of the {its_name} but the blank{others}"
            raise CheckpointError(f"its {which} not fit its {its_name}", place=place, got=got, wanted=wanted)


def _compare_filters(sections: Mapping[str, Any], theirs: Tensor | None, place: str) -> None:
    """Warn where the mel filters that the file holds are not those that its settings give here."""
    if theirs is None or _MEL not in sections:
        return
    ours = AudioToMelSpectrogramPreprocessor(**sections[_MEL]).filters  # (bins, bands)
    theirs = theirs.float().squeeze(0).t()  # from (1, bands, bins)
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _FILTER_TOLERANCE * float(ours.max()):
        logging.warning("%s: its mel filters are not those that its settings give here; expect more errors", place)


def _split(state: Mapping[str, Tensor], names: Mapping[str, str], place: str) -> dict[str, dict[str, Tensor]]:
    """The state of a whole model by module.

    Args:
        names: the class of each module, by how the names of its tensors begin.

    Raises:
        CheckpointError: it has a part that such a model has not.
    """
    refuse_adapters(state, place)
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in names.values()}
    for name, tensor in state.items():
        part, _, inner = name.partition(".")
        if name.startswith(_COMPUTED):
            continue
        if part not in names:
            wanted = ", ".join(f"{prefix}.*" for prefix in (*names, "preprocessor"))
            raise CheckpointError("its weights are of another kind of model", place=place, got=name, wanted=wanted)
        parts[names[part]][name if part == _PROMPT else inner] = tensor
    return parts
