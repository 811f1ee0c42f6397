"""read_ctc: a folder of transformers with an encoder and a CTC head, by a `Kind`; labels of ``vocab.json``.

What a kind of models has: `waveform_models`, `frame_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_asr.models.jasper import JasperDecoderForCTC
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.trained.foreign import ForeignModel, renamed
from nemo_asr.trained.hugging_face_files import (
    CONFIG,
    SETTINGS,
    TOKENIZER,
    blank_of,
    feature_settings,
    in_order,
    pieces_of,
    read_files,
    read_object,
    read_weights,
    settings_of,
    special_ids_of,
    versions_in,
)
from nemo_lite.base.errors import CheckpointError

# Any: values of JSON.

VOCABULARY = "vocab.json"
# What says which tokens are special: today's folders have the first, older ones the others too.
TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_TOKENIZERS = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")
_MASKED = "masked_spec_embed"
HEAD_NAME = (r"^(?:lm_head|ctc_head)\.", "head.decoder_layers.0.")

Object = Mapping[str, Any]
Weights = Mapping[str, Tensor]


class Kind(NamedTuple):
    """How the folders of a type of models are read.

    Attributes:
        encoder: the name of its class.
        arguments: from the configuration and its path to the encoder's arguments.
        preprocessor: from the features' settings and their place to the preprocessor's name and arguments.
        names: patterns of transformers' names of weights, and what stands for each; the first part is that of the
            module. Those of heads need none, see `HEAD_NAME`.
        completed: from such weights and the encoder's arguments to the encoder's weights.
        head: what the names of the head's weights begin with where the folder has no head of its own; else empty.
        blank: the key of the blank's output.
        has_characters: its labels are those of ``vocab.json``, else those of ``tokenizer.json``.
        has_special: special tokens of ``tokenizer.json`` are labels.
    """

    encoder: str
    arguments: Callable[[Object, Path], dict[str, Any]]
    preprocessor: Callable[[Object, str], tuple[str, dict[str, Any]]]
    names: Sequence[tuple[str, str]]
    completed: Callable[[Weights, Object], dict[str, Tensor]] = lambda weights, _: dict(weights)
    head: str = ""
    blank: str = "pad_token_id"
    has_characters: bool = True
    has_special: bool = True


def read_ctc(folder: Path, config: Object, kind: Kind) -> ForeignModel:
    """Read a folder whose configuration is of this type.

    Raises:
        CheckpointError: a file is missing or damaged, or it has what is not read here: one line.
    """
    arguments = kind.arguments(config, folder / CONFIG)
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "head": {}}
    others = []
    for name, tensor in read_weights(folder).items():
        part, _, inner = renamed(name, (*kind.names, HEAD_NAME)).partition(".")
        if part in parts:
            parts[part][inner] = tensor
        else:
            others.append(name)
    if kind.head and not parts["head"]:
        tied = {name: tensor for name, tensor in parts["encoder"].items() if name.startswith(kind.head)}
        parts["head"] = {f"decoder_layers.0.{name.removeprefix(kind.head)}": tensor for name, tensor in tied.items()}
    if not parts["head"]:
        classes = config.get("architectures")
        got = ", ".join(map(str, classes)) if isinstance(classes, list) else str(config.get("model_type"))
        problem = "the model has no CTC head, so it writes no texts"
        remedy = "give one that was fine-tuned to transcribe"
        raise CheckpointError(problem, place=str(folder), got=got, wanted="such as Wav2Vec2ForCTC", remedy=remedy)
    if others:
        problem, wanted = "its weights are of another kind of model", "an encoder and a CTC head"
        raise CheckpointError(problem, place=str(folder), got=others[0], wanted=wanted)
    blank, outputs = blank_of(config, kind.blank, parts["head"], folder / CONFIG)
    tokenizer: Subwords | None = None
    if kind.has_characters:
        labels, rows = _characters(folder, blank, outputs)
    else:
        left_out = {blank} if kind.has_special else {blank, *special_ids_of(folder / TOKENIZER)}
        rows = [row for row in range(outputs) if row not in left_out]
        labels, tokenizer = pieces_of(folder / TOKENIZER, rows)
    # Some heads are linear layers, ours a convolution of one frame.
    head = {name: tensor.unsqueeze(-1) if tensor.dim() == 2 else tensor for name, tensor in parts["head"].items()}
    preprocessor, features = kind.preprocessor(
        feature_settings(settings_of(folder)), f"{folder}: the features' settings"
    )
    decoder = JasperDecoderForCTC.__name__
    recipe = {
        "name": folder.resolve().name,
        **({"labels": labels} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}),
        preprocessor: features,
        kind.encoder: arguments,
        decoder: {},
    }
    weights = {kind.encoder: kind.completed(parts["encoder"], arguments), decoder: in_order(head, [*rows, blank])}
    files = read_files(folder, CONFIG, TOKENIZER, VOCABULARY, *TOKENS, *SETTINGS)
    return ForeignModel(str(folder), recipe, weights, tokenizer, files, versions_in(config))


def with_masked_vector(weights: Weights, arguments: Object, like: str) -> dict[str, Tensor]:
    """An encoder's tensors with the vector for frames that training masks where it masks any, else without it.

    In a folder without it it is zeros, as many as the tensor ``like`` has.
    """
    weights = dict(weights)
    given, other = weights.pop(_MASKED, None), weights.get(like)
    if given is None and other is not None:
        given = torch.zeros_like(other)
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
