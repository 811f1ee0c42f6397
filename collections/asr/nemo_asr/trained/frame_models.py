"""FRAME_KINDS: how folders of transformers with a CTC head on wav2vec2-BERT, LASR or Granite Speech are read.

`hugging_face` knows by the type of the model that it is one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor
from nemo_asr.features.mel_deltas import AudioToMelDeltasPreprocessor
from nemo_asr.models.granite import GraniteSpeechEncoder
from nemo_asr.models.lasr import LasrEncoder
from nemo_asr.models.wav2vec_bert import Wav2VecBertEncoder
from nemo_asr.trained.ctc_folders import Kind, with_masked_vector
from nemo_asr.trained.hugging_face_files import refuse_settings, section_of, values_of

# Any: values of JSON.

# Arguments of the encoder, which have transformers' names and defaults.
_OF_BERT = (
    *("feature_projection_input_dim", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("left_max_position_embeddings", "right_max_position_embeddings", "conv_depthwise_kernel_size"),
    *("feat_proj_dropout", "hidden_dropout", "activation_dropout", "attention_dropout", "conformer_conv_dropout"),
    *("final_dropout", "layerdrop", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
    *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
)
_BERT_FIXED = {
    "position_embeddings_type": "relative_key",
    "hidden_act": "swish",
    "layer_norm_eps": 1e-5,
    "adapter_act": "relu",
    "adapter_kernel_size": 3,
    "adapter_stride": 2,
    "use_intermediate_ffn_before_adapter": False,
}
_BERT_NAMES = (
    (r"^wav2vec2_bert\.(?:encoder\.)?", "encoder."),
    (r"^encoder\.adapter\.layers\.", "encoder.adapter."),
    (r"^(encoder\.layers\.\d+)\.ffn([12])_layer_norm\.", r"\1.norm_feed_forward\2."),
    (r"^(encoder\.layers\.\d+)\.ffn([12])\.intermediate_dense\.", r"\1.feed_forward\2.linear1."),
    (r"^(encoder\.layers\.\d+)\.ffn([12])\.output_dense\.", r"\1.feed_forward\2.linear2."),
    (r"^(encoder\.layers\.\d+)\.self_attn_layer_norm\.", r"\1.norm_self_att."),
    (r"^(encoder\.layers\.\d+)\.final_layer_norm\.", r"\1.norm_out."),
    (r"\.conv_module\.layer_norm\.", ".norm_conv."),
    (r"\.conv_module\.depthwise_layer_norm\.", ".conv.batch_norm."),
    (r"\.conv_module\.", ".conv."),
)


def _bert(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the encoder of wav2vec2-BERT.

    Raises:
        CheckpointError: a setting that it has not.
    """
    size = config.get("hidden_size", 1024)
    refuse_settings(config, _BERT_FIXED, str(path))
    if config.get("output_hidden_size") is not None:
        refuse_settings(config, {"output_hidden_size": size}, str(path))
    arguments = {name: config[name] for name in _OF_BERT if config.get(name) is not None}
    if config.get("add_adapter"):
        arguments["num_adapter_layers"] = config.get("num_adapter_layers", 1)
    if config.get("apply_spec_augment") is False:
        arguments |= {"mask_time_prob": 0.0, "mask_feature_prob": 0.0}
    return arguments


