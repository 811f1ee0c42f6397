"""The files of a folder of Hugging Face's transformers: settings, lists of weights, `tokenizer.json`.

What they mean for a kind of models: `hugging_face`, `waveform_models`, `frame_models`, `whisper_models`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.run.text.sentencepiece_file import STORED_ALGORITHMS, ModelFile, Piece, PieceKind, encode
from nemo_asr.run.text.subwords import BytePairs, Subwords
from nemo_lite import logging
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.base.errors import CheckpointError, DataError
from nemo_lite.base.files import FileKind, parse_json, read_bytes, read_text

# Any: values of JSON.

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
# Of older folders, in the place of `tokenizer.json`: pieces, merges, and special tokens.
TOKENIZERS_PARTS = ("vocab.json", "merges.txt", "added_tokens.json")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # are not read: the folder says so itself
SETTINGS = ("preprocessor_config.json", "processor_config.json")  # of the features: older folders, newer ones
_UNKNOWN = "<unk>"
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
_ALGORITHMS = {"Unigram": "unigram", "BPE": "bpe"}
_KIND = FileKind("the file", 64 << 20, CheckpointError, "copy the folder again")


def read_object(path: Path) -> dict[str, Any]:
    """The settings in a file of a folder.

    Raises:
        CheckpointError: it is missing or damaged, or it holds something else.
    """
    if not path.is_file():
        raise CheckpointError("the folder lacks a file", place=str(path.parent), got=f"no {path.name}")
    content = parse_json(read_bytes(path, _KIND), str(path), _KIND)
    if not isinstance(content, dict):
        raise CheckpointError("the file holds no settings", place=str(path), wanted="an object")
    return content


def settings_of(folder: Path) -> dict[str, Any]:
    """What the processor says: of the features, and beside them of looking ahead and of languages."""
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        if (folder / name).is_file():
            settings = {**read_object(folder / name), **settings}
    return settings


def section_of(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The settings under a key; none where there are none."""
    section = content.get(key)
    return section if isinstance(section, dict) else {}


