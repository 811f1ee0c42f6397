"""Files of ``torch.save``: state dicts and training states as NeMo 0.x writes them, read without running their code."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nemo_lite.backends.pytorch.checkpoint.claims import WITHOUT_VALUES, Claims, OtherObjectsError, TooMuchError
from nemo_lite.backends.pytorch.checkpoint.tensors import KIND, damaged
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import open_file

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
