"""Checkpoint folders: the newest complete set, retention, kills, NeMo's folders."""

from __future__ import annotations

import errno
import hashlib
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
from toys.lock_holders import held_elsewhere

from nemo_lite.backends.pytorch.checkpoint import folder as checkpoint
from nemo_lite.backends.pytorch.checkpoint import store as commit
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, Chosen, SavePlan, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import ModuleWeights
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.helpers import CheckpointPart
from nemo_lite.core.callbacks.action_state import Best

# Checkpoint folders: the newest complete set, retention, kills, NeMo's folders.


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
    return sorted(file.name for file in path.iterdir() if file.name != ".lock")


def test_a_set_is_a_folder_of_files_with_nemos_names_and_a_record_of_their_digests(tmp_path):
    save(CheckpointFolder(tmp_path), 10)
    save(CheckpointFolder(tmp_path), 2, kind="EPOCH")
    assert names_in(tmp_path) == ["checkpoint-EPOCH-2", "checkpoint-STEP-10"]
    files = [f"{name}-STEP-10.safetensors" for name in ("D", "E", "trainer")]
    made = tmp_path / "checkpoint-STEP-10"
    assert names_in(made) == sorted([*files, "record.json"])
    record = json.loads((made / "record.json").read_text(encoding="utf-8"))
    digests = {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in files}
    assert record["files"] == {
        name: {"bytes": (made / name).stat().st_size, "sha256": digests[name]} for name in record["files"]
    }
    assert record["files"].keys() == digests.keys()
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {made.stat().st_mode & 0o666}


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
    assert folder.newest("STEP").tag == "STEP-7"
    assert restored(folder, pattern="STEP-100")[0] == 100.0


def test_a_set_without_a_state_restores_none(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save({"E": filled(3.0)}, None, kind="STEP", number=1, keep=1)
    assert restored(folder, ("E",)) == (3.0, None)


def test_a_part_of_a_set_can_be_restored(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 4)
    assert restored(folder, ("D",))[0] == 4.0


def damage(path, kind):
    content = path.read_bytes()
    if kind == "gone":
        path.unlink()
    elif kind == "torn":
        path.write_bytes(content[:-1])
    else:  # one bit in the middle: of the header or of the weights
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("kind", ["gone", "torn", "one bit"])
@pytest.mark.parametrize("name", ["record.json", "D-STEP-20.safetensors", "trainer-STEP-20.safetensors"])
def test_a_damaged_set_is_named_and_the_one_before_is_taken(tmp_path, caplog, name, kind):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    save(folder, 20)
    damage(tmp_path / "checkpoint-STEP-20" / name, kind)
    assert restored(folder)[0] == 10.0
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path}/checkpoint-STEP-20 is damaged and not used: ")
    assert told.endswith("; taking checkpoint-STEP-10")
    assert "record" in told if name == "record.json" else name in told