def _fbank(settings: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Kaldi's filter banks, each of mean 0 and variance 1 over the utterance."""
    values = values_of(settings, {"num_mel_bins": 80, "sampling_rate": 16000}, place)
    refuse_settings(settings, {"stride": 2}, place)
    rate = values["sampling_rate"]
    return AudioToKaldiFbankPreprocessor.__name__, {
        "sample_rate": rate,
        # transformers' frames are 400 and 160 samples at any rate.
        **{"window_size": None, "n_window_size": 400, "window_stride": None, "n_window_stride": 160},
        "features": values["num_mel_bins"],
        "normalize": "per_feature",
        "variance_floor": 1e-7,
        "dither": 0.0,
    }


def _completed(weights: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's tensors."""
    return with_masked_vector(weights, arguments, "feature_projection.projection.bias")


_LASR_DEFAULTS: dict[str, Any] = {
    "num_mel_bins": 128,
    "hidden_size": 512,
    "num_hidden_layers": 17,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "conv_kernel_size": 32,
    "subsampling_conv_channels": 256,
    "attention_bias": False,
    "convolution_bias": False,
    "layer_norm_eps": 1e-6,
    "batch_norm_momentum": 0.01,
    "dropout": 0.1,
    "activation_dropout": 0.1,
    "attention_dropout": 0.1,
    "layerdrop": 0.1,
}
_LASR_FIXED = {
    "hidden_act": "silu",
    "subsampling_conv_kernel_size": 5,
    "subsampling_conv_stride": 2,
    "dropout_positions": 0.0,
}
_RESIDUALS = ("feed_forward_residual_weights", "conv_residual_weights")
_OF_PARAKEET = (
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
)


def _lasr(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the encoder of LASR.

    Raises:
        CheckpointError: a setting that it has not.
    """
    section, place = section_of(config, "encoder_config"), f"{path}: encoder_config"
    arguments = values_of(section, _LASR_DEFAULTS, place)
    refuse_settings(section, _LASR_FIXED | {"num_key_value_heads": arguments["num_attention_heads"]}, place)
    positions = values_of({"rope_parameters": section.get("rope_parameters") or {}}, {"rope_parameters": {}}, place)
    positions = positions["rope_parameters"]
    refuse_settings(positions, {"rope_type": "default", "partial_rotary_factor": 1.0}, f"{place}.rope_parameters")
    arguments |= {name: section[name] for name in _RESIDUALS if section.get(name) is not None}
    arguments["conv_kernel_size"] += 1 - arguments["conv_kernel_size"] % 2
    return {**arguments, **values_of(positions, {"rope_theta": 10_000.0}, f"{place}.rope_parameters")}


def _lasr_features(settings: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Kaldi's filter banks without its offset and pre-emphasis."""
    known = {"feature_size": 128, "sampling_rate": 16000, "hop_length": 160, "n_fft": 512, "win_length": 400}
    values = values_of(settings, known, place)
    window = values["win_length"]
    refuse_settings(values, {"n_fft": 1 << (window - 1).bit_length()}, place)
    return AudioToKaldiFbankPreprocessor.__name__, {
        "sample_rate": values["sampling_rate"],
        **{"window_size": None, "n_window_size": window},
        **{"window_stride": None, "n_window_stride": values["hop_length"]},
        "features": values["feature_size"],
        "window": "hann",
        "preemph": None,
        **{"lowfreq": 125.0, "highfreq": 7500.0},
        "dither": 0.0,
        "scale": 1.0,
        "remove_dc_offset": False,
        "log_zero_guard_value": 1e-5,
    }


def _with_odd_kernels(weights: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's tensors; an even kernel, which sees a frame more behind than before, gets a first tap of 0."""
    return {
        name: F.pad(tensor, (1, 0)) if name.endswith("depthwise_conv.weight") and _is_even(tensor) else tensor
        for name, tensor in weights.items()
    }


def _is_even(kernel: Tensor) -> bool:
    return kernel.dim() > 0 and kernel.shape[-1] % 2 == 0


_GRANITE_DEFAULTS: dict[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "context_size": 128,
    "max_position_embeddings": 512,
    "conv_kernel_size": 7,
    "conv_expansion_factor": 2,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_GRANITE_NAMES = (
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.rel_pos_emb\.", ".self_attn.distance_embedding."),
)


def _granite(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the encoder of Granite Speech.

    Raises:
        CheckpointError: a setting that it has not.
    """
    section, place = section_of(config, "encoder_config"), f"{path}: encoder_config"
    arguments = values_of(section, _GRANITE_DEFAULTS | {"num_mel_bins": 80}, place)
    num_heads = arguments["num_attention_heads"]
    fixed = {"hidden_act": "silu", "head_dim": arguments["hidden_size"] // num_heads, "num_key_value_heads": num_heads}
    refuse_settings({key: each for key, each in section.items() if each is not None}, fixed, place)
    halving = section.get("subsample_layers")
    return {
        # A frame, the one behind it, and the deltas of both.
        "feat_in": 4 * arguments.pop("num_mel_bins"),
        **arguments,
        "subsample_layers": [0, 1] if halving is None else halving,
    }


def _granite_features(settings: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Mel bands and their deltas."""
    known: dict[str, Any] = {"num_mel_bins": 80, "sampling_rate": 16000, "n_fft": 512, "win_length": 400}
    values = values_of(settings, known | {"hop_length": 160, "logmel_floor_db": 8.0}, place)
    refuse_settings(settings, {"delta_win_length": 3}, place)
    return AudioToMelDeltasPreprocessor.__name__, {
        "sample_rate": values["sampling_rate"],
        "n_window_size": values["win_length"],
        "n_window_stride": values["hop_length"],
        "n_fft": values["n_fft"],
        "features": values["num_mel_bins"],
        "floor": values["logmel_floor_db"],
    }


def _with_distances_of_keys(weights: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The encoder's tensors; transformers counts distances from the frame that is seen to the one that sees."""
    return {
        name: tensor.flip(0) if name.endswith("distance_embedding.weight") and tensor.dim() else tensor
        for name, tensor in weights.items()
    }


FRAME_KINDS = {
    "granite_speech5_ctc": Kind(
        GraniteSpeechEncoder.__name__,
        _granite,
        _granite_features,
        _GRANITE_NAMES,
        _with_distances_of_keys,
        head="out.",
        has_characters=False,
        has_special=False,
    ),
    "lasr_ctc": Kind(
        LasrEncoder.__name__,
        _lasr,
        _lasr_features,
        _OF_PARAKEET,
        _with_odd_kernels,
        has_characters=False,
        has_special=False,
    ),
    "wav2vec2-bert": Kind(Wav2VecBertEncoder.__name__, _bert, _fbank, _BERT_NAMES, _completed),
}
