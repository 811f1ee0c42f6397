"""read_whisper: folders of transformers with a Whisper. `hugging_face` knows by the type of the model that it is one.

Beside `config.json`, `generation_config.json` says languages, tasks and tokens that are never found; older folders have
these in `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_asr.decoding.attention import AttentionSearch
from nemo_asr.features.whisper_mel import AudioToWhisperMelPreprocessor
from nemo_asr.models.attention.loss import AttentionLoss
from nemo_asr.models.attention.whisper_decoder import AUTO, WhisperDecoder
from nemo_asr.models.whisper import WhisperEncoder
from nemo_asr.run.text.languages import language_code
from nemo_asr.trained.foreign import ForeignModel, renamed
from nemo_asr.trained.hugging_face_files import (
    CONFIG,
    SETTINGS,
    TOKENIZER,
    TOKENIZERS_PARTS,
    byte_pairs_of,
    feature_settings,
    read_files,
    read_object,
    read_weights,
    refuse_settings,
    settings_of,
    values_of,
    versions_in,
)
from nemo_lite.base.errors import CheckpointError, UnknownNameError

# Any: values of JSON.

WHISPER = "whisper"
GENERATION = "generation_config.json"
_FAMILY = "attention"
# What transformers takes where a configuration leaves a key out, and the values that others may not have.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "d_model": 384,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    **{
        f"{part}_{key}": value
        for part in ("encoder", "decoder")
        for key, value in (("layers", 4), ("attention_heads", 6))
    },
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}
_OF_BOTH = ("dropout", "attention_dropout", "activation_dropout")
_FIXED = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
_FEATURES = {"feature_size": 80, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
_FIXED_FEATURES = {"dither": 0.0, "padding_value": 0.0}
_TOKENS = {"decoder_start_token_id": 50257, "eos_token_id": 50256}
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_TASKS = ("transcribe", "translate")
# Names of transformers and ours; those that are not here are the same.
_NAMES_OF_LAYERS = (
    (r"\.([qkv])_proj\.", r".linear_\1."),
    (r"\.out_proj\.", ".linear_out."),
    (r"\.fc([12])\.", r".feed_forward.w_\1."),
    (r"\.self_attn_layer_norm\.", ".norm1."),
    (r"\.encoder_attn\.", ".src_attn."),
    (r"\.encoder_attn_layer_norm\.", ".norm2."),
)
NAMES = {
    "encoder": (*_NAMES_OF_LAYERS, (r"\.final_layer_norm\.", ".norm2.")),
    "decoder": (
        *_NAMES_OF_LAYERS,
        (r"\.final_layer_norm\.", ".norm3."),
        (r"^layers\.", "layers.decoders."),
        (r"^layer_norm\.", "layers.after_norm."),
        (r"^embed_(token|position)s\.", r"layers.embed.\1_embedding."),
    ),
}
# Names of Whisper's languages that `language_code` does not know.
_LANGUAGES = """
    af afrikaans, as assamese, ba bashkir, bo tibetan, br breton, bs bosnian, et estonian, eu basque, fo faroese,
    gl galician, gu gujarati, ha hausa, haw hawaiian, hi hindi, hr croatian, ht haitian-creole, hy armenian,
    jw javanese, ka georgian, kk kazakh, km khmer, la latin, lb luxembourgish, ln lingala, lo lao, mg malagasy,
    mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, ne nepali,
    nn nynorsk, oc occitan, pa punjabi, ps pashto, sa sanskrit, sd sindhi, si sinhala, sn shona, so somali, sq albanian,
    su sundanese, sw swahili, ta tamil, tk turkmen, tl tagalog, tt tatar, ur urdu, uz uzbek, yi yiddish, yo yoruba,
    yue cantonese, bg bulgarian, el greek
