"""read_hugging_face: folders of Hugging Face's transformers as recipes and weights.

A folder holds `config.json`, `model.safetensors` (or its parts, with `model.safetensors.index.json`), `tokenizer.json`
(or `vocab.json`) and the settings of the features. A Parakeet's or a Nemotron's encoder is NVIDIA's FastConformer under
other names. Its head is one of CTC, a transducer, or an attention decoder with prompts (Canary and Cohere Transcribe:
`prompted_models`); the blank of a transducer is what its joint network has behind the labels, whatever the
configuration says. Other encoders with a CTC head: `waveform_models`, `frame_models`; Whisper: `whisper_models`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from nemo_asr.decoding.transducer import TransducerSearch
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.models.jasper import JasperDecoderForCTC
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import RNNTDecoder
from nemo_asr.models.transducer.prompt import AUTO, LanguagePrompt
from nemo_asr.published.catalogue import DOOR
from nemo_asr.run.search.transducer import MAX_SYMBOLS
from nemo_asr.trained.ctc_folders import read_ctc
from nemo_asr.trained.foreign import ForeignModel, Format, renamed
from nemo_asr.trained.frame_models import FRAME_KINDS
from nemo_asr.trained.hugging_face_files import (
    CONFIG,
    INDEX,
    PICKLED,
    SETTINGS,
    TOKENIZER,
    WEIGHTS,
    blank_of,
    feature_settings,
    in_order,
    piece_texts,
    pieces_of,
    read_files,
    read_object,
    read_weights,
    refuse_settings,
    section_of,
    settings_of,
    values_of,
    versions_in,
)
from nemo_asr.trained.prompted_models import (
    DECODER,
    HUGGING_FACE_NAMES,
    LANGUAGES,
    decoder_arguments,
    languages_in,
    prompt_of,
    published_sections,
    vocabulary_of,
)
from nemo_asr.trained.waveform_models import WAVEFORM_KINDS
from nemo_asr.trained.whisper_models import WHISPER, read_whisper
from nemo_lite.base.errors import CheckpointError

# Any: values of JSON.


class _Kind(NamedTuple):
    """What a model of a type has: its family, durations, an encoder for streams, a prompt that says the language."""

    family: Literal["ctc", "transducer", "attention"] = "transducer"
    has_durations: bool = False
    is_streaming: bool = False
    has_prompt: bool = False


_KINDS = {
    "parakeet_ctc": _Kind("ctc"),
    "parakeet_rnnt": _Kind(),
    "parakeet_tdt": _Kind(has_durations=True),
    "nemotron_asr_streaming": _Kind(is_streaming=True),
    "nemotron3_5_asr": _Kind(is_streaming=True, has_prompt=True),
    "canary": _Kind("attention"),
    "cohere_asr": _Kind("attention"),
}
_WITH_HEAD = WAVEFORM_KINDS | FRAME_KINDS  # of one encoder and one CTC head, which other files describe
# By parts of the names of other models' types and classes: why they are not read.
_OTHER_KINDS = {
    "moonshine": "its decoder is a Transformer that reads text, not a CTC head",
    "wav2vec2-conformer": "its attention is none that an encoder here has",
    **dict.fromkeys(("unispeech", "sew", "mctct", "data2vec"), "its encoder is none of those here"),
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
_ENCODERS: dict[str, dict[str, Any]] = {
    "canary": {"num_hidden_layers": 32, "num_mel_bins": 128, "scale_input": False},
    "cohere_asr": {
        "hidden_size": 1280,
        "num_hidden_layers": 48,
        "intermediate_size": 5120,
        "num_mel_bins": 128,
        "scale_input": False,
    },
}
_ENCODER_FIXED = {"hidden_act": "silu", "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2}
# Of encoders for streams: frames that attention sees before a frame, and this one; and those behind it.
_STREAMING_DEFAULTS = {"sliding_window": 71, "default_num_lookahead_tokens": 13}
_TRANSDUCER_DEFAULTS = {
    "decoder_hidden_size": 640,
    "num_decoder_layers": 2,
    "hidden_act": "relu",
    "max_symbols_per_step": MAX_SYMBOLS,
}
_FEATURES = {
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "padding_value": 0.0,
}
# Names of transformers and ours, whose first part is that of the module; those that are not here are the same.
_ENCODER_NAMES = (
    (r"^encoder\.subsampling\.layers\.(\d+)\.(?=weight|bias)", r"encoder.pre_encode.conv.\1."),
    (r"^encoder\.subsampling\.conv_in\.", "encoder.pre_encode.conv.0."),
    (r"^encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_([uv])$", r".self_attn.pos_bias_\1"),
)
_STREAMING_STAGE = re.compile(r"^encoder\.subsampling\.layers\.(\d+)\.(depthwise|pointwise)_conv\.")
_CTC_NAMES = ((r"^ctc_head\.", "head.decoder_layers.0."),)
_TRANSDUCER_NAMES = (
    (r"^decoder\.embedding\.", "prediction.prediction.embed."),
    (r"^decoder\.lstm\.", "prediction.prediction.dec_rnn.lstm."),
    (r"^decoder\.decoder_projector\.", "joint.pred."),
    (r"^encoder_projector\.", "joint.enc."),
    (r"^joint\.head\.", "joint.joint_net.1."),
    (r"^prompt_projector\.linear_1\.", "prompt.prompt_kernel.0."),
    (r"^prompt_projector\.linear_2\.", "prompt.prompt_kernel.2."),
)
_CLASSES = {
    "encoder": ConformerEncoder.__name__,
    "head": JasperDecoderForCTC.__name__,
    "prompt": LanguagePrompt.__name__,
    "prediction": RNNTDecoder.__name__,
    "joint": RNNTJoint.__name__,
    "attention": DECODER,
}
_PARTS = {
    "ctc": ("encoder", "head"),
    "transducer": ("encoder", "prediction", "joint"),
    "attention": ("encoder", "attention"),
}
_NAMES = {"ctc": _CTC_NAMES, "transducer": _TRANSDUCER_NAMES, "attention": HUGGING_FACE_NAMES}
_WANTED = {
    "ctc": "encoder.*, ctc_head.*",
    "transducer": "encoder.*, decoder.*, joint.*",
    "attention": "model.encoder.*, model.decoder.*, proj_out.*",
}


def read_hugging_face(path: str | Path) -> ForeignModel:
    """Read a folder. Its code is not run.

    Raises:
        CheckpointError: a file is missing or damaged, or it is of a model of another kind: one line.
    """
    folder = Path(path)
    config = read_object(folder / CONFIG)
    if config.get("model_type") == WHISPER:
        return read_whisper(folder, config)
    if (with_head := _WITH_HEAD.get(str(config.get("model_type")))) is not None:
        return read_ctc(folder, config, with_head)
    kind = _kind_of(config, folder / CONFIG)
    settings = settings_of(folder)
    encoder = _encoder(config, kind, settings, folder / CONFIG)
    with_prompt = ["prompt"] if kind.has_prompt else []
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in (*_PARTS[kind.family], *with_prompt)}
    for name, tensor in read_weights(folder).items():
        part, inner = _part_of(name, kind)
        if part not in parts:
            problem, wanted = "its weights are of another kind of model", _WANTED[kind.family]
            raise CheckpointError(problem, place=str(folder), got=name, wanted=wanted)
        parts[part][inner] = tensor
    sections = {_CLASSES["encoder"]: encoder}
    if kind.family == "transducer":
        if kind.has_prompt:
            sections[_CLASSES["prompt"]] = _prompt(config, settings, parts["prompt"], folder)
        of_transducer, num_labels = _transducer(config, kind, parts["joint"], folder / CONFIG)
        sections |= of_transducer
        labels = list(range(num_labels))
    elif kind.family == "attention":
        decoder, labels, parts["attention"] = _attention(config, encoder["d_model"], parts["attention"], folder)
        sections |= {DECODER: decoder, **published_sections()}
    else:
        blank, outputs = blank_of(config, "pad_token_id", parts["head"], folder / CONFIG)
        labels = [row for row in range(outputs) if row != blank]
        parts["head"] = in_order(parts["head"], [*labels, blank])
        sections[_CLASSES["head"]] = {}
    pieces, tokenizer = pieces_of(folder / TOKENIZER, labels)
    recipe = {
        "name": folder.resolve().name,
        **({"family": kind.family} if kind.family != "ctc" else {}),
        **({"labels": pieces} if tokenizer is None else {"tokenizer": f"tokenizer{tokenizer.suffix}"}),
        AudioToMelSpectrogramPreprocessor.__name__: _features(settings, kind, folder),
        **sections,
    }
    weights = {_CLASSES[part]: tensors for part, tensors in parts.items()}
    files = read_files(folder, CONFIG, TOKENIZER, *SETTINGS)
    return ForeignModel(str(folder), recipe, weights, tokenizer, files, versions_in(config))


def _is_folder(path: Path) -> bool:
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (WEIGHTS, INDEX, *PICKLED))


def check_kind(path: Path) -> None:
    """See that a ``config.json`` is of a model that is read here, before its weights are fetched.

    Raises:
        CheckpointError: it is of another kind: one line with the reason.
    """
    config = read_object(path)
    if str(config.get("model_type")) not in (WHISPER, *_WITH_HEAD):
        _kind_of(config, path)


HUGGING_FACE = Format("a folder of Hugging Face", _is_folder, read_hugging_face)


def _kind_of(config: Mapping[str, Any], path: Path) -> _Kind:
    """What the model has, by its type.

    Raises:
        CheckpointError: it is of another type: one line with the reason.
    """
    model_type, classes = str(config.get("model_type")), config.get("architectures") or []
    if model_type in _KINDS:
        return _KINDS[model_type]
    named = " ".join([model_type, *map(str, classes if isinstance(classes, list) else [])])
    reason = next((reason for part, reason in _OTHER_KINDS.items() if part in named), "its kind is not known here")
    problem = f"the model is of type {model_type[:80]}: {reason}"
    wanted = f"model_type {', '.join((*_KINDS, *_WITH_HEAD, WHISPER))}"
    raise CheckpointError(problem, place=str(path), wanted=wanted, remedy=DOOR)


def _encoder(config: Mapping[str, Any], kind: _Kind, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of the encoder. That layers are dropped in training (layerdrop) is not taken over.

    Raises:
        CheckpointError: settings that it has not.
    """
    section = section_of(config, "encoder_config")
    defaults = {**_ENCODER_DEFAULTS, **_ENCODERS.get(str(config.get("model_type")), {})}
    values = values_of(section, defaults, f"{path}: encoder_config")
    known = {**_ENCODER_FIXED, "convolution_bias": values["attention_bias"]}
    refuse_settings({**section, **values}, known, f"{path}: encoder_config")
    expansion, remainder = divmod(values["intermediate_size"], values["hidden_size"])
    if remainder:
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
        **(_context(section, settings, path) if kind.is_streaming else {}),
    }


