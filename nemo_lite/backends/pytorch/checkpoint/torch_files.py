"""Files of ``torch.save``: state dicts and training states as NeMo 0.x writes them, read without running their code.

``torch.load(weights_only=True)`` calls no code of a file. But some of what it calls takes memory by a number in the
file, or copies again and again, so that a few hundred bytes fill any memory. Before it reads a file, the instructions
that it knows are gone through with stand-ins. Any: the values of a pickle.
"""

from __future__ import annotations

import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nemo_lite.backends.pytorch.checkpoint.tensors import KIND, damaged
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import open_file

_MOST_INSTRUCTIONS = 5_000_000  # some 25 for a tensor
_MOST_LEAVES = 10_000_000
_COPYING = {"collections.OrderedDict", "collections.Counter", "builtins.set", "torch.Size"}
_PLAIN = {"builtins.complex", "torch.device", "torch.serialization._get_layout"}
_TENSORS = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"}
_PARAMETERS = {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.nn.parameter.Parameter",
}
_WITHOUT_VALUES = {
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_wrapper_subclass",
}
_LATIN = ("latin1", "latin-1")  # the one encoding in which pickle writes bytes
_ITEM_BYTES = {"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8}
_ITEM_BYTES |= {"Double": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Untyped": 1}
_PYTHON_2 = {"__builtin__": "builtins"}
WITHOUT_VALUES = "a tensor is sparse, quantized or without values"
_CLAIMS_MORE = "a tensor claims more elements than the file holds"
_FILLS_MEMORY = "the file is made to fill the memory: its parts are copied or nested too often"
_SIZES = {name: getattr(torch, name).itemsize for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}


class TooMuchError(Exception):
    """The file claims more than it holds; the text says what."""


class OtherObjectsError(Exception):
    """The file holds other objects than tensors, numbers, texts and containers of them."""


class _TypeName(str):
    """A class or a function, by its name."""

    __slots__ = ()


class _Storage(NamedTuple):
    num_bytes: int
    item_bytes: int


class _Leaf:
    """Stands for a tensor, or another value without parts."""


class Claims:
    """Goes through the pickles of one file.

    Args:
        num_bytes: of the file.
        storages: the bytes of each record with values, by its key; None: the values follow the pickles.
    """

    def __init__(self, num_bytes: int, storages: dict[str, int] | None) -> None:
        self._num_bytes, self._records = num_bytes, storages
        self._num_copied = self._num_stored = 0
        self._storages: dict[object, int] = {}

    def check(self, file: BinaryIO) -> None:
        """One pickle, from where the file is; it is behind the pickle then.

        Raises:
            TooMuchError: it would take more memory than the file has.
            OtherObjectsError: it holds other objects than ``torch.load(weights_only=True)`` makes.
            Exception: others, where it is damaged.
        """
        root = self._value(file)
        if _num_leaves(root) > _MOST_LEAVES:
            raise TooMuchError(_FILLS_MEMORY)

    def _value(self, file: BinaryIO) -> object:
        stack: list[Any] = []
        below: list[list[Any]] = []  # the stacks under each mark
        memo: dict[int, object] = {}
        for number, (instruction, argument, _) in enumerate(pickletools.genops(file)):
            if number > _MOST_INSTRUCTIONS:
                raise TooMuchError(_FILLS_MEMORY)
            name = instruction.name
            if name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[_int(argument)])
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[_int(argument)] = stack[-1]
            elif name in ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"):
                stack.append(argument)
            elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
                stack.append([])
            elif name == "MARK":
                below.append(stack)
                stack = []
            elif name in ("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
                size = ["EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"].index(name)
                stack[len(stack) - size :] = [tuple(stack[len(stack) - size :])]
            elif name in ("TUPLE", "APPENDS", "SETITEMS"):
                items, stack = stack, below.pop()
                stack.append(tuple(items)) if name == "TUPLE" else _container(stack[-1]).extend(items)
            elif name in ("APPEND", "SETITEM"):
                items = [stack.pop() for _ in range(1 if name == "APPEND" else 2)]
                _container(stack[-1]).extend(items)
            elif name == "GLOBAL":
                module, _, attribute = str(argument).partition(" ")
                stack.append(_TypeName(f"{_PYTHON_2.get(module, module)}.{attribute}"))
            elif name in ("REDUCE", "NEWOBJ"):
                arguments = stack.pop()
                stack[-1] = self._made_by(stack[-1], arguments)
            elif name == "BUILD":  # the attributes of a state dict: its versions
                _container(stack[-2]), stack.pop()
            elif name == "BINPERSID":
                stack[-1] = self._storage(*stack[-1])
            elif name == "STOP":
                return stack.pop()
            elif name != "PROTO":
                raise OtherObjectsError(f"the instruction {name}")
        raise EOFError("the pickle has no end")

    def _made_by(self, function: object, arguments: Sequence[Any]) -> object:
        """What a call gives."""
        if function in _TENSORS:
            return self._tensor(function, *arguments)
        if function in _PARAMETERS:
            return arguments[0]
        if function == "torch._tensor._rebuild_from_type_v2":
            return self._made_by(arguments[0], arguments[2])
        if function in _WITHOUT_VALUES:
            raise TooMuchError(WITHOUT_VALUES)
        if function in _PLAIN and all(not isinstance(argument, (list, tuple)) for argument in arguments):
            return _Leaf()
        if function == "_codecs.encode" and isinstance(arguments[0], str) and arguments[1:] in [(n,) for n in _LATIN]:
            self._copied(len(arguments[0]))
            return arguments[0]
        if function in _COPYING and all(isinstance(argument, (list, tuple, str)) for argument in arguments):
            self._copied(sum(map(len, arguments)))
            return [item for argument in arguments for item in argument]
        raise OtherObjectsError(f"a call of {function}")

    def _copied(self, num_parts: int) -> None:
        self._num_copied += num_parts
        if self._num_copied > self._num_bytes:  # each part that is copied once has a byte of its own
            raise TooMuchError(_FILLS_MEMORY)

    def _storage(
        self, kind: object, storage_type: object, key: object, location: object, size: object, view: Any = None
    ) -> _Storage:
        """The values of a tensor: of a record, or behind the pickles."""
        name = str(storage_type).rpartition(".")[2].removesuffix("Storage")
        if name.startswith("Q"):
            raise TooMuchError(WITHOUT_VALUES)
        if kind != "storage" or name not in _ITEM_BYTES:
            raise OtherObjectsError(f"a storage of the type {storage_type}")
        item_bytes = _ITEM_BYTES[name]
        num_bytes = _int(size) * item_bytes
        self._num_stored += num_bytes - self._storages.setdefault(key, 0)
        self._storages[key] = num_bytes
        most = self._num_bytes if self._records is None else self._records.get(str(key), 0)
        if num_bytes > most or self._num_stored > self._num_bytes:
            raise TooMuchError(_CLAIMS_MORE)
        if view is not None:
            _, first, size = view
            if (_int(first) + _int(size)) * item_bytes > num_bytes:
                raise TooMuchError(_CLAIMS_MORE)
            num_bytes = _int(size) * item_bytes
        return _Storage(num_bytes, item_bytes)

    def _tensor(
        self,
        function: str,
        storage: object,
        offset: object,
        size: Sequence[object],
        stride: Sequence[object],
        *more: Any,
    ) -> _Leaf:
        """A tensor within its storage: torch would make the storage larger."""
        if not isinstance(storage, _Storage):
            raise OtherObjectsError("a tensor without a storage")
        item_bytes = _SIZES[more[2].rpartition(".")[2]] if function.endswith("_v3") else storage.item_bytes
        sizes, strides = [_int(number) for number in size], [_int(number) for number in stride]
        last = _int(offset) + sum((length - 1) * step for length, step in zip(sizes, strides, strict=True))
        if prod(sizes) and max(prod(sizes), last + 1) * item_bytes > storage.num_bytes:
            raise TooMuchError(_CLAIMS_MORE)
        return _Leaf()


def _int(value: object) -> int:
    if type(value) is not int or value < 0:
        raise OtherObjectsError(f"{value!r:.40} where a number is wanted")
    return value


def _container(value: object) -> list[object]:
    if not isinstance(value, list):
        raise OtherObjectsError("a list or a dictionary is wanted")
    return value


def _num_leaves(root: object) -> int:
    """How many values a tree has where each part is counted as often as it is met.

    Raises:
        OtherObjectsError: a part holds itself.
    """
    counts: dict[int, int] = {}  # of parts that are done; 0: they are being counted
    waiting = [root]
    while waiting:
        part = waiting[-1]
        if not isinstance(part, (list, tuple)) or counts.get(id(part)):
            waiting.pop()
            continue
        inner = [each for each in part if isinstance(each, (list, tuple))]
        if id(part) not in counts:
            counts[id(part)] = 0
            waiting += inner
            if any(counts.get(id(each)) == 0 for each in inner):
                raise OtherObjectsError("a part that holds itself")
            continue
        count = 1 + len(part) - len(inner) + sum(counts[id(each)] for each in inner)
        counts[id(part)] = min(count, _MOST_LEAVES + 1)
        waiting.pop()
    return counts.get(id(root), 1)


SUFFIXES = (".pt", ".pth", ".ckpt")
_ZIP, _PICKLE, _HEAD_BYTES = b"PK\x03\x04", b"\x80", 9
_CHUNK_BYTES = 1 << 20
_LENGTHS_IN_HEADER = 26  # where a zip record says how long its name and its extra field are, behind which it begins
# Of a file without an archive: a number, a version, about the machine, the tensors, the order of their values.
_PICKLES = 5


def is_torch_file(path: Path) -> bool:
    """Whether ``torch.save`` wrote a file, by its content; by its suffix where the content is of neither kind."""
    with open_file(path, KIND) as file:
        head = file.read(_HEAD_BYTES)
    if head[8:] == b"{":  # safetensors: eight bytes of length, then JSON
        return False
    return head.startswith((_ZIP, _PICKLE)) or path.suffix in SUFFIXES


def read_torch_tensors(source: Path | BytesIO, place: str) -> dict[str, Tensor]:
    """A state dict, on the CPU.

    Args:
        source: the file, or its content.
        place: its name, for messages.

    Raises:
        CheckpointError: as :func:`read_torch_file`, or it holds something else.
    """
    state = read_torch_file(source, place)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError("this is no module's state dict", place=place, wanted="names with tensors")
    return dict(state)


def read_torch_file(source: Path | BytesIO, place: str) -> object:
    """The content of a file of ``torch.save``, on the CPU: containers, numbers, texts, tensors. Its code does not run.

    Args:
        source: the file, or its content.
        place: its name, for messages.

    Raises:
        CheckpointError: it is damaged, compressed, holds objects of other classes, or claims more than it holds.
    """
    try:
        # Opened here: given a path, torch would choose a reader by the suffix.
        with nullcontext(source) if isinstance(source, BytesIO) else open_file(source, KIND, place=place) as file:
            problem = _problem_of_zip(file)
            if not problem:
                _check_claims(file)
            state = None if problem else torch.load(file, map_location="cpu", weights_only=True)
        problem = problem or _problem_of_torch_file(state)
    except TooMuchError as error:
        raise CheckpointError(str(error), place=place, remedy="do not use it") from None
    except (pickle.UnpicklingError, OtherObjectsError) as error:
        raise CheckpointError(
            "the file is damaged, or holds objects other than tensors, which are never loaded",
            place=place,
            remedy="use another checkpoint, or one that stores its state_dict() alone",
        ) from error
    except Exception as error:  # a torn file makes torch's unpickler raise almost anything
        raise damaged(place, error) from error
    if problem:
        raise CheckpointError(problem, place=place, remedy="do not use it")
    return state


def own_tensors(tensors: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
    """A state dict to be written: on the CPU, no tensor a part of a larger one. Tied ones stay one."""
    own = OrderedDict()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        is_part = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        own[name] = tensor.clone() if is_part else tensor
    return own


def _problem_of_zip(file: BinaryIO) -> str:
    """Why the archive around the tensors must not be unpacked; "" where it may. Older files have no archive.

    torch's own reader compares no checksums: it would take a file with a flipped bit for a whole one.

    Raises:
        BadZipFile: the archive is damaged, or a record is not what its checksum says: which one.
    """
    if file.read(len(_ZIP)) != _ZIP:
        file.seek(0)
        return ""
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            return "the file is compressed, which torch never does"
        if min((record.header_offset for record in records), default=0):  # torch's reader would find others
            return "the file does not begin with its first part"
        if sum(record.file_size for record in records) > file.seek(0, os.SEEK_END):  # records that share their bytes
            return "the parts of the file claim more bytes than it has"
        for record in records:
            if record.CRC:  # 0 after torch.serialization.set_crc32_options(False)
                with archive.open(record) as content:
                    while content.read(_CHUNK_BYTES):
                        pass
    file.seek(0)
    return ""


def _check_claims(file: BinaryIO) -> None:
    """See that what the pickles of a file would make is no more than it holds. Errors as of `Claims.check`."""
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(len(_ZIP)) == _ZIP:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            parts = ((record.filename.partition("/data/")[2], record.file_size) for record in records)
            claims = Claims(num_bytes, {key: size for key, size in parts if key})
            for record in records:
                if record.filename.rpartition("/")[2] == "data.pkl":
                    # Not by ZipFile, which would compare a checksum that is left out in some files.
                    file.seek(record.header_offset + _LENGTHS_IN_HEADER)
                    lengths = int.from_bytes(file.read(2), "little"), int.from_bytes(file.read(2), "little")
                    file.seek(sum(lengths), os.SEEK_CUR)
                    claims.check(BytesIO(file.read(record.file_size)))
    else:
        file.seek(0)
        claims = Claims(num_bytes, None)
        for _ in range(_PICKLES):
            claims.check(file)
    file.seek(0)


def _problem_of_torch_file(state: object) -> str:
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    if any(leaf.layout is not torch.strided or leaf.device.type != "cpu" or leaf.is_quantized for leaf in tensors):
        return WITHOUT_VALUES
    if any(leaf.untyped_storage().nbytes() < leaf.numel() * leaf.element_size() for leaf in tensors):
        return "a tensor claims more elements than the file holds"
    return ""
