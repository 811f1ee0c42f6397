"""read_waveforms: folders of transformers with a CTC head on wav2vec 2.0, HuBERT, WavLM or omniASR.

`hugging_face` knows by the type of the model that it is one of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_asr.features.waveform import AudioToWaveformPreprocessor
from nemo_asr.models.jasper import JasperDecoderForCTC
from nemo_asr.models.wav2vec import Wav2VecEncoder
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.trained.foreign import ForeignModel
from nemo_asr.trained.hugging_face_files import (
    CONFIG,
    SETTINGS,
    TOKENIZER,
    blank_of,
    in_order,
    pieces_of,
    read_object,
    refuse_settings,
    settings_of,
    versions_in,
    weight_files,
)
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.base.errors import CheckpointError

# Any: values of JSON.

VOCABULARY = "vocab.json"
# What says which tokens are special: today's folders have the first, older ones the others too.
TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


class Waveforms(NamedTuple):
    """A type of models that hear waveforms.

    Attributes:
        section: of the configuration that says what the encoder is; None: the configuration itself.
        blank: the key of the blank's output.
        always: arguments of the encoder that no configuration of the type says.
        variance_floor: is added to the variance of the samples.
        has_characters: its labels are those of ``vocab.json``.
    """

    section: str | None = None
    blank: str = "pad_token_id"
    always: Mapping[str, Any] = {}
    variance_floor: float = 1e-7
    has_characters: bool = True


_OMNI = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "conv_bias": True,
    "attention_dropout": 0.0,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "mask_time_prob": 0.0,
}
WAVEFORMS = {
    "wav2vec2": Waveforms(),
    "hubert": Waveforms(),
    "wavlm": Waveforms(always={"gated_positions": True}),
    "omniasr_ctc": Waveforms("audio_config", "blank_token_id", _OMNI, 1e-5, has_characters=False),
}
# Arguments of the encoder, which have transformers' names and defaults.
_ARGUMENTS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "layer_norm_eps"),
    *("conv_dim", "conv_kernel", "conv_stride", "conv_bias", "feat_extract_norm", "do_stable_layer_norm"),
    *("num_conv_pos_embeddings", "num_conv_pos_embedding_groups"),
    *("feat_proj_dropout", "hidden_dropout", "activation_dropout", "attention_dropout", "final_dropout", "layerdrop"),
    *("mask_time_prob", "mask_time_length", "mask_time_min_masks"),
    *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
)
_OF_DISTANCES = ("num_buckets", "max_bucket_distance")
_FIXED = {
    "hidden_act": "gelu",
    "feat_extract_activation": "gelu",
    "add_adapter": False,
    "adapter_attn_dim": None,
    "conv_pos_batch_norm": False,
    "feat_proj_layer_norm": True,
}
_NAMES = (
    (r"^(?:wav2vec2|hubert|wavlm)\.", "encoder."),
    (r"\.parametrizations\.weight\.original0$", ".weight_g"),
    (r"\.parametrizations\.weight\.original1$", ".weight_v"),
    (r"\.attention\.gru_rel_pos_", ".attention.gate.gru_rel_pos_"),
    (r"^lm_head\.", "head.decoder_layers.0."),
    (r"^model\.audio_tower\.subsampling\.conv_layers\.", "encoder.feature_extractor.conv_layers."),
    (r"^model\.audio_tower\.subsampling\.", "encoder.feature_projection."),
    (r"^model\.audio_tower\.encode_positions\.", "encoder.encoder.pos_conv_embed."),
    (r"^model\.audio_tower\.", "encoder.encoder."),
    (r"^ctc_head\.", "head.decoder_layers.0."),
)
_POSITIONS = "encoder.pos_conv_embed.conv.weight"
_MASKED = "masked_spec_embed"
_TOKENIZERS = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")


def read_waveforms(folder: Path, config: Mapping[str, Any], kind: Waveforms) -> ForeignModel:
    """Read a folder whose configuration is of this type.

    Raises:
        CheckpointError: a file is missing or damaged, or it has what is not read here: one line.
    """
    arguments = _encoder(config, kind, folder / CONFIG)
    files_of_weights = weight_files(folder)
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "head": {}}
    names = []
    for file in files_of_weights:
        for name, tensor in read_tensors(file).items():
            names.append(name)
            part, _, inner = _renamed(name).partition(".")
            parts.setdefault(part, {})[inner] = tensor
    _refuse_other_parts(parts, names, config, folder)
    blank, outputs = blank_of(config, kind.blank, parts["head"], folder / CONFIG)
    tokenizer: Subwords | None = None
    if kind.has_characters:
        labels, rows = _characters(folder, blank, outputs)
    else:
        rows = [row for row in range(outputs) if row != blank]
        labels, tokenizer = pieces_of(folder / TOKENIZER, rows)
    # Their head is a linear layer, ours a convolution of one frame.
    head = {name: tensor.unsqueeze(-1) if tensor.dim() == 2 else tensor for name, tensor in parts["head"].items()}
    encoder, decoder = Wav2VecEncoder.__name__, JasperDecoderForCTC.__name__
    recipe = {
        "name": folder.resolve().name,
        **({"labels": labels} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}),
        AudioToWaveformPreprocessor.__name__: _features(settings_of(folder), kind),
        encoder: arguments,
        decoder: {},
    }
    weights = {encoder: _completed(parts["encoder"], arguments), decoder: in_order(head, [*rows, blank])}
    others = (folder / name for name in (CONFIG, TOKENIZER, VOCABULARY, *TOKENS, *SETTINGS))
    files = (*(path for path in others if path.is_file()), *files_of_weights)
    return ForeignModel(str(folder), recipe, weights, tokenizer, files, versions_in(config))


def _renamed(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _encoder(config: Mapping[str, Any], kind: Waveforms, path: Path) -> dict[str, Any]:
    """The arguments of the encoder.

    Raises:
        CheckpointError: a setting that the encoder here has not.
    """
    section = config.get(kind.section) if kind.section else config
    given = section if isinstance(section, dict) else {}
    refuse_settings(given, _FIXED, f"{path}: {kind.section}" if kind.section else str(path))
    names = (*_ARGUMENTS, *_OF_DISTANCES) if "gated_positions" in kind.always else _ARGUMENTS
    arguments = {**kind.always, **{name: given[name] for name in names if given.get(name) is not None}}
    if kind.section:
        arguments |= {"final_dropout": arguments.get("hidden_dropout", 0.1)}
    if given.get("apply_spec_augment") is False:
        arguments |= {"mask_time_prob": 0.0, "mask_feature_prob": 0.0}
    return arguments


def _features(settings: Mapping[str, Any], kind: Waveforms) -> dict[str, Any]:
    """The arguments of the preprocessor."""
    inner = settings.get("feature_extractor")
    settings = inner if isinstance(inner, dict) else settings
    return {
        "sample_rate": settings.get("sampling_rate", 16000),
        "normalize": settings.get("do_normalize", True),
        "variance_floor": kind.variance_floor,
    }


def _refuse_other_parts(
    parts: Mapping[str, Mapping[str, Tensor]], names: Sequence[str], config: Mapping[str, Any], folder: Path
) -> None:
    """Raise CheckpointError for a model without a CTC head, and for weights that are neither encoder nor head."""
    if not parts["head"]:
        classes = config.get("architectures")
        got = ", ".join(map(str, classes)) if isinstance(classes, list) else str(config.get("model_type"))
        problem = "the model has no CTC head, so it writes no texts"
        remedy = "give one that was fine-tuned to transcribe"
        raise CheckpointError(problem, place=str(folder), got=got, wanted="such as Wav2Vec2ForCTC", remedy=remedy)
    others = [name for name in names if _renamed(name).partition(".")[0] not in ("encoder", "head")]
    if others:
        wanted = "an encoder and a CTC head"
        raise CheckpointError(
            "its weights are of another kind of model", place=str(folder), got=others[0], wanted=wanted
        )


def _completed(weights: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's tensors as those of `Wav2VecEncoder`.

    A convolution of positions without a norm of its own gets that of its weights. The vector for frames that training
    masks is there only where it masks any; a folder without it has zeros.
    """
    weights = dict(weights)
    plain = weights.get(_POSITIONS)
    if plain is not None and plain.dim() == 3:
        weights[f"{_POSITIONS}_v"] = weights.pop(_POSITIONS)
        weights[f"{_POSITIONS}_g"] = torch.linalg.vector_norm(plain, dim=(0, 1), keepdim=True)
    given, norm = weights.pop(_MASKED, None), weights.get("encoder.layer_norm.bias")
    if given is None and norm is not None:
        given = torch.zeros_like(norm)
    if given is not None and arguments.get("mask_time_prob", 0.05):
        weights[_MASKED] = given
    return weights


