"""What folders of Canary and of Cohere Transcribe say of their decoder: arguments, names of weights, special labels.

Their vocabulary has special labels between those of texts: here the end stands behind the labels, and the others behind
the end. Files of NVIDIA's: `nemo_prompted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_asr.decoding.attention import AttentionSearch
from nemo_asr.models.attention.loss import AttentionLoss
from nemo_asr.models.attention.prompt import PromptName
from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.trained.hugging_face_files import refuse_settings, values_of
from nemo_lite.base.errors import CheckpointError

# Any: values of JSON.

DECODER = PromptedDecoder.__name__
END = "<|endoftext|>"
_SPECIAL = re.compile(r"<\|.*\|>|<pad>|</?s>")
_LANGUAGE = re.compile(r"<\|([a-z]{2}(?:-[A-Z]{2})?)\|>")
# That models were trained for; their vocabularies have labels for many more. Source: their model cards.
LANGUAGES = {
    "canary": [
        *("bg", "hr", "cs", "da", "nl", "en", "et", "fi", "fr", "de", "el", "hu", "it"),
        *("lv", "lt", "mt", "pl", "pt", "ro", "sk", "sl", "es", "sv", "ru", "uk"),
    ],
    "cohere_asr": ["ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh"],
}
_ROWS = ("layers.embed.token_embedding.weight", "layers.output_layer.weight", "layers.output_layer.bias")
# Names of transformers and ours, whose first part is that of the module.
HUGGING_FACE_NAMES = (
    (r"^model\.", ""),
    (r"^proj_out\.", "attention.layers.output_layer."),
    (r"^decoder\.embed_tokens\.", "attention.layers.embed.token_embedding."),
    (r"^decoder\.pos_emb\.", "attention.layers.embed.position_embedding."),
    (r"^decoder\.embedding_layernorm\.", "attention.layers.embed.layer_norm."),
    (r"^decoder\.norm\.", "attention.layers.after_norm."),
    (r"^decoder\.proj\.", "attention.projection."),
    (r"^decoder\.layers\.", "attention.layers.decoders."),
    (r"^(attention\.layers\.decoders\.\d+\.)input_layernorm\.", r"\1norm1."),
    (r"^(attention\.layers\.decoders\.\d+\.)post_attention_layernorm\.", r"\1norm2."),
    (r"^(attention\.layers\.decoders\.\d+\.)final_layernorm\.", r"\1norm3."),
    (r"^(attention\.layers\.decoders\.\d+\.)encoder_attn\.", r"\1src_attn."),
    (r"^(attention\..*_attn\.)([qkv])_proj\.", r"\1linear_\2."),
    (r"^(attention\..*_attn\.)o_proj\.", r"\1linear_out."),
    (r"^(attention\.layers\.decoders\.\d+\.)mlp\.fc([12])\.", r"\1feed_forward.w_\2."),
)
# What transformers takes where a configuration leaves a key out, and the values that others may not have.
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "relu",
    "max_position_embeddings": 1024,
    "attention_dropout": 0.0,
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish", "swish": "swish"}


def published_sections(smoothing: float = 0.0) -> dict[str, dict[str, Any]]:
    """How these models are searched, and fine-tuned: as they are published."""
    loss = {"smoothing": smoothing, "reduction": "mean_volume", "subtract_entropy": False}
    return {AttentionSearch.__name__: {"beam_size": 1}, AttentionLoss.__name__: loss}


class Vocabulary(NamedTuple):
    """The outputs of a decoder in the order that they have here.

    Attributes:
        labels: ids of labels of texts.
        end: the id behind the last label.
        special: ids of outputs that no text has.
    """

    labels: list[int]
    end: int
    special: list[int]

    def in_order(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a decoder with their rows in this order; rows of no piece stay behind them."""
        order = [*self.labels, self.end, *self.special]
        numbers = {len(weights[name]) for name in _ROWS if name in weights}
        known = set(order)
        rows = [*order, *(row for row in range(max(numbers, default=0)) if row not in known)]
        chosen = torch.tensor(rows)
        return {
            name: tensor[chosen] if name in _ROWS and len(tensor) == len(rows) else tensor
            for name, tensor in weights.items()
        }


def vocabulary_of(pieces: Mapping[int, str], place: str, num_special: int | None = None) -> Vocabulary:
    """Which pieces are labels of texts.

    Args:
        pieces: by id.
        place: for messages.
        num_special: so many of them, the first, are not; None: those that look so.

    Raises:
        CheckpointError: none is the end.
    """
    special = list(range(num_special or 0))
    if num_special is None:
        special = [number for number, piece in sorted(pieces.items()) if _SPECIAL.fullmatch(piece)]
    end = next((number for number in special if pieces[number] == END), None)
    if end is None:
        raise CheckpointError("its tokenizer has no end of texts", place=place, wanted=END)
    labels = [number for number in sorted(pieces) if number not in {*special}]
    return Vocabulary(labels, end, [number for number in special if number != end])


def languages_in(special_labels: Iterable[str], known: Sequence[str] | None = None) -> list[str]:
    """The languages that can be asked for: labels such as ``<|en|>``, of those that are known."""
    found = [match[1] for label in special_labels if (match := _LANGUAGE.fullmatch(label))]
    return [language for language in found if known is None or language in known] or found


def decoder_arguments(config: Mapping[str, Any], channels: int, place: str) -> dict[str, Any]:
    """The arguments of a decoder from a configuration of transformers.

    Args:
        config: of Canary or Cohere Transcribe.
        channels: of the encoder.
        place: for messages.

    Raises:
        CheckpointError: a setting that the decoder here has not.
    """
    is_canary = config.get("model_type") == "canary"
    section = config.get("decoder_config") if is_canary else config
    given = {key: value for key, value in (section or {}).items() if value is not None}
    place = f"{place}: decoder_config" if is_canary else place
    values = values_of(given, _DEFAULTS, place)
    size, heads = values["hidden_size"], values["num_attention_heads"]
    fixed = {"attention_bias": True, "num_key_value_heads": heads, "head_dim": size // heads}
    refuse_settings(given, fixed, place)
    if values["hidden_act"] not in _ACTIVATIONS:
        wanted = " or ".join(_ACTIVATIONS)
        place = f"{place}.hidden_act"
        raise CheckpointError("a setting that is not known here", place=place, got=values["hidden_act"], wanted=wanted)
    if is_canary and size != channels:
        problem, got = "the decoder has other channels than the encoder", f"{size} and {channels}"
        raise CheckpointError(problem, place=place, got=got, wanted=f"hidden_size {channels}")
    return {
        "n_layers": values["num_hidden_layers"],
        "n_heads": heads,
        "inner_size": values["intermediate_size"],
        "activation": _ACTIVATIONS[values["hidden_act"]],
        "positions": "sines_in_halves" if is_canary else "learned",
        "max_positions": values["max_position_embeddings"],
        "tied": bool(config.get("tie_word_embeddings", is_canary)),
        "dropout_att": values["attention_dropout"],
        **({} if is_canary else {"d_model": size}),
    }


def prompt_of(config: Mapping[str, Any], pieces: Mapping[int, str]) -> PromptName:
    """The form of the prompt, by the label with which it begins."""
    if config.get("model_type") == "cohere_asr":
        return "cohere"
    first = pieces.get(config.get("decoder_start_token_id", 7))
    return "canary" if first == "<|startoftranscript|>" else "cohere" if first == WORD_MARK else "canary2"
