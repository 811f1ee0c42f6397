"""Writes safetensors files: the same bytes for the same content, which the library's own writer does not promise.

The format: 8 bytes with the length of a JSON header, the header, the tensors' bytes. The library's writer orders the
metadata at random, so that files of equal runs would have different digests. Reading is left to the library.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

import torch
from torch import Tensor

from nemo_lite.errors import CheckpointError

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
