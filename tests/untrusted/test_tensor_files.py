"""Headers of safetensors files: checked before the library reads the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nemo_lite.errors import CheckpointError
from nemo_lite.files import FileKind
from nemo_lite.untrusted import check_tensor_file

KIND = FileKind("the checkpoint", 1 << 30, CheckpointError)


def entry(first: int, last: int, dtype: str = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [last - first] if shape is None else shape, "data_offsets": [first, last]}


def write(path: Path, header: object, num_bytes: int = 8, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(num_bytes))
    return path


REFUSED = {
    "nested": (b'{"a":' * 100_000 + b"}" * 100_000, "nested 100000 levels deep"),
    "a name twice": (b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 8)).encode(),) * 2), "the key a occurs twice"),
    "a list": ([], "its header is no object"),
    "a type that is not known": ({"a": entry(0, 8, "O")}, "a has the type O"),
    "a hole": ({"a": entry(0, 3), "b": entry(4, 8)}, "b starts at byte 4 of the data, the one before ends at 3"),
    "tensors in the same bytes": ({"a": entry(0, 8), "b": entry(4, 8)}, "b starts at byte 4"),
    "fewer bytes than the file": ({"a": entry(0, 4)}, "its tensors have 4 bytes, its data 8"),
    "more bytes than the file": ({"a": entry(0, 1 << 40)}, "its tensors have 1099511627776 bytes, its data 8"),
    "another shape": ({"a": entry(0, 8, "F32", [3])}, "a has 8 bytes, its shape wants 12"),
    "a shape below 0": ({"a": entry(0, 8, "U8", [-1, -8])}, "a has the shape"),
    "a shape of truths": ({"a": entry(0, 8, "F64", [True])}, "a has the shape"),
    "places below 0": ({"a": entry(-8, 0)}, "a has 8 bytes|a has"),
    "places that are texts": ({"a": {**entry(0, 8), "data_offsets": ["0", "8"]}}, "a has the place"),
    "another key": ({"a": {**entry(0, 8), "code": 1}}, "a is not described as a tensor"),
    "numbers in the metadata": ({"__metadata__": {"a": 1}}, "__metadata__ holds something else than texts"),
}


@pytest.mark.parametrize("trick", REFUSED)
def test_a_header_that_does_not_describe_the_data_is_refused(trick, tmp_path):
    header, message = REFUSED[trick]
    with pytest.raises(CheckpointError, match=message):
        check_tensor_file(write(tmp_path / "a.safetensors", header), KIND)


@pytest.mark.parametrize("length", [0, 100, 1 << 62])
def test_a_header_longer_than_the_file_is_refused(length, tmp_path):
    with pytest.raises(CheckpointError, match=f"its header is too long: got {length}, wanted at most"):
        check_tensor_file(write(tmp_path / "a.safetensors", {"a": entry(0, 8)}, length=length), KIND)


def test_files_of_the_library_pass_with_all_types(tmp_path):
    names = ("bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64")
    tensors = {name: torch.zeros(2, 3, dtype=getattr(torch, name)) for name in names}
    tensors |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(1.0), "complex": torch.zeros(2, dtype=torch.cfloat)}
    save_file(tensors, tmp_path / "a.safetensors", {"about": "this"})
    header = check_tensor_file(tmp_path / "a.safetensors", KIND)
    assert header.keys() == {*tensors, "__metadata__"}
    save_file({}, tmp_path / "none.safetensors")
    check_tensor_file(tmp_path / "none.safetensors", KIND)
