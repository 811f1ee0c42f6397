"""Each key of WeNet's train.yaml, and what it becomes here: one table, for trainings and for trained models.

What the keys here mean is said where they are used: modules, data layers, and the options of a training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from nemo_asr.shipped import config_path
from nemo_lite import logging
from nemo_lite.base.config import Config, Source, load_config, raise_if, shown
from nemo_lite.base.errors import CheckpointError, did_you_mean
from nemo_lite.base.files import FileKind, read_json
from nemo_lite.base.nemo_logging import LogMode

# Any: values of YAML.


@dataclass(frozen=True)
class Values:
    """The values of a file by their keys, with WeNet's own of those that it leaves out."""

    by_key: Mapping[str, Any]
    file: Path

    def __getitem__(self, key: str) -> Any:
        return self.by_key[key]


Become: TypeAlias = Callable[[Any, Values], Any]


class _Unfit(Exception):  # noqa: N818  # no error: its text completes "wanted ..."
    """A value that a key cannot have; the text is what was wanted."""


class Key(NamedTuple):
    """A key of WeNet's.

    Attributes:
        becomes: keys here, and what gives the value of each from the one of WeNet's and all others; it may give None:
            no value, or raise `_Unfit`. Without one the key changes nothing here.
        default: WeNet's own, of what a file leaves out.
        kind: of a value that something is made of; others are checked where they are used.
        allowed: the values with which a model here is WeNet's; empty: all.
    """

    becomes: Mapping[str, Become] = {}
    default: Any = None
    kind: Any = object
    allowed: tuple[Any, ...] = ()


def _same(*keys: str, default: Any = None) -> Key:
    """The same value, under other keys."""
    return Key(dict.fromkeys(keys, lambda value, _: value), default)


def _only(*allowed: Any) -> Key:
    """No setting here: models have the first value, and the others change nothing."""
    return Key({}, allowed[0], allowed=allowed)


def _scaled(key: str, factor: float, default: float) -> Key:
    """A number in another unit."""
    return Key({key: lambda value, _: value * factor}, default, int | float)


def _where(switch: str, key: str, default: int) -> Key:
    """The same value, where a switch is on."""
    return Key({key: lambda value, of: value if of[switch] else None}, default)


_NOTHING = Key()
_ATTENTIONS = {"rel_pos": "rel_pos_no_shift", "no_pos": "no_pos"}
_LEAST_RATIO = 0.0005  # WeNet's own: a label in 20 seconds


def _expansion(linear_units: int, of: Values) -> int:
    size = of["encoder_conf.output_size"]
    if not isinstance(size, int) or size < 1 or linear_units % size:
        raise _Unfit(f"a multiple of output_size, which is {shown(size)}")
    return linear_units // size


def _num_mel_bins(input_dim: Any, of: Values) -> Any:
    if input_dim != of["dataset_conf.fbank_conf.num_mel_bins"]:
        raise _Unfit(f"num_mel_bins, which is {shown(of['dataset_conf.fbank_conf.num_mel_bins'])}")
    return input_dim


def _kernel_size(kernel_size: int, of: Values) -> int:
    """Kernels are odd here: where no frame behind is seen, one frame more before counts 0."""
    return kernel_size + 1 if of["encoder_conf.causal"] and kernel_size % 2 == 0 else kernel_size


def _speeds(is_on: bool, of: Values) -> dict[str, Any] | None:
    rates = {"min_speed_rate": 0.9, "max_speed_rate": 1.1, "num_rates": 3}
    return {"prob": 1.0, "sr": of["dataset_conf.resample_conf.resample_rate"], **rates} if is_on else None


def _least_rate(ratio: float, _: Values) -> float | None:
    """Labels a second; None: the file has WeNet's own ratio, for which no text has to be read."""
    return ratio * 100 if ratio > _LEAST_RATIO else None


def _trims(max_frames: Any, of: Values) -> dict[str, Any] | None:
    return {"prob": 1.0, "max_frames": max_frames} if of["dataset_conf.spec_trim"] else None


def _number(name: str, of: Values) -> float:
    """The number of another key; where that is none, which it says itself, WeNet's own."""
    value = of[name]
    return float(value if isinstance(value, int | float) else KEYS[name].default)


def _is_dynamic(of: Values) -> bool:
    return bool(of["dataset_conf.batch_conf.batch_type"] == "dynamic")


def _seconds(max_frames: Any, of: Values) -> float | None:
    """Seconds of a batch."""
    return max_frames * _number("dataset_conf.fbank_conf.frame_shift", of) / 1000 if _is_dynamic(of) else None


