"""read_wenet: a folder of WeNet's (weights, train.yaml, units, CMVN) as a recipe and the weights of each module.

Of models with a CTC head and an attention decoder it takes the encoder and the CTC head. Differences to NeMo's
Conformer are settings of `models.conformer`; the features are those of `fbank`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_asr.run.text.labels import WORD_MARK, is_piece
from nemo_asr.run.text.sentencepiece_file import ModelFile, decode, encode, read_bytes
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_tensors
from nemo_lite.base.config import Config, load_config, raise_if, shown
from nemo_lite.base.errors import CheckpointError, DataError, counted
from nemo_lite.base.files import FileKind, numbered_lines, read_json
from nemo_lite.utils import logging

# Any: values of YAML.

WEIGHTS, CONFIG = "final.pt", "train.yaml"
# Beside the one that the configuration names: that of models for WeNet's runtime, and that of its first recipes.
_UNITS = ("units.txt", "words.txt")
_STATISTICS = "global_cmvn"
_UNITS_KIND = FileKind("the units", 8 << 20, CheckpointError, "copy the whole folder of the model")
_STATISTICS_KIND = FileKind("the CMVN statistics", 1 << 20, CheckpointError, "copy the whole folder of the model")
_BLANK, _HEAD = "<blank>", "ctc.ctc_lo."
_NEVER_WRITTEN = ("<sos/eos>", "<sos>", "<eos>")  # they are the attention decoder's; no text of CTC has them
_SMALLEST_VARIANCE = 1e-20
# The bias of a label that WeNet's units lack: its probability is 0, and the number one of half precision.
_NEVER = -1e4

# Settings of WeNet's encoder: their names here; those that change nothing in a trained model; and those that may only
# have the value with which the encoder here is WeNet's.
_NAMES_HERE = {
    "output_size": "d_model",
    "attention_heads": "n_heads",
    "num_blocks": "n_layers",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "dropout_att",
    "cnn_module_kernel": "conv_kernel_size",
    "cnn_module_norm": "conv_norm_type",
    "use_dynamic_chunk": "use_dynamic_chunk",
    "use_dynamic_left_chunk": "use_dynamic_left_chunk",
    "final_norm": "after_norm",
}
_DEFAULTS = {  # WeNet's own, of what a file may leave out
    "output_size": 256,
    "attention_heads": 4,
    "linear_units": 2048,
    "num_blocks": 6,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.0,
    "cnn_module_kernel": 15,
    "cnn_module_norm": "batch_norm",
    "final_norm": True,
}
_TRANSLATED = {*_NAMES_HERE, "linear_units", "positional_dropout_rate", "causal", "static_chunk_size"}
_IGNORED = {"gradient_checkpointing", "use_sdpa"}
_NEUTRAL: dict[str, Any] = {
    "input_layer": "conv2d",
    "pos_enc_layer_type": "rel_pos",
    "selfattention_layer_type": "rel_selfattn",
    "activation_type": "swish",
    "normalize_before": True,
    "macaron_style": True,
    "use_cnn_module": True,
    "concat_after": False,
    **dict.fromkeys(("query_bias", "key_bias", "value_bias", "conv_bias", "mlp_bias"), True),
    **dict.fromkeys(("norm_eps", "conv_norm_eps"), 1e-5),
    "conv_inner_factor": 2,
    "layer_norm_type": "layer_norm",
    "mlp_type": "position_wise_feed_forward",
}
_MODELS = ("asr_model", "k2_model", "transducer")
_FEATURES = {"num_mel_bins": 80, "frame_length": 25, "frame_shift": 10, "dither": 0.0}
# Tensors: patterns of WeNet's names, and the names here.
_TENSORS = (
    (r"embed\.conv\.", "pre_encode.conv."),
    (r"embed\.out\.0\.", "pre_encode.out."),
    (r"encoders\.(\d+)\.feed_forward_macaron\.w_", r"layers.\1.feed_forward1.linear"),
    (r"encoders\.(\d+)\.feed_forward\.w_", r"layers.\1.feed_forward2.linear"),
    (r"encoders\.(\d+)\.conv_module\.norm\.", r"layers.\1.conv.batch_norm."),
    (r"encoders\.(\d+)\.conv_module\.", r"layers.\1.conv."),
    (r"encoders\.(\d+)\.self_attn\.", r"layers.\1.self_attn."),
    (r"encoders\.(\d+)\.norm_ff_macaron\.", r"layers.\1.norm_feed_forward1."),
    (r"encoders\.(\d+)\.norm_mha\.", r"layers.\1.norm_self_att."),
    (r"encoders\.(\d+)\.norm_conv\.", r"layers.\1.norm_conv."),
    (r"encoders\.(\d+)\.norm_ff\.", r"layers.\1.norm_feed_forward2."),
    (r"encoders\.(\d+)\.norm_final\.", r"layers.\1.norm_out."),
)
# Positions, which are computed, and a layer that older models have and, without concat_after, do not use.
_UNUSED_TENSORS = re.compile(r"embed\.pos_enc\.pe|encoders\.\d+\.concat_linear\..*|global_cmvn\..*")


# Other parts of a model, by the first word of their tensors.
_PARTS = {
    "decoder": "the attention decoder",
    "predictor": "the prediction network",
    "joint": "the joint network",
    "simple_am_proj": "the joint network",
    "simple_lm_proj": "the joint network",
}


def read_wenet(folder: str | Path) -> ForeignModel:
    """Read a folder of WeNet's. Its weights are read as tensors alone, and nothing in it is run.

    The blank, WeNet's first unit, becomes the class behind the last label. ``<unk>`` is a label as in WeNet, which
    writes it; ``<sos/eos>`` is none, since no text that a CTC head is trained on has it.

    Raises:
        CheckpointError: a file is missing or damaged, or the units, statistics and weights do not fit each other.
        ConfigError: the configuration cannot be read, or has settings that the modules here do not have.
    """
    folder = Path(folder).expanduser()
    config = load_config(folder / CONFIG)
    encoder, features = _translated(config)
    files = [folder / CONFIG, folder / WEIGHTS]
    state = read_torch_tensors(folder / WEIGHTS, str(folder / WEIGHTS))
    units_file = _file_in(folder, _setting(config, "tokenizer_conf", "symbol_table_path"), *_UNITS)
    if units_file is None:
        raise CheckpointError("the units are missing", place=str(folder), wanted=" or ".join(_UNITS))
    units = _read_units(units_file)
    _check_head(state, len(units), str(units_file), config)
    named_statistics = _setting(config, "cmvn_conf", "cmvn_file") or config.get("cmvn_file")
    statistics_file = _file_in(folder, named_statistics, _STATISTICS)
    features["normalize"] = _normalization(state, statistics_file)
    if features["normalize"] is None and (named_statistics or config.get("cmvn")):
        raise CheckpointError("the CMVN statistics are missing", place=str(folder), wanted=_STATISTICS)
    vocabulary = _vocabulary(folder, config, units)
    blank = _setting(config, "ctc_conf", "ctc_blank_id") or units.get(_BLANK, 0)
    _tell_unused(state, str(folder))
    recipe = {
        "name": folder.resolve().name,
        "sample_rate": features.pop("sample_rate"),
        **({"tokenizer": "tokenizer.model"} if vocabulary.tokenizer else {"labels": vocabulary.labels}),
        "AudioToKaldiFbankPreprocessor": features,
        "ConformerEncoder": encoder,
    }
    weights = {
        "ConformerEncoder": dict(_of_encoder(state)),
        "JasperDecoderForCTC": _of_head(state, [*vocabulary.unit_ids, blank]),
    }
    files += [file for file in (units_file, statistics_file) if file is not None]
    return ForeignModel(str(folder), recipe, weights, vocabulary.tokenizer, tuple(files))


def _setting(config: Config, section: str, key: str) -> Any:
    """A setting of a section, or None."""
    values = config.get(section)
    return values.get(key) if isinstance(values, Config) else None


def _file_in(folder: Path, named: Any, *known: str) -> Path | None:
    """The file in a folder that the configuration names, by the last part of its path there, or one of known names."""
    names = [Path(named).name] if isinstance(named, str) else []
    return next((folder / name for name in (*names, *known) if (folder / name).is_file()), None)


# The configuration.


def _translated(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of the encoder and of the preprocessor, which has ``sample_rate`` as well.

    Raises:
        ConfigError: the model is of another kind, or has settings that the modules here do not have: all at once.
    """
    problems = [
        f"{config.place(key)}: {key} is {shown(config[key])}, which is not read here; wanted {' or '.join(wanted)}"
        for key, wanted in (("model", _MODELS), ("encoder", ("conformer",)))
        if key in config and config[key] not in wanted
    ]
    given = config.get("encoder_conf")
    settings = given if isinstance(given, Config) else Config({}, config.source, ("encoder_conf",))
    for key, value in settings.items():
        if key in _TRANSLATED or key in _IGNORED or value is None or value == _NEUTRAL.get(key):
            continue
        wanted = f", wanted {shown(_NEUTRAL[key])}" if key in _NEUTRAL else ""
        problems.append(f"{settings.place(key)}: encoder_conf.{key} is {shown(value)}, which is not known here{wanted}")
    features = _features(config, problems)
    raise_if(problems)
    values = {**_DEFAULTS, **settings}
    size, linear_units = values["output_size"], values["linear_units"]
    if not isinstance(size, int) or size < 1 or not isinstance(linear_units, int) or linear_units % size:
        got = f"linear_units is {shown(linear_units)}, output_size {shown(size)}"
        raise_if([f"{settings.place()}: {got}, wanted a multiple of it"])
    encoder = {name: values[key] for key, name in _NAMES_HERE.items() if key in values} | {
        "feat_in": features["features"],
        "subsampling": "conv2d",
        "ff_expansion_factor": linear_units // size,
        "self_attention_model": "rel_pos_no_shift",
        "dropout_pre_encoder": values["positional_dropout_rate"],
        "dropout_emb": values["positional_dropout_rate"],
    }
    if values.get("causal"):
        kernel_size = values["cnn_module_kernel"]
        odd = kernel_size + 1 if isinstance(kernel_size, int) and kernel_size % 2 == 0 else kernel_size
        encoder |= {"conv_kernel_size": odd, "conv_context_size": "causal", "conv_pads_input": True}
    if chunk := int(values.get("static_chunk_size") or 0):
        encoder |= {"att_context_size": [-1, chunk - 1], "att_context_style": "chunked_limited"}
    return encoder, features


