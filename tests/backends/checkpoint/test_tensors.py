"""Tensors in safetensors files, whole and in parts: equal bytes, the same values, and what is wrong with parts."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from nemo_lite.backends.pytorch.checkpoint import tensors as safetensors_file
from nemo_lite.backends.pytorch.checkpoint.folder import SavePlan
from nemo_lite.backends.pytorch.checkpoint.storage import (
    ModuleWeights,
    load_training_state,
    read_tensors,
    save_training_state,
)
from nemo_lite.backends.pytorch.checkpoint.store import write_part
from nemo_lite.backends.pytorch.checkpoint.tensors import (
    key_of,
    params_by_place,
    read_for,
    stored_tensors,
    without_pieces,
    write_safetensors,
)
from nemo_lite.backends.pytorch.distributed.comm import TensorPiece
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.helpers import CheckpointPart


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


WHOLE = {"w": torch.arange(35.0).view(5, 7), "h": torch.arange(6).view(2, 3).bfloat16(), "n": torch.tensor(4)}
NAMES = [f"E-STEP-5.part-{number}-of-3.safetensors" for number in (1, 2, 3)]


def cut(tensor: Tensor, rank: int, count: int, dim: int = 0) -> TensorPiece:
    rows = -(-tensor.shape[dim] // count)
    start = min(rank * rows, tensor.shape[dim])
    stop = min(start + rows, tensor.shape[dim])
    return TensorPiece(tensor.narrow(dim, start, stop - start), dim, start, tensor.shape[dim])


def write(folder: Path, count: int, dim: int = 0, whole: dict[str, Tensor] = WHOLE) -> Path:
    for rank in range(count):
        own = {name: cut(value, rank, count, dim) if value.dim() else value for name, value in whole.items()}
        state = {"step": 5, "optimizers": [{"state": {3: {"m": own["w"], "step": own["n"]}}}], "of": {"first": rank}}
        writers = SavePlan("STEP", 5, 1).writers({"E": ModuleWeights("E", own)}, state, CheckpointPart(rank + 1, count))
        write_part(folder, folder, writers)
    return folder / f"E-STEP-5.part-1-of-{count}.safetensors"


@pytest.mark.parametrize(("count", "dim"), [(2, 0), (3, 0), (8, 0), (3, 1)])
def test_parts_are_read_as_the_whole_and_by_any_slice(tmp_path: Path, count: int, dim: int) -> None:
    path = write(tmp_path, count, dim)
    for each in (path, tmp_path / f"E-STEP-5.part-{count}-of-{count}.safetensors", tmp_path / "E-STEP-5.pt"):
        found = read_tensors(each)
        assert found.keys() == WHOLE.keys()
        assert all(found[name].equal(value) and found[name].dtype == value.dtype for name, value in WHOLE.items())
    with stored_tensors(path) as stored:
        for along, (start, stop) in itertools.product((0, 1), itertools.combinations(range(6), 2)):
            if stop <= WHOLE["w"].shape[along]:
                assert stored.read_slice("w", along, start, stop).equal(WHOLE["w"].narrow(along, start, stop - start))
    state = load_training_state(tmp_path / f"trainer-STEP-5.part-1-of-{count}.safetensors")
    assert state["optimizers"][0]["state"][3]["m"].equal(WHOLE["w"])
    assert (state["optimizers"][0]["state"][3]["step"], state["of"]) == (4, {"first": 0})


def test_a_part_holds_its_own_rows_and_no_others(tmp_path: Path) -> None:
    whole = {"w": torch.zeros(3000, 7), "h": torch.zeros(3, 3), "n": torch.tensor(1)}
    write(tmp_path, 3, whole=whole)
    sizes = [(tmp_path / name).stat().st_size for name in NAMES]
    assert max(sizes) < 3000 * 7 * 4 / 3 + 1000


def relabelled(path: Path, **changes: list[int]) -> None:
    """The same file, whose header says that its tensors have other places."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    places = json.loads(header["__metadata__"]["places"]) | changes
    header["__metadata__"]["places"] = json.dumps(places)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ([0, 1, 5], r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* overlap: indices 0 to 2 and"),
        (
            [0, 3, 5],
            r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* leave a gap: .* 0 to 2 and 3",
        ),
        ([0, 2, 6], r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* are of different tensors"),
        ([1, 0, 7], r"parts of w do not fit together: .* are of different tensors"),
        ([0, 4, 5], r"part-2-of-3.*: the file is damaged: w of shape \(2, 7\) has the place \[0, 4, 5\]"),
        ([2, 0, 5], r"part-2-of-3.*: the file is damaged: w of shape"),
        ([0, -1, 5], r"the file is damaged: w of shape .* has the place"),
        ([0, 1], r"the file is damaged: w of shape .* has the place"),
    ],
)
def test_parts_whose_places_do_not_fit_are_refused(tmp_path: Path, place: list[int], problem: str) -> None:
    path = write(tmp_path, 3)
    relabelled(tmp_path / NAMES[1], w=place)
    with pytest.raises(CheckpointError, match=problem):
        read_tensors(path)


