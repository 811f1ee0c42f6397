"""The header of a safetensors file, checked before the library reads the file. No tensors in here.

Source of the format: https://github.com/huggingface/safetensors#format. Eight bytes with the header's length, the
header (a JSON object: for each tensor its type, its shape and its place in the data), then the data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NoReturn

from nemo_lite.untrusted.json_values import Json, JsonLimits, parse_json
from nemo_lite.untrusted.opening import FileKind, FilePath, open_file

MAX_HEADER_BYTES = 32 << 20
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_LIMITS = JsonLimits(depth=4, values=MAX_HEADER_BYTES // 8)


def check_tensor_file(path: FilePath, kind: FileKind) -> dict[str, Json]:
    """The header of a safetensors file whose tensors cover its data exactly, each byte once.

    Raises:
        NemoLiteError: of the kind: as :func:`open_file`; the header is longer than the file or than
            MAX_HEADER_BYTES, is no JSON, has a key twice, a type that is not known, or tensors that overlap, leave
            bytes out, or claim other bytes than the file has.
    """
    with open_file(path, kind) as file:
        size = os.fstat(file.fileno()).st_size
        num_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= num_bytes <= min(size - _LENGTH_BYTES, MAX_HEADER_BYTES):
            wanted = f"at most {MAX_HEADER_BYTES}, within the file's {size} bytes"
            raise kind.refusal("the file is damaged: its header is too long", path, got=str(num_bytes), wanted=wanted)
        header = parse_json(file.read(num_bytes), path, kind, _LIMITS)
    if not isinstance(header, dict):
        raise kind.refusal("the file is damaged: its header is no object", path)
    _Header(header, path, kind).check(size - _LENGTH_BYTES - num_bytes)
    return header


class _Header:
    def __init__(self, header: Mapping[str, Json], path: FilePath, kind: FileKind) -> None:
        self._header, self._path, self._kind = header, path, kind

    def check(self, num_bytes: int) -> None:
        """See that the tensors cover so many bytes."""
        metadata = self._header.get(_METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            self._refuse(f"{_METADATA} holds something else than texts")
        end = 0
        spans = [(*self._span(name), name) for name in self._header if name != _METADATA]
        for first, last, name in sorted(spans):
            if first != end:
                self._refuse(f"the tensor {name[:80]} starts at byte {first} of the data, the one before ends at {end}")
            end = last
        if end != num_bytes:
            self._refuse(f"its tensors have {end} bytes, its data {num_bytes}")

    def _span(self, name: str) -> tuple[int, int]:
        entry = self._header[name]
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._refuse(f"{name[:80]} is not described as a tensor")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
            self._refuse(f"{name[:80]} has the type {str(dtype)[:20]}")
        if not isinstance(shape, list) or not all(type(count) is int and count >= 0 for count in shape):
            self._refuse(f"{name[:80]} has the shape {str(shape)[:40]}")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(each) is int for each in offsets)):
            self._refuse(f"{name[:80]} has the place {str(offsets)[:40]}")
        first, last = (int(str(each)) for each in offsets)
        promised = math.prod(count for count in shape if isinstance(count, int)) * _DTYPE_BYTES[dtype]
        if first < 0 or last - first != promised:
            self._refuse(f"{name[:80]} has {last - first} bytes, its shape wants {promised}")
        return first, last

    def _refuse(self, problem: str) -> NoReturn:
        raise self._kind.refusal(f"the file is damaged: {problem}", self._path)
