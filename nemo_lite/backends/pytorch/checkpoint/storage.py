"""Modules and training states as files; ``nemo.backends.save`` and ``load``. Which belong together is not decided here.

Weights are safetensors; a training state is one safetensors file too, its JSON structure in the header and its tensors
beside it. Where a name ends in ``.pt``, ``.pth`` or ``.ckpt``, both are written as NeMo 0.x does. What is read is known
by its content, not by its name. Reading any of them runs no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.checkpoint.fitting import TrainingState, as_ours, fitted, identity, with_todays_names
from nemo_lite.backends.pytorch.checkpoint.tensors import (
    KIND,
    damaged,
    key_of,
    params_by_place,
    part_metadata,
    read_for,
    read_safetensors,
    stored_tensors,
    with_aliases,
    without_pieces,
    write_safetensors,
)
from nemo_lite.backends.pytorch.checkpoint.torch_files import (
    SUFFIXES,
    is_torch_file,
    own_tensors,
    read_torch_file,
    read_torch_tensors,
)
from nemo_lite.backends.pytorch.distributed.comm import TensorPiece, is_divided
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, did_you_mean
from nemo_lite.base.files import JsonLimits, parse_json, write_atomically
from nemo_lite.base.helpers import CheckpointPart, stored_as
from nemo_lite.utils import logging

MODULE_FORMAT = "nemo_lite module"
STATE_FORMAT = "nemo_lite training state"
# A level of a state becomes up to three of JSON, and NumPy's generators have numbers of 128 bits.
_LIMITS = JsonLimits(depth=4 * tensor_codec.MAX_DEPTH, values=1 << 24, surrogates=True)
# A state needs some hundred bytes a parameter tensor. In a header, where it is a text, it is longer by its quotes.
_MAX_STRUCTURE_BYTES = 16 * 2**20


Writer: TypeAlias = Callable[[BinaryIO], None]


class ModuleWeights(NamedTuple):
    """A module's ``state_dict()``, taken apart from the module; of divided tensors this rank's :class:`TensorPiece`."""

    class_name: str
    tensors: Mapping[str, object]


WHOLE = CheckpointPart(1, 1)


def save_module(module: nn.Module | ModuleWeights, path: str | Path) -> None:
    """Write the tensors of ``module.state_dict()`` to one file, atomically: safetensors, or as NeMo 0.x does.

    Tensors that are one (tied weights) are stored once; the other names are noted in the file.

    Args:
        module: the module, or its weights alone.
        path: the file; with the suffix .pt, .pth or .ckpt ``torch.load`` reads it, else it is safetensors.

    Raises:
        CheckpointError: the module keeps something in its state that is not a tensor.
        UsageError: the file cannot be written (see :func:`~nemo_lite.base.files.write_atomically`).
    """
    write_atomically(path, _to_path(module_writer(module, Path(path).suffix)))


def module_writer(module: nn.Module | ModuleWeights, suffix: str, part: CheckpointPart = WHOLE) -> Writer:
    """The writer of the content of the file of :func:`save_module` with this suffix, or of a part of it.

    A part holds this rank's pieces; what is not divided is in the first part.

    Raises:
        CheckpointError: as :func:`save_module`.
    """
    weights = module if isinstance(module, ModuleWeights) else ModuleWeights(type(module).__name__, module.state_dict())
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[tuple[object, ...], str] = {}
    pieces = {name: value for name, value in weights.tensors.items() if isinstance(value, TensorPiece)}
    for name, value in weights.tensors.items():
        tensor = value.tensor if isinstance(value, TensorPiece) else value
        if part.number > 1 and not (name in pieces and pieces[name].tensor.numel()):
            continue
        if is_divided(tensor):
            problem = "its weights are divided among the processes"
            remedy = "save it with CheckpointCallback or ModuleSaverCallback"
            raise CheckpointError(problem, place=weights.class_name, remedy=remedy)
        if not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{weights.class_name}.{name} cannot be stored", got=type(tensor).__name__, wanted="a tensor"
            )
        first_name = first_names.setdefault(identity(tensor), name)
        if first_name == name:
            tensors[name] = tensor
        else:
            aliases[name] = first_name
    metadata = {"format": MODULE_FORMAT, "class": weights.class_name, "aliases": json.dumps(aliases)}
    if part != WHOLE:
        metadata |= part_metadata(part, {name: piece for name, piece in pieces.items() if name in tensors})

    def write(file: BinaryIO) -> None:
        if suffix in SUFFIXES:
            tied = {name: tensors[first] for name, first in aliases.items()}
            torch.save(own_tensors({**tensors, **tied}), file)
        else:
            write_safetensors(file, tensors, metadata)

    return write


def load_module(module: nn.Module, path: str | Path | BytesIO) -> None:
    """Fill ``module`` from a file of :func:`save_module`, or from a state dict of NeMo 0.x.

    Every tensor must be there, with its shape, and nothing else; otherwise the module is left as it was. Names and
    types of older files are adapted, see :func:`fitted`. Where ``X.pt`` is missing, ``X.safetensors`` is read.

    Raises:
        CheckpointError: no such file, a damaged one, or one that does not fit: all differences at once.
    """
    module.load_state_dict(read_fitting(module, path), strict=True)


def read_fitting(module: nn.Module, path: str | Path | BytesIO) -> dict[str, Tensor]:
    """The tensors that :func:`load_module` would put into ``module``: checked against it, which stays as it is.

    Of weights that are divided among the ranks only this rank's piece is read.

    Raises:
        CheckpointError: as :func:`load_module`.
    """
    own = {name: value for name, value in module.state_dict().items() if is_divided(value)}
    if not own or isinstance(path, BytesIO) or is_torch_file(_existing(path)):
        return fitted(module, read_tensors(path), _name_of(path))
    path = _existing(path)
    with stored_tensors(path) as stored:
        names = {id(outline): name for name, outline in stored.outlines.items()}
        todays = with_todays_names(module, with_aliases(stored.outlines, stored.metadata, path))
        tensors = {name: read_for(own.get(name), stored, names[id(outline)]) for name, outline in todays.items()}
    return fitted(module, tensors, str(path))


def read_tensors(path: str | Path | BytesIO) -> dict[str, Tensor]:
    """The tensors of a file of :func:`save_module`, or of a state dict of NeMo 0.x, whole, on the CPU.

    Args:
        path: the file, or any part of it where it was written in parts; or the content of a file that ``torch.save``
            wrote, whose ``name`` is used in messages.

    Raises:
        CheckpointError: no such file, or a damaged one.
    """
    if isinstance(path, BytesIO):
        return read_torch_tensors(path, _name_of(path))
    path = _existing(path)
    if is_torch_file(path):
        return read_torch_tensors(path, str(path))
    return read_safetensors(path)


def save_training_state(path: str | Path, state: TrainingState) -> None:
    """Write nested dicts, lists and tuples of numbers, texts, None and tensors to one file, atomically.

    Keys may be texts or numbers, as in ``optimizer.state_dict()``. With the suffix .pt, .pth or .ckpt ``torch.load``
    reads the file, and the states of ``optimizers`` stand under NeMo's name ``optimizer_state`` too.

    Raises:
        CheckpointError: a value of another kind, with its place in the state.
        UsageError: the file cannot be written.
    """
    write_atomically(path, _to_path(state_writer(state, Path(path).suffix)))


def state_writer(state: TrainingState, suffix: str, part: CheckpointPart = WHOLE) -> Writer:
    """The writer of the content of the file of :func:`save_training_state` with this suffix, or of a part of it.

    A part holds this rank's pieces; all else is in the first part.

    Raises:
        CheckpointError: as :func:`save_training_state`, or the state is too large.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    pieces: dict[int, TensorPiece] = {}
    places: dict[str, TensorPiece] = {}

    def put(tensor: Tensor, key_path: tensor_codec.Path) -> str:
        if piece := pieces.get(id(tensor)):  # of the same name in all parts
            name = _place_of(key_path)
            places[name] = piece
        else:
            name = names.setdefault(id(tensor), f"{len(tensors)}:{_place_of(key_path)}")
        if part.number == 1 or (piece and tensor.numel()):
            tensors[name] = tensor
        return name

    try:
        plain_state = state if part == WHOLE else without_pieces(state, pieces)
        encoded = tensor_codec.encode(plain_state, put, exact=False)
    except EncodeError as error:
        place = _place_of(error.path)
        if error.too_deep:
            wanted = f"at most {tensor_codec.MAX_DEPTH} levels"
            raise CheckpointError("the state is nested too deeply", place=place, wanted=wanted) from None
        wanted = "a number, text, None, tensor, or a list, tuple or dict of them"
        raise CheckpointError(f"{place} cannot be stored", got=error.what, wanted=wanted) from None
    structure = json.dumps(encoded, allow_nan=False)
    if len(structure) > _MAX_STRUCTURE_BYTES:
        raise CheckpointError(
            "the training state is too large",
            got=f"{len(structure) >> 20} MiB without its tensors",
            wanted=f"at most {_MAX_STRUCTURE_BYTES >> 20} MiB",
            remedy="store long lists of numbers as tensors",
        )

    def write(file: BinaryIO) -> None:
        if suffix in SUFFIXES:
            plain = tensor_codec.decode(encoded, own_tensors(tensors).__getitem__)
            torch.save({**plain, "optimizer_state": plain["optimizers"]} if "optimizers" in plain else plain, file)
        else:
            about = {"format": STATE_FORMAT, "structure": structure if part.number == 1 else ""}
            own = {name: piece for name, piece in places.items() if name in tensors}
            write_safetensors(file, tensors, about if part == WHOLE else about | part_metadata(part, own))

    return write