def _most_items(max_frames: Any, of: Values) -> int | None:
    """How many of the shortest utterances a batch of so many frames holds."""
    shortest = max(_number("dataset_conf.filter_conf.min_length", of), 1)
    return max(int(max_frames // shortest), 1) if _is_dynamic(of) else None


def _statistics(named: str, of: Values) -> dict[str, Any] | None:
    """Mean and deviation of each feature from the file that is named, as WeNet does from the current folder."""
    places: list[str | Path] = [os.path.expanduser(named), of.file.parent / named, of.file.parent / Path(named).name]
    file = next((Path(place) for place in places if os.path.isfile(place)), None)
    if file is None:
        remedy = "nemo-lite data statistics computes those of the training set"
        message = "%s, which %s names, is not there: features are normalised over each utterance; %s"
        logging.warning(message, named, of.file, remedy, mode=LogMode.ONCE)
        return None
    return read_statistics(file)


_SECTIONS: Mapping[str, Mapping[str, Key]] = {
    "encoder_conf": {
        "output_size": _same("ConformerEncoder.d_model", default=256),
        "attention_heads": _same("ConformerEncoder.n_heads", default=4),
        "linear_units": Key({"ConformerEncoder.ff_expansion_factor": _expansion}, 2048, int),
        "num_blocks": _same("ConformerEncoder.n_layers", default=6),
        "dropout_rate": _same("ConformerEncoder.dropout", default=0.1),
        "positional_dropout_rate": _same(
            "ConformerEncoder.dropout_pre_encoder", "ConformerEncoder.dropout_emb", default=0.1
        ),
        "attention_dropout_rate": _same("ConformerEncoder.dropout_att", default=0.0),
        "cnn_module_kernel": Key({"ConformerEncoder.conv_kernel_size": _kernel_size}, 15, int),
        "cnn_module_norm": _same("ConformerEncoder.conv_norm_type", default="batch_norm"),
        "causal": Key(
            {
                "ConformerEncoder.conv_context_size": lambda is_on, _: "causal" if is_on else None,
                "ConformerEncoder.conv_pads_input": lambda is_on, _: is_on or None,
            },
            False,
            bool,
        ),
        "use_dynamic_chunk": _same("ConformerEncoder.use_dynamic_chunk"),
        "use_dynamic_left_chunk": _same("ConformerEncoder.use_dynamic_left_chunk"),
        "static_chunk_size": Key(
            {
                "ConformerEncoder.att_context_size": lambda chunk, _: [-1, chunk - 1] if chunk > 0 else None,
                "ConformerEncoder.att_context_style": lambda chunk, _: "chunked_limited" if chunk > 0 else None,
            },
            0,
            int,
        ),
        "final_norm": _same("ConformerEncoder.after_norm", default=True),
        "input_layer": Key(
            {
                "ConformerEncoder.subsampling": lambda *_: "conv2d",
                "ConformerEncoder.subsampling_factor": lambda name, _: {"conv2d6": 6, "conv2d8": 8}.get(name),
            },
            "conv2d",
            allowed=("conv2d", "conv2d6", "conv2d8"),
        ),
        "pos_enc_layer_type": Key(
            {
                "ConformerEncoder.self_attention_model": lambda name, _: _ATTENTIONS[name],
                "ConformerEncoder.xscaling": lambda name, _: False if name == "no_pos" else None,
            },
            "rel_pos",
            allowed=tuple(_ATTENTIONS),
        ),
        "selfattention_layer_type": _only("rel_selfattn"),
        "activation_type": _only("swish"),
        **dict.fromkeys(("normalize_before", "macaron_style", "use_cnn_module"), _only(True)),
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "conv_bias", "mlp_bias"), _only(True)),
        "concat_after": _only(False),
        **dict.fromkeys(("norm_eps", "conv_norm_eps"), _only(1e-5)),
        "conv_inner_factor": _only(2),
        "layer_norm_type": _only("layer_norm"),
        "mlp_type": _only("position_wise_feed_forward"),
        **dict.fromkeys(("gradient_checkpointing", "use_sdpa"), _NOTHING),
    },
    "decoder_conf": {
        **{
            name: _same(f"TransformerDecoder.{name}")  # the defaults are WeNet's
            for name in (
                *("attention_heads", "linear_units", "num_blocks", "dropout_rate", "positional_dropout_rate"),
                *("self_attention_dropout_rate", "src_attention_dropout_rate", "activation_type"),
            )
        },
        "r_num_blocks": Key(
            {
                "TransformerDecoder.r_num_blocks": lambda number, of: (
                    number if of["decoder"] == "bitransformer" else None
                )
            },
            0,
        ),
        "input_layer": _only("embed"),
        **dict.fromkeys(("use_output_layer", "normalize_before", "src_attention"), _only(True)),
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "mlp_bias"), _only(True)),
        **dict.fromkeys(("src_query_bias", "src_key_bias", "src_value_bias"), _only(True)),
        **dict.fromkeys(("tie_word_embedding", "concat_after"), _only(False)),
        "layer_norm_type": _only("layer_norm"),
        "norm_eps": _only(1e-5),
        "mlp_type": _only("position_wise_feed_forward"),
        **dict.fromkeys(("gradient_checkpointing", "use_sdpa"), _NOTHING),
    },
    "tokenizer_conf": {
        "bpe_path": Key({"tokenizer": lambda path, of: path if of["tokenizer"] == "bpe" else None}),
        **dict.fromkeys(("symbol_table_path", "special_tokens"), _NOTHING),
        **dict.fromkeys(("split_with_space", "is_multilingual"), _only(False)),
        "non_lang_syms_path": _only(None),
        "num_languages": _only(1),
        "connect_symbol": _only(""),
    },
    "ctc_conf": {"ctc_blank_id": _NOTHING},
    "cmvn_conf": {
        "cmvn_file": Key({"AudioToKaldiFbankPreprocessor.normalize": _statistics}, kind=str),
        "is_json_cmvn": _only(True),
    },
    "model_conf": {
        "ctc_weight": _same("AuxiliaryCTCLoss.weight", default=0.5),
        "lsm_weight": _same("AttentionLoss.smoothing", default=0.0),
        "length_normalized_loss": Key(
            {
                "AttentionLoss.reduction": lambda is_on, _: "mean_volume" if is_on else "mean_batch",
                "AuxiliaryCTCLoss.reduction": lambda *_: "mean_batch",
            },
            False,
            bool,
        ),
        "reverse_weight": _same("TransformerDecoder.reverse_weight", default=0.0),
        "ignore_id": _only(-1),
        "apply_non_blank_embedding": _only(False),
    },
    "dataset_conf": {
        "filter_conf.max_length": _scaled("AudioToTextDataLayer.train.max_duration", 0.01, 10240),
        "filter_conf.min_length": _scaled("AudioToTextDataLayer.train.min_duration", 0.01, 10),
        "filter_conf.token_max_length": _NOTHING,
        "filter_conf.token_min_length": _only(1, 0),
        "filter_conf.min_output_input_ratio": Key(
            {"AudioToTextDataLayer.train.min_label_rate": _least_rate}, _LEAST_RATIO, int | float
        ),
        "filter_conf.max_output_input_ratio": Key(
            {"AudioToTextDataLayer.train.max_label_rate": lambda ratio, _: ratio * 100 if ratio < 1 else None},
            1,
            int | float,
        ),
        "resample_conf.resample_rate": _same("sample_rate", default=16000),
        "speed_perturb": Key({"AudioToTextDataLayer.train.augmentor.speed": _speeds}, False, bool),
        "feats_type": _only("fbank"),
        "fbank_conf.num_mel_bins": Key({"AudioToKaldiFbankPreprocessor.features": lambda number, _: number}, 80, int),
        "fbank_conf.frame_length": _scaled("AudioToKaldiFbankPreprocessor.window_size", 0.001, 25),
        "fbank_conf.frame_shift": _scaled("AudioToKaldiFbankPreprocessor.window_stride", 0.001, 10),
        "fbank_conf.dither": _scaled("AudioToKaldiFbankPreprocessor.dither", 1, 0.0),
        "fbank_conf.window_type": _only("povey"),
        "spec_aug": Key({}, True, bool),
        "spec_sub": Key({}, False, bool),
        "spec_aug_conf.num_t_mask": _where("dataset_conf.spec_aug", "SpectrogramAugmentation.time_masks", 2),
        "spec_aug_conf.num_f_mask": _where("dataset_conf.spec_aug", "SpectrogramAugmentation.freq_masks", 2),
        "spec_aug_conf.max_t": _where("dataset_conf.spec_aug", "SpectrogramAugmentation.time_width", 50),
        "spec_aug_conf.max_f": _where("dataset_conf.spec_aug", "SpectrogramAugmentation.freq_width", 10),
        "spec_aug_conf.max_w": _NOTHING,
        "spec_sub_conf.num_t_sub": _where("dataset_conf.spec_sub", "SpectrogramAugmentation.time_copies", 3),
        "spec_sub_conf.max_t": _where("dataset_conf.spec_sub", "SpectrogramAugmentation.copy_width", 20),
        "spec_trim": Key({}, False, bool),
        "spec_trim_conf.max_t": Key({"AudioToTextDataLayer.train.augmentor.trim_tail": _trims}, 20, int),
        "shuffle": Key(
            {
                "AudioToTextDataLayer.train.shuffle": lambda is_on, _: is_on,
                "AudioToTextDataLayer.eval.shuffle": lambda *_: False,
            },
            True,
        ),
        "sort": _same("AudioToTextDataLayer.train.bucketing", default=True),
        "list_shuffle": _only(True),
        **dict.fromkeys(
            ("shuffle_conf.shuffle_size", "sort_conf.sort_size", "list_shuffle_conf.shuffle_size"), _NOTHING
        ),
        "cycle": _only(1),
        "batch_conf.batch_type": Key(
            {"AudioToTextDataLayer.train.bucketing": lambda name, _: name == "dynamic" or None},
            "static",
            allowed=("static", "dynamic"),
        ),
        "batch_conf.batch_size": Key(
            {"batch_size": lambda size, _: size, "eval_batch_size": lambda size, of: size if _is_dynamic(of) else None},
            16,
        ),
        "batch_conf.max_frames_in_batch": Key(
            {"AudioToTextDataLayer.train.max_batch_seconds": _seconds, "batch_size": _most_items}, 12000, int
        ),
        "split_with_space": _NOTHING,
    },
}
_FILE: Mapping[str, Key] = {
    "model": _only("asr_model"),
    "encoder": _only("conformer"),
    "decoder": Key(
        {"family": lambda *_: "ctc_attention", "AttentionRescoring.beam_size": lambda *_: 10},
        "bitransformer",
        allowed=("transformer", "bitransformer"),
    ),
    "ctc": _only("ctc"),
    "tokenizer": Key({"labels": lambda name, _: "auto" if name == "char" else None}, "char", allowed=("char", "bpe")),
    "cmvn": Key({"AudioToKaldiFbankPreprocessor.normalize": lambda *_: "per_feature"}, allowed=("global_cmvn",)),
    "dataset": _only("asr"),
    "grad_clip": _same("grad_clip", default=50.0),
    "accum_grad": _same("accum_grad", default=1),
    "max_epoch": _same("max_epoch", default=100),
    "log_interval": _same("log_interval", default=10),
    "save_interval": _same("save_interval"),
    **{name: _same(name) for name in ("optim", "optim_conf", "scheduler", "scheduler_conf")},
    # What WeNet writes beside these into the folder of a run, also that of older versions.
    "input_dim": Key({"AudioToKaldiFbankPreprocessor.features": _num_mel_bins}),
    "cmvn_file": Key({"AudioToKaldiFbankPreprocessor.normalize": _statistics}, kind=str),
    "is_json_cmvn": _only(True),
    **dict.fromkeys(("output_dim", "vocab_size", "init_infos", "model_dir", "save_states"), _NOTHING),
    **dict.fromkeys(("train_engine", "use_amp", "dtype", "raw_wav"), _NOTHING),
}
KEYS: Mapping[str, Key] = {
    **_FILE,
    **{f"{section}.{name}": key for section, keys in _SECTIONS.items() for name, key in keys.items()},
}
"""By their dotted names. Of two that become the same key here the later one wins."""
_OF_DECODER = ("decoder_conf.", "model_conf.")
_MOST_UNKNOWN = 20  # to look for the nearest of known keys takes a while for each

