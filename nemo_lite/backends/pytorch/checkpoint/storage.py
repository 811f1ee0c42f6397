"""Single checkpoint files: a module's tensors, a training state. Which files belong together is not decided here.

Weights are safetensors; a training state is one safetensors file too, its JSON structure in the header and its tensors
beside it. Where a name ends in ``.pt``, ``.pth`` or ``.ckpt``, both are written as NeMo 0.x does, see `torch_files`.
What is read is known by its content, not by its name. Reading any of them runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.checkpoint.fitting import fitted, identity
from nemo_lite.backends.pytorch.checkpoint.nemo_state import as_ours
from nemo_lite.backends.pytorch.checkpoint.safetensors_file import write_safetensors
from nemo_lite.backends.pytorch.checkpoint.torch_files import (
    SUFFIXES,
    damaged,
    is_torch_file,
    own_tensors,
    read_torch_file,
    read_torch_tensors,
)
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.errors import CheckpointError, did_you_mean
from nemo_lite.untrusted import FileKind, JsonLimits, check_tensor_file, parse_json
from nemo_lite.utils import logging
from nemo_lite.utils.files import write_atomically
from nemo_lite.utils.helpers import stored_as

# Any: a tree of tensors, numbers and texts, see `tensor_codec`.
TrainingState: TypeAlias = "dict[str, Any]"

MODULE_FORMAT = "nemo_lite module"
STATE_FORMAT = "nemo_lite training state"
_KIND = FileKind("the checkpoint", 1 << 44, CheckpointError)
# A level of a state becomes up to three of JSON, and NumPy's generators have numbers of 128 bits.
_LIMITS = JsonLimits(depth=4 * tensor_codec.MAX_DEPTH, values=1 << 24, surrogates=True)
# A state needs some hundred bytes a parameter tensor. In a header, where it is a text, it is longer by its quotes.
_MAX_STRUCTURE_BYTES = 16 * 2**20


Writer: TypeAlias = Callable[[BinaryIO], None]


class Weights(NamedTuple):
    """A module's ``state_dict()``, taken apart from the module."""

    class_name: str
    tensors: Mapping[str, object]


def save_module(module: nn.Module | Weights, path: str | Path) -> None:
    """Write the tensors of ``module.state_dict()`` to one file, atomically: safetensors, or as NeMo 0.x does.

    Tensors that are one (tied weights) are stored once; the other names are noted in the file.

    Args:
        module: the module, or its weights alone.
        path: the file; with the suffix .pt, .pth or .ckpt ``torch.load`` reads it, else it is safetensors.

    Raises:
        CheckpointError: the module keeps something in its state that is not a tensor.
        UsageError: the file cannot be written (see :func:`~nemo_lite.utils.files.write_atomically`).
    """
    write_atomically(path, _to_path(module_writer(module, Path(path).suffix)))


def module_writer(module: nn.Module | Weights, suffix: str) -> Writer:
    """What writes the content of the file of :func:`save_module` with this suffix.

    Raises:
        CheckpointError: as :func:`save_module`.
    """
    weights = module if isinstance(module, Weights) else Weights(type(module).__name__, module.state_dict())
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[tuple[object, ...], str] = {}
    for name, tensor in weights.tensors.items():
        if hasattr(tensor, "device_mesh"):  # a DTensor, asked for so because importing its class is slow
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
    fill_module(module, read_fitting(module, path))


def read_fitting(module: nn.Module, path: str | Path | BytesIO) -> dict[str, Tensor]:
    """What :func:`load_module` would put into ``module``: checked against it, which stays as it is.

    Raises:
        CheckpointError: as :func:`load_module`.
    """
    return fitted(module, read_tensors(path), _name_of(path))


def read_tensors(path: str | Path | BytesIO) -> dict[str, Tensor]:
    """The tensors of a file of :func:`save_module`, or of a state dict of NeMo 0.x, on the CPU.

    Args:
        path: the file, or the content of one that ``torch.save`` wrote; its ``name`` is used in messages.

    Raises:
        CheckpointError: no such file, or a damaged one.
    """
    if isinstance(path, BytesIO):
        return read_torch_tensors(path, _name_of(path))
    path = _found(path)
    if is_torch_file(path):
        return read_torch_tensors(path, str(path))
    tensors, metadata = _read_safetensors(path)
    try:
        for name, first_name in _aliases(metadata, path).items():
            tensors[name] = tensors[first_name]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise damaged(str(path), error) from error
    return tensors