def load_training_state(path: str | Path, optimizers: Sequence[torch.optim.Optimizer] = ()) -> TrainingState:
    """Read a file of :func:`save_training_state` or of NeMo 0.x, under our names; tensors are on the CPU.

    Args:
        path: the file, or any part of it where it was written in parts.
        optimizers: of this run. What they keep for a parameter that is divided among the ranks is divided as it is:
            only this rank's piece is read.

    Raises:
        CheckpointError: no such file, a damaged one, or another kind of file.
    """
    path = _existing(path)
    if is_torch_file(path):
        state = read_torch_file(path, str(path))
    else:
        params = params_by_place(optimizers)
        with stored_tensors(path) as stored:
            metadata = stored.metadata
            if metadata.get("format") != STATE_FORMAT:
                kind = f"{metadata.get('format', 'another safetensors file')} {metadata.get('class', '')}"
                raise CheckpointError(
                    "this is no training state", place=str(path), got=kind.strip(), wanted="a trainer-* file"
                )
            try:
                # A copy: tensors read from safetensors are mapped from the file, which may be deleted under a long run.
                own = {name: read_for(params.get(key_of(name)), stored, name).clone() for name in stored.outlines}
                state = tensor_codec.decode(parse_json(metadata["structure"], path, KIND, _LIMITS), own.__getitem__)
            except (KeyError, ValueError, TypeError, RecursionError) as error:
                raise damaged(str(path), error) from error
    if not isinstance(state, dict):
        raise CheckpointError("this is no training state", place=str(path), got=type(state).__name__, wanted="a dict")
    return as_ours(state)


