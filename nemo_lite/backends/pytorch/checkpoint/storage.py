"""Single checkpoint files: a module's tensors, a training state. Which files belong together is not decided here.

Weights are safetensors; a training state is one safetensors file too, its JSON structure in the header and its tensors
beside it. Reading either runs no code. The ``.pt`` files of NeMo 0.x are read with ``weights_only=True``.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.errors import CheckpointError, did_you_mean
from nemo_lite.utils.files import write_atomically

# Any: a tree of tensors, numbers and texts, see `tensor_codec`.
TrainingState: TypeAlias = "dict[str, Any]"

MODULE_FORMAT = "nemo_lite module"
STATE_FORMAT = "nemo_lite training state"
# safetensors accepts a header of 100 MB; a state needs some hundred bytes a parameter tensor.
_MAX_STRUCTURE_BYTES = 64 * 2**20
_MAX_LISTED = 8


class Weights(NamedTuple):
    """A module's ``state_dict()``, taken apart from the module."""

    class_name: str
    tensors: Mapping[str, object]


def save_module(module: nn.Module | Weights, path: str | Path) -> None:
    """Write the tensors of ``module.state_dict()`` to one safetensors file, atomically.

    Tensors that are one (tied weights) are stored once; the other names are noted in the file.

    Raises:
        CheckpointError: the module keeps something in its state that is not a tensor.
        UsageError: the file cannot be written (see :func:`~nemo_lite.utils.files.write_atomically`).
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
        first_name = first_names.setdefault(_identity(tensor), name)
        if first_name == name:
            tensors[name] = tensor
        else:
            aliases[name] = first_name
    metadata = {"format": MODULE_FORMAT, "class": weights.class_name, "aliases": json.dumps(aliases)}
    _write(path, tensors, metadata)


def load_module(module: nn.Module, path: str | Path) -> None:
    """Fill ``module`` from a file of :func:`save_module`, or from a ``.pt`` state dict of NeMo 0.x.

    Every tensor must be there, with its shape, and nothing else; otherwise the module is left as it was.

    Raises:
        CheckpointError: no such file, a damaged one, or one that does not fit: all differences at once.
    """
    fill_module(module, read_fitting(module, path))


def read_fitting(module: nn.Module, path: str | Path) -> dict[str, Tensor]:
    """What :func:`load_module` would put into ``module``: checked against it, which stays as it is.

    Raises:
        CheckpointError: as :func:`load_module`.
    """
    tensors = read_tensors(path)
    check_fit(module, tensors, str(path))
    return tensors


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file of :func:`save_module`, or of a ``.pt`` state dict of NeMo 0.x, on the CPU.

    Raises:
        CheckpointError: no such file, or a damaged one.
    """
    path = Path(path)
    if path.suffix == ".pt":
        return _read_pt_tensors(path)
    tensors, metadata = _read_safetensors(path)
    try:
        for name, first_name in json.loads(metadata.get("aliases", "{}")).items():
            tensors[name] = tensors[first_name]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    return tensors


def fill_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors that :func:`read_fitting` has checked into ``module``, whatever device it is on."""
    module.load_state_dict(dict(tensors), strict=True)


def save_training_state(path: str | Path, state: TrainingState) -> None:
    """Write nested dicts, lists and tuples of numbers, texts, None and tensors to one file, atomically.

    Keys may be texts or numbers, as in ``optimizer.state_dict()``.

    Raises:
        CheckpointError: a value of another kind, with its place in the state.
        UsageError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def put(tensor: Tensor, key_path: tensor_codec.Path) -> str:
        name = names.setdefault(id(tensor), f"{len(tensors)}:{_place_of(key_path)}")
        tensors[name] = tensor
        return name

    try:
        structure = json.dumps(tensor_codec.encode(state, put, exact=False), allow_nan=False)
    except EncodeError as error:
        raise _not_storable(error) from None
    if len(structure) > _MAX_STRUCTURE_BYTES:
        raise CheckpointError(
            "the training state is too large",
            place=str(path),
            got=f"{len(structure) >> 20} MiB without its tensors",
            wanted=f"at most {_MAX_STRUCTURE_BYTES >> 20} MiB",
            remedy="store long lists of numbers as tensors",
        )
    _write(path, tensors, {"format": STATE_FORMAT, "structure": structure})


def load_training_state(path: str | Path) -> TrainingState:
    """Read what :func:`save_training_state` wrote, or a ``trainer-*.pt`` of NeMo 0.x; tensors are on the CPU.

    Raises:
        CheckpointError: no such file, a damaged one, or another kind of file.
    """
    path = Path(path)
    if path.suffix == ".pt":
        state = _read_pt(path)
    else:
        tensors, metadata = _read_safetensors(path)
        if metadata.get("format") != STATE_FORMAT:
            raise CheckpointError(
                "this is no training state", place=str(path), got=_kind_of(metadata), wanted="a trainer-* file"
            )
        try:
            # A copy: tensors read from safetensors are mapped from the file, which may be deleted under a long run.
            own = {name: tensor.clone() for name, tensor in tensors.items()}
            state = tensor_codec.decode(json.loads(metadata["structure"]), own.__getitem__)
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise _damaged(path, error) from error
    if not isinstance(state, dict):
        raise CheckpointError("this is no training state", place=str(path), got=type(state).__name__, wanted="a dict")
    return state


