"""Small folders in the layout of transformers: a Parakeet with a CTC head, with weights by a formula."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from nemo_asr.run.text.sentencepiece_file import PieceKind, decode
from toys.nemo_conformers import by_formula, stored_cases
from toys.subwords import small_subwords

ENCODER = {
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "model_type": "parakeet_encoder",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_mel_bins": 80,
    "scale_input": False,
    "subsampling_conv_channels": 8,
    "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
    "subsampling_factor": 8,
}
_RENAMED = (
    (r"^encoder\.pre_encode\.conv\.", "encoder.subsampling.layers."),
    (r"^encoder\.pre_encode\.out\.", "encoder.subsampling.linear."),
    (r"\.batch_norm\.", ".norm."),
    (r"\.linear_([qkv])\.", r".\1_proj."),
    (r"\.linear_out\.", ".o_proj."),
    (r"\.linear_pos\.", ".relative_k_proj."),
    (r"\.pos_bias_([uv])$", r".bias_\1"),
    (r"^decoder\.decoder_layers\.0\.", "ctc_head."),
)


def config_of(num_labels: int) -> dict[str, Any]:
    """``config.json``."""
    return {
        "architectures": ["ParakeetForCTC"],
        "encoder_config": dict(ENCODER),
        "model_type": "parakeet_ctc",
        "pad_token_id": num_labels,
        "transformers_version": "5.23.0",
        "vocab_size": num_labels + 1,
    }


def state_of(num_labels: int) -> dict[str, Tensor]:
    """The weights by transformers' names."""
    shapes = dict(stored_cases()["fast conformer of 3.0"]["shapes"])
    shapes["decoder.decoder_layers.0.weight"] = [num_labels + 1, 16, 1]
    shapes["decoder.decoder_layers.0.bias"] = [num_labels + 1]
    state = {}
    for name, tensor in by_formula(shapes).items():
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        state[name] = tensor
    return state


def tokenizer_of(algorithm: str) -> dict[str, Any]:
    """``tokenizer.json`` of `small_subwords`, as transformers converts a SentencePiece model."""
    subwords = small_subwords(algorithm)
    pieces = decode(subwords.model, "tokenizer").pieces
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    model: dict[str, Any]
    if algorithm == "unigram":
        vocabulary = [[piece.text, piece.score] for piece in pieces]
        model = {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False}
    else:
        merges = [
            (piece.score, [piece.text[:at], piece.text[at:]])
            for piece in pieces
            if piece.kind is PieceKind.NORMAL
            for at in range(1, len(piece.text))
            if piece.text[:at] in ids and piece.text[at:] in ids
        ]
        ordered = [merge for _, merge in sorted(merges, key=lambda each: -each[0])]
        model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": ids}
        model["merges"] = ordered
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": piece.text, "special": piece.kind is not PieceKind.USER_DEFINED, **flags}
        for i, piece in enumerate(pieces)
        if piece.kind is not PieceKind.NORMAL
    ]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*added, {"id": len(pieces), "content": "<pad>", "special": True, **flags}],
        "normalizer": None,
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": model,
    }


def write_folder(folder: Path, algorithm: str = "bpe", changes: Mapping[str, Any] | None = None) -> Path:
    """A folder; ``changes`` are made to ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    num_labels = len(small_subwords(algorithm))
    (folder / "config.json").write_text(json.dumps({**config_of(num_labels), **(changes or {})}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(algorithm)))
    settings = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": 80, "sampling_rate": 16000}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    save_file(state_of(num_labels), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