_STATISTICS = FileKind("the CMVN statistics", 1 << 20, CheckpointError, "copy the whole folder of the model")
_SMALLEST_VARIANCE = 1e-20


def load_model_config(path: str | os.PathLike[str]) -> Config:
    """The configuration in a file, or of that name; a train.yaml of WeNet's in the keys here, each with its place.

    Raises:
        ConfigError: the file cannot be read, or has keys or values of WeNet's that there are none for here: one line
            each.
    """
    config = load_config(config_path(path))
    return translated(config) if "encoder_conf" in config else config


def translated(config: Config, checked: tuple[str, ...] = ("",)) -> Config:
    """A train.yaml of WeNet's in the keys here; each value has the place of WeNet's key.

    Args:
        config: with WeNet's keys. With ``decoder: null`` there is no attention decoder, nor what it alone needs.
        checked: how the dotted names of those keys begin that are looked at; the others are taken as left out.

    Raises:
        ConfigError: keys and values that there are none for here: one line each.
    """
    given, problems = _given(config, checked)
    values = Values({name: given.get(name, key.default) for name, key in KEYS.items()}, Path(config.source.name))
    has_decoder = values["decoder"] is not None
    tree: dict[str, Any] = {}
    marks = dict(config.source.marks)
    for name, key in KEYS.items():
        if values[name] is None or (not has_decoder and name.startswith(_OF_DECODER)):
            continue
        keys = tuple(name.split("."))
        try:
            _check(values[name], key)
            made = {target: become(values[name], values) for target, become in key.becomes.items()}
        except _Unfit as error:
            problems.append(f"{config.source.place(keys)}: {name} is {shown(values[name])}, wanted {error}")
            continue
        for target, value in made.items():
            if value is not None:
                _put(tree, marks, tuple(target.split(".")), value, config.source.mark(keys))
    raise_if(problems)
    source = Source(config.source.name, marks, overrides=config.source.overrides)
    return _config(tree, source, ())