def _place_of(key_path: tensor_codec.Path) -> str:
    return ".".join(["state", *map(str, key_path)])


def _not_storable(error: EncodeError) -> CheckpointError:
    place = _place_of(error.path)
    if error.too_deep:
        wanted = f"at most {tensor_codec.MAX_DEPTH} levels"
        return CheckpointError("the state is nested too deeply", place=place, wanted=wanted)
    wanted = "a number, text, None, tensor, or a list, tuple or dict of them"
    return CheckpointError(f"{place} cannot be stored", got=error.what, wanted=wanted)


def _write(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    own = _without_shared_memory(tensors)
    write_atomically(path, lambda temporary: save_file(own, temporary, metadata))


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors of which no two lie in the same memory, as safetensors wants them."""
    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        if tensor.untyped_storage().data_ptr() in taken:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        own[name] = tensor
    return own


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. One without memory (empty, or divided among ranks) is only itself."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _read_pt_tensors(path: Path) -> dict[str, Tensor]:
    state = _read_pt(path)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError("this is no module's state dict", place=str(path), wanted="names with tensors")
    return dict(state)


def _read_pt(path: Path) -> object:
    _require_file(path)
    try:
        compressed = _is_compressed(path)
        state = None if compressed else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "the file is damaged, or holds objects other than tensors, which are never loaded",
            place=str(path),
            remedy="use another checkpoint, or one that stores its state_dict() alone",
        ) from error
    except Exception as error:  # a torn file makes torch's unpickler raise almost anything
        raise _damaged(path, error) from error
    if compressed:
        raise CheckpointError("the file is compressed, which torch never does", place=str(path), remedy="do not use it")
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    if any(tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size() for tensor in tensors):
        raise CheckpointError("a tensor claims more elements than the file holds", place=str(path))
    return state


def _is_compressed(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())


def _require_file(path: Path) -> None:
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no such file{did_you_mean(path.name, beside)}", place=str(path))


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError("the file is damaged", place=str(path), got=f"{type(error).__name__}: {error}")


def _kind_of(metadata: Mapping[str, str]) -> str:
    return f"{metadata.get('format', 'another safetensors file')} {metadata.get('class', '')}".strip()


def check_fit(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> None:
    """See that the tensors are those of ``module.state_dict()``: names, shapes, and whether they are floating.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for the message.

    Raises:
        CheckpointError: they are not: all differences at once.
    """
    wanted = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    name_of_module = type(module).__name__
    if wanted and tensors and not wanted.keys() & tensors.keys():
        raise CheckpointError(
            f"none of its {len(tensors)} tensors belongs to {name_of_module}",
            place=place,
            got=next(iter(tensors)),
            wanted=next(iter(wanted)),
            remedy="this is another module's file",
        )
    both = wanted.keys() & tensors.keys()
    problems = [
        _listed("missing", [f"{name} {_shape(wanted[name])}" for name in wanted if name not in tensors]),
        _listed("unexpected", [f"{name} {_shape(tensors[name])}" for name in tensors if name not in wanted]),
        _listed("different", [_difference(name, tensors[name], wanted[name]) for name in wanted if name in both]),
        _listed("tied in the module but not in the file", _wrongly_untied(wanted, tensors)),
    ]
    if any(problems):
        raise CheckpointError(
            f"does not fit {name_of_module}: " + "; ".join(filter(None, problems)),
            place=place,
            remedy="make the module with the configuration that the checkpoint was trained with",
        )


def _difference(name: str, got: Tensor, wanted: Tensor) -> str:
    if got.shape != wanted.shape:
        return f"{name} is {_shape(got)}, the module has {_shape(wanted)}"
    if got.is_floating_point() != wanted.is_floating_point():
        return f"{name} is {got.dtype}, the module has {wanted.dtype}"
    return ""


def _wrongly_untied(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    first_names: dict[tuple[object, ...], str] = {}
    untied = []
    for name, tensor in wanted.items():
        first = first_names.setdefault(_identity(tensor), name)
        if first != name and name in tensors and first in tensors and not torch.equal(tensors[name], tensors[first]):
            untied.append(f"{first} and {name}")
    return untied


def _listed(title: str, entries: list[str]) -> str:
    entries = [entry for entry in entries if entry]
    if not entries:
        return ""
    more = f" and {len(entries) - _MAX_LISTED} more" if len(entries) > _MAX_LISTED else ""
    return f"{title}: {', '.join(entries[:_MAX_LISTED])}{more}"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
