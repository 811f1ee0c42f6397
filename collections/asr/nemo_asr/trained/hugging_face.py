"""read_hugging_face: folders of Hugging Face's transformers with a Parakeet and its CTC head, as recipes and weights.

A folder holds `config.json`, `model.safetensors` (or its parts, with `model.safetensors.index.json`), `tokenizer.json`
and the settings of the features. The encoder is NVIDIA's FastConformer under other names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.models.jasper import JasperDecoderForCTC
from nemo_asr.run.text.sentencepiece_file import STORED_ALGORITHMS, ModelFile, Piece, PieceKind, encode
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_lite import logging
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.base.errors import CheckpointError, DataError
from nemo_lite.base.files import FileKind, parse_json, read_bytes

# Any: values of JSON.

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # are not read: the folder says so itself
_SETTINGS = ("preprocessor_config.json", "processor_config.json")  # of the features: older folders, newer ones
_KIND = FileKind("the file", 64 << 20, CheckpointError, "copy the folder again")
_MODEL_TYPE = "parakeet_ctc"
_OF_WAVEFORMS = ("wav2vec2", "hubert", "wavlm", "unispeech", "sew", "mctct", "data2vec")
# By parts of the names of other models' types and classes: why they are not read.
_OTHER_KINDS = {
    "rnnt": "a transducer has no CTC head",
    "tdt": "a transducer has no CTC head",
    "whisper": "its decoder is a Transformer that reads text, not a CTC head",
    "moonshine": "its decoder is a Transformer that reads text, not a CTC head",
    **dict.fromkeys(_OF_WAVEFORMS, "it hears waveforms, and the encoder here hears mel frames"),
    "ForCausalLM": "a file of a language model, not of a model of speech",
    "ForMaskedLM": "a file of a language model, not of a model of speech",
}
# What transformers takes where a configuration leaves a key out, and the values that others may not have.
_ENCODER_DEFAULTS: dict[str, Any] = {
    "num_mel_bins": 80,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "attention_bias": True,
    "convolution_bias": True,
    "scale_input": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "dropout_positions": 0.0,
}
_ENCODER_FIXED = {"hidden_act": "silu", "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2}
_FEATURES = {
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "padding_value": 0.0,
}
# Names of transformers and ours; those that are not here are the same.
_RENAMED = (
    (r"^encoder\.subsampling\.layers\.", "encoder.pre_encode.conv."),
    (r"^encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_([uv])$", r".self_attn.pos_bias_\1"),
    (r"^ctc_head\.", "decoder.decoder_layers.0."),
)
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
_ALGORITHMS = {"Unigram": "unigram", "BPE": "bpe"}


def read_hugging_face(path: str | Path) -> ForeignModel:
    """Read a folder. Its code is not run.

    Raises:
        CheckpointError: a file is missing or damaged, or it is of a model of another kind: one line.
    """
    folder = Path(path)
    config = _json(folder / CONFIG)
    _refuse_kind(config, folder / CONFIG)
    encoder = _encoder(config.get("encoder_config"), folder / CONFIG)
    weight_files = _weight_files(folder)
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "decoder": {}}
    for file in weight_files:
        for name, tensor in read_tensors(file).items():
            part, inner = _renamed(name, file)
            parts[part][inner] = tensor
    blank, outputs = _blank(config, parts["decoder"], folder / CONFIG)
    order = [*(row for row in range(outputs) if row != blank), blank]
    if blank != outputs - 1:
        parts["decoder"] = {name: tensor[torch.tensor(order)] for name, tensor in parts["decoder"].items()}
    pieces, tokenizer = _tokenizer(folder / TOKENIZER, order[:-1])
    recipe = {
        "name": folder.resolve().name,
        **({"labels": pieces} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}),
        AudioToMelSpectrogramPreprocessor.__name__: _features(folder),
        ConformerEncoder.__name__: encoder,
        JasperDecoderForCTC.__name__: {},
    }
    weights = {ConformerEncoder.__name__: parts["encoder"], JasperDecoderForCTC.__name__: parts["decoder"]}
    version = config.get("transformers_version")
    versions = {"transformers": str(version)} if version else {}
    others = (folder / name for name in (CONFIG, TOKENIZER, *_SETTINGS))
    files = (*(path for path in others if path.is_file()), *weight_files)
    return ForeignModel(str(folder), recipe, weights, tokenizer, files, versions)


def _is_folder(path: Path) -> bool:
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (WEIGHTS, INDEX, *_PICKLED))


HUGGING_FACE = Format("a folder of Hugging Face", _is_folder, read_hugging_face)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError("the folder lacks a file", place=str(path.parent), got=f"no {path.name}")
    content = parse_json(read_bytes(path, _KIND), str(path), _KIND)
    if not isinstance(content, dict):
        raise CheckpointError("the file holds no settings", place=str(path), wanted="an object")
    return content


def _refuse_kind(config: Mapping[str, Any], path: Path) -> None:
    model_type, classes = str(config.get("model_type")), config.get("architectures") or []
    if model_type == _MODEL_TYPE:
        return
    named = " ".join([model_type, *map(str, classes if isinstance(classes, list) else [])])
    reason = next((reason for part, reason in _OTHER_KINDS.items() if part in named), "its kind is not known here")
    problem = f"the model is of type {model_type[:80]}: {reason}"
    raise CheckpointError(problem, place=str(path), wanted=f"model_type {_MODEL_TYPE}")


def _encoder(section: Any, path: Path) -> dict[str, Any]:
    """The arguments of the encoder.

    Raises:
        CheckpointError: settings that it has not.
    """
    given = section if isinstance(section, dict) else {}
    values = _values(given, _ENCODER_DEFAULTS, f"{path}: encoder_config")
    for key, wanted in (*_ENCODER_FIXED.items(), ("convolution_bias", values["attention_bias"])):
        got = values.get(key, given.get(key, wanted))
        if got != wanted:
            place = f"{path}: encoder_config.{key}"
            raise CheckpointError("a setting that is not known here", place=place, got=str(got), wanted=str(wanted))
    expansion, rest = divmod(values["intermediate_size"], values["hidden_size"])
    if rest:
        problem, got = "intermediate_size is no multiple of hidden_size", str(values["intermediate_size"])
        raise CheckpointError(problem, place=str(path), got=got, wanted=f"a multiple of {values['hidden_size']}")
    return {
        "feat_in": values["num_mel_bins"],
        "n_layers": values["num_hidden_layers"],
        "d_model": values["hidden_size"],
        "n_heads": values["num_attention_heads"],
        "ff_expansion_factor": expansion,
        "subsampling": "dw_striding",
        "subsampling_factor": values["subsampling_factor"],
        "subsampling_conv_channels": values["subsampling_conv_channels"],
        "conv_kernel_size": values["conv_kernel_size"],
        "use_bias": values["attention_bias"],
        "xscaling": values["scale_input"],
        "dropout": values["dropout"],
        "dropout_pre_encoder": values["dropout"],
        "dropout_att": values["attention_dropout"],
        "dropout_emb": values["dropout_positions"],
    }


def _values(given: Any, defaults: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The values of these keys, or their defaults.

    Raises:
        CheckpointError: a value is of another type, or a size is not above 0.
    """
    values = {**defaults, **{key: given[key] for key in defaults if isinstance(given, dict) and key in given}}
    for key, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number if isinstance(defaults[key], float) else type(value) is type(defaults[key])
        if not fits or (type(defaults[key]) is int and value < 1):
            wanted = f"such as {defaults[key]}"
            raise CheckpointError("the value cannot be used", place=f"{place}.{key}", got=repr(value), wanted=wanted)
    return values