def test_where_every_set_is_damaged_each_is_told_and_nothing_starts_anew(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    save(folder, 20)
    damage(tmp_path / "checkpoint-STEP-20" / "E-STEP-20.safetensors", "torn")
    damage(tmp_path / "checkpoint-STEP-10" / "record.json", "one bit")
    assert not folder.is_empty()
    message = (
        r"every checkpoint is damaged: got checkpoint-STEP-10: the record was changed or damaged .*; "
        r"checkpoint-STEP-20: E-STEP-20\.safetensors has \d+ bytes, \d+ were written; take a copy"
    )
    with pytest.raises(CheckpointError, match=message):
        restored(folder)
    damage(tmp_path / "checkpoint-STEP-10" / "record.json", "gone")
    assert not folder.is_empty()
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: got .*-STEP-10: lacks record\.json"):
        restored(folder)


def test_files_that_no_record_lists_are_not_restored(tmp_path):
    (tmp_path / "E-STEP-10.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"no checkpoint files for E, D of the same step"):
        restored(CheckpointFolder(tmp_path))


@pytest.mark.parametrize("name", ["record.json", "E-STEP-9.safetensors"])
def test_a_damaged_set_keeps_its_place_in_the_order(tmp_path, name):
    folder = CheckpointFolder(tmp_path)
    for number in (7, 8, 9):
        save(folder, number)
    serial = folder.latest().serial
    damage(tmp_path / "checkpoint-STEP-9" / name, "torn")
    assert save(folder, 10).serial == serial + 1


def test_the_folder_of_one_set_is_read_alone(tmp_path):
    for number in (10, 20):
        save(CheckpointFolder(tmp_path), number)
    assert restored(CheckpointFolder(tmp_path / "checkpoint-STEP-10"))[0] == 10.0
    assert read_checkpoint(tmp_path / "checkpoint-STEP-10").step == 10


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
    assert names_in(tmp_path) == ["checkpoint-STEP-4", "checkpoint-STEP-5"]


def test_a_run_that_goes_on_counts_the_sets_before_it(tmp_path):
    for number in (1, 2, 3):
        save(CheckpointFolder(tmp_path), number, keep=2)
    assert [found.number for found in CheckpointFolder(tmp_path).sets()] == [2, 3]


def test_files_that_no_record_lists_are_not_deleted(tmp_path):
    others = ["E-STEP-1.pt", "X-STEP-1.safetensors", "notes.txt", "checkpoint-STEP-7.json"]
    for name in others:
        (tmp_path / name).touch()
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2, 3):
        save(folder, number, keep=1)
        (tmp_path / f"checkpoint-STEP-{number}" / "my notes.txt").touch()
    assert [found.number for found in folder.sets()] == [3]
    assert set(others) < set(names_in(tmp_path))
    assert names_in(tmp_path / "checkpoint-STEP-1") == ["my notes.txt"]


def test_a_set_that_lacks_a_file_does_not_take_the_place_of_a_complete_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    save(folder, 2)
    damage(tmp_path / "checkpoint-STEP-2" / "E-STEP-2.safetensors", "gone")
    save(folder, 3, keep=2)
    assert [found.number for found in folder.sets()] == [1, 3]


def test_a_set_written_again_with_other_modules_leaves_no_stray_files(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    save(folder, 1, names=("E", "F"))
    assert names_in(tmp_path) == ["checkpoint-STEP-1"]
    files = ["E-STEP-1.safetensors", "F-STEP-1.safetensors", "record.json", "trainer-STEP-1.safetensors"]
    assert names_in(tmp_path / "checkpoint-STEP-1") == files


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


@pytest.mark.parametrize("last", range(3))
def test_a_set_written_again_is_whole_wherever_the_process_ends(tmp_path, monkeypatch, last):
    save(CheckpointFolder(tmp_path), 5, value=1.0, keep=1)
    rename, renamed = os.rename, []

    def ending_rename(source, target):
        if len(renamed) == last:
            raise SystemExit
        renamed.append(target)
        rename(source, target)

    with monkeypatch.context() as patched:
        # A process that is killed removes nothing and puts nothing back.
        patched.setattr(commit, "shutil", SimpleNamespace(rmtree=lambda path, **kwargs: None))
        patched.setattr(commit, "_put_back", lambda folder: None)
        patched.setattr(os, "rename", ending_rename)
        if last == 2:  # after both renames: while the old one is deleted
            save(CheckpointFolder(tmp_path), 5, value=2.0, keep=1)
        else:
            with pytest.raises(SystemExit):
                save(CheckpointFolder(tmp_path), 5, value=2.0, keep=1)
    assert len(renamed) == last
    assert any(name.startswith(".") for name in names_in(tmp_path))
    expected = 2.0 if last == 2 else 1.0
    assert restored(CheckpointFolder(tmp_path)) == (expected, {"step": 5, "value": expected})
    save(CheckpointFolder(tmp_path), 6)
    assert restored(CheckpointFolder(tmp_path), pattern="STEP-5")[0] == expected
    assert names_in(tmp_path) == ["checkpoint-STEP-5", "checkpoint-STEP-6"]


def test_nothing_is_deleted_before_the_new_set_was_read_again(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, keep=1)

    def write_and_rot(*args):
        saved = commit.write_set(*args)
        damage(saved.path / "E-STEP-2.safetensors", "one bit")
        return saved

    monkeypatch.setattr(checkpoint, "write_set", write_and_rot)
    with pytest.raises(CheckpointError, match=r"STEP-2: .* not stored as it was written: E-STEP-2\.safetensors"):
        save(folder, 2, keep=1)
    assert restored(folder)[0] == 1.0


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
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
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

def newest():
    names = [name for name in os.listdir(sys.argv[1]) if name.startswith("checkpoint-STEP-")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)

rng, number, left_over = random.Random(0), 0, 0
for _ in range(20):
    child = os.fork()
    if not child:
        save_for_ever(number)
    # Any newer one: on a busy machine the next one may be deleted before it is seen.
    while newest() <= number:
        time.sleep(0.001)
    time.sleep(rng.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left_over += any(name.startswith(".checkpoint") for name in os.listdir(sys.argv[1]))
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


@pytest.mark.long
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
    assert (stored.name, stored.step, stored.epoch) == (f"{tmp_path}/checkpoint-STEP-7", 7, 2)
    assert (stored.about, stored.evaluations) == (about, rates)
    assert {name: sorted(tensors) for name, tensors in stored.weights.items()} == {
        "E": ["bias", "weight"],
        "D": ["bias", "weight"],
    }
    assert stored.weights["D"]["weight"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert read_checkpoint(tmp_path, "STEP-6").step == 6


def test_a_folder_without_a_set_says_what_it_has(tmp_path):
    with pytest.raises(CheckpointError, match="gone: no such folder; give the folder that holds the checkpoints"):
        read_checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="no complete checkpoint: got none"):
        read_checkpoint(tmp_path)
    save(CheckpointFolder(tmp_path), 6)
    with pytest.raises(CheckpointError, match="no complete checkpoint EPOCH: got STEP-6"):
        read_checkpoint(tmp_path, "EPOCH")
    damage(tmp_path / "checkpoint-STEP-6" / "E-STEP-6.safetensors", "gone")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: got .*: lacks E-STEP-6\.safetensors"):
        read_checkpoint(tmp_path)


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
    assert names_in(tmp_path) == ["D-STEP-4.pt", "E-STEP-4.pt", "checkpoint-STEP-4", "trainer-STEP-4.pt"]
    assert torch.load(tmp_path / "E-STEP-4.pt", weights_only=True)["weight"].unique().tolist() == [4.0]
    value, state = restored(folder)
    assert (value, state["step"]) == (4.0, 4)
    save(folder, 4, value=5.0)
    assert restored(folder)[0] == 5.0
    folder.save(modules, None, kind="STEP", number=5, keep=1, suffix=".pt")
    assert names_in(tmp_path) == ["D-STEP-5.pt", "E-STEP-5.pt", "checkpoint-STEP-5"], "no links to what is gone"


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


def test_a_folder_that_is_open_in_another_process_is_not_changed(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    with held_elsewhere(CheckpointFolder(tmp_path).open) as child:
        refused = f"another process saves checkpoints in this folder: got process {child} on "
        with pytest.raises(UsageError, match=refused):
            save(folder, 2)
        with pytest.raises(UsageError, match=refused):
            folder.note_evaluation({"name": "dev", "step": 1, "values": {}})
        assert restored(folder)[0] == 1.0, "reading needs no lock"
    save(folder, 2)


def test_what_cannot_be_stored_is_told_before_anything_is_written(tmp_path):
    folder = CheckpointFolder(tmp_path / "new")
    with pytest.raises(UsageError, match="cannot be stored as JSON"):
        folder.prepare({"E": filled(1)}, None, SavePlan("STEP", 1, 1, about={"x": object()}))
    assert not folder.folder.exists()


def test_a_folder_that_is_held_is_not_swept_at_each_save(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.open()
    staged = commit.stage(tmp_path / "checkpoint-STEP-7")  # into which other processes write
    (staged / "part").write_text("theirs")
    save(folder, 6)
    assert (staged / "part").read_text() == "theirs"
    folder.close()
    CheckpointFolder(tmp_path).open()
    assert not staged.exists()


READINGS = {
    "newest": lambda folder: folder.newest(),
    "choose": lambda folder: folder.choose({"E": filled(0.0)}),
    "sets": lambda folder: folder.sets(),
    "is_empty": lambda folder: folder.is_empty(),
    "read_checkpoint": lambda folder: read_checkpoint(folder.folder),
    "save": lambda folder: save(folder, 1),
}


@pytest.mark.parametrize("reading", READINGS)
def test_a_folder_that_the_disk_does_not_list_is_one_line_with_its_place(reading, tmp_path, monkeypatch):
    def fail(path="."):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, "listdir", fail)
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(UsageError, match=rf'^{tmp_path}: .*got "Input/output error".*') as caught:
        READINGS[reading](CheckpointFolder(tmp_path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


# The files of a set: their names, whole and in parts, and what is read from those that were chosen.


def test_the_names_of_files_say_which_part_they_are() -> None:
    weights = {"E": ModuleWeights("E", {})}
    assert [*SavePlan("STEP", 5, 1, suffix=".pt").writers(weights, {})] == ["E-STEP-5.pt", "trainer-STEP-5.pt"]
    in_parts = SavePlan("EPOCH", 5, 1).writers(weights, {}, CheckpointPart(2, 4))
    assert [*in_parts] == ["E-EPOCH-5.part-2-of-4.safetensors", "trainer-EPOCH-5.part-2-of-4.safetensors"]


def test_what_was_chosen_travels_as_plain_values_and_all_misfits_are_told_at_once(tmp_path: Path) -> None:
    modules = {"a": nn.Linear(2, 1), "b": nn.Linear(3, 1)}
    CheckpointFolder(tmp_path).save(modules, {"step": 1}, kind="STEP", number=1, keep=1, contract={"x": 1})
    chosen = Chosen(*tuple(CheckpointFolder(tmp_path).choose(modules)))
    assert all(type(path) is str for path in chosen.files.values())
    found = chosen.read(modules)
    assert (found.state, found.contract) == ({"step": 1}, {"x": 1})
    assert torch.equal(found.weights["b"]["weight"], modules["b"].weight)
    with pytest.raises(CheckpointError, match=r"a-STEP-1(?s:.*)b-STEP-1"):
        chosen.read({"a": nn.Linear(5, 1), "b": nn.Linear(5, 1)})