def test_parts_that_leave_rows_out_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    for name, place in zip(NAMES, ([0, 0, 6], [0, 3, 6], [0, 5, 6]), strict=True):
        relabelled(tmp_path / name, w=place)
    with pytest.raises(CheckpointError, match=r"part-1-of-3.* and .*part-2-of-3.* leave a gap: indices 0 to 2 and 3"):
        read_tensors(path)
    for name, place in zip(NAMES, ([0, 0, 9], [0, 2, 9], [0, 4, 9]), strict=True):
        relabelled(tmp_path / name, w=place)
    with pytest.raises(CheckpointError, match="indices 0 to 5 are there, 0 to 9 belong to it"):
        read_tensors(path)


def test_a_part_that_is_missing_or_of_another_place_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    second = (tmp_path / NAMES[1]).read_bytes()
    (tmp_path / NAMES[1]).write_bytes((tmp_path / NAMES[2]).read_bytes())
    with pytest.raises(
        CheckpointError, match=r"part-2-of-3.*: .* another part than its name says: got 3 of 3, wanted 2"
    ):
        read_tensors(path)
    (tmp_path / "renamed.safetensors").write_bytes(second)
    with pytest.raises(CheckpointError, match=r"renamed\.safetensors: .*: got 2 of 3, wanted a whole file"):
        read_tensors(tmp_path / "renamed.safetensors")
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(CheckpointError, match=r"part-2-of-3\.safetensors: this part is missing, one of 3"):
        read_tensors(path)
    alone = path.rename(tmp_path / "E-STEP-5.part-1-of-999999.safetensors")
    with pytest.raises(CheckpointError, match=r"part-1-of-999999\.safetensors: .*: got 1 of 3"):
        read_tensors(alone)


def test_a_stored_name_leads_to_its_parameter_with_a_number_before_it_or_without() -> None:
    assert key_of("7:state.optimizers.0.state.3.exp_avg") == "state.optimizers.0.state.3"
    assert key_of("state.optimizers.0.state.3.exp_avg") == "state.optimizers.0.state.3"


def test_what_is_kept_for_whole_parameters_is_read_whole(tmp_path: Path) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    assert params_by_place([torch.optim.SGD([param])]) == {}
    save_training_state(tmp_path / "t.safetensors", {"m": torch.arange(4.0)})
    with stored_tensors(tmp_path / "t.safetensors") as stored:
        (name,) = stored.outlines
        assert read_for(param, stored, name).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_pieces_of_a_state_are_noted_by_their_tensors() -> None:
    piece, found = TensorPiece(torch.ones(2), 0, 2, 4), dict[int, TensorPiece]()
    state = without_pieces({"a": [1, (piece, "b")]}, found)
    assert state == {"a": [1, (piece.tensor, "b")]}
    assert found == {id(piece.tensor): piece}