def _place_of(key_path: tensor_codec.Path) -> str:
    return ".".join(["state", *map(str, key_path)])


def _to_path(write: Writer) -> Callable[[Path], None]:
    def write_to(path: Path) -> None:
        with open(path, "wb") as file:
            write(file)

    return write_to


def _name_of(source: str | Path | BytesIO) -> str:
    return str(getattr(source, "name", "a file in memory") if isinstance(source, BytesIO) else source)


def _existing(path: str | Path) -> Path:
    """The file of this name; where a script of NeMo's says X.pt and we wrote X.safetensors, that one."""
    path = Path(path).expanduser()
    stored = path if path.exists() else stored_as(path)
    if stored != path:
        logging.info("%s is not there; reading %s", path, stored)
        return stored
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no such file{did_you_mean(path.name, beside)}", place=str(path))
    return path


def save(obj: Any, f: str | Path) -> None:
    """Write dictionaries, lists, numbers, texts and tensors into one file; ``~`` is the home folder.

    Raises:
        UsageError: the folder cannot be written to.
    """
    write_atomically(os.path.expanduser(f), lambda temporary: torch.save(obj, temporary))


def load(f: str | Path) -> Any:
    """Read what :func:`save` wrote, tensors into host memory; ``~`` is the home folder.

    Where ``X-STEP-9.pt`` is missing, the ``.safetensors`` file of that name is read, also in ``checkpoint-STEP-9``.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is damaged, or holds objects of classes, which are not read: that could run code.
    """
    path = Path(f).expanduser()
    if not path.exists() and (stored := stored_as(path)) != path:
        return read_tensors(stored)
    if not path.is_file():
        raise ModelNotFoundError("no such file", place=str(path))
    try:
        return read_torch_file(path, str(path))
    except CheckpointError as error:
        remedy = "save dictionaries, lists, numbers, texts and tensors only"
        raise CheckpointError("cannot be read as plain values", place=str(f), remedy=remedy) from error


def get_state_dict(model: nn.Module) -> dict[str, Any]:
    """The state dictionary of a module."""
    return model.state_dict()


def set_state_dict(model: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Load a state dictionary into a module; every key must fit.

    Raises:
        CheckpointError: keys or shapes differ.
    """
    try:
        model.load_state_dict(state_dict)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(problem, place=type(model).__name__) from error
