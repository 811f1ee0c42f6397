"""Checkpoint folders: the newest complete set, retention, kills, NeMo's folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint import CheckpointFolder, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint import folder as checkpoint
from nemo_lite.core.action_state import Best
from nemo_lite.errors import CheckpointError, UsageError


def filled(value):
    module = nn.Linear(2, 2)
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module


def save(folder, number, *, kind="STEP", keep=9, value=None, names=("E", "D")):
    value = number if value is None else value
    modules = {name: filled(value) for name in names}
    return folder.save(modules, {"step": number, "value": value}, kind=kind, number=number, keep=keep)


def restored(folder, names=("E", "D"), **kwargs):
    modules = {name: filled(-1.0) for name in names}
    contents = folder.read(modules, **kwargs)
    contents.fill(modules)
    values = {float(value) for module in modules.values() for p in module.parameters() for value in p.detach().unique()}
    assert len(values) == 1, "all tensors from one set"
    return values.pop(), contents.state


def names_in(path):
    return sorted(file.name for file in path.iterdir())


def test_a_set_has_nemos_names_and_an_index_and_nothing_else(tmp_path):
    save(CheckpointFolder(tmp_path), 10)
    save(CheckpointFolder(tmp_path), 2, kind="EPOCH")
    assert names_in(tmp_path) == sorted(
        f"{name}-{tag}.{suffix}"
        for tag in ("STEP-10", "EPOCH-2")
        for name, suffix in (
            ("E", "safetensors"),
            ("D", "safetensors"),
            ("trainer", "safetensors"),
            ("checkpoint", "json"),
        )
    )
    index = json.loads((tmp_path / "checkpoint-STEP-10.json").read_text(encoding="utf-8"))
    assert index["files"] == {
        name: (tmp_path / name).stat().st_size for name in names_in(tmp_path) if name.endswith("STEP-10.safetensors")
    }


def test_the_newest_set_is_restored_with_its_state(tmp_path):
    folder = CheckpointFolder(tmp_path / "made" / "on_demand")
    for number in (9, 10):
        save(folder, number)
    assert folder.latest().tag == "STEP-10"
    assert sorted(folder.latest().modules) == ["D", "E"]
    assert restored(CheckpointFolder(folder.folder)) == (10.0, {"step": 10, "value": 10})


def test_the_set_saved_last_is_the_newest_whatever_its_number(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 100)
    save(folder, 7)
    save(folder, 1, kind="EPOCH")
    assert [found.tag for found in folder.sets()] == ["STEP-100", "STEP-7", "EPOCH-1"]
    assert folder.latest().tag == "EPOCH-1"
    assert folder.latest("STEP").tag == "STEP-7"
    assert restored(folder, pattern="STEP-100")[0] == 100.0


def test_a_set_without_a_state_restores_none(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save({"E": filled(3.0)}, None, kind="STEP", number=1, keep=1)
    assert restored(folder, ("E",)) == (3.0, None)


def test_a_part_of_a_set_can_be_restored(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 4)
    assert restored(folder, ("D",))[0] == 4.0


@pytest.mark.parametrize("missing", ["checkpoint-STEP-20.json", "D-STEP-20.safetensors", "trainer-STEP-20.safetensors"])
def test_a_set_that_lacks_a_file_does_not_count(tmp_path, missing):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    save(folder, 20)
    (tmp_path / missing).unlink()
    assert restored(folder)[0] == 10.0


def test_a_set_with_a_torn_file_does_not_count(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    save(folder, 20)
    torn = tmp_path / "E-STEP-20.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    assert folder.latest().number == 10
    (tmp_path / "E-STEP-10.safetensors").unlink()
    message = r"no complete checkpoint: got STEP-\d+ lacks E-STEP-\d+\.safetensors; STEP-\d+ lacks E-STEP"
    with pytest.raises(CheckpointError, match=message):
        restored(folder)


def test_files_without_their_index_are_not_restored(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    (tmp_path / "checkpoint-STEP-10.json").unlink()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint: got STEP-10 lacks checkpoint-STEP-10\.json"):
        restored(folder)


def test_an_empty_or_missing_folder_is_an_error(tmp_path):
    with pytest.raises(
        CheckpointError, match="no checkpoint files for E, D of the same step: got checkpoints of no module"
    ):
        restored(CheckpointFolder(tmp_path))
    with pytest.raises(CheckpointError, match="gone: no such folder"):
        restored(CheckpointFolder(tmp_path / "gone"))
    assert CheckpointFolder(tmp_path / "gone").latest() is None


def test_a_module_that_was_not_saved_is_named_with_the_nearest(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 4, names=("JasperEncoder",))
    message = r"checkpoint STEP-4 has no JasperEncodr \(did you mean JasperEncoder\?\): got JasperEncoder"
    with pytest.raises(CheckpointError, match=message):
        restored(folder, ("JasperEncodr",))


def test_either_every_module_is_filled_or_none(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 4)
    fits, too_wide, other = filled(-1.0), nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="does not fit Linear") as caught:
        folder.read({"E": fits, "D": too_wide})
    assert fits.weight.mean().item() == -1.0
    with pytest.raises(CheckpointError) as caught:
        folder.read({"E": other, "D": too_wide})
    assert str(caught.value).count("STEP-4.safetensors: ") == 2


def test_only_the_last_sets_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for number in range(1, 6):
        save(folder, number, keep=2)
    assert [found.number for found in folder.sets()] == [4, 5]
    assert len(names_in(tmp_path)) == 8


def test_a_run_that_goes_on_counts_the_sets_before_it(tmp_path):
    for number in (1, 2, 3):
        save(CheckpointFolder(tmp_path), number, keep=2)
    assert [found.number for found in CheckpointFolder(tmp_path).sets()] == [2, 3]


def test_files_that_no_index_lists_are_not_deleted(tmp_path):
    others = ["E-STEP-1.pt", "X-STEP-1.safetensors", "notes.txt", "checkpoint-STEP-7.json"]
    for name in others:
        (tmp_path / name).touch()
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2, 3):
        save(folder, number, keep=1)
    assert [found.number for found in folder.sets()] == [3]
    assert set(others) < set(names_in(tmp_path))


def test_a_set_that_lacks_a_file_does_not_take_the_place_of_a_complete_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    save(folder, 2)
    (tmp_path / "E-STEP-2.safetensors").unlink()
    save(folder, 3, keep=2)
    assert [found.number for found in folder.sets()] == [1, 3]


def test_a_set_written_again_with_other_modules_leaves_no_stray_files(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    save(folder, 1, names=("E", "F"))
    assert {"E-STEP-1.safetensors", "F-STEP-1.safetensors"} < set(names_in(tmp_path))
    assert "D-STEP-1.safetensors" not in names_in(tmp_path)


def test_a_folder_is_empty_until_something_can_be_restored(tmp_path):
    folder = CheckpointFolder(tmp_path / "new")
    assert folder.is_empty()
    save(folder, 1)
    assert not folder.is_empty()
    (tmp_path / "E-STEP-1.pt").touch()
    assert not CheckpointFolder(tmp_path).is_empty()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("encoder", "Encoder"), '"Encoder" and "encoder" would be one file'),
        (("trainer",), '"trainer" and "trainer" would be one file'),
        (("a/b",), "'a/b' cannot be a file name"),
        (("",), "'' cannot be a file name"),
    ],
)
def test_names_that_cannot_be_files_are_refused_before_anything_is_written(tmp_path, names, message):
    with pytest.raises(UsageError, match=message):
        save(CheckpointFolder(tmp_path), 1, names=names)
    assert names_in(tmp_path) == []


def test_a_number_or_keep_out_of_range_is_refused(tmp_path):
    with pytest.raises(UsageError, match="got kind STEP, number 1, keep 0, wanted kind STEP or EPOCH, number from 0"):
        save(CheckpointFolder(tmp_path), 1, keep=0)


def test_a_failed_save_leaves_the_folder_as_it_was(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, keep=1)
    before = names_in(tmp_path)
    with pytest.raises(CheckpointError, match=r"state\.x cannot be stored"):
        folder.save({"E": filled(2.0)}, {"x": object()}, kind="STEP", number=2, keep=1)
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("stage", ["before the index", "after the index", "after the first file"])
def test_a_set_written_again_is_whole_wherever_the_process_ends(tmp_path, monkeypatch, stage):
    save(CheckpointFolder(tmp_path), 5, value=1.0, keep=1)
    commit, replace, moved = CheckpointFolder._commit, os.replace, []

    def ending_commit(self, *args, **notes):
        if stage == "after the index":
            commit(self, *args, **notes)
        raise SystemExit

    def ending_replace(source, target):
        if Path(target).parent == tmp_path and Path(source).parent.suffix == ".staged":
            if moved:
                raise SystemExit
            moved.append(target)
        replace(source, target)

    with monkeypatch.context() as patched:
        # A process that is killed removes nothing.
        patched.setattr(checkpoint, "shutil", SimpleNamespace(rmtree=lambda path, **kwargs: None))
        if stage == "after the first file":
            patched.setattr(os, "replace", ending_replace)
        else:
            patched.setattr(CheckpointFolder, "_commit", ending_commit)
        with pytest.raises(SystemExit):
            save(CheckpointFolder(tmp_path), 5, value=2.0, keep=1)
    assert len(moved) == (stage == "after the first file")
    expected = 1.0 if stage == "before the index" else 2.0
    assert restored(CheckpointFolder(tmp_path)) == (expected, {"step": 5, "value": expected})
    # The process of this test goes on, but the one that it plays has ended.
    monkeypatch.setattr(checkpoint, "is_abandoned", lambda path, suffix: path.suffix == f".{suffix}")
    save(CheckpointFolder(tmp_path), 6)
    assert restored(CheckpointFolder(tmp_path), pattern="STEP-5")[0] == expected
    assert [name for name in names_in(tmp_path) if name.startswith(".")] == []


def test_an_index_of_others_is_neither_read_nor_obeyed(tmp_path):
    folder = CheckpointFolder(tmp_path / "c")
    save(folder, 1)
    (tmp_path / "precious-STEP-9.pt").touch()
    index = json.loads((tmp_path / "c" / "checkpoint-STEP-1.json").read_text(encoding="utf-8"))
    for changes in ({"files": {"../precious-STEP-9.pt": 0}}, {"staged_in": "../c"}, {"version": "x"}, {"number": "x"}):
        changed = index | {"number": 9, "serial": 99} | changes
        (tmp_path / "c" / "checkpoint-STEP-9.json").write_text(json.dumps(changed), encoding="utf-8")
        assert folder.latest().number == 1
    (tmp_path / "c" / "checkpoint-STEP-8.json").write_text("[", encoding="utf-8")
    assert folder.latest().number == 1


def test_a_folder_of_nemo_is_restored_by_exact_names(tmp_path):
    for number in (9, 10):
        torch.save(filled(number).state_dict(), tmp_path / f"JasperEncoder-STEP-{number}.pt")
        torch.save({"step": number}, tmp_path / f"trainer-STEP-{number}.pt")
    torch.save(filled(11).state_dict(), tmp_path / "JasperEncoder2-STEP-11.pt")
    folder = CheckpointFolder(tmp_path)
    assert restored(folder, ("JasperEncoder",)) == (10.0, {"step": 10})
    assert restored(folder, ("JasperEncoder",), pattern="STEP-9")[0] == 9.0
    assert restored(folder, ("JasperEncoder2",)) == (11.0, None)


KILLED = """
import os, random, signal, sys, time, torch
from torch import nn
from nemo_lite.backends.pytorch.checkpoint import CheckpointFolder
torch.set_num_threads(1)