def _features(config: Config, problems: list[str]) -> dict[str, Any]:
    """The arguments of the preprocessor, and ``sample_rate``; problems are added to the list."""
    data = config.get("dataset_conf")
    data = data if isinstance(data, Config) else Config({}, config.source, ("dataset_conf",))
    fbank, kind = data.get("fbank_conf"), data.get("feats_type", "fbank")
    if not isinstance(fbank, Config) or kind != "fbank":
        got = "dataset_conf.fbank_conf is missing" if kind == "fbank" else f"dataset_conf.feats_type is {shown(kind)}"
        problems.append(f"{data.place()}: {got}, wanted fbank: other features are not read here")
        return {"features": 0}
    values = {**_FEATURES, **fbank}
    for key, value in values.items():
        if key not in _FEATURES:
            problems.append(f"{fbank.place(key)}: fbank_conf.{key} is not known here, wanted {', '.join(_FEATURES)}")
        elif not isinstance(value, int | float):
            problems.append(f"{fbank.place(key)}: fbank_conf.{key} is {shown(value)}, wanted a number")
            values[key] = _FEATURES[key]
    num_mel_bins = values["num_mel_bins"]
    if (input_dim := config.get("input_dim", num_mel_bins)) != num_mel_bins:
        problem = f"input_dim is {shown(input_dim)}, fbank_conf has {shown(num_mel_bins)} mel bins"
        problems.append(f"{config.place('input_dim')}: {problem}")
    return {
        "sample_rate": _setting(data, "resample_conf", "resample_rate") or 16000,
        "features": num_mel_bins,
        "window_size": values["frame_length"] / 1000,
        "window_stride": values["frame_shift"] / 1000,
        "dither": values["dither"],
    }