def feature_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What :func:`settings_of` says of the features: in newer folders it is a section."""
    section = settings.get("feature_extractor")
    return section if isinstance(section, dict) else settings


def read_files(folder: Path, *names: str) -> tuple[Path, ...]:
    """The files that a model is read from: those of these names that are there, and the weights."""
    return (*(folder / name for name in names if (folder / name).is_file()), *weight_files(folder))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of all files of the weights.

    Raises:
        CheckpointError: as of :func:`weight_files`, or a file is damaged.
    """
    return {name: tensor for file in weight_files(folder) for name, tensor in read_tensors(file).items()}


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights.

    Raises:
        CheckpointError: there are only pickled ones, one is missing, or it is not in the folder.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        problem, remedy = "its weights are pickled, and pickles are not read here", "store them with save_pretrained"
        raise CheckpointError(problem, place=str(folder), got=PICKLED[0], wanted=WEIGHTS, remedy=remedy)
    index = folder / INDEX
    listed = read_object(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    if not names:
        raise CheckpointError("the file lists no weights", place=str(index), wanted="weight_map")
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            wanted = "NAME.safetensors in this folder"
            raise CheckpointError(
                "a file of weights lies outside the folder", place=str(index), got=name, wanted=wanted
            )
        if not (folder / name).is_file():
            raise CheckpointError("the folder lacks a file", place=str(folder), got=f"no {name}")
    return [folder / name for name in names]


def values_of(given: Any, defaults: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The values of these keys, or their defaults.

    Raises:
        CheckpointError: a value is of another type, or a size is not above 0.
    """
    values = {**defaults, **{key: given[key] for key in defaults if isinstance(given, dict) and key in given}}
    for key, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number if isinstance(defaults[key], float) else type(value) is type(defaults[key])
        if not fits or (type(defaults[key]) is int and value < 1):
            wanted = f"such as {defaults[key]}"
            raise CheckpointError("the value cannot be used", place=f"{place}.{key}", got=repr(value), wanted=wanted)
    return values


def refuse_settings(given: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> None:
    """Raise CheckpointError for a setting that has another value than the one that is known here."""
    for key, value in wanted.items():
        if (got := given.get(key, value)) != value:
            problem = "a setting that is not known here"
            raise CheckpointError(problem, place=f"{place}.{key}", got=str(got), wanted=str(value))


def versions_in(config: Mapping[str, Any]) -> dict[str, str]:
    """What wrote the folder, where it says so."""
    version = config.get("transformers_version")
    return {"transformers": str(version)} if version else {}


def blank_of(config: Mapping[str, Any], key: str, head: Mapping[str, Tensor], path: Path) -> tuple[int, int]:
    """The output that is CTC's blank, by a key of the configuration, and the number of outputs.

    Raises:
        CheckpointError: it is none of them, or the weights have several numbers of outputs.
    """
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in head.values()}
    if len(sizes) > 1:
        problem, got = "the weights of the CTC head do not fit each other", " and ".join(map(str, sorted(sizes)))
        raise CheckpointError(problem, place=str(path.parent), got=f"{got} outputs")
    outputs = max(sizes, default=0)
    blank = config.get(key, outputs - 1 if key == "pad_token_id" else 0)
    if not isinstance(blank, int) or not 0 <= blank < outputs:
        place, wanted = f"{path}: {key}", f"the blank's output, 0 to {outputs - 1}"
        raise CheckpointError("it is no output of the CTC head", place=place, got=str(blank), wanted=wanted)
    return blank, outputs


def in_order(head: Mapping[str, Tensor], outputs: Sequence[int]) -> dict[str, Tensor]:
    """The tensors of a head with these outputs of it, in this order."""
    rows = torch.tensor(outputs)
    return {name: tensor[rows] for name, tensor in head.items()}


def special_ids_of(path: Path) -> set[int]:
    """The ids of special tokens in ``tokenizer.json``, such as the end of a text; without that for unknown characters.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    content = read_object(path)
    listed, unknown = content.get("added_tokens"), section_of(content, "model").get("unk_token")
    added = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    special = [each for each in added if each.get("special") and each.get("content") != (unknown or _UNKNOWN)]
    return {each["id"] for each in special if type(each.get("id")) is int}


def pieces_of(path: Path, ids: Sequence[int]) -> tuple[list[str], Subwords | None]:
    """The pieces of these ids, and what cuts texts into them; None, with a warning, where nothing here does.

    transformers keeps a SentencePiece model's pieces and, of BPE, the order of its merges instead of scores.

    Raises:
        CheckpointError: the file lacks a piece, or has pieces of another kind.
    """
    try:
        return _read_tokenizer(read_object(path), path, ids)
    except CheckpointError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("the tokenizer is damaged", place=str(path), got=str(error)) from None


def piece_texts(path: Path) -> dict[int, str]:
    """The pieces of `tokenizer.json` by id.

    Raises:
        CheckpointError: the file is missing, damaged, or of another kind.
    """
    try:
        return _pieces_in(read_object(path), path)[0]
    except CheckpointError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("the tokenizer is damaged", place=str(path), got=str(error)) from None


def _read_tokenizer(content: dict[str, Any], path: Path, ids: Sequence[int]) -> tuple[list[str], Subwords | None]:
    by_id, scores = _pieces_in(content, path)
    model = section_of(content, "model")
    kind, added = _kind_of_tokenizer(model), _added(content)
    missing = [i for i in ids if i not in by_id]
    if missing:
        got, wanted = f"no piece {missing[0]}", f"one for each of the {len(ids)} outputs but the blank"
        raise CheckpointError("its tokenizer does not fit its decoder", place=str(path), got=got, wanted=wanted)
    pieces = [by_id[i] for i in ids]
    if "ByteLevel" in json.dumps([content.get("pre_tokenizer"), content.get("decoder")]):
        return pieces, _byte_pairs(content, pieces, str(path))
    if any(map(_BYTE_PIECE.fullmatch, pieces)):
        raise CheckpointError("it has pieces that are bytes (byte_fallback), which are not read", place=str(path))
    unknown = model.get("unk_token") if kind == "BPE" else by_id.get(model.get("unk_id", -1))
    if unknown == WORD_MARK:  # LASR's tokenizer says so, where its list has another
        unknown = _UNKNOWN
    kinds = {
        str(each.get("content")): PieceKind.CONTROL if each.get("special") else PieceKind.USER_DEFINED for each in added
    }
    kinds[str(unknown)] = PieceKind.UNKNOWN
    algorithm = next(number for number, name in STORED_ALGORITHMS.items() if name == _ALGORITHMS[kind])
    stored = tuple(Piece(piece, scores.get(piece, 0.0), kinds.get(piece, PieceKind.NORMAL)) for piece in pieces)
    try:
        return pieces, Subwords(encode(ModelFile(algorithm, stored)), str(path))
    except (DataError, StopIteration) as error:
        logging.warning("%s. The model transcribes; to train or score it add --set tokenizer=FILE", error)
        return pieces, None


def _byte_pairs(content: Mapping[str, Any], pieces: Sequence[str], place: str) -> BytePairs:
    """What cuts texts into pieces of bytes. It takes GPT-2's words, with a warning where the file has others.

    Raises:
        CheckpointError: a byte has no piece, or a piece is not of bytes.
    """
    cutting = content.get("pre_tokenizer")
    words: dict[str, Any] = {
        "use_regex": True,
        "add_prefix_space": False,
        **(cutting if isinstance(cutting, dict) else {}),
    }
    is_gpt_2 = (words.get("type"), words["use_regex"], words["add_prefix_space"]) == ("ByteLevel", True, False)
    if not is_gpt_2 or content.get("normalizer") is not None:
        logging.warning(
            "%s: it cuts texts otherwise than GPT-2. Texts of training and scoring are cut as by that", place
        )
    merges = [each.split(" ") if isinstance(each, str) else each for each in content["model"].get("merges") or []]
    try:
        return BytePairs.of(pieces, [(str(first), str(second)) for first, second in merges], place)
    except DataError as error:
        raise CheckpointError("its pieces of bytes cannot be used", place=place, got=str(error)) from None


def _kind_of_tokenizer(model: Mapping[str, Any]) -> str:
    return str(model.get("type") or ("BPE" if "merges" in model else "Unigram"))


def _added(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in content.get("added_tokens") or [] if isinstance(each, dict)]


def _pieces_in(content: Mapping[str, Any], path: Path) -> tuple[dict[int, str], dict[str, float]]:
    """The pieces by id, and their scores."""
    model = section_of(content, "model")
    kind, vocabulary = _kind_of_tokenizer(model), model.get("vocab")
    if kind not in _ALGORITHMS or not isinstance(vocabulary, dict if kind == "BPE" else list):
        place = f"{path}: model.type"
        raise CheckpointError("the tokenizer is of another kind", place=place, got=kind, wanted="BPE or Unigram")
    if isinstance(vocabulary, dict):
        listed, scores = dict(vocabulary), _scores_of_merges(model)
    else:
        listed = {str(piece): i for i, (piece, _) in enumerate(vocabulary)}
        scores = {str(piece): float(score) for piece, score in vocabulary}
    by_id = {i: str(piece) for piece, i in listed.items()}
    return by_id | {each.get("id"): str(each.get("content")) for each in _added(content)}, scores


def _scores_of_merges(model: Mapping[str, Any]) -> dict[str, float]:
    """Scores with which SentencePiece merges in the same order: the piece that is merged first has the highest one."""
    scores: dict[str, float] = {}
    for position, merge in enumerate(model.get("merges") or []):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        scores.setdefault("".join(map(str, parts)), -float(position))
    return scores


def byte_pairs_of(folder: Path, number: int) -> tuple[BytePairs, dict[str, int]]:
    """The first pieces of byte-level BPE, so many, and the tokens behind them by name.

    Raises:
        CheckpointError: there is no tokenizer, it is damaged or of another kind, or it lacks a piece.
    """
    path, parts = folder / TOKENIZER, [folder / name for name in TOKENIZERS_PARTS]
    if path.is_file():
        content = read_object(path)
        model, added = content.get("model"), content.get("added_tokens")
        special = [(each.get("content"), each.get("id")) for each in added or [] if isinstance(each, dict)]
        vocabulary, merges = (model.get(key) if isinstance(model, dict) else None for key in ("vocab", "merges"))
    elif all(part.is_file() for part in parts[:2]):
        path, vocabulary = parts[0], read_object(parts[0])
        special = [*read_object(parts[2]).items()] if parts[2].is_file() else []
        lines = read_text(parts[1], _KIND).splitlines()
        merges = [line for line in lines if line and not line.startswith("#version")]
    else:
        got, wanted = f"no {TOKENIZER}", f"{TOKENIZER}, or {' and '.join(TOKENIZERS_PARTS[:2])}"
        raise CheckpointError("the folder has no tokenizer", place=str(folder), got=got, wanted=wanted)
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise CheckpointError("the tokenizer is of another kind", place=str(path), wanted="byte-level BPE")
    by_id = {i: str(piece) for piece, i in [*vocabulary.items(), *special]}
    if missing := [i for i in range(number) if i not in by_id]:
        problem, wanted = "the tokenizer lacks a piece", f"{number}: those before the end of a text"
        raise CheckpointError(problem, place=str(path), got=f"no piece {missing[0]}", wanted=wanted)
    pairs = [tuple(each.split(" ") if isinstance(each, str) else map(str, each)) for each in merges]
    try:
        pieces = BytePairs.of(
            [by_id[i] for i in range(number)], [(first, second) for first, second in pairs], str(path)
        )
    except (DataError, ValueError) as error:
        raise CheckpointError("the tokenizer is damaged", place=str(path), got=str(error)) from None
    return pieces, {piece: i for i, piece in by_id.items() if isinstance(i, int) and i >= number}