def _features(folder: Path) -> dict[str, Any]:
    """The arguments of the preprocessor: transformers has the features of NeMo 2.5 and later."""
    settings: dict[str, Any] = {}
    for name in _SETTINGS:
        if not settings and (folder / name).is_file():
            settings = _json(folder / name)
            settings = settings.get("feature_extractor") or settings
    values = _values(settings, _FEATURES, f"{folder}: the features' settings")
    rate = values["sampling_rate"]
    return {
        "sample_rate": rate,
        "window_size": values["win_length"] / rate,
        "window_stride": values["hop_length"] / rate,
        "n_fft": values["n_fft"],
        "features": values["feature_size"],
        "preemph": values["preemphasis"],
        "normalize": "per_feature",
        "dither": 1e-5,
        "pad_to": 0,
        "pad_value": values["padding_value"],
        "std_floor": 0.0,
        "generation": "nemo_2.5",
    }


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        problem, remedy = "its weights are pickled, and pickles are not read here", "store them with save_pretrained"
        raise CheckpointError(problem, place=str(folder), got=_PICKLED[0], wanted=WEIGHTS, remedy=remedy)
    index = folder / INDEX
    listed = _json(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    if not names:
        raise CheckpointError("the file lists no weights", place=str(index), wanted="weight_map")
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            wanted = "NAME.safetensors in this folder"
            raise CheckpointError(
                "a file of weights lies outside the folder", place=str(index), got=name, wanted=wanted
            )
        if not (folder / name).is_file():
            raise CheckpointError("the folder lacks a file", place=str(folder), got=f"no {name}")
    return [folder / name for name in names]


def _renamed(name: str, file: Path) -> tuple[str, str]:
    """The part of the model that a tensor belongs to, and its name there."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    part, _, inner = name.partition(".")
    if part not in ("encoder", "decoder"):
        wanted = "encoder.*, ctc_head.*"
        raise CheckpointError("its weights are of another kind of model", place=str(file), got=name, wanted=wanted)
    return part, inner


def _blank(config: Mapping[str, Any], head: Mapping[str, Tensor], path: Path) -> tuple[int, int]:
    """The output that is CTC's blank, and the number of outputs."""
    outputs = next((len(tensor) for tensor in head.values()), 0)
    blank = config.get("pad_token_id", outputs - 1)
    if not isinstance(blank, int) or not 0 <= blank < outputs:
        place, wanted = f"{path}: pad_token_id", f"the blank's output, 0 to {outputs - 1}"
        raise CheckpointError("it is no output of the CTC head", place=place, got=str(blank), wanted=wanted)
    return blank, outputs


def _tokenizer(path: Path, ids: Sequence[int]) -> tuple[list[str], Subwords | None]:
    """The pieces of these ids, and what cuts texts into them; None, with a warning, where nothing here does.

    transformers keeps a SentencePiece model's pieces and, of BPE, the order of its merges instead of scores.

    Raises:
        CheckpointError: the file lacks a piece, or has pieces of another kind.
    """
    try:
        return _read_tokenizer(_json(path), path, ids)
    except CheckpointError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("the tokenizer is damaged", place=str(path), got=str(error)) from None


def _read_tokenizer(content: dict[str, Any], path: Path, ids: Sequence[int]) -> tuple[list[str], Subwords | None]:
    section = content.get("model")
    model: dict[str, Any] = section if isinstance(section, dict) else {}
    kind = str(model.get("type") or ("BPE" if "merges" in model else "Unigram"))
    vocabulary: Any = model.get("vocab")
    if kind not in _ALGORITHMS or not isinstance(vocabulary, dict if kind == "BPE" else list):
        place = f"{path}: model.type"
        raise CheckpointError("the tokenizer is of another kind", place=place, got=kind, wanted="BPE or Unigram")
    added = [each for each in content.get("added_tokens") or [] if isinstance(each, dict)]
    if kind == "BPE":
        listed, scores = dict(vocabulary), _scores_of_merges(model)
    else:
        listed = {str(piece): i for i, (piece, _) in enumerate(vocabulary)}
        scores = {str(piece): float(score) for piece, score in vocabulary}
    by_id = {i: str(piece) for piece, i in listed.items()} | {
        each.get("id"): str(each.get("content")) for each in added
    }
    missing = [i for i in ids if i not in by_id]
    if missing:
        got, wanted = f"no piece {missing[0]}", f"one for each of the {len(ids)} outputs but the blank"
        raise CheckpointError("its tokenizer does not fit its decoder", place=str(path), got=got, wanted=wanted)
    pieces = [by_id[i] for i in ids]
    if any(map(_BYTE_PIECE.fullmatch, pieces)):
        raise CheckpointError("it has pieces that are bytes (byte_fallback), which are not read", place=str(path))
    unknown = model.get("unk_token") if kind == "BPE" else by_id.get(model.get("unk_id"))
    kinds = {
        str(each.get("content")): PieceKind.CONTROL if each.get("special") else PieceKind.USER_DEFINED for each in added
    }
    kinds[str(unknown)] = PieceKind.UNKNOWN
    algorithm = next(number for number, name in STORED_ALGORITHMS.items() if name == _ALGORITHMS[kind])
    stored = tuple(Piece(piece, scores.get(piece, 0.0), kinds.get(piece, PieceKind.NORMAL)) for piece in pieces)
    try:
        return pieces, Subwords(encode(ModelFile(algorithm, stored)), str(path))
    except (DataError, StopIteration) as error:
        logging.warning("%s. The model transcribes; to train or score it add --set tokenizer=FILE", error)
        return pieces, None


def _scores_of_merges(model: Mapping[str, Any]) -> dict[str, float]:
    """Scores with which SentencePiece merges in the same order: the piece that is merged first has the highest one."""
    scores: dict[str, float] = {}
    for position, merge in enumerate(model.get("merges") or []):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        scores.setdefault("".join(map(str, parts)), -float(position))
    return scores
