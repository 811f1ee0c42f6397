"""StoredTensors: the tensors of a safetensors file, whole or a slice of each, also where it was written in parts.

Any part stands for all of them. The header of each says which slices of the whole tensors it holds: ``places`` gives,
by name, the dimension along which the tensor is divided, the slice's first index in it, and its size in the whole. What
is not divided is in the first part. Which values are wanted, and what they mean, is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nemo_lite.backends.pytorch.checkpoint.tensors.safetensors_file import DTYPES
from nemo_lite.backends.pytorch.checkpoint.torch_files import damaged
from nemo_lite.backends.pytorch.distributed import Piece
from nemo_lite.errors import CheckpointError
from nemo_lite.untrusted import FileKind, check_tensor_file, parse_json
from nemo_lite.utils.helpers import Part, parse_checkpoint_name

# Any: an open file of the library, and JSON.

KIND = FileKind("the checkpoint", 1 << 44, CheckpointError)
_PART, _PLACES = "part", "places"


class _Slice(NamedTuple):
    """What one file holds of a tensor: indices from ``start`` to ``stop`` of ``dim``; all of it if that is None."""

    file: Any
    file_name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int | None
    start: int
    stop: int
    size: int

    @property
    def whole_shape(self) -> tuple[int, ...]:
        if self.dim is None:
            return self.shape
        return (*self.shape[: self.dim], self.size, *self.shape[self.dim + 1 :])


def part_metadata(part: Part, pieces: Mapping[str, Piece]) -> dict[str, str]:
    """What the header of a part says about it."""
    places = {name: [piece.dim, piece.start, piece.size] for name, piece in pieces.items()}
    return {_PART: f"{part.number} of {part.total}", _PLACES: json.dumps(places)}


class StoredTensors:
    """Tensors of files that are open. Made by :func:`stored_tensors`.

    Attributes:
        metadata: of the file, or of the first part.
        outlines: tensors without values, of the shapes and types of the whole tensors, by name.
    """

    def __init__(self, slices: Mapping[str, list[_Slice]], metadata: Mapping[str, str]) -> None:
        self._slices, self.metadata = slices, metadata
        self.outlines: Mapping[str, Tensor] = {
            name: torch.empty(first.whole_shape, dtype=first.dtype, device="meta")
            for name, (first, *_) in slices.items()
        }

    def read(self, name: str) -> Tensor:
        """A tensor, whole; from a single file its memory is that of the file."""
        first = self._slices[name][0]
        if first.dim is None:
            tensor: Tensor = first.file.get_tensor(name)
            return tensor
        return self.read_slice(name, first.dim, 0, first.size)

    def read_slice(self, name: str, dim: int, start: int, stop: int) -> Tensor:
        """The indices from ``start`` to ``stop`` of one dimension, in memory of their own. Nothing else is read."""
        slices = self._slices[name]
        shape = [*slices[0].whole_shape]
        shape[dim] = stop - start
        found = torch.empty(shape, dtype=slices[0].dtype)
        for each in slices:
            wanted, there = [slice(0, size) for size in each.shape], [slice(0, size) for size in shape]
            offset = each.start if each.dim == dim else 0
            first, last = max(start, offset), min(stop, offset + each.shape[dim])
            wanted[dim], there[dim] = slice(first - offset, last - offset), slice(first - start, last - start)
            if each.dim is not None and each.dim != dim:
                there[each.dim] = slice(each.start, each.stop)
            if first < last and 0 not in each.shape:
                found[tuple(there)] = each.file.get_slice(name)[tuple(wanted)]
        return found


@contextmanager
def stored_tensors(path: Path) -> Iterator[StoredTensors]:
    """The tensors of a safetensors file, or of all parts of the file of which it is one. Read them inside.

    Raises:
        CheckpointError: a file is damaged; a part is missing, or of another file; parts overlap or leave something out.
    """
    metadata: dict[str, str] = {}
    found: dict[str, list[_Slice]] = {}
    with ExitStack() as opened:
        for each in _files_of(path):
            try:
                header = check_tensor_file(each, KIND)
                file = opened.enter_context(safe_open(each, framework="pt"))
                about = file.metadata() or {}
            except (SafetensorError, OSError) as error:
                raise damaged(str(each), error) from error
            _check_part(each, about)
            metadata = metadata or about
            places = _places_in(each, about)
            for name in header.keys() - {"__metadata__"}:
                found.setdefault(name, []).append(_slice(file, each, name, header[name], places.get(name)))
        for name, slices in found.items():
            found[name] = _in_order(slices)
            if problem := _problem_of(found[name]):
                raise CheckpointError(f"the parts of {name} do not fit together: {problem}", place=str(path))
        try:
            yield StoredTensors(found, metadata)
        except (SafetensorError, OSError) as error:
            raise damaged(str(path), error) from error


def _files_of(path: Path) -> list[Path]:
    """The file, or all parts of the file of which it is one, in their order."""
    name = parse_checkpoint_name(path.name)
    if name is None or name.part is None:
        return [path]
    files: list[Path] = []
    for number in range(1, name.part.total + 1):
        files.append(path.with_name(name._replace(part=Part(number, name.part.total)).file_name))
        if not files[-1].is_file():  # the first, however many a name promises
            problem = f"this part is missing, one of {name.part.total}"
            raise CheckpointError(problem, place=str(files[-1]), remedy="copy the whole folder of the checkpoint")
    return files


def _check_part(path: Path, metadata: Mapping[str, str]) -> None:
    name = parse_checkpoint_name(path.name)
    wanted = f"{name.part.number} of {name.part.total}" if name and name.part else ""
    got = metadata.get(_PART, "")
    if got != wanted:
        problem = "the file holds another part than its name says"
        raise CheckpointError(problem, place=str(path), got=got or "a whole file", wanted=wanted or "a whole file")


def _places_in(path: Path, metadata: Mapping[str, str]) -> dict[str, tuple[int, int, int]]:
    places: Any = parse_json(metadata.get(_PLACES, "{}"), path, KIND)
    if not isinstance(places, dict):
        raise CheckpointError("the file is damaged: its places are no object", place=str(path))
    for name, place in places.items():
        is_place = isinstance(place, list) and len(place) == 3
        if not is_place or not all(type(each) is int and 0 <= each < 2**62 for each in place):
            problem = f"the file is damaged: {name[:80]} has the place {str(place)[:40]}"
            raise CheckpointError(problem, place=str(path))
    return {name: (int(dim), int(start), int(size)) for name, (dim, start, size) in places.items()}


def _slice(file: Any, path: Path, name: str, entry: Any, place: tuple[int, int, int] | None) -> _Slice:
    shape, dtype = tuple(entry["shape"]), DTYPES.get(entry["dtype"])
    if dtype is None:
        raise CheckpointError(f"{name} has a type that is not known here", place=str(path), got=entry["dtype"])
    if place is None:
        return _Slice(file, path.name, shape, dtype, None, 0, 0, 0)
    dim, start, size = place
    if dim >= len(shape) or start + shape[dim] > size:
        problem = f"the file is damaged: {name[:80]} of shape {shape} has the place {place}"
        raise CheckpointError(problem, place=str(path))
    return _Slice(file, path.name, shape, dtype, dim, start, start + shape[dim], size)


def _in_order(slices: list[_Slice]) -> list[_Slice]:
    with_values = [each for each in slices if each.dim is None or each.start < each.stop]
    return sorted(with_values or slices[:1], key=lambda each: each.start)


def _problem_of(slices: list[_Slice]) -> str:
    """Why the slices are not those of one tensor, each index once; "" if they are."""
    first, last = slices[0], slices[-1]
    if first.dim is None:
        return f"{slices[1].file_name} holds it as well as {first.file_name}" if len(slices) > 1 else ""
    for one, next_one in pairwise(slices):
        if (one.dim, one.dtype, one.whole_shape) != (next_one.dim, next_one.dtype, next_one.whole_shape):
            return f"{one.file_name} and {next_one.file_name} are of different tensors"
        if next_one.start != one.stop:
            kind = "overlap" if next_one.start < one.stop else "leave a gap"
            spans = f"{one.start} to {one.stop} and {next_one.start} to {next_one.stop}"
            return f"{one.file_name} and {next_one.file_name} {kind}: indices {spans}"
    if first.start or last.stop != first.size:
        return f"indices {first.start} to {last.stop} are there, 0 to {first.size} belong to it"
    return ""
