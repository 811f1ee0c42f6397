"""read_wenet: a folder of WeNet's (weights, train.yaml, units, CMVN) as a recipe and the weights of each module.

Models have a CTC head, and perhaps an attention decoder beside it. What the keys of train.yaml become is said in
`nemo_asr.wenet_keys`; the features are those of `fbank`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_asr.run.text.labels import WORD_MARK, is_piece
from nemo_asr.run.text.sentencepiece_file import ModelFile, decode, encode, read_bytes
from nemo_asr.run.text.subwords import Subwords
from nemo_asr.trained.foreign import ForeignModel, Format
from nemo_asr.wenet_keys import read_statistics, translated
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_tensors
from nemo_lite.base.config import Config, load_config, shown
from nemo_lite.base.errors import CheckpointError, ConfigError, DataError, counted
from nemo_lite.base.files import FileKind, numbered_lines
from nemo_lite.utils import logging

# Any: values of YAML.

WEIGHTS, CONFIG = "final.pt", "train.yaml"
# Beside the one that the configuration names: that of models for WeNet's runtime, and that of its first recipes.
_UNITS = ("units.txt", "words.txt")
_STATISTICS = "global_cmvn"
_UNITS_KIND = FileKind("the units", 8 << 20, CheckpointError, "copy the whole folder of the model")
_BLANK, _HEAD, _DECODER = "<blank>", "ctc.ctc_lo.", "decoder."
_NEVER_WRITTEN = ("<sos/eos>", "<sos>", "<eos>")  # they are the attention decoder's; no text has them
# The bias of a label that WeNet's units lack: its probability is 0, and the number one of half precision.
_NEVER = -1e4

_MODELS = ("asr_model", "k2_model", "transducer")
# The keys of the configuration that make a model; the others are of its training.
_OF_FEATURES = ("dataset_conf.feats_type", "dataset_conf.fbank_conf", "dataset_conf.resample_conf", "input_dim")
_OF_MODEL = ("encoder", "decoder", "model_conf", *_OF_FEATURES)
# Tensors: patterns of WeNet's names, and the names here.
_TENSORS = (
    (r"embed\.conv\.", "pre_encode.conv."),
    (r"embed\.(out\.0|linear)\.", "pre_encode.out."),
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
# Positions, which are computed, and layers that older models have and, without concat_after, do not use.
_UNUSED_TENSORS = re.compile(r"embed\.pos_enc\.pe|encoders\.\d+\.concat_linear\..*|global_cmvn\..*")
_UNUSED_OF_DECODER = re.compile(r".*embed\.1\.pe|.*decoders\.\d+\.concat_linear\d\..*")


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
    writes it; ``<sos/eos>`` is none: it becomes the attention decoder's output behind the last label, and the blank,
    which the decoder has too, an output that no text has.

    Raises:
        CheckpointError: a file is missing or damaged, or the units, statistics and weights do not fit each other.
        ConfigError: the configuration cannot be read, or has settings that the modules here do not have.
    """
    folder = Path(folder).expanduser()
    config = load_config(folder / CONFIG)
    files = [folder / CONFIG, folder / WEIGHTS]
    state = read_torch_tensors(folder / WEIGHTS, str(folder / WEIGHTS))
    has_decoder = _has_decoder(state, config)
    sections = _sections(config, has_decoder)
    units_file = _file_in(folder, _setting(config, "tokenizer_conf", "symbol_table_path"), *_UNITS)
    if units_file is None:
        raise CheckpointError("the units are missing", place=str(folder), wanted=" or ".join(_UNITS))
    units = _read_units(units_file)
    _check_head(state, len(units), str(units_file), config)
    blank = _setting(config, "ctc_conf", "ctc_blank_id") or units.get(_BLANK, 0)
    ends = _ends(config, len(units)) if has_decoder else ()
    vocabulary = _vocabulary(folder, config, units, ends)
    weights = {
        "ConformerEncoder": dict(_of_encoder(state)),
        "JasperDecoderForCTC": _of_head(state, [*vocabulary.unit_ids, blank]),
    }
    if has_decoder:
        others = [unit for unit in range(len(units)) if unit not in vocabulary.unit_ids]
        inputs, outputs = ([*vocabulary.unit_ids, first, *_without(others, first)] for first in ends)
        sections["TransformerDecoder"]["num_extra_outputs"] = len(others) - 1
        weights["TransformerDecoder"] = dict(_of_decoder(state, inputs, outputs, folder))
    named_statistics = _setting(config, "cmvn_conf", "cmvn_file") or config.get("cmvn_file")
    statistics_file = _file_in(folder, named_statistics, _STATISTICS)
    normalize = _normalization(state, statistics_file)
    if normalize is None and (named_statistics or config.get("cmvn")):
        raise CheckpointError("the CMVN statistics are missing", place=str(folder), wanted=_STATISTICS)
    sections["AudioToKaldiFbankPreprocessor"]["normalize"] = normalize
    _tell_unused(state, has_decoder, str(folder))
    recipe = {
        "name": folder.resolve().name,
        **({"tokenizer": "tokenizer.model"} if vocabulary.tokenizer else {"labels": vocabulary.labels}),
        **sections,
    }
    files += [file for file in (units_file, statistics_file) if file is not None]
    return ForeignModel(str(folder), recipe, weights, vocabulary.tokenizer, tuple(files))