# Units, and the tokenizer whose pieces they may be.


class _Vocabulary(NamedTuple):
    """The labels, and the unit of each; None for a piece that is no unit."""

    labels: list[str]
    unit_ids: list[int | None]
    tokenizer: Subwords | None = None


def _read_units(path: Path) -> dict[str, int]:
    """The units by their text, in the order of their ids.

    Raises:
        CheckpointError: a line is no unit with a number, or the numbers are not those from 0 on.
    """
    units: dict[str, int] = {}
    for place, line in numbered_lines(path, _UNITS_KIND):
        match = re.fullmatch(rb"(\S+)[ \t]+(\d{1,6})", line)
        try:
            unit = match[1].decode("utf-8") if match else ""
        except UnicodeDecodeError:
            unit = ""
        if match is None or not unit:
            got, wanted = repr(line[:40].decode("utf-8", "replace")), "a unit and its number"
            raise CheckpointError("this is no unit", place=place, got=got, wanted=wanted)
        if unit in units:
            raise CheckpointError("the unit is there twice", place=place, got=unit)
        units[unit] = int(match[2])
    units = dict(sorted(units.items(), key=lambda item: item[1]))
    if list(units.values()) != list(range(len(units))) or not units:
        got = f"{counted(len(units), 'unit')}, the last one with number {max(units.values(), default=-1)}"
        raise CheckpointError("the numbers of its units have gaps or repeat", place=str(path), got=got)
    return units


