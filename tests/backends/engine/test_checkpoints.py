"""Checkpoints of divided weights: each rank writes and reads its own part; any number of ranks goes on from them."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from toys.device_verdict import use_device_verdict
from toys.nets import Net, Points
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks, results_of
from toys.resumable import DrawingNet, DrawingPoints, factory, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state
from nemo_lite.backends.pytorch.checkpoint.tensors import StoredTensors
from nemo_lite.backends.pytorch.distributed.comm import TensorPiece, piece_of


class Wide(DrawingNet):
    """Weights with more rows than ranks, and one with a single row."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        layers = torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        self.fc = torch.nn.Sequential(*layers)  # type: ignore[assignment]  # in the place of one layer


def wide_of(state: Any) -> Wide:
    return next(module for module in state.modules.values() if isinstance(module, Wide))


class Taken(nemo.NeMoCallback):
    """The weights and the optimizer's state, whole, before the first step of a run or after its last."""

    def __init__(self, at_end: bool) -> None:
        self.state: Any = None
        self.at_end, self.is_taken = at_end, False

    def on_step_start(self, state: Any) -> None:
        if not (self.at_end or self.is_taken):
            self.take(state)

    def on_action_end(self, state: Any) -> None:
        if self.at_end:
            self.take(state)

    def take(self, state: Any) -> None:
        modules = {"Wide": wide_of(state).state_dict()}
        made = nemo.NeuralModuleFactory.get_default_factory()
        assert made is not None
        self.state = deepcopy(made._comm.whole({**modules, "optimizer": state.optimizers[0].state_dict()["state"]}))
        self.is_taken = True


def run(folder: Path, end: int, at_end: bool, made: Any = None, optimizer: str = "adam") -> Any:
    """To a step, from the checkpoint in the folder if there is one; what was taken."""
    saving = {"step_freq": 100, "allow_world_size_change": True}
    how: dict[str, Any] = {"data": DrawingPoints(n=24), "net": Wide(), "optimizer": optimizer, "saving": saving}
    taken = Taken(at_end)
    train(folder, end, made=made, callbacks=[taken], **how)
    return taken.state


@contextmanager
def gathering() -> Iterator[list[tuple[int, ...]]]:
    """Inside, the shapes of what is made or read whole while a checkpoint is saved or loaded, though it is divided."""
    from torch.distributed.tensor import DTensor

    from nemo_lite.backends.pytorch.engine.checkpoints import Checkpoints

    shapes: list[tuple[int, ...]] = []
    read_whole = StoredTensors.read

    def read(stored: StoredTensors, name: str) -> torch.Tensor:
        if stored.outlines[name].is_floating_point():  # generators are whole
            shapes.append(tuple(stored.outlines[name].shape))
        return read_whole(stored, name)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("save", "load"):
            patch.setattr(Checkpoints, name, noting(getattr(Checkpoints, name), DTensor, shapes))
        patch.setattr(StoredTensors, "read", read)
        yield shapes


def noting(method: Any, tensors: Any, shapes: list[tuple[int, ...]]) -> Any:
    whole = tensors.full_tensor

    def full_tensor(tensor: Any, **how: Any) -> Any:
        shapes.append(tuple(tensor.shape))
        return whole(tensor, **how)

    def noted(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tensors, "full_tensor", full_tensor)
            return method(*args, **kwargs)

    return noted


def on_two(folder: Path) -> dict[str, Any]:
    """Two ranks save in parts, go on, and go on from what one rank saved whole."""
    made = factory(shard_weights=True)
    found: dict[str, Any] = {}
    for optimizer in ("adam", "novograd", "sgd"):
        with gathering() as shapes:
            found[f"saved {optimizer}"] = run(folder / optimizer, 3, True, made, optimizer)
            found[f"restored {optimizer}"] = run(folder / optimizer, 4, False, made, optimizer)
        found[f"gathered {optimizer}"] = shapes
    for optimizer in ("adam", "sgd"):
        with gathering() as shapes:
            found[f"of one {optimizer}"] = run(folder / f"one {optimizer}", 4, False, made, optimizer)
        found[f"gathered of one {optimizer}"] = shapes
    return found


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Any]:
    folder = tmp_path_factory.mktemp("two")
    of_one = {optimizer: run(folder / f"one {optimizer}", 3, True, None, optimizer) for optimizer in ("adam", "sgd")}
    return folder, results_of(2, on_two, folder), of_one


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "novograd"])
def test_parts_hold_the_weights_and_states_bit_by_bit_and_no_rank_holds_all(two: Any, optimizer: str) -> None:
    folder, (first, second), _ = two
    saved = first[f"saved {optimizer}"]
    assert second[f"saved {optimizer}"] is None
    # NovoGrad keeps one number for each weight, which every rank has.
    assert {*first[f"gathered {optimizer}"], *second[f"gathered {optimizer}"]} <= {()}
    checkpoint = CheckpointFolder(folder / optimizer).newest("STEP-3")
    names = {f"{stem}-STEP-3.part-{number}-of-2.safetensors" for stem in ("Wide", "trainer") for number in (1, 2)}
    assert checkpoint.files.keys() == names == {path.name for path in checkpoint.path.iterdir()} - {"record.json"}
    assert equal(read_checkpoint(folder / optimizer, "STEP-3").weights["Wide"], saved["Wide"])
    trainer = checkpoint.path_of("trainer")
    assert trainer is not None
    assert equal(load_training_state(trainer)["optimizers"][0]["state"], saved["optimizer"])
    assert equal(first[f"restored {optimizer}"], saved)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("on_device", [False, True])