def _has_decoder(state: Mapping[str, Tensor], config: Config) -> bool:
    """Whether it has an attention decoder that is read: that of a transducer is not."""
    return any(name.startswith(_DECODER) for name in state) and config.get("model") != "transducer"


def _setting(config: Config, section: str, key: str) -> Any:
    """A setting of a section, or None."""
    values = config.get(section)
    return values.get(key) if isinstance(values, Config) else None


def _file_in(folder: Path, named: Any, *known: str) -> Path | None:
    """The file in a folder that the configuration names, by the last part of its path there, or one of known names."""
    names = [Path(named).name] if isinstance(named, str) else []
    return next((folder / name for name in (*names, *known) if (folder / name).is_file()), None)


def _sections(config: Config, has_decoder: bool) -> dict[str, Any]:
    """The sections of a recipe that make a model, and its ``sample_rate``.

    Raises:
        ConfigError: the model is of another kind, or has settings that the modules here do not have: all at once.
    """
    if "model" in config and config["model"] not in _MODELS:
        got, wanted = shown(config["model"]), " or ".join(_MODELS)
        raise ConfigError(f"{config.place('model')}: model is {got}, which is not read here; wanted {wanted}")
    if not has_decoder:
        config = Config({**config.without("decoder_conf", "model_conf"), "decoder": None}, config.source)
    ours = translated(config, _OF_MODEL).plain()
    kept = ["sample_rate", "AudioToKaldiFbankPreprocessor", "ConformerEncoder"]
    kept += ["family", "TransformerDecoder", "AttentionLoss", "AuxiliaryCTCLoss", "AttentionRescoring"]
    return {key: ours[key] for key in kept if key in ours}


def _ends(config: Config, num_units: int) -> tuple[int, int]:
    """The units that stand before and behind a text in the attention decoder; older files do not name them.

    Raises:
        CheckpointError: there are no such units.
    """
    named = _setting(config, "tokenizer_conf", "special_tokens")
    found = [named.get(name) if isinstance(named, Config) else None for name in ("<sos>", "<eos>")]
    start, end = (num_units - 1 if unit is None else unit for unit in found)
    for unit in (start, end):
        if not isinstance(unit, int) or not 0 <= unit < num_units:
            place, wanted = config.place("tokenizer_conf", "special_tokens"), f"numbers from 0 to {num_units - 1}"
            raise CheckpointError("there is no such unit", place=place, got=shown(unit), wanted=wanted)
    return start, end


def _without(units: Sequence[int], unit: int) -> list[int]:
    return [each for each in units if each != unit]


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


