"""Modules and training states as files, and whether they fit; ``nemo.backends.save`` and ``load``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch import tensor_codec
from nemo_lite.backends.pytorch.checkpoint.store import TRAINER, look
from nemo_lite.backends.pytorch.checkpoint.tensors import (
    KIND,
    SUFFIXES,
    damaged,
    is_torch_file,
    key_of,
    own_tensors,
    params_by_place,
    part_metadata,
    read_for,
    read_torch_file,
    read_torch_tensors,
    stored_tensors,
    without_pieces,
    write_safetensors,
)
from nemo_lite.backends.pytorch.distributed.comm import Piece, is_divided
from nemo_lite.backends.pytorch.tensor_codec import EncodeError
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError, NemoLiteError, did_you_mean
from nemo_lite.base.files import JsonLimits, names_in, parse_json, write_atomically
from nemo_lite.base.helpers import Part, newest_checkpoint_files, parse_checkpoint_name, stored_as
from nemo_lite.utils import logging

# States of a training: whether a stored one fits this run, and the states of NeMo 0.x.


# Whether stored tensors are those of a module: their names, shapes and kinds. It reads no files.


_MAX_LISTED = 8
_WRAPPED = "module."  # what DataParallel and DDP put before each name of the module in them
_COUNT = "num_batches_tracked"


@runtime_checkable
class RenamesWeights(Protocol):
    """A module whose tensors had other names in older files."""

    def renamed_weights(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The same tensors by today's names; names that are not known stay."""