def _characters(folder: Path, blank: int, outputs: int) -> tuple[list[str], list[int]]:
    """The labels of ``vocab.json``, and the output that each is.

    The word delimiter is a space. The tokens for the beginning and the end of a text and for unknown characters are no
    labels: no text has them.

    Raises:
        CheckpointError: a file is missing or damaged, or it is of another kind; an output has no token.
    """
    path = folder / VOCABULARY
    vocabulary, settings, added = read_object(path), *_token_settings(folder)
    kind = settings.get("tokenizer_class", _TOKENIZERS[0])
    if kind not in _TOKENIZERS:
        place, wanted = f"{folder / TOKENS[0]}: tokenizer_class", _TOKENIZERS[0]
        raise CheckpointError("the tokenizer is of another kind", place=place, got=str(kind), wanted=wanted)
    if any(isinstance(value, dict) for value in vocabulary.values()):
        problem, got = "it has a vocabulary for each language, which is not read here", ", ".join([*vocabulary][:4])
        raise CheckpointError(problem, place=str(path), got=got, wanted="a number for each character")
    by_id = {number: token for tokens in (added, vocabulary) for token, number in tokens.items() if type(number) is int}
    missing = [number for number in range(outputs) if number not in by_id and number != blank]
    if missing:
        got, wanted = f"no token {missing[0]}", f"one for each of the {outputs} outputs but the blank"
        raise CheckpointError("its tokenizer does not fit its decoder", place=str(path), got=got, wanted=wanted)
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    special = {_token(settings, name, default) for name, default in tokens.items()}
    rows = [number for number in range(outputs) if number != blank and by_id[number] not in special]
    space = {_token(settings, "word_delimiter_token", "|"): settings.get("replace_word_delimiter_char") or " "}
    labels = [str(space.get(by_id[row], by_id[row])) for row in rows]
    return [label.lower() for label in labels] if settings.get("do_lower_case") is True else labels, rows


def _token_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the tokenizer's files say, and tokens that were added to the vocabulary."""
    config, special, added = (read_object(folder / name) if (folder / name).is_file() else {} for name in TOKENS)
    return {**special, **config}, added


def _token(settings: Mapping[str, Any], name: str, default: str) -> str:
    value = settings.get(name, default)
    return str(value.get("content") if isinstance(value, dict) else value)
