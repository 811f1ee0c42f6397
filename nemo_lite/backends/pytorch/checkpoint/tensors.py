"""Tensors in safetensors files: whole, in slices, and in parts of several ranks.

A file is 8 bytes with the length of a JSON header, the header, the tensors' bytes. They are written here, because the
library's writer orders the metadata at random, and files of equal runs shall have equal digests; the library reads.
Source: https://github.com/huggingface/safetensors#format

Any part of a file stands for all of them. The header of each says which slices of the whole tensors it holds:
``places`` gives, by name, the dimension along which the tensor is divided, the slice's first index in it, and its size
in the whole. A tensor that is not divided is in the first part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.comm import TensorPiece, divided_as, is_divided, piece_of
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import FileKind, open_file, parse_json
from nemo_lite.base.helpers import CheckpointPart, parse_checkpoint_name

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}
"""torch's types by their names in the format."""


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors by name, of any device and layout in memory, and texts about them.

    Args:
        file: open for writing; written to from its beginning to its end.
        tensors: two that share memory are stored twice.
        metadata: in the order in which it is stored.

    Raises:
        CheckpointError: a tensor of a type that the format lacks.
        OSError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    # The widest first, so that each begins at a multiple of its width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
            raise CheckpointError(f"{name} cannot be stored", got=f"a tensor of {tensor.dtype}, {tensor.layout}")
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        file.write(content.numpy().data)


KIND = FileKind("the checkpoint", 1 << 44, CheckpointError, "use another checkpoint")
_PART, _PLACES = "part", "places"


class _FileSlice(NamedTuple):
    """The indices from ``start`` to ``stop`` of ``dim`` of a tensor, in one file; all of it if ``dim`` is None."""

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


def part_metadata(part: CheckpointPart, pieces: Mapping[str, TensorPiece]) -> dict[str, str]:
    """The texts in the header of a part that say which it is."""
    places = {name: [piece.dim, piece.start, piece.size] for name, piece in pieces.items()}
    return {_PART: f"{part.number} of {part.total}", _PLACES: json.dumps(places)}


class StoredTensors:
    """Tensors of files that are open. Made by :func:`stored_tensors`.

    Attributes:
        metadata: of the file, or of the first part.
        outlines: tensors without values, of the shapes and types of the whole tensors, by name.
    """

    def __init__(self, slices: Mapping[str, list[_FileSlice]], metadata: Mapping[str, str]) -> None:
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
        tensor = torch.empty(shape, dtype=slices[0].dtype)
        for part in slices:
            source, target = [slice(0, size) for size in part.shape], [slice(0, size) for size in shape]
            offset = part.start if part.dim == dim else 0
            first, last = max(start, offset), min(stop, offset + part.shape[dim])
            source[dim], target[dim] = slice(first - offset, last - offset), slice(first - start, last - start)
            if part.dim is not None and part.dim != dim:
                target[part.dim] = slice(part.start, part.stop)
            if first < last and 0 not in part.shape:
                tensor[tuple(target)] = part.file.get_slice(name)[tuple(source)]
        return tensor