def _vocabulary(folder: Path, config: Config, units: Mapping[str, int]) -> _Vocabulary:
    """The labels of the units; with a SentencePiece model of them, in its words and with what else it needs to cut.

    Raises:
        CheckpointError: as of a file that is damaged.
    """
    written = {unit: number for unit, number in units.items() if unit not in (_BLANK, *_NEVER_WRITTEN)}
    has_pieces = any(is_piece(unit) and unit != WORD_MARK for unit in written)
    characters = _Vocabulary(
        [unit if has_pieces else unit.replace(WORD_MARK, " ") for unit in written], [*written.values()]
    )
    models = [path.name for path in sorted(folder.glob("*.model"))]
    file = _file_in(folder, _setting(config, "tokenizer_conf", "bpe_path"), *(models if len(models) == 1 else []))
    if file is None:
        return characters
    try:
        model = decode(read_bytes(file), str(file))
    except DataError as error:
        raise CheckpointError("its tokenizer cannot be read", place=str(file), got=str(error)) from None
    pieces = {piece.text: piece for piece in model.pieces}
    if outside := [unit for unit in written if unit not in pieces]:
        unit = f"{outside[0]!r}{f' and {len(outside) - 1} more' if outside[1:] else ''}"
        remedy = "The model transcribes; nothing here can cut texts into its units"
        logging.warning("%s: units are outside of its vocabulary: %s. %s", file, unit, remedy)
        return characters
    # A tokenizer's pieces are the labels, in its order. Units are those that the texts of the training had, in another
    # order: here they come first, and behind them the others, which cutting still needs on its way.
    others = [piece for piece in model.pieces if piece.text not in written]
    ordered = ModelFile(model.algorithm, (*(pieces[unit] for unit in written), *others))
    tokenizer = Subwords(encode(ordered), str(file))
    return _Vocabulary(list(tokenizer), [*written.values(), *[None] * len(others)], tokenizer)


