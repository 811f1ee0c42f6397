"""The store of checkpoints: records, commits, the lock, flat sets of version 1, reports of ranks."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import shutil
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toys.fake_comm import FakeComm
from toys.lock_holders import held_elsewhere

from nemo_lite.backends.pytorch.checkpoint import store as commit
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.storage import Weights
from nemo_lite.backends.pytorch.checkpoint.store import (
    CheckpointSet,
    FolderLock,
    StoredFile,
    delete_set,
    files_of_others,
    folders_of_sets,
    link_to_files,
    on_every_rank,
    read_index,
    read_record,
    report_of,
    score_in,
    sweep,
    told_with,
    with_digest,
    write_set,
)
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.callbacks.action_state import Best

# Records of checkpoints: what they say, that any change is noticed, what is refused.


NAME = "E-STEP-5.safetensors"
RATES = [{"name": "dev-clean", "step": 5, "values": {"wer": 0.25}}]


def described(folder):
    files = {NAME: StoredFile(folder / NAME, 3, hashlib.sha256(b"abc").hexdigest())}
    about, contract = {"labels": ["a", "ж"]}, {"arguments": {"lr": 1e22}}
    return CheckpointSet(folder, "STEP", 5, 1, files, about, RATES, 5, 1, contract)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "checkpoint-STEP-5"
    made.mkdir()
    (made / NAME).write_bytes(b"abc")
    (made / "record.json").write_text(described(made).record_text(), encoding="utf-8")
    return made


def rewritten(folder, **changes):
    """The record with other content, and the digest of that."""
    content = json.loads((folder / "record.json").read_text(encoding="utf-8")) | changes
    del content["sha256"]
    (folder / "record.json").write_text(with_digest(content), encoding="utf-8")
    return folder


def test_a_record_says_what_was_put_in(folder):
    found = read_record(folder)
    assert found == described(folder)
    assert (found.tag, found.modules, found.path_of("E")) == ("STEP-5", ["E"], folder / NAME)
    assert found.problem(contents=True) == ""


@pytest.mark.slow
def test_every_flipped_bit_and_every_shortening_of_a_record_is_noticed(folder):
    path = folder / "record.json"
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in (*flipped, *(whole[:end] for end in range(0, len(whole), 7)), whole + b" ", whole * 2):
        path.write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=r"record\.json(:\d+)?: the record (was changed|cannot be read|is not UTF-8)"
        ):
            read_record(folder)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), f"lacks {NAME}"),
        (lambda path: path.write_bytes(b"ab"), f"{NAME} has 2 bytes, 3 were written"),
        (lambda path: path.write_bytes(b"abb"), f"{NAME} is not what was written (SHA-256 differs)"),
        (lambda path: (path.unlink(), os.mkfifo(path)), f"{NAME} is no file"),
        (lambda path: (path.unlink(), path.mkdir()), f"{NAME} is no file"),
        (lambda path: (path.unlink(), path.symlink_to(path)), f"{NAME} cannot be read (Too many levels"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_named(folder, damage, problem):
    damage(folder / NAME)
    assert read_record(folder).problem(contents=True).startswith(problem)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"files": {f"../{NAME}": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {"E-STEP-6.safetensors": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {"E-STEP-5.py/../x-STEP-5.pt": {"bytes": 3, "sha256": "0" * 64}}},
        {"files": {NAME: {"bytes": 3.0, "sha256": "0" * 64}}},
        {"files": {NAME: {"bytes": 3, "sha256": ""}}},
        {"files": {NAME: 3}},
        {"files": [NAME]},
        {"number": 6},
        {"number": -5},
        {"serial": 2**64},
        {"serial": "1"},
        {"kind": "RUN"},
        {"step": True},
        {"about": [1]},
        {"evaluations": "x"},
    ],
)
def test_a_record_whose_digest_is_right_but_whose_content_is_not_is_refused(folder, changes):
    with pytest.raises(CheckpointError, match=r"the record is not one of a checkpoint: got "):
        read_record(rewritten(folder, **changes))


def test_a_record_in_the_folder_of_another_checkpoint_is_refused(folder):
    moved = folder.rename(folder.with_name("checkpoint-STEP-50"))
    with pytest.raises(CheckpointError, match=r"STEP-50/record\.json: the record is of another checkpoint: got STEP-5"):
        read_record(moved)
    assert read_record(moved.rename(folder.with_name("my copy"))).tag == "STEP-5"


def test_a_record_of_a_later_version_is_an_error_that_says_so(folder):
    with pytest.raises(CheckpointError, match=r"record\.json: this .* by a later nemo_lite: got version 4"):
        read_record(rewritten(folder, version=4))


@pytest.mark.parametrize(
    ("damage", "problem"), [("[" * 100_000, "nested 100000 levels"), (None, "the record is a pipe")]
)
def test_a_record_that_is_nested_without_end_or_no_file_is_refused(folder, damage, problem):
    (folder / "record.json").unlink()
    (folder / "record.json").write_text(damage) if damage else os.mkfifo(folder / "record.json")
    with pytest.raises(CheckpointError, match=problem):
        read_record(folder)


@pytest.mark.parametrize("about", [{"a": object()}, {"a": float("nan")}])
def test_what_json_cannot_hold_is_named(folder, about):
    with pytest.raises(UsageError, match=r"STEP-5: what is said about a checkpoint cannot be stored as JSON: got "):
        dataclasses.replace(described(folder), about=about).record_text()


def test_a_result_that_is_infinite_or_nan_is_null_in_a_record_and_no_best(folder):
    values = {"loss": math.inf, "wer": math.nan, "cer": np.float64(-np.inf), "top": (0.5, math.nan), "note": "inf"}
    results = [{"name": "dev", "step": 5, "values": values}]
    made = dataclasses.replace(described(folder), evaluations=results)
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    (found,) = read_record(folder).evaluations
    assert found["values"] == {"loss": None, "wer": None, "cer": None, "top": [0.5, None], "note": "inf"}
    for evaluations in (results, [found]):
        assert [score_in(evaluations, 5, Best("dev", tag, 1)) for tag in values] == [None] * 5
        assert score_in(evaluations, 5, Best("dev", "loss", 1, highest=True)) is None


def test_names_that_are_no_utf_8_are_kept_in_a_record(folder):
    name = os.fsdecode(b"tr\xff.py")
    contract = {"code": {name: "0123"}, "data": {"manifest": f"/d\udcfe/{name}"}}
    made = dataclasses.replace(described(folder), contract=contract, about={"from": name, "d": "\ud83d\ude00"})
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    found = read_record(folder)
    assert (found.contract, found.about) == (contract, {"from": name, "d": "\U0001f600"})


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["part-1-of-2"], "1 files of E, which is in 2 parts"),
        (["part-1-of-2", "part-2-of-2", "part-1-of-3"], "3 files of E"),
        (["part-1-of-2", "part-2-of-2", None], "3 files of E"),
    ],
)
def test_a_record_lists_each_part_of_a_file_and_nothing_else_of_its_module(folder, names, problem):
    parts = [f"E-STEP-5.{name}.safetensors" if name else NAME for name in ("part-1-of-2", "part-2-of-2")]
    made = dataclasses.replace(described(folder), files=dict.fromkeys(parts, StoredFile(folder, 3, "0" * 64)))
    (folder / "record.json").write_text(made.record_text(), encoding="utf-8")
    found = read_record(folder)
    assert (found.modules, found.path_of("E")) == (["E"], folder / parts[0])
    listed = {f"E-STEP-5.{name}.safetensors" if name else NAME: {"bytes": 3, "sha256": "0" * 64} for name in names}
    with pytest.raises(CheckpointError, match=problem):
        read_record(rewritten(folder, files=listed))


def test_only_a_record_with_parts_needs_a_version_that_knows_them(folder):
    assert json.loads(described(folder).record_text())["version"] == 2
    files = {"E-STEP-5.part-1-of-1.safetensors": StoredFile(folder, 3, "0" * 64)}
    assert json.loads(dataclasses.replace(described(folder), files=files).record_text())["version"] == 3


# How a checkpoint's folder is made, replaced and deleted; what is left when a step of it fails.


def made(folder, text="new"):
    wanted = CheckpointSet(folder / "checkpoint-STEP-5", "STEP", 5, 1, {})

    def write(file):
        file.write(text.encode())

    return write_set(wanted, {NAME: write})


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def failing(function, number, error):
    """The function, but its ``number``-th call fails."""
    calls = iter(range(number + 1))

    def call(*args, **kwargs):
        if next(calls, None) == number:
            raise error
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("name", "number"),
    [("mkdir", 0), ("rename", 0), ("rename", 1), *[("fsync", number) for number in range(4)]],
)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EIO, r'checkpoint-STEP-5: cannot be written: got "Input/output error" \(EIO\); choose another folder'),
        (errno.ENOSPC, r"checkpoint-STEP-5: the disk is full; free some space; .* changed \(ENOSPC\)"),
    ],
)
def test_a_step_of_a_save_that_fails_is_told_with_its_path_and_number_and_the_old_set_stays(
    tmp_path, monkeypatch, name, number, code, told
):
    made(tmp_path, "old")
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing(getattr(os, name), number, OSError(code, os.strerror(code))))
        with pytest.raises(UsageError, match=told):
            made(tmp_path)
    found = read_record(tmp_path / "checkpoint-STEP-5")
    assert found.problem(contents=True) == ""
    is_committed = (name, number) == ("fsync", 3)  # only the last: the new name may be lost if the power fails
    assert (tmp_path / "checkpoint-STEP-5" / NAME).read_text() == ("new" if is_committed else "old")
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]


def test_a_checkpoint_that_is_replaced_takes_files_of_others_along(tmp_path):
    (made(tmp_path, "old").path / "notes.txt").write_text("mine")
    saved = made(tmp_path, "new")
    assert (saved.path / "notes.txt").read_text() == "mine"
    assert (saved.path / NAME).read_text() == "new"
    delete_set(saved)
    assert names_in(saved.path) == ["notes.txt"]


def test_what_was_set_aside_and_replaced_goes_without_files_of_others(tmp_path):
    aside = tmp_path / ".checkpoint-STEP-5.some-host.12345.0123abcd.aside"
    (made(tmp_path, "old").path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-STEP-5").rename(aside)
    made(tmp_path, "new")
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]
    assert (tmp_path / "checkpoint-STEP-5" / "notes.txt").read_text() == "mine"


def test_a_file_of_the_users_stays_where_a_link_to_a_checkpoint_would_go(tmp_path):
    saved = made(tmp_path)
    (tmp_path / NAME).write_text("mine")
    link_to_files(saved)
    assert (tmp_path / NAME).read_text() == "mine"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("elsewhere")
    link_to_files(saved)
    assert os.readlink(tmp_path / NAME) == "elsewhere"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(f"checkpoint-STEP-4/{NAME}")
    link_to_files(saved)
    assert (tmp_path / NAME).read_text() == "new"


def test_what_was_set_aside_is_found_until_the_new_one_has_its_place(tmp_path):
    found = made(tmp_path, "old")
    aside = found.path.rename(tmp_path / ".checkpoint-STEP-5.some-host.12345.0123abcd.aside")
    assert folders_of_sets(tmp_path) == [aside]
    assert read_record(aside).problem(contents=True) == ""
    sweep(tmp_path)
    assert names_in(tmp_path) == ["checkpoint-STEP-5"]


def test_only_what_a_save_left_is_swept(tmp_path):
    others = [".checkpoint-STEP-5.tmp", ".notes.host.12345.0123abcd.tmp", "checkpoint-STEP-5.host.12345.0123abcd.tmp"]
    for name in (*others, ".checkpoint-STEP-5.host.12345.0123abcd.tmp"):
        (tmp_path / name).mkdir()
    outside = tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    link = tmp_path / ".checkpoint-STEP-6.host.12345.0123abcd.tmp"
    link.symlink_to(outside)
    sweep(tmp_path)
    assert names_in(tmp_path) == sorted([*others, "outside", link.name])
    assert names_in(outside) == ["precious"]


def test_a_delete_that_was_killed_leaves_nothing_that_looks_damaged(tmp_path, monkeypatch):
    found = made(tmp_path)
    fake = SimpleNamespace(rmtree=lambda path, **kwargs: (path / NAME).unlink())
    monkeypatch.setattr(commit, "shutil", fake)
    delete_set(found)
    assert folders_of_sets(tmp_path) == []
    monkeypatch.undo()
    sweep(tmp_path)
    assert names_in(tmp_path) == []


LEFT = ".record.json.some-host.12345.0123abcd.tmp"  # by a process killed while it wrote the record again


def test_what_a_killed_note_of_an_evaluation_left_goes_with_its_checkpoint(tmp_path):
    found = made(tmp_path)
    (found.path / LEFT).mkdir()
    (found.path / LEFT / "record.json").write_text("{")
    delete_set(found)
    assert names_in(tmp_path) == []
    found = made(tmp_path)
    (found.path / LEFT).mkdir()
    (found.path / "notes.txt").write_text("mine")
    delete_set(found)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        found.path.name,
        f"{found.path.name}/notes.txt",
    ]


def test_a_sweep_removes_a_folder_that_holds_nothing_else_and_no_other(tmp_path):
    rest, empty, kept, whole = (tmp_path / f"checkpoint-STEP-{number}" for number in (1, 2, 3, 4))
    for folder in (rest, kept, whole):
        (folder / LEFT).mkdir(parents=True)
    empty.mkdir()
    (kept / "notes.txt").write_text("mine")
    (whole / "record.json").write_text("{}")
    sweep(tmp_path)
    assert names_in(tmp_path) == [empty.name, kept.name, whole.name]
    assert (names_in(kept), names_in(whole)) == (["notes.txt"], ["record.json"])


def test_a_set_that_cannot_be_deleted_is_named(tmp_path, monkeypatch):
    found = made(tmp_path)
    monkeypatch.setattr(os, "rename", failing(os.rename, 0, OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(UsageError, match=r'STEP-5: cannot be deleted: got "Read-only file system" \(EROFS\)'):
        delete_set(found)


# The lock of a folder of checkpoints: who holds it, and who frees it.


def test_a_second_process_is_refused_by_the_first_ones_name_until_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jasper.py", "--lr", "0.1", "a\nb\x1b"])
    held, host = FolderLock(tmp_path), socket.gethostname()
    with held_elsewhere(FolderLock(tmp_path).take) as child:
        message = rf"saves checkpoints in this folder: got process {child} on {host}: jasper.py --lr 0.1 'ab'; wait"
        with pytest.raises(UsageError, match=message):
            held.take()
        assert not held.is_held
    held.take()
    assert held.is_held


def test_processes_forked_by_the_holder_do_not_hold_it(tmp_path):
    def fork_and_end():
        if not os.fork():
            signal.alarm(20)
            signal.pause()

    with held_elsewhere(FolderLock(tmp_path).take, then=fork_and_end) as child:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        FolderLock(tmp_path).take()


def test_a_lock_that_is_released_is_free_and_within_a_process_it_keeps_nobody_out(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.take()
    first.take()
    second.take()
    second.release()
    first.release()
    with held_elsewhere(FolderLock(tmp_path).take):
        pass


@pytest.mark.parametrize(("code", "is_refused"), [(errno.ENOLCK, False), (errno.EIO, True)])
def test_a_file_system_without_locks_is_a_warning_and_a_fault_an_error(tmp_path, monkeypatch, caplog, code, is_refused):
    def failing(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.lockf", failing)
    held = FolderLock(tmp_path)
    if is_refused:
        with pytest.raises(UsageError, match=r'\.lock: cannot be written: got "Input/output error" \(EIO\)'):
            held.take()
    else:
        held.take()
        assert caplog.messages == [f"{tmp_path}: its file system has no locks; see that only one run saves there"]


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_stays(tmp_path):
    folder = tmp_path / "from elsewhere"
    folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=r"\.lock: .*symbolic link"):
        FolderLock(folder).take()
    assert (tmp_path / "precious").read_text() == "mine"


# Checkpoints of version 1, an index beside its files: what is read and refused; nothing foreign is touched.


V1 = Path(__file__).parents[2] / "data" / "checkpoint_v1"
STAGED = ".STEP-3.vm.4344.c752411e.staged"


@pytest.fixture
def flat(tmp_path):
    return Path(shutil.copytree(V1, tmp_path / "old"))


def changed(flat, **changes):
    path = flat / "checkpoint-STEP-3.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return path


def test_an_index_lists_the_files_beside_it(flat):
    found = read_index(flat / "checkpoint-STEP-3.json")
    assert (found.tag, found.modules, found.is_flat) == ("STEP-3", ["Encoder"], True)
    assert found.path_of("Encoder") == flat / "Encoder-STEP-3.safetensors"
    assert found.problem(contents=True) == ""


def test_files_that_a_killed_process_left_in_its_own_folder_are_found(flat):
    (flat / STAGED).mkdir()
    (flat / "Encoder-STEP-3.safetensors").rename(flat / STAGED / "Encoder-STEP-3.safetensors")
    assert CheckpointFolder(flat).newest().path_of("Encoder") == flat / STAGED / "Encoder-STEP-3.safetensors"


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"files": {"../Encoder-STEP-3.safetensors": 3}},
        {"files": {"Encoder-STEP-4.safetensors": 3}},
        {"files": {"Encoder-STEP-3.safetensors": float("inf")}},
        {"files": []},
        {"number": 4},
        {"number": "x"},
        {"serial": float("inf")},
        {"serial": True},
        {"serial": -1},
        {"step": 1.5},
        {"evaluations": [3]},
        {"staged_in": "../precious"},
        {"staged_in": "precious"},
        {"staged_in": 3},
        {"version": "x", "kind": []},
    ],
)
def test_a_damaged_or_foreign_index_is_named_and_nothing_is_deleted(flat, changes):
    precious = flat / "precious" / "Encoder-STEP-3.safetensors"
    precious.parent.mkdir()
    precious.touch()
    path = changed(flat, **changes)
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint-STEP-3\.json: (this is no index|.*cannot be read: Infinity|the index is of another)",
    ):
        read_index(path)
    there = sorted(flat.rglob("*"))
    CheckpointFolder(flat).save({"E": Weights("E", {})}, None, kind="STEP", number=4, keep=1)
    assert set(there) < set(flat.rglob("*"))


def test_an_index_of_a_later_version_is_an_error_that_says_so(flat):
    with pytest.raises(CheckpointError, match=r"checkpoint-STEP-3\.json: this .* by a later nemo_lite: got version 2"):
        read_index(changed(flat, version=2))


def test_an_old_set_goes_with_its_files_when_newer_ones_take_its_place(flat):
    (flat / "notes.txt").touch()
    CheckpointFolder(flat).save({"E": Weights("E", {})}, None, kind="STEP", number=4, keep=1)
    assert sorted(path.name for path in flat.iterdir()) == [".lock", "checkpoint-STEP-4", "notes.txt"]


# What ranks tell rank 0 about their parts: files, errors, nothing in time; and errors that all ranks share.


FINAL = Path("/runs/checkpoint-STEP-5")


class Notes(FakeComm):
    """Rank 0 of three, whose notes come at the second time that it looks."""

    def __init__(self, **notes: str) -> None:
        super().__init__(0, 3)
        self.notes, self.looked = notes, list[str]()

    def take_note(self, key: str) -> str | None:
        self.looked.append(key)
        return self.notes.pop(key.rpartition("/")[2], None) if self.looked.count(key) > 1 else None

    def gather(self, value: Any) -> Any:
        return [value, *self.answers]

    answers: list[Any] = []


def written(name: str) -> str:
    return report_of(lambda: {name: StoredFile(FINAL / name, 3, "0" * 64)})


def full_disk() -> Any:
    with told_with(FINAL):
        raise OSError(errno.ENOSPC, "No space left on device")


def broken() -> Any:
    raise RuntimeError("out of luck")


def test_the_files_of_all_other_ranks_are_waited_for() -> None:
    comm = Notes(**{"1": written("a"), "2": written("b")})
    assert files_of_others(comm, "key", FINAL) == {name: StoredFile(FINAL / name, 3, "0" * 64) for name in "ab"}
    assert comm.looked == ["key/1", "key/2"] * 2


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (full_disk, r"rank 2: /runs/checkpoint-STEP-5: the disk is full; free some space"),
        (broken, r"rank 2: its part was not written: got RuntimeError: out of luck"),
    ],
)
def test_an_error_of_another_rank_names_it_once_all_have_told(work: Any, problem: str) -> None:
    comm = Notes(**{"1": written("a"), "2": report_of(work)})
    with pytest.raises(UsageError, match=problem):
        files_of_others(comm, "key", FINAL)


def test_a_rank_that_does_not_come_in_time_is_named() -> None:
    comm = Notes(**{"1": written("a")})
    with pytest.raises(CheckpointError, match="STEP-5: rank 2 did not write its part"):
        files_of_others(comm, "key", FINAL, lambda: len(comm.looked) > 4)


def test_an_error_of_one_rank_is_the_same_on_all_and_nobody_has_to_tell_it() -> None:
    def refuse() -> int:
        raise CheckpointError("bad", place="a.b", got="1")

    assert on_every_rank(FakeComm(), lambda: 3) == 3
    with pytest.raises(CheckpointError, match=r"rank 0: a\.b: bad: got 1") as found:
        on_every_rank(FakeComm(), refuse)
    assert found.value.is_common
    comm = Notes()
    comm.answers = [{}, {"kind": "", "problem": "the disk is full", "place": "/x"}]
    with pytest.raises(UsageError, match="rank 2: /x: the disk is full"):
        on_every_rank(comm, lambda: 3)