@contextmanager
def stored_tensors(path: Path) -> Iterator[StoredTensors]:
    """The tensors of a safetensors file, or of all parts of the file of which it is one. Read them inside.

    Raises:
        CheckpointError: a file is damaged; a part is missing, or of another file; parts overlap or leave something out.
    """
    metadata: dict[str, str] = {}
    slices: dict[str, list[_FileSlice]] = {}
    name = parse_checkpoint_name(path.name) if ".part-" in path.name else None
    parts: Iterable[CheckpointPart | None] = (None,)
    if name is not None and name.part is not None:
        total = name.part.total
        # One after the other, however many a name promises: the first that is missing ends it.
        parts = (CheckpointPart(number, total) for number in range(1, total + 1))
    with ExitStack() as opened:
        for part in parts:
            part_path = path if name is None or part is None else path.with_name(name._replace(part=part).file_name)
            file_metadata, file_slices = _open_part(part_path, part, opened)
            metadata = metadata or file_metadata
            for tensor_name, of_file in file_slices.items():
                slices.setdefault(tensor_name, []).append(of_file)
        for tensor_name, of_tensor in slices.items():
            # An empty slice is of a rank for which no row was left.
            with_values = [part for part in of_tensor if part.dim is None or part.start < part.stop]
            slices[tensor_name] = sorted(with_values or of_tensor[:1], key=lambda part: part.start)
            if problem := _problem_of(slices[tensor_name]):
                raise CheckpointError(f"the parts of {tensor_name} do not fit together: {problem}", place=str(path))
        try:
            yield StoredTensors(slices, metadata)
        except (SafetensorError, OSError) as error:
            raise damaged(str(path), error) from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of all parts of it, whole, on the CPU.

    Raises:
        CheckpointError: as :func:`stored_tensors`.
    """
    with stored_tensors(path) as stored:
        tensors = {name: stored.read(name) for name in stored.outlines}
        return with_aliases(tensors, stored.metadata, path)


def with_aliases(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path) -> dict[str, Tensor]:
    """The tensors by all of their names: a tied one is stored under the first."""
    try:
        aliases: Any = parse_json(metadata.get("aliases", "{}"), path, KIND)
        return {**tensors, **{name: tensors[first_name] for name, first_name in aliases.items()}}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise damaged(str(path), error) from error


def _open_part(
    path: Path, part: CheckpointPart | None, opened: ExitStack
) -> tuple[dict[str, str], dict[str, _FileSlice]]:
    """The metadata and the slices of one file, which stays open."""
    if part is not None and not path.is_file():
        problem = f"this part is missing, one of {part.total}"
        raise CheckpointError(problem, place=str(path), remedy="copy the whole folder of the checkpoint")
    by_name: Path | str = path
    with open_file(path, KIND) as stream:  # the library would wait for a pipe
        if str(path).encode(errors="replace").decode() != str(path):  # the library opens names that are UTF-8 only
            by_name = f"/proc/self/fd/{os.dup(stream.fileno())}"
            opened.callback(os.close, int(Path(by_name).name))
    try:
        file = opened.enter_context(safe_open(by_name, framework="pt"))
        metadata: dict[str, str] = file.metadata() or {}
        headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise damaged(str(path), error) from error
    wanted = f"{part.number} of {part.total}" if part else ""
    if metadata.get(_PART, "") != wanted:
        problem, got = "the file holds another part than its name says", metadata.get(_PART, "a whole file")
        raise CheckpointError(problem, place=str(path), got=got, wanted=wanted or "a whole file")
    places: Any = parse_json(metadata.get(_PLACES, "{}"), path, KIND)
    slices: dict[str, _FileSlice] = {}
    for name, header in headers.items():
        shape, dtype = tuple(header.get_shape()), DTYPES.get(header.get_dtype())
        if dtype is None:
            raise CheckpointError(f"{name} has a type that is not known", place=str(path), got=header.get_dtype())
        place = places.get(name, (None, 0, 0)) if isinstance(places, dict) else places
        try:
            dim, start, size = place
            stop = start if dim is None else start + shape[dim]
            if not 0 <= start <= stop <= size or (dim is not None and dim < 0):
                raise ValueError
        except (IndexError, TypeError, ValueError):
            problem = f"the file is damaged: {name[:80]} of shape {shape} has the place {str(place)[:40]}"
            raise CheckpointError(problem, place=str(path)) from None
        slices[name] = _FileSlice(file, path.name, shape, dtype, dim, start, stop, size)
    return metadata, slices


def _problem_of(slices: list[_FileSlice]) -> str:
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


def read_for(target: Tensor | None, stored: StoredTensors, name: str) -> Tensor:
    """A stored tensor: this rank's piece, divided as the target is, or whole where the target is not divided."""
    piece = None if target is None else piece_of(target)
    if target is None or not isinstance(piece, TensorPiece) or target.shape != stored.outlines[name].shape:
        return stored.read(name)
    stop = piece.start + piece.tensor.shape[piece.dim]
    return divided_as(stored.read_slice(name, piece.dim, piece.start, stop), target)


def params_by_place(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The divided parameters by the place in a training state of what is kept for them."""
    by_place: dict[str, Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for key, param in enumerate(params):
            if is_divided(param):
                by_place[f"state.optimizers.{number}.state.{key}"] = param
    return by_place


def key_of(name: str) -> str:
    """``state.optimizers.0.state.3`` of ``7:state.optimizers.0.state.3.exp_avg``; parts have no number before it."""
    return name.rpartition(":")[2].rpartition(".")[0]


def without_pieces(value: object, pieces: dict[int, TensorPiece]) -> object:
    """A state with the tensors of its pieces; the pieces are noted by the identity of their tensor."""
    if isinstance(value, TensorPiece):
        pieces[id(value.tensor)] = value
        return value.tensor
    if isinstance(value, Mapping):
        return {key: without_pieces(item, pieces) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [without_pieces(item, pieces) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def damaged(place: str, error: Exception) -> CheckpointError:
    """The error about a file whose content cannot be read."""
    return CheckpointError("the file is damaged", place=place, got=f"{type(error).__name__}: {error}")