def test_one_rank_goes_on_from_the_parts_of_two_and_two_from_what_one_saved(
    two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, on_device: bool
) -> None:
    folder, (first, _), of_one = two
    assert equal(first[f"of one {optimizer}"], of_one[optimizer])
    assert {*first[f"gathered of one {optimizer}"]} <= {()}, "each rank read its slices only"
    copy = tmp_path / "copy"
    copy.mkdir()
    copytree(folder / optimizer / "checkpoint-STEP-3", copy / "checkpoint-STEP-3")
    if on_device:
        use_device_verdict(monkeypatch)
    assert equal(run(copy, 4, False, None, optimizer), first[f"saved {optimizer}"])
    net = Wide()
    net.restore_from(copy / "Wide-STEP-3.pt")  # as a script of NeMo's names it
    assert equal(net.state_dict(), first[f"saved {optimizer}"]["Wide"])
    (path,) = nemo.utils.helpers.get_checkpoint_from_dir("Wide", copy, "STEP-3")
    assert Path(path).name == "Wide-STEP-3.part-1-of-2.safetensors"


def test_a_damaged_or_missing_part_is_named_and_the_checkpoint_before_is_taken(
    two: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = two[0] / "novograd"
    part = folder / "checkpoint-STEP-4" / "trainer-STEP-4.part-2-of-2.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    assert read_checkpoint(folder).step == 3
    assert "trainer-STEP-4.part-2-of-2.safetensors has changed (SHA-256 differs)" in caplog.text
    part.unlink()
    assert read_checkpoint(folder).step == 3
    assert "lacks trainer-STEP-4.part-2-of-2.safetensors" in caplog.text


# What one rank cannot write


def failing(folder: Path, what: str) -> None:
    """Rank 1 fails while STEP-4 is saved; STEP-2 is there."""
    from nemo_lite.backends.pytorch.checkpoint import saving

    made = factory(shard_weights=True)
    if what in ("in background", "killed"):
        saving.SMALL_BYTES = 0
    fsync = os.fsync

    def full(file: int) -> None:
        if "STEP-4" in os.readlink(f"/proc/self/fd/{file}"):
            if what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    class Breaks(nemo.NeMoCallback):
        def on_step_end(self, state: Any) -> None:
            if state.step == 3 and os.environ["RANK"] == "1":
                if what == "NaN":
                    for weight in wide_of(state).parameters():
                        own = piece_of(weight)
                        (own.tensor if isinstance(own, TensorPiece) else own).fill_(float("nan"))
                else:
                    os.fsync = full

    train(folder, 9, made=made, data=DrawingPoints(n=24), net=Wide(), callbacks=[Breaks()], saving={"step_freq": 2})


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("at once", "rank 1: {}/checkpoint-STEP-4: the disk is full; free some space"),
        ("in background", "rank 1: {}/checkpoint-STEP-4: the disk is full; free some space"),
        ("NaN", "rank 1: Wide: weights that are not finite are not saved"),
    ],
)
def test_where_one_rank_fails_nothing_is_saved_and_all_end_with_its_number(
    tmp_path: Path, what: str, problem: str
) -> None:
    ends = on_ranks(2, failing, tmp_path, what)
    assert [end.code for end in ends] == [2, 2], ends[0].err + ends[1].err
    assert problem.format(tmp_path) in ends[0].err + ends[1].err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint-STEP-2"]
    assert CheckpointFolder(tmp_path).newest().step == 2


@pytest.mark.long
def test_a_rank_that_is_killed_while_it_writes_its_part_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    ends = on_ranks(2, failing, tmp_path, "killed")
    assert [end.code for end in ends] == [3, -signal.SIGKILL]
    assert "is gone: its process has ended" in ends[0].err
    saving = {"step_freq": 2, "allow_world_size_change": True}
    rest = train(tmp_path, 4, data=DrawingPoints(n=24), net=Wide(), saving=saving)
    assert [step for step, _, _ in rest.steps] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint-STEP-2", "checkpoint-STEP-4"]


def on_own_disks(folders: list[str], end: int) -> list[float]:
    """Train to a step; each rank has a folder of its own, as machines without a shared disk have."""
    made = rank_factory()
    folder = folders[made.global_rank or 0]
    weights = train_net(made, Net(name="net"), Points(), [nemo.CheckpointCallback(folder, step_freq=2)], max_steps=end)
    return weights["fc.bias"]


@pytest.mark.long
def test_a_run_whose_rank_0_moved_to_another_machine_is_refused_with_host_and_folder(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("m0", "m1")]
    results_of(2, on_own_disks, folders, 4)
    finished = on_ranks(2, on_own_disks, folders[::-1], 6)
    for rank in finished:
        assert rank.code == 2, rank.err
        place = rf"\S+:{folders[0]}: another machine has a newer checkpoint than that of rank 0, from which the run"
        assert re.search(rf"{place} would go on: got step 4 there, none in \S+:{folders[1]}; start rank 0", rank.err)
    assert not list(tmp_path.glob("m1/checkpoint-*"))
    results_of(2, on_own_disks, folders, 6)
    results_of(2, on_own_disks, [folders[0]] * 2, 8)  # one folder for both
    assert CheckpointFolder(folders[0]).newest_step() == 8


def test_the_newest_step_of_nemos_files_of_damaged_sets_and_of_no_folder(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none").newest_step() is None
    assert CheckpointFolder(tmp_path).newest_step() is None
    for step in (90, 100):
        (tmp_path / f"JasperEncoder-STEP-{step}.pt").touch()
    assert CheckpointFolder(tmp_path).newest_step() == 100
    folder = tmp_path / "checkpoint-STEP-4"
    folder.mkdir()
    (folder / "record.json").write_text("{")
    assert CheckpointFolder(tmp_path).newest_step() == 100