def _vocabulary(folder: Path, config: Config, units: Mapping[str, int], ends: Collection[int]) -> _Vocabulary:
    """The labels of the units; with a SentencePiece model of them, in its words and with what else it needs to cut.

    Args:
        folder, config, units: of the model.
        ends: units that no text has.

    Raises:
        CheckpointError: as of a file that is damaged.
    """
    written = {
        unit: number for unit, number in units.items() if unit not in (_BLANK, *_NEVER_WRITTEN) and number not in ends
    }
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
    return {
        "decoder_layers.0.weight": _picked(state[f"{_HEAD}weight"], rows, 0.0).unsqueeze(2),
        "decoder_layers.0.bias": _picked(state[f"{_HEAD}bias"], rows, _NEVER),
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


def _of_decoder(
    state: Mapping[str, Tensor], inputs: Sequence[int | None], outputs: Sequence[int | None], folder: Path
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the attention decoder by their names here: WeNet's, where it has two directions.

    Args:
        state: of the model.
        inputs, outputs: the units in the order here, which differ in what begins and ends texts; None stands for a
            label that is never written.
        folder: for messages.

    Raises:
        CheckpointError: it has more or fewer units.
    """
    num_units = len(inputs) - inputs.count(None)
    rows = {
        "embed.0.weight": (inputs, 0.0),
        "output_layer.weight": (outputs, 0.0),
        "output_layer.bias": (outputs, _NEVER),
    }
    for name, tensor in state.items():
        inner = name.removeprefix(_DECODER)
        if inner == name or _UNUSED_OF_DECODER.fullmatch(inner):
            continue
        side, _, of_side = inner.partition(".")
        if side not in ("left_decoder", "right_decoder"):
            side, of_side = "left_decoder", inner
        if of_side in rows:
            if tensor.shape[:1] != (num_units,):
                got, wanted = f"{name} of shape {[*tensor.shape]}", f"{num_units} rows, one for each unit"
                problem = "its units do not fit its attention decoder"
                raise CheckpointError(problem, place=str(folder), got=got, wanted=wanted)
            tensor = _picked(tensor, *rows[of_side])
        yield f"{side}.{of_side}", tensor


def _picked(tensor: Tensor, rows: Sequence[int | None], instead: float) -> Tensor:
    """Rows of a tensor in another order, with a number in the place of those that are None."""
    picked = tensor[torch.tensor([0 if row is None else row for row in rows])]
    picked[torch.tensor([row is None for row in rows])] = instead
    return picked


def _normalization(state: Mapping[str, Tensor], file: Path | None) -> dict[str, list[float]] | None:
    """Mean and deviation of each feature: those that the weights hold, else those of the file; None without either.

    Raises:
        CheckpointError: the file is not what WeNet writes.
    """
    mean, inverse = (state.get(f"encoder.global_cmvn.{name}") for name in ("mean", "istd"))
    if mean is not None and inverse is not None:
        return {"fixed_mean": mean.tolist(), "fixed_std": (1.0 / inverse.double()).tolist()}
    return None if file is None else read_statistics(file)


def _tell_unused(state: Mapping[str, Tensor], has_decoder: bool, place: str) -> None:
    """Say which parts of a model are left out.

    Raises:
        CheckpointError: there is one that no model of WeNet's has.
    """
    read = {"encoder", "ctc", "decoder"} if has_decoder else {"encoder", "ctc"}
    parts = sorted({name.partition(".")[0] for name in state} - read)
    if unknown := [part for part in parts if part not in _PARTS]:
        wanted = "encoder.*, ctc.*, decoder.*"
        raise CheckpointError("its weights are of another kind of model", place=place, got=unknown[0], wanted=wanted)
    if parts:
        names = ", ".join(dict.fromkeys(_PARTS[part] for part in parts))
        logging.info("%s: read are its encoder and its CTC head; left out: %s", place, names)


WENET_FOLDER = Format(
    "a folder of WeNet",
    lambda path: (path / CONFIG).is_file() and (path / WEIGHTS).is_file(),
    read_wenet,
)