def _context(section: Mapping[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The arguments of an encoder for streams: what its attention sees, the default first."""
    window, lookahead = (section.get(key, default) for key, default in _STREAMING_DEFAULTS.items())
    further = settings.get("supported_num_lookahead_tokens") or []
    behind = [lookahead, *(further if isinstance(further, list) else [further])]
    if not all(type(value) is int for value in (window, *behind)) or window < 1 or min(behind) < 0:
        place, got = f"{path}: encoder_config.sliding_window, default_num_lookahead_tokens", f"{window}, {behind}"
        raise CheckpointError("the values cannot be used", place=place, got=got, wanted="such as 71, 13")
    return {
        "causal_downsampling": True,
        "att_context_style": "chunked_limited",
        "att_context_size": [[window - 1, each] for each in dict.fromkeys(behind)],
        "conv_context_size": "causal",
        "conv_norm_type": "layer_norm",
    }


def _transducer(
    config: Mapping[str, Any], kind: _Kind, joint: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Any], int]:
    """The sections of prediction network, joint network and search, and the number of labels.

    Raises:
        CheckpointError: a value cannot be used, or the joint network has no outputs but durations.
    """
    given = {key: value for key, value in config.items() if value is not None}
    values = values_of(given, _TRANSDUCER_DEFAULTS, str(path))
    durations = list(config.get("durations", range(5))) if kind.has_durations else []
    if not all(type(each) is int and each >= 0 for each in durations):
        place = f"{path}: durations"
        raise CheckpointError("the value cannot be used", place=place, got=repr(durations), wanted="[0, 1, 2, 3, 4]")
    # The configuration may take the end of the tokenizer for the blank; the joint network cannot be wrong.
    num_labels = len(joint.get("joint_net.1.bias", ())) - len(durations) - 1
    if num_labels < 1:
        got, wanted = f"{num_labels + 1}", "labels and the blank, and one for each duration"
        raise CheckpointError("the joint network has too few outputs", place=str(path.parent), got=got, wanted=wanted)
    size, most = values["decoder_hidden_size"], values["max_symbols_per_step"]
    jointnet = {"joint_hidden": size, "pred_hidden": size, "activation": values["hidden_act"]}
    sections: dict[str, Any] = {
        _CLASSES["prediction"]: {"prednet": {"pred_hidden": size, "pred_rnn_layers": values["num_decoder_layers"]}},
        _CLASSES["joint"]: {"jointnet": jointnet, **({"durations": durations} if durations else {})},
    }
    if most != MAX_SYMBOLS:
        sections[TransducerSearch.__name__] = {"max_symbols": most}
    return sections, num_labels


def _attention(
    config: Mapping[str, Any], channels: int, weights: Mapping[str, Tensor], folder: Path
) -> tuple[dict[str, Any], list[int], dict[str, Tensor]]:
    """The section of an attention decoder, the ids of its labels, and its weights with rows in their order.

    Raises:
        CheckpointError: it has settings that are not known here, or the tokenizer does not fit.
    """
    arguments = decoder_arguments(config, channels, str(folder / CONFIG))
    outputs = len(weights.get("layers.output_layer.bias", ()))
    pieces = {number: piece for number, piece in piece_texts(folder / TOKENIZER).items() if number < outputs}
    vocabulary = vocabulary_of(pieces, str(folder / TOKENIZER))
    special = [pieces[number] for number in vocabulary.special]
    arguments |= {
        "special_labels": special,
        "languages": languages_in(special, LANGUAGES[config["model_type"]]),
        "prompt": prompt_of(config, pieces),
    }
    if more := outputs - len(pieces):
        arguments["num_extra_outputs"] = more
    ordered = vocabulary.in_order(weights)
    embedding, output = "layers.embed.token_embedding.weight", "layers.output_layer.weight"
    if arguments["tied"] and embedding in ordered:
        ordered[output] = ordered[embedding]
    return arguments, vocabulary.labels, ordered


def _prompt(
    config: Mapping[str, Any], settings: Mapping[str, Any], weights: Mapping[str, Tensor], folder: Path
) -> dict[str, Any]:
    """The arguments of the module that takes the language.

    Raises:
        CheckpointError: its weights are missing.
    """
    first, last = (weights.get(f"prompt_kernel.{layer}.weight") for layer in (0, 2))
    if first is None or last is None:
        raise CheckpointError("its weights lack those of the language", place=str(folder), wanted="prompt_projector.*")
    languages = settings.get("prompt_dictionary")
    return {
        "num_prompts": first.shape[1] - len(last),
        "prompt_hidden": len(first),
        # Older processors do not say their languages.
        "prompt_dictionary": languages if isinstance(languages, dict) else {AUTO: config.get("default_prompt_id", 101)},
    }


def _features(settings: Mapping[str, Any], kind: _Kind, folder: Path) -> dict[str, Any]:
    """The arguments of the preprocessor: transformers has the features of NeMo 2.5 and later."""
    values = values_of(feature_settings(settings), _FEATURES, f"{folder}: the features' settings")
    rate = values["sampling_rate"]
    return {
        "sample_rate": rate,
        "window_size": values["win_length"] / rate,
        "window_stride": values["hop_length"] / rate,
        "n_fft": values["n_fft"],
        "features": values["feature_size"],
        "preemph": values["preemphasis"],
        "normalize": "NA" if kind.is_streaming else "per_feature",
        "dither": 1e-5,
        "pad_to": 0,
        "pad_value": values["padding_value"],
        "std_floor": 0.0,
        "generation": "nemo_2.5",
    }


def _part_of(name: str, kind: _Kind) -> tuple[str, str]:
    """The part of the model that a tensor belongs to, and its name there."""
    # Behind the first convolution each stage is two of them and an activation.
    name = _STREAMING_STAGE.sub(
        lambda found: f"encoder.pre_encode.conv.{3 * int(found[1]) + (2 if found[2] == 'depthwise' else 3)}.", name
    )
    part, _, inner = renamed(name, (*_NAMES[kind.family], *_ENCODER_NAMES)).partition(".")
    return part, inner