# Weights.


def _check_head(state: Mapping[str, Tensor], num_units: int, place: str, config: Config) -> None:
    """See that there is a CTC head with an output for each unit.

    Raises:
        CheckpointError: there is none, or it has more or fewer.
    """
    head = state.get(f"{_HEAD}weight")
    if head is None or head.dim() != 2 or f"{_HEAD}bias" not in state:
        got = "none" if head is None else "one without a bias, or of another shape"
        raise CheckpointError(
            "there is no CTC head", place=config.source.name, got=got, wanted=f"{_HEAD}weight and bias"
        )
    if len(head) != num_units:
        wanted = f"{len(head)}, one for each output of the CTC head"
        raise CheckpointError("its units do not fit its CTC head", place=place, got=f"{num_units} units", wanted=wanted)


def _of_head(state: Mapping[str, Tensor], rows: Sequence[int | None]) -> dict[str, Tensor]:
    """The head here: a row for each label and one for the blank; None stands for a label that is never written."""
    weight, bias = state[f"{_HEAD}weight"], state[f"{_HEAD}bias"]
    picked = torch.tensor([0 if row is None else row for row in rows])
    is_dead = torch.tensor([row is None for row in rows])
    weight = weight[picked].masked_fill(is_dead[:, None], 0.0)
    return {
        "decoder_layers.0.weight": weight.unsqueeze(2),
        "decoder_layers.0.bias": bias[picked].masked_fill(is_dead, _NEVER),
    }


def _of_encoder(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the encoder by their names here; names that are not known stay, for whoever compares them."""
    for name, tensor in state.items():
        inner = name.removeprefix("encoder.")
        if inner == name or _UNUSED_TENSORS.fullmatch(inner):
            continue
        for pattern, name_here in _TENSORS:
            inner, number = re.subn(f"^{pattern}", name_here, inner)
            if number:
                break
        if inner.endswith("conv.depthwise_conv.weight") and tensor.dim() == 3 and tensor.shape[2] % 2 == 0:
            tensor = F.pad(tensor, (1, 0))  # kernels are odd here: one frame more before it counts 0
        yield inner, tensor


def _normalization(state: Mapping[str, Tensor], file: Path | None) -> dict[str, list[float]] | None:
    """Mean and deviation of each feature: those that the weights hold, else those of the file; None without either.

    Raises:
        CheckpointError: the file is not what WeNet writes.
    """
    mean, inverse = (state.get(f"encoder.global_cmvn.{name}") for name in ("mean", "istd"))
    if mean is not None and inverse is not None:
        return {"fixed_mean": mean.tolist(), "fixed_std": (1.0 / inverse.double()).tolist()}
    if file is None:
        return None
    statistics: Any = read_json(file, _STATISTICS_KIND)
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


def _tell_unused(state: Mapping[str, Tensor], place: str) -> None:
    """Say which parts of a model are left out.

    Raises:
        CheckpointError: there is one that no model of WeNet's has.
    """
    parts = sorted({name.partition(".")[0] for name in state} - {"encoder", "ctc"})
    if unknown := [part for part in parts if part not in _PARTS]:
        wanted = "encoder.*, ctc.*, decoder.*"
        raise CheckpointError("its weights are of another kind of model", place=place, got=unknown[0], wanted=wanted)
    if parts:
        names = ", ".join(dict.fromkeys(_PARTS[part] for part in parts))
        logging.info("%s: read are its encoder and its CTC head; left out: %s", place, names)


WENET_FOLDER = Format(
    f"a folder of WeNet's ({WEIGHTS}, {CONFIG})",
    lambda path: (path / CONFIG).is_file() and (path / WEIGHTS).is_file(),
    read_wenet,
)