"""
_CODES = {name: code for code, name in (each.split() for each in _LANGUAGES.split(","))}


def read_whisper(folder: Path, config: Mapping[str, Any]) -> ForeignModel:
    """Read a folder whose configuration is of this type.

    Raises:
        CheckpointError: a file is missing or damaged, or it has what is not read here: one line.
    """
    path = folder / CONFIG
    refuse_settings(config, _FIXED, str(path))
    values = values_of({key: value for key, value in config.items() if value is not None}, _DEFAULTS, str(path))
    weights = _weights(folder, config)
    generation = read_object(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    tokens = values_of({**config, **generation}, _TOKENS, str(folder / GENERATION))
    labels, special = byte_pairs_of(folder, tokens["eos_token_id"])
    shared = {key: values[key] for key in _OF_BOTH}
    parts = ("layers", "attention_heads", "ffn_dim")
    encoder, decoder = WhisperEncoder.__name__, WhisperDecoder.__name__
    features = _features(folder, values)
    recipe = {
        "name": folder.resolve().name,
        "family": _FAMILY,
        "tokenizer": f"tokenizer{labels.suffix}",
        "AudioToTextDataLayer": {"train": {"max_duration": features["chunk_length"]}},  # longer ones are left out
        AudioToWhisperMelPreprocessor.__name__: features,
        encoder: {
            **{key: values[key] for key in ("num_mel_bins", "d_model", "max_source_positions")},
            **{f"encoder_{part}": values[f"encoder_{part}"] for part in parts},
            **shared,
        },
        decoder: {
            "num_tokens": values["vocab_size"],
            "max_target_positions": values["max_target_positions"],
            **{f"decoder_{part}": values[f"decoder_{part}"] for part in parts},
            **shared,
            "start_token": tokens["decoder_start_token_id"],
            **_prompt({**config, **generation}, special, f"{folder / GENERATION}"),
        },
        # As transformers trains: plain cross entropy, of all tokens of a batch.
        AttentionLoss.__name__: {"smoothing": 0.0, "reduction": "mean_volume", "subtract_entropy": False},
        AttentionSearch.__name__: {"beam_size": 1},
    }
    files = read_files(folder, CONFIG, GENERATION, TOKENIZER, *TOKENIZERS_PARTS, *SETTINGS)
    return ForeignModel(
        str(folder), recipe, dict(zip((encoder, decoder), weights, strict=True)), labels, files, versions_in(config)
    )


def _weights(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of encoder and decoder.

    Raises:
        CheckpointError: there is no decoder, or there are tensors of neither.
    """
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "decoder": {}}
    outputs: Tensor | None = None
    others = []
    for name, tensor in read_weights(folder).items():
        part, _, inner = name.removeprefix("model.").partition(".")
        if part in parts:
            parts[part][renamed(inner, NAMES[part])] = tensor
        elif name == "proj_out.weight":
            outputs = tensor
        else:
            others.append(name)
    missing = [part for part in parts if not parts[part]]
    if missing:
        classes = config.get("architectures")
        named = ", ".join(map(str, classes)) if isinstance(classes, list) else "a model"
        problem, got = f"the model has no {missing[0]}, so it writes no texts", f"{named} without model.{missing[0]}.*"
        raise CheckpointError(problem, place=str(folder), got=got, wanted="WhisperForConditionalGeneration, whole")
    if others:
        problem, wanted = "its weights are of another kind of model", "model.encoder.*, model.decoder.*"
        raise CheckpointError(problem, place=str(folder), got=others[0], wanted=wanted)
    tokens = parts["decoder"].get("layers.embed.token_embedding.weight")
    if outputs is not None and (tokens is None or not outputs.equal(tokens)):
        problem, wanted = "its outputs are not tied to the vectors of its tokens", "one tensor for both"
        raise CheckpointError(problem, place=str(folder), got="another proj_out", wanted=wanted)
    return parts["encoder"], parts["decoder"]