def _given(config: Config, checked: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """The values that the file has, by dotted names, and a line for each that is not known."""
    given: dict[str, Any] = {}
    unknown: list[tuple[str, str, Any]] = []
    for name, section, key in _leaves(config):
        if not name.startswith(checked):
            continue
        if name in KEYS:
            given[name] = section[key]
        elif section[key] is not None:
            unknown.append((section.place(key), name, section[key]))
    problems = []
    for place, name, value in unknown[:_MOST_UNKNOWN]:
        remedy = ", wanted a mapping" if name in _SECTIONS else did_you_mean(name, KEYS)
        problems.append(f"{place}: {name} is {shown(value)}, which is not known here{remedy}")
    if more := unknown[_MOST_UNKNOWN:]:
        problems.append(f"{more[0][0]}: {len(more)} more keys are not known here")
    return given, problems


def _leaves(config: Config, above: str = "") -> Iterator[tuple[str, Config, str]]:
    """The dotted names of a file's values, each with the mapping that holds it, and its key there."""
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Config) and name not in KEYS:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, config, key


def _check(value: Any, key: Key) -> None:
    """Raise `_Unfit` where the value is none of a key."""
    if key.allowed and value not in key.allowed:
        raise _Unfit(" or ".join(map(shown, key.allowed)))
    if not isinstance(value, key.kind) or (isinstance(value, bool) and key.kind not in (bool, object)):
        raise _Unfit({bool: "true or false", str: "text", int: "a whole number"}.get(key.kind, "a number"))