def save_for_ever(number):
    folder = CheckpointFolder(sys.argv[1])
    while True:
        number += 1
        # The odd ones are written again with other values: a set of that number is there when the process ends.
        for value in (number, number + 0.5)[: 1 + number % 2]:
            modules = {"E": filled(value), "D": filled(value)}
            folder.save(modules, {"number": number, "value": value}, kind="STEP", number=number, keep=1)

def filled(value):
    module = nn.Linear(300, 300)
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)
    return module

def check():
    modules = {"E": filled(-1), "D": filled(-1)}
    contents = CheckpointFolder(sys.argv[1]).read(modules)
    contents.fill(modules)
    state = contents.state
    assert all(bool((p == state["value"]).all()) for module in modules.values() for p in module.parameters())
    return state["number"]

rng, number, left_over = random.Random(0), 0, 0
for _ in range(20):
    child = os.fork()
    if not child:
        save_for_ever(number)
    while not os.path.exists(f"{sys.argv[1]}/checkpoint-STEP-{number + 1}.json"):
        time.sleep(0.001)
    time.sleep(rng.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left_over += any(name.startswith(".") for name in os.listdir(sys.argv[1]))
    number = check()
print(number, left_over)
"""


@pytest.fixture
def fast_folder(tmp_path):
    """A kill needs no disk: what a process has written survives it in memory too."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_the_newest_set_is_readable_after_each_of_20_kills(fast_folder):
    done = subprocess.run([sys.executable, "-c", KILLED, str(fast_folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number, left_over = map(int, done.stdout.split())
    assert number >= 20
    assert left_over > 2, "some kills in the middle of a save"
    save(CheckpointFolder(fast_folder), number + 1)
    assert [name for name in names_in(fast_folder) if name.startswith(".")] == []


def test_a_set_is_read_without_its_modules(tmp_path):
    modules = {"E": filled(1.5), "D": filled(2.5)}
    about, rates = {"labels": ["a"], "sample_rate": 16000}, [{"name": "dev", "step": 7, "values": {"wer": 0.5}}]
    folder = CheckpointFolder(tmp_path)
    save(folder, 6)
    state = {"step": 7, "epoch": 2}
    folder.save(modules, state, kind="STEP", number=7, keep=9, about=about, evaluations=rates)
    stored = read_checkpoint(tmp_path)
    assert (stored.name, stored.step, stored.epoch) == (f"{tmp_path}/checkpoint-STEP-7.json", 7, 2)
    assert (stored.about, stored.evaluations) == (about, rates)
    assert {name: sorted(tensors) for name, tensors in stored.weights.items()} == {
        "E": ["bias", "weight"],
        "D": ["bias", "weight"],
    }
    assert stored.weights["D"]["weight"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert read_checkpoint(tmp_path, "STEP-6").step == 6


def test_a_set_without_steps_in_its_index_takes_them_from_its_state(tmp_path):
    saved = save(CheckpointFolder(tmp_path), 6)
    content = json.loads(saved.index_path.read_text(encoding="utf-8"))
    assert content.pop("step") == 6
    saved.index_path.write_text(json.dumps(content), encoding="utf-8")
    assert read_checkpoint(tmp_path).step == 6


def test_a_folder_without_a_set_says_what_it_has(tmp_path):
    with pytest.raises(CheckpointError, match="gone: no such folder; give the folder that holds the checkpoints"):
        read_checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="no complete checkpoint: got none"):
        read_checkpoint(tmp_path)
    save(CheckpointFolder(tmp_path), 6)
    with pytest.raises(CheckpointError, match="no complete checkpoint EPOCH: got STEP-6"):
        read_checkpoint(tmp_path, "EPOCH")
    (tmp_path / "E-STEP-6.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no complete checkpoint: got STEP-6 lacks E-STEP-6\.safetensors"):
        read_checkpoint(tmp_path)


def test_a_stored_checkpoint_of_version_1_stays_readable():
    stored = read_checkpoint(Path(__file__).parents[2] / "data" / "checkpoint_v1")
    assert (stored.step, stored.epoch, stored.about) == (3, 1, {"labels": ["a", "ж"]})
    assert stored.evaluations == [{"name": "dev", "step": 3, "values": {"wer": 0.25}}]
    assert stored.weights["Encoder"]["weight"].tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_the_best_stay_beside_the_newest(tmp_path):
    folder, best = CheckpointFolder(tmp_path), Best("dev", "wer", 2)
    for step, wer in enumerate((0.9, 0.2, 0.5, 0.3, 0.8, 0.7), 1):
        rates = [{"name": "dev", "step": step, "values": {"wer": wer}}]
        is_best = folder.is_among_best(rates[0], best)
        assert is_best == (step in (1, 2, 3, 4))
        modules = {"E": filled(step)}
        folder.save(modules, {"step": step}, kind="STEP", number=step, keep=1, best=best, evaluations=rates)
    assert [found.number for found in folder.sets()] == [2, 4, 6]
    folder.note_evaluation({"name": "dev", "step": 6, "values": {"wer": 0.1}})
    assert folder.latest().evaluations == [{"name": "dev", "step": 6, "values": {"wer": 0.1}}]


def test_a_rate_of_other_weights_makes_no_set_the_best(tmp_path):
    folder, best = CheckpointFolder(tmp_path), Best("dev", "wer", 1)
    for step in (1, 2):
        rates = [{"name": "dev", "step": 0, "values": {"wer": 0.1}}]
        folder.save({"E": filled(0)}, {"step": step}, kind="STEP", number=step, keep=1, best=best, evaluations=rates)
    assert [found.number for found in folder.sets()] == [2]


def test_a_set_in_torchs_files_has_nemos_names_and_is_restored(tmp_path):
    folder, modules = CheckpointFolder(tmp_path), {"E": filled(4), "D": filled(4)}
    folder.save(modules, {"step": 4, "value": 4}, kind="STEP", number=4, keep=9, suffix=".pt")
    assert names_in(tmp_path) == ["D-STEP-4.pt", "E-STEP-4.pt", "checkpoint-STEP-4.json", "trainer-STEP-4.pt"]
    assert torch.load(tmp_path / "E-STEP-4.pt", weights_only=True)["weight"].unique().tolist() == [4.0]
    value, state = restored(folder)
    assert (value, state["step"]) == (4.0, 4)
    save(folder, 4, value=5.0)
    assert "E-STEP-4.pt" not in names_in(tmp_path), "files of the set that was replaced"
    assert restored(folder)[0] == 5.0


def test_modules_of_nemos_folder_may_have_different_steps(tmp_path):
    for name in ("E-STEP-3.pt", "D-STEP-2.pt"):
        torch.save(filled(7.0).state_dict(), tmp_path / name)
    torch.save({"step": 3}, tmp_path / "trainer-STEP-3.pt")
    assert restored(CheckpointFolder(tmp_path)) == (7.0, None)


def test_files_of_nemo_are_named_by_the_class_of_a_module_with_a_name(tmp_path):
    torch.save(filled(7.0).state_dict(), tmp_path / "Linear-STEP-3.pt")
    assert restored(CheckpointFolder(tmp_path), names=("encoder",))[0] == 7.0
    with pytest.raises(CheckpointError, match="no checkpoint files for one, two of the same step"):
        restored(CheckpointFolder(tmp_path), names=("one", "two"))