def _features(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the preprocessor.

    Raises:
        CheckpointError: features that are not computed here, or others than the encoder takes.
    """
    place = f"{folder}: the features' settings"
    settings = {**_FEATURES, "feature_size": values["num_mel_bins"], **feature_settings(settings_of(folder))}
    refuse_settings(settings, _FIXED_FEATURES, place)
    features = values_of(settings, _FEATURES, place)
    frames = features["chunk_length"] * features["sampling_rate"] // features["hop_length"]
    for what, got, wanted in (
        ("bands", features["feature_size"], values["num_mel_bins"]),
        ("frames in a window", frames, 2 * values["max_source_positions"]),
    ):
        if got != wanted:
            problem = "the features are not those of the encoder"
            raise CheckpointError(problem, place=place, got=f"{got} {what}", wanted=str(wanted))
    arguments = {"feature_size": "features", "sampling_rate": "sample_rate"}
    return {arguments.get(key, key): value for key, value in features.items()}


def _prompt(given: Mapping[str, Any], special: Mapping[str, int], place: str) -> dict[str, Any]:
    """The arguments of the decoder that say what its prompts are, and which tokens are never found.

    A folder says language and task, or older ones the tokens behind the start (``forced_decoder_ids``), where null is a
    language that is to be found.

    Raises:
        CheckpointError: a value cannot be used.
    """
    forced = given.get("forced_decoder_ids") or []
    if not all(isinstance(each, list) and len(each) == 2 for each in forced):
        wanted = "such as [[1, null], [2, 50359]]"
        raise CheckpointError(
            "the value cannot be used", place=f"{place}: forced_decoder_ids", got=repr(forced)[:80], wanted=wanted
        )
    language, task = given.get("language"), given.get("task")
    prompt = [token for _, token in forced] if language is None and task is None else []
    by_token = _tokens(given, "lang_to_id", place)
    languages = {name.strip("<|>"): token for name, token in by_token.items()}
    if not languages and given.get("is_multilingual") is not False:
        known = {found[1]: token for name, token in special.items() if (found := _LANGUAGE.fullmatch(name))}
        languages = known if None in prompt or set(prompt) & set(known.values()) else {}
    tasks = _tokens(given, "task_to_id", place) or {
        name: special[f"<|{name}|>"] for name in _TASKS if languages and f"<|{name}|>" in special
    }
    codes = {token: code for code, token in languages.items()}
    names = {token: name for name, token in tasks.items()}
    if language is None and languages:
        language = next((codes[token] for token in prompt if token in codes), AUTO)
    elif language is not None:
        language = _code(str(language), languages, f"{place}: language")
        task = task or ("transcribe" if tasks else None)
    if task is None:
        task = next((names[token] for token in prompt if token in names), None)
    timestamps = given.get("no_timestamps_token_id", special.get("<|notimestamps|>"))
    others = {
        "languages": languages,
        "tasks": tasks,
        "no_timestamps_token": timestamps,
        "suppress_tokens": given.get("suppress_tokens") or [],
        "begin_suppress_tokens": given.get("begin_suppress_tokens") or [],
        "max_initial_timestamp_index": given.get("max_initial_timestamp_index"),
        "prompt_language": language,
        "task": task,
    }
    return {name: value for name, value in others.items() if value not in (None, [], {})}


def _tokens(given: Mapping[str, Any], key: str, place: str) -> dict[str, int]:
    """Tokens by name of a key.

    Raises:
        CheckpointError: the value is another one.
    """
    value = given.get(key) or {}
    if not isinstance(value, dict) or not all(type(token) is int for token in value.values()):
        place = f"{place}: {key}"
        raise CheckpointError(
            "the value cannot be used", place=place, got=repr(value)[:80], wanted="a token for each name"
        )
    return value


def _code(language: str, languages: Mapping[str, int], place: str) -> str:
    """The code of a language that a folder has as a code, as a token or by its name.

    Raises:
        CheckpointError: the model does not know it.
    """
    name = language.lower().strip("<|>").replace(" ", "-")
    if name not in languages:
        name = _CODES.get(name, name)
    if name not in languages:
        with suppress(UnknownNameError):
            name = language_code(name)
    if name not in languages:
        wanted = f"one of {', '.join(languages)}" if languages else "none: it knows no languages"
        raise CheckpointError("the model does not know this language", place=place, got=language, wanted=wanted)
    return name