def _put(
    tree: dict[str, Any], marks: dict[Any, tuple[int, int]], keys: tuple[str, ...], value: Any, mark: tuple[int, int]
) -> None:
    """Set a value in mappings of mappings, and the places of all keys on the way."""
    for length, key in enumerate(keys[:-1], 1):
        tree = tree.setdefault(key, {})
        marks.setdefault(keys[:length], mark)
    tree[keys[-1]] = value.plain() if isinstance(value, Config) else value
    marks[keys] = mark


def _config(values: Mapping[str, Any], source: Source, keys: tuple[str, ...]) -> Config:
    """Mappings of mappings with the places of their values."""
    inner = {
        key: _config(value, source, (*keys, key)) if isinstance(value, dict) else value for key, value in values.items()
    }
    return Config(inner, source, keys)


def read_statistics(file: Path) -> dict[str, list[float]]:
    """Mean and deviation of each feature, as ``fixed_mean`` and ``fixed_std``, from the JSON that WeNet writes.

    Raises:
        CheckpointError: the file is not that.
    """
    statistics: Any = read_json(file, _STATISTICS)
    try:
        count = statistics["frame_num"]
        means = [total / count for total in statistics["mean_stat"]]
        squares = [total / count for total in statistics["var_stat"]]
        deviations = [
            math.sqrt(max(square - mean * mean, _SMALLEST_VARIANCE))
            for mean, square in zip(means, squares, strict=True)
        ]
    except (TypeError, KeyError, ValueError, ZeroDivisionError) as error:
        wanted = "JSON with mean_stat, var_stat and frame_num"
        raise CheckpointError("these are no CMVN statistics", place=str(file), got=str(error), wanted=wanted) from None
    return {"fixed_mean": means, "fixed_std": deviations}
