"""Files in safetensors' format: the library reads what was written, and equal content gives equal bytes."""

from __future__ import annotations

import io

import pytest
import torch
from safetensors import safe_open

from nemo_lite.backends.pytorch.checkpoint import tensors as safetensors_file
from nemo_lite.backends.pytorch.checkpoint.tensors import write_safetensors
from nemo_lite.errors import CheckpointError


def written(tensors, metadata=None):
    file = io.BytesIO()
    write_safetensors(file, tensors, metadata or {})
    return file.getvalue()


def test_the_library_reads_every_type_and_shape(tmp_path):
    shapes = ((), (0,), (3,), (2, 3))
    tensors = {
        f"{dtype} {shape} ж": torch.randint(0, 2, shape).to(dtype)
        for dtype in safetensors_file._NAMES
        for shape in shapes
    }
    tensors["transposed"] = torch.arange(6).view(2, 3).T
    tensors["part"] = torch.arange(9)[2:4]
    (tmp_path / "x").write_bytes(written(tensors, {"class": 'A"b\n', "x": ""}))
    with safe_open(tmp_path / "x", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata() == {"class": 'A"b\n', "x": ""}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].tolist() == tensor.tolist(), name


def test_equal_content_gives_equal_bytes():
    metadata = {name: name for name in "abcdefgh"}
    first = written({"a": torch.ones(3), "b": torch.zeros(2)}, metadata)
    assert first == written({"b": torch.zeros(2), "a": torch.ones(3)}, metadata)


def test_a_tensor_that_the_format_lacks_is_named():
    with pytest.raises(CheckpointError, match=r"x cannot be stored: got a tensor of torch\.complex128"):
        written({"x": torch.zeros(1, dtype=torch.complex128)})
    with pytest.raises(CheckpointError, match=r"x cannot be stored: got a tensor of torch\.float32, torch\.sparse_coo"):
        written({"x": torch.zeros(1).to_sparse()})
