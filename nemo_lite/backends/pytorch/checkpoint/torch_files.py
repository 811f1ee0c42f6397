"""Files of ``torch.save``: state dicts and training states as NeMo 0.x writes them, read without running their code."""

from __future__ import annotations

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

from nemo_lite.errors import CheckpointError
from nemo_lite.untrusted import FileKind, check_zip, open_file
from nemo_lite.utils.files import write_atomically

_KIND = FileKind("the checkpoint", 1 << 44, CheckpointError, "use another checkpoint")
SUFFIXES = (".pt", ".pth", ".ckpt")
_ZIP, _PICKLE, _HEAD_BYTES = b"PK\x03\x04", b"\x80", 9


def is_torch_file(path: Path) -> bool:
    """Whether ``torch.save`` wrote a file, by its content; by its suffix where the content is of neither kind."""
    with open_file(path, _KIND) as file:
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
    """What ``torch.save`` wrote: containers, numbers, texts and tensors, on the CPU. No code of the file runs.

    Args:
        source: the file, or its content.
        place: its name, for messages.

    Raises:
        CheckpointError: it is damaged, compressed, holds objects of other classes, or claims more than it holds.
    """
    try:
        # Opened here: given a path, torch would choose a reader by the suffix.
        with nullcontext(source) if isinstance(source, BytesIO) else open_file(source, _KIND, place=place) as file:
            problem = _problem_of_zip(file, place)
            state = None if problem else torch.load(file, map_location="cpu", weights_only=True)
        problem = problem or _problem_of(state)
    except pickle.UnpicklingError as error:
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


def write_torch_file(path: str | Path, state: object) -> None:
    """Write containers, numbers, texts and tensors as ``torch.save`` does, atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def own_tensors(tensors: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
    """A state dict to be written: on the CPU, no tensor a part of a larger one. Tied ones stay one."""
    return OrderedDict((name, _own(tensor)) for name, tensor in tensors.items())


def damaged(place: str, error: Exception) -> CheckpointError:
    """The error about a file whose content cannot be read."""
    return CheckpointError("the file is damaged", place=place, got=f"{type(error).__name__}: {error}")


def _own(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    is_part = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if is_part else tensor


def _problem_of_zip(file: BinaryIO, place: str) -> str:
    """What is wrong with the archive around the tensors, before any of it is unpacked. Older files have none."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return ""
    members = check_zip(file, place, _KIND)
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        return "the file is compressed, which torch never does"
    if sum(member.file_size for member in members) > file.seek(0, 2):  # members that share their bytes
        return "the parts of the file claim more bytes than it has"
    file.seek(0)
    return ""


def _problem_of(state: object) -> str:
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    if any(each.layout is not torch.strided or each.device.type != "cpu" or each.is_quantized for each in tensors):
        return "a tensor is sparse, quantized or without values"
    if any(each.untyped_storage().nbytes() < each.numel() * each.element_size() for each in tensors):
        return "a tensor claims more elements than the file holds"
    return ""