def fitted(module: nn.Module, tensors: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """The tensors for ``module.load_state_dict()``: all of them, by today's names.

    Older names become today's, counters of batch norm that a file of long ago lacks are the module's own, and what
    DataParallel put before the names is taken away. The log says which tensors change their type.

    Args:
        module: stays as it is.
        tensors: by name.
        place: where they come from, for messages.

    Raises:
        CheckpointError: names, shapes or kinds differ: all differences at once.
    """
    own_tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    tensors = dict(with_todays_names(module, tensors))
    if own_tensors.keys() & tensors.keys():
        for name, value in own_tensors.items():
            if name.endswith(_COUNT):
                tensors.setdefault(name, value)
    check_fit(module, tensors, place)
    kinds = {(value.dtype, own_tensors[name].dtype) for name, value in tensors.items() if value.is_floating_point()}
    for stored, needed in sorted(kinds, key=str):
        if stored != needed:
            names = (str(dtype).removeprefix("torch.") for dtype in (stored, needed))
            logging.info("%s: its weights are %s; converted to %s", place, *names)
    return tensors


def with_todays_names(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same tensors by the names that ``module`` has for them today."""
    if tensors and all(name.startswith(_WRAPPED) for name in tensors) and not hasattr(module, _WRAPPED[:-1]):
        tensors = {name.removeprefix(_WRAPPED): value for name, value in tensors.items()}
    return module.renamed_weights(tensors) if isinstance(module, RenamesWeights) else tensors


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
        first = first_names.setdefault(identity(tensor), name)
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


def identity(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. One without memory (empty, or divided among ranks) is only itself."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


# Whether a training state is one of these optimizers: its numbers, and the shapes and types of its tensors.
# torch takes a state of any shape, and fails steps later or trains on with it. Nothing is changed here.


# Any: what a file holds.

_MOST_STEPS = 2**53
_KNOWN_PACKAGES = ("torch", "nemo_lite")
_OF_PARAM_SHAPE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta")


def check_state(state: Mapping[str, Any], optimizers: Sequence[Optimizer], place: str) -> None:
    """See that counters are counts, and that each optimizer's state is one of its parameters.

    Args:
        state: what was read.
        optimizers: of this run; stay as they are.
        place: where it was read from, for messages.

    Raises:
        CheckpointError: it is not: the first difference.
    """
    for name in ("step", "epoch"):
        as_count(state.get(name), name, place)
    for name, kind in (("optimizers", list), ("optimizer_names", list), ("precision", dict)):
        if not isinstance(state.get(name, kind()), kind):
            raise _misfit(name, place, got=_brief(state[name]), wanted=f"a {kind.__name__}")
    names = [type(optimizer).__name__ for optimizer in optimizers]
    if state.get("optimizer_names", names) != names:
        return  # whoever loads the state names the optimizers, which says more than a shape
    pairs = zip(state.get("optimizers", []), optimizers, strict=False)
    for number, (of_optimizer, optimizer) in enumerate(pairs):
        path = f"optimizers.{number}"
        if not isinstance(of_optimizer, dict):
            raise _misfit(path, place, got=_brief(of_optimizer), wanted="a mapping")
        _check_groups(of_optimizer.get("param_groups"), optimizer, f"{path}.param_groups", place)
        _check_kept(of_optimizer.get("state"), of_optimizer["param_groups"], optimizer, f"{path}.state", place)


def as_count(value: Any, path: str, place: str) -> int:
    """A value of a state that counts something.

    Args:
        path: where it is in the state.
        place: where the state was read from, for messages.

    Raises:
        CheckpointError: it is no whole number from 0.
    """
    if type(value) is not int or not 0 <= value < _MOST_STEPS:
        raise _misfit(path, place, got=_brief(value), wanted="a number from 0")
    return value


@contextmanager
def misfits_told(place: str) -> Iterator[None]:
    """Around code that takes a state from a file: what it stumbles over is a state that does not fit.

    Raises:
        CheckpointError: in the place of any error of Python's that is not ours already.
    """
    try:
        yield
    except NemoLiteError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = "the training state does not fit this run"
        got = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(problem, place=place, got=got, remedy="take another checkpoint") from error


def _check_groups(groups: Any, optimizer: Optimizer, path: str, place: str) -> None:
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        raise _misfit(path, place, got=_brief(groups), wanted=f"{len(optimizer.param_groups)} groups")
    for number, (group, ours) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        params = group.get("params") if isinstance(group, dict) else None
        if not isinstance(params, list) or len(params) != len(ours["params"]):
            raise _misfit(f"{path}.{number}", place, wanted=f"a group of {len(ours['params'])} parameters")
        for name, value in group.items():
            if name != "params" and name in ours and not _is_like(value, ours[name]):
                wanted = f"as this run's {_brief(ours[name])}"
                raise _misfit(f"{path}.{number}.{name}", place, got=_brief(value), wanted=wanted)


def _check_kept(kept: Any, groups: Sequence[Any], optimizer: Optimizer, path: str, place: str) -> None:
    if not isinstance(kept, dict):
        raise _misfit(path, place, got=_brief(kept), wanted="a mapping")
    keys = [key for group in groups for key in group["params"]]
    params: list[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
    if any(type(key) is not int for key in keys):
        raise _misfit(path, place, wanted="parameters by number")
    if type(optimizer).__module__.partition(".")[0] not in _KNOWN_PACKAGES:
        return  # one of the user's may keep anything
    by_key = dict(zip(keys, params, strict=True))
    for key, values in kept.items():
        if not isinstance(values, dict) or key not in by_key:
            raise _misfit(f"{path}.{key}", place, got=_brief(values), wanted="the state of a parameter of this run")
        for name, value in values.items():
            if problem := _problem_of(name, value, by_key[key], type(optimizer).__name__):
                raise _misfit(f"{path}.{key}.{name}", place, got=_brief(value), wanted=problem)


def _problem_of(name: object, value: Any, param: Tensor, optimizer: str) -> str:
    """The kind of value that is kept for a parameter under this name; "" where the value is of that kind."""
    if name == "momentum_buffer" and value is None:  # SGD without momentum
        return ""
    # One number a parameter.
    is_single = name == "step" or (optimizer == "Novograd" and name in ("exp_avg_sq", "max_exp_avg_sq"))
    if name in _OF_PARAM_SHAPE and not is_single:
        fits = isinstance(value, Tensor) and value.shape == param.shape and value.is_floating_point()
        return "" if fits else f"a tensor of shape {tuple(param.shape)}"
    if isinstance(value, Tensor):  # of optimizers not known here: no larger than the parameter, along its axes
        fits = value.numel() == 1 or value.shape == param.shape
        fits = fits or (not is_single and 0 < value.numel() < param.numel() and {*value.shape} <= {1, *param.shape})
        return "" if fits else f"a tensor of shape {tuple(param.shape)}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS
    is_text = isinstance(value, (str, bool)) and not is_single
    return "" if is_number or is_text else "a tensor or a number"


def _is_like(value: Any, ours: Any) -> bool:
    """Whether a setting of a group may stand where this run has ``ours``."""
    if isinstance(ours, bool) or isinstance(value, bool):
        return isinstance(value, bool) or value is None
    if isinstance(ours, (int, float)):
        is_number = isinstance(value, (int, float)) and (math.isfinite(value) or value == ours)
        return is_number or (isinstance(value, Tensor) and value.numel() == 1)
    if isinstance(ours, (list, tuple)):
        is_row = isinstance(value, (list, tuple)) and len(value) == len(ours)
        return is_row and all(map(_is_like, value, ours))
    return value is None or isinstance(value, (bool, type(ours)))


def _misfit(path: str, place: str, *, wanted: str, got: str = "") -> CheckpointError:
    problem = f"the training state does not fit this run in {path}"
    return CheckpointError(problem, place=place, got=got, wanted=wanted, remedy="take another checkpoint")


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60] if not isinstance(value, int) or value.bit_length() < 200 else "a huge number"


# Training states of NeMo 0.x (``trainer-STEP-<n>.pt``) as ours, and whether they fit the optimizers of a run.


# Any: what a file holds.

OF_NEMO = "of_nemo"


def as_ours(state: dict[str, Any]) -> dict[str, Any]:
    """A training state; one of NeMo gets our names, and ``of_nemo`` says so."""
    if "optimizer_state" not in state or "optimizers" in state:
        return state
    epoch = state.get("epoch", state.get("epoch_num", 0))  # before 0.10 it was epoch_num
    return {"step": state.get("step", 0), "epoch": epoch, "optimizers": state["optimizer_state"], OF_NEMO: True}


def can_go_on(state: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> bool:
    """Whether training goes on from this state: always from ours, whose misfits are errors, and from NeMo's if it fits.

    NeMo's says neither the kind of an optimizer nor the parameters' names: the shapes and what is kept must be right.
    """
    if not state.get(OF_NEMO):
        return "optimizers" in state
    saved = state["optimizers"]
    if not isinstance(saved, list) or len(saved) != len(optimizers):
        return False
    try:
        return all(_fits(state, optimizer) for state, optimizer in zip(saved, optimizers, strict=True))
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _fits(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    groups = zip(saved["param_groups"], optimizer.param_groups, strict=True)
    pairs = [pair for theirs, ours in groups for pair in zip(theirs["params"], ours["params"], strict=True)]
    return all(_is_state_of(saved["state"][key], param, optimizer) for key, param in pairs if key in saved["state"])


def _is_state_of(kept: Mapping[str, Any], param: Tensor, optimizer: Optimizer) -> bool:
    kind = type(optimizer).__name__
    if kind == "SGD":
        momentum = kept.get("momentum_buffer")
        return "exp_avg" not in kept and (momentum is None or bool(momentum.shape == param.shape))
    wanted = 1 if kind == "Novograd" else param.numel()  # NovoGrad keeps one number a tensor
    return bool(kept["exp_avg"].shape == param.shape and kept["exp_avg_sq"].numel() == wanted)


# Files of NeMo 0.x in a folder: ``<Module>-STEP-<n>.pt`` and ``trainer-STEP-<n>.pt`` beside each other, in no list.


def files_of_nemo(folder: Path, modules: Mapping[str, nn.Module], pattern: str) -> tuple[dict[str, Path], Path | None]:
    """The newest file of each module, and the training state if all are of one step.

    Raises:
        CheckpointError: no such folder, no file of a module, or files that lack their index.
    """
    if unindexed := without_index(folder):
        raise CheckpointError("no complete checkpoint", place=str(folder), got="; ".join(unindexed))
    pt_files = [name for name in names_in(folder) if name.endswith(".pt")]
    there = {name.module for name in map(parse_checkpoint_name, pt_files) if name}
    # NeMo names files by the class, also those of modules with a name of their own.
    classes = [name if name in there else type(module).__name__ for name, module in modules.items()]
    names = classes if len({*classes}) == len(classes) else modules
    newest = newest_checkpoint_files(names, folder, pattern, suffixes=(".pt",))
    trainer = folder / f"{TRAINER}-{'-and-'.join({name.tag for _, name in newest})}.pt"  # none of two steps
    paths = {module: path for module, (path, _) in zip(modules, newest, strict=True)}
    return paths, trainer if trainer.is_file() else None


def without_index(folder: Path) -> list[str]:
    """The indices that files of version 1 lack."""
    names = map(parse_checkpoint_name, names_in(folder))
    tags = {name.tag for name in names if name and name.suffix == ".safetensors"}
    tags -= {checkpoint.tag for checkpoint in look(folder).sets}
    return [f"{tag} lacks checkpoint-{tag}.json" for tag in sorted(tags)]


# Single checkpoint files: a module's tensors, a training state. Which files belong together is not decided here.
# Weights are safetensors; a training state is one safetensors file too, its JSON structure in the header and its
# tensors beside it. Where a name ends in ``.pt``, ``.pth`` or ``.ckpt``, both are written as NeMo 0.x does, see
# `checkpoint.tensors`. What is read is known by its content, not by its name. Reading any of them runs no code.


# Any: a tree of tensors, numbers and texts, see `tensor_codec`.
TrainingState: TypeAlias = "dict[str, Any]"

MODULE_FORMAT = "nemo_lite module"
STATE_FORMAT = "nemo_lite training state"
# A level of a state becomes up to three of JSON, and NumPy's generators have numbers of 128 bits.
_LIMITS = JsonLimits(depth=4 * tensor_codec.MAX_DEPTH, values=1 << 24, surrogates=True)
# A state needs some hundred bytes a parameter tensor. In a header, where it is a text, it is longer by its quotes.
_MAX_STRUCTURE_BYTES = 16 * 2**20


Writer: TypeAlias = Callable[[BinaryIO], None]


class Weights(NamedTuple):
    """A module's ``state_dict()``, taken apart from the module; of divided tensors this rank's :class:`Piece`."""

    class_name: str
    tensors: Mapping[str, object]


WHOLE = Part(1, 1)


def save_module(module: nn.Module | Weights, path: str | Path) -> None:
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


def module_writer(module: nn.Module | Weights, suffix: str, part: Part = WHOLE) -> Writer:
    """The writer of the content of the file of :func:`save_module` with this suffix, or of a part of it.

    A part holds this rank's pieces; what is not divided is in the first part.

    Raises:
        CheckpointError: as :func:`save_module`.
    """
    weights = module if isinstance(module, Weights) else Weights(type(module).__name__, module.state_dict())
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_names: dict[tuple[object, ...], str] = {}
    pieces = {name: value for name, value in weights.tensors.items() if isinstance(value, Piece)}
    for name, value in weights.tensors.items():
        tensor = value.tensor if isinstance(value, Piece) else value
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
    fill_module(module, read_fitting(module, path))


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
        todays = with_todays_names(module, _with_aliases(stored.outlines, stored.metadata, path))
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
    with stored_tensors(path) as stored:
        tensors = {name: stored.read(name) for name in stored.outlines}
        return _with_aliases(tensors, stored.metadata, path)


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


def state_writer(state: TrainingState, suffix: str, part: Part = WHOLE) -> Writer:
    """The writer of the content of the file of :func:`save_training_state` with this suffix, or of a part of it.

    A part holds this rank's pieces; all else is in the first part.

    Raises:
        CheckpointError: as :func:`save_training_state`, or the state is too large.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    pieces: dict[int, Piece] = {}
    places: dict[str, Piece] = {}

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
                raise CheckpointError(
                    "this is no training state", place=str(path), got=_kind_of(metadata), wanted="a trainer-* file"
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


def _with_aliases(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path) -> dict[str, Tensor]:
    """The tensors by all of their names: a tied one is stored under the first."""
    try:
        aliases: Any = parse_json(metadata.get("aliases", "{}"), path, KIND)
        return {**tensors, **{name: tensors[first_name] for name, first_name in aliases.items()}}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise damaged(str(path), error) from error


def _kind_of(metadata: Mapping[str, str]) -> str:
    return f"{metadata.get('format', 'another safetensors file')} {metadata.get('class', '')}".strip()


# ``nemo.backends.save`` and ``load``: structures of tensors in torch's files, which run no code when read.


# Any: dictionaries, lists, numbers, texts and tensors in each other.


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
