"""WAVEFORM_KINDS: how folders of transformers with a CTC head on wav2vec 2.0, HuBERT, WavLM or omniASR are read.

`hugging_face` knows by the type of the model that it is one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_asr.features.waveform import AudioToWaveformPreprocessor
from nemo_asr.models.wav2vec import Wav2VecEncoder
from nemo_asr.trained.ctc_folders import Kind, with_masked_vector
from nemo_asr.trained.hugging_face_files import refuse_settings, section_of

# Any: values of JSON.


class _Waveforms(NamedTuple):
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
_TYPES = {
    "wav2vec2": _Waveforms(),
    "hubert": _Waveforms(),
    "wavlm": _Waveforms(always={"gated_positions": True}),
    "omniasr_ctc": _Waveforms("audio_config", "blank_token_id", _OMNI, 1e-5, has_characters=False),
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
    (r"^model\.audio_tower\.subsampling\.conv_layers\.", "encoder.feature_extractor.conv_layers."),
    (r"^model\.audio_tower\.subsampling\.", "encoder.feature_projection."),
    (r"^model\.audio_tower\.encode_positions\.", "encoder.encoder.pos_conv_embed."),
    (r"^model\.audio_tower\.", "encoder.encoder."),
)
_POSITIONS = "encoder.pos_conv_embed.conv.weight"


def _encoder(kind: _Waveforms, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the encoder.

    Raises:
        CheckpointError: a setting that the encoder here has not.
    """
    section = section_of(config, kind.section) if kind.section else config
    refuse_settings(section, _FIXED, f"{path}: {kind.section}" if kind.section else str(path))
    names = (*_ARGUMENTS, *_OF_DISTANCES) if "gated_positions" in kind.always else _ARGUMENTS
    arguments = {**kind.always, **{name: section[name] for name in names if section.get(name) is not None}}
    if kind.section:
        arguments |= {"final_dropout": arguments.get("hidden_dropout", 0.1)}
    if section.get("apply_spec_augment") is False:
        arguments |= {"mask_time_prob": 0.0, "mask_feature_prob": 0.0}
    return arguments


def _features(kind: _Waveforms, settings: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """The preprocessor and its arguments."""
    return AudioToWaveformPreprocessor.__name__, {
        "sample_rate": settings.get("sampling_rate", 16000),
        "normalize": settings.get("do_normalize", True),
        "variance_floor": kind.variance_floor,
    }


def _completed(weights: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's tensors as those of `Wav2VecEncoder`.

    A convolution of positions without a norm of its own gets that of its weights.
    """
    weights = dict(weights)
    plain = weights.get(_POSITIONS)
    if plain is not None and plain.dim() == 3:
        weights[f"{_POSITIONS}_v"] = weights.pop(_POSITIONS)
        weights[f"{_POSITIONS}_g"] = torch.linalg.vector_norm(plain, dim=(0, 1), keepdim=True)
    return with_masked_vector(weights, arguments, "encoder.layer_norm.bias")


WAVEFORM_KINDS = {
    name: Kind(
        Wav2VecEncoder.__name__,
        partial(_encoder, kind),
        partial(_features, kind),
        _NAMES,
        _completed,
        blank=kind.blank,
        has_characters=kind.has_characters,
    )
    for name, kind in _TYPES.items()
}