def fill_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors that :func:`read_fitting` has checked into ``module``, whatever device it is on."""
    module.load_state_dict(dict(tensors), strict=True)


def save_training_state(path: str | Path, state: TrainingState) -> None:
    """Write nested dicts, lists and tuples of numbers, texts, None and tensors to one file, atomically.

    Keys may be texts or numbers, as in ``optimizer.state_dict()``. With the suffix .pt, .pth or .ckpt ``torch.load``
    reads the file, and the states of ``optimizers`` stand under NeMo's name ``optimizer_state`` too.

    Raises:
        CheckpointError: a value of another kind, with its place in the state.
        UsageError: the file cannot be written.
    """
    write_atomically(path, _to_path(state_writer(state, Path(path).suffix)))


def state_writer(state: TrainingState, suffix: str) -> Writer:
    """What writes the content of the file of :func:`save_training_state` with this suffix.

    Raises:
        CheckpointError: as :func:`save_training_state`, or the state is too large.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def put(tensor: Tensor, key_path: tensor_codec.Path) -> str:
        name = names.setdefault(id(tensor), f"{len(tensors)}:{_place_of(key_path)}")
        tensors[name] = tensor
        return name

    try:
        encoded = tensor_codec.encode(state, put, exact=False)
    except EncodeError as error:
        raise _not_storable(error) from None
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
            write_safetensors(file, tensors, {"format": STATE_FORMAT, "structure": structure})

    return write


def load_training_state(path: str | Path) -> TrainingState:
    """Read what :func:`save_training_state` or NeMo 0.x wrote, under our names; tensors are on the CPU.

    Raises:
        CheckpointError: no such file, a damaged one, or another kind of file.
    """
    path = _found(path)
    if is_torch_file(path):
        state = read_torch_file(path, str(path))
    else:
        tensors, metadata = _read_safetensors(path)
        if metadata.get("format") != STATE_FORMAT:
            raise CheckpointError(
                "this is no training state", place=str(path), got=_kind_of(metadata), wanted="a trainer-* file"
            )
        try:
            # A copy: tensors read from safetensors are mapped from the file, which may be deleted under a long run.
            own = {name: tensor.clone() for name, tensor in tensors.items()}
            state = tensor_codec.decode(parse_json(metadata["structure"], path, _KIND, _LIMITS), own.__getitem__)
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise damaged(str(path), error) from error
    if not isinstance(state, dict):
        raise CheckpointError("this is no training state", place=str(path), got=type(state).__name__, wanted="a dict")
    return as_ours(state)


def _place_of(key_path: tensor_codec.Path) -> str:
    return ".".join(["state", *map(str, key_path)])


def _not_storable(error: EncodeError) -> CheckpointError:
    place = _place_of(error.path)
    if error.too_deep:
        wanted = f"at most {tensor_codec.MAX_DEPTH} levels"
        return CheckpointError("the state is nested too deeply", place=place, wanted=wanted)
    wanted = "a number, text, None, tensor, or a list, tuple or dict of them"
    return CheckpointError(f"{place} cannot be stored", got=error.what, wanted=wanted)


def _to_path(write: Writer) -> Callable[[Path], None]:
    def write_to(path: Path) -> None:
        with open(path, "wb") as file:
            write(file)

    return write_to


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        check_tensor_file(path, _KIND)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged(str(path), error) from error


def _name_of(source: str | Path | BytesIO) -> str:
    return str(getattr(source, "name", "a file in memory") if isinstance(source, BytesIO) else source)


def _found(path: str | Path) -> Path:
    """The file of this name; where a script of NeMo's says X.pt and we wrote X.safetensors, that one."""
    path = Path(path).expanduser()
    found = path if path.exists() else stored_as(path)
    if found != path:
        logging.info("%s is not there; reading %s", path, found)
        return found
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no such file{did_you_mean(path.name, beside)}", place=str(path))
    return path


def _aliases(metadata: Mapping[str, str], path: Path) -> dict[str, str]:
    found = parse_json(metadata.get("aliases", "{}"), path, _KIND)
    if not isinstance(found, dict):
        raise TypeError("aliases are no object")
    return {name: str(first_name) for name, first_name in found.items()}


def _kind_of(metadata: Mapping[str, str]) -> str:
    return f"{metadata.get('format', 'another safetensors file')} {metadata.get('class', '')}".strip()
