"""Tensors read from a file or from its parts: the same values, only what is asked for, and what is wrong with parts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_lite.backends.pytorch.checkpoint.folder import writers_of
from nemo_lite.backends.pytorch.checkpoint.storage import Weights, load_training_state, read_tensors
from nemo_lite.backends.pytorch.checkpoint.store import write_part
from nemo_lite.backends.pytorch.checkpoint.tensors import stored_tensors
from nemo_lite.backends.pytorch.distributed.comm import Piece
from nemo_lite.errors import CheckpointError
from nemo_lite.utils.helpers import Part

WHOLE = {"w": torch.arange(35.0).view(5, 7), "h": torch.arange(6).view(2, 3).bfloat16(), "n": torch.tensor(4)}
NAMES = [f"E-STEP-5.part-{number}-of-3.safetensors" for number in (1, 2, 3)]


def cut(tensor: Tensor, rank: int, count: int, dim: int = 0) -> Piece:
    rows = -(-tensor.shape[dim] // count)
    start = min(rank * rows, tensor.shape[dim])
    stop = min(start + rows, tensor.shape[dim])
    return Piece(tensor.narrow(dim, start, stop - start), dim, start, tensor.shape[dim])


def write(folder: Path, count: int, dim: int = 0, whole: dict[str, Tensor] = WHOLE) -> Path:
    for rank in range(count):
        own = {name: cut(value, rank, count, dim) if value.dim() else value for name, value in whole.items()}
        state = {"step": 5, "optimizers": [{"state": {3: {"m": own["w"], "step": own["n"]}}}], "of": {"first": rank}}
        writers = writers_of({"E": Weights("E", own)}, state, "STEP-5", ".safetensors", Part(rank + 1, count))
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
