"""The experiment's folder: what is made, on which rank, and that a bad argument leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from toys.ranks import on_ranks

from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.base.errors import UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.exp_logging import ExpManager


def made(*args, **kwargs):
    manager = ExpManager(*args, **kwargs)
    manager.reset_loggers()
    return manager


def test_a_work_dir_holds_checkpoints_curves_log_and_copies(tmp_path, capsys):
    config = tmp_path / "jasper.yaml"
    config.write_text("model: Jasper\n", encoding="utf-8")
    manager = ExpManager(tmp_path / "exp", files_to_copy=[config], add_time=False)
    logging.info("a line")
    manager.reset_loggers()
    logging.info("not in the file")
    assert (manager.work_dir, manager.ckpt_dir) == (tmp_path / "exp", tmp_path / "exp" / "checkpoints")
    assert manager.tb_dir == tmp_path / "exp" / "tensorboard"
    assert manager.ckpt_dir.is_dir()
    assert manager.log_file == tmp_path / "exp" / "log_globalrank-0_localrank-0.txt"
    assert re.fullmatch(r"\[NeMo I .*\] a line\n", manager.log_file.read_text(encoding="utf-8"))
    copies = [path.name for path in manager.work_dir.iterdir() if path.suffix == ".yaml"]
    assert re.fullmatch(r"jasper_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.yaml", copies[0])
    assert len(list(manager.work_dir.glob("cmd-args_*.log"))) == 1


def test_a_command_with_a_name_that_is_no_utf_8_is_kept_in_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [os.fsdecode(b"tr\xff.py"), "--data", os.fsdecode(b"d\xfe/train.json")])
    manager = made(tmp_path, use_tb=False, add_time=False)
    (kept,) = manager.work_dir.glob("cmd-args_*.log")
    assert kept.read_bytes() == b"'tr\xff.py' --data 'd\xfe/train.json'\n"


def test_the_time_is_put_below_the_work_dir(tmp_path):
    manager = made(tmp_path, use_tb=False)
    assert manager.work_dir.parent == tmp_path
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", manager.work_dir.name)


def test_all_ranks_use_the_time_of_rank_0(tmp_path):
    manager = made(tmp_path, local_rank=0, global_rank=4, broadcast_func=lambda now: "2026-01-01_00-00-00")
    assert manager.work_dir == tmp_path / "2026-01-01_00-00-00"
    assert manager.log_file.name == "log_globalrank-4_localrank-0.txt"
    assert manager.tb_writer is None
    assert list(manager.work_dir.glob("cmd-args*")) == []
    with pytest.raises(UsageError, match=r"cannot agree on the time.*give broadcast_func, or add_time=False"):
        ExpManager(tmp_path, global_rank=0)


def test_other_folders_can_be_given(tmp_path):
    manager = made(tmp_path / "w", ckpt_dir=tmp_path / "c", tb_dir=tmp_path / "t", add_time=False)
    assert (manager.ckpt_dir, manager.tb_dir) == (tmp_path / "c", tmp_path / "t")
    assert not (tmp_path / "w" / "checkpoints").exists()
    alone = made(use_tb=False, ckpt_dir=tmp_path / "only")
    assert (alone.work_dir, alone.ckpt_dir, alone.tb_dir, alone.log_file) == (None, tmp_path / "only", None, None)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_else(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r'file/exp: the folder is not writable: got "Not a directory"'):
        ExpManager(tmp_path / "file" / "exp", add_time=False)


def test_an_existing_folder_is_refused_by_rank_0_when_asked(tmp_path):
    with pytest.raises(UsageError, match="the folder exists already"):
        ExpManager(tmp_path, exist_ok=False, add_time=False, use_tb=False)
    with pytest.raises(UsageError, match=r"that another rank has just made; give broadcast_func, or exist_ok=True"):
        ExpManager(tmp_path, global_rank=1, exist_ok=False, add_time=False, use_tb=False)


class Ranks:
    """Ranks as threads: what rank 0 broadcasts reaches the others, which wait for it."""

    def __init__(self, num_ranks):
        self.num_ranks, self.said, self.is_said, self.waiting = num_ranks, "", threading.Event(), []

    def broadcast(self, rank):
        def share(text):
            if rank == 0:
                # The others are there first: what they would do before rank 0 has spoken, they have done.
                deadline = time.perf_counter() + 5
                while len(self.waiting) < self.num_ranks - 1 and time.perf_counter() < deadline:
                    time.sleep(0.001)
                self.said = text
                self.is_said.set()
            self.waiting.append(rank)
            assert self.is_said.wait(6), "rank 0 said nothing"
            return self.said

        return share

    def run(self, folder, **kwargs):
        """What each rank made."""

        def make(rank):
            return made(folder, rank, rank, broadcast_func=self.broadcast(rank), **kwargs)

        with ThreadPoolExecutor(self.num_ranks) as pool:
            return list(pool.map(make, range(self.num_ranks)))


def test_all_ranks_make_one_folder_and_a_log_file_each(tmp_path):
    managers = Ranks(4).run(tmp_path / "new" / "runs", exist_ok=False)
    assert {manager.work_dir for manager in managers} == set((tmp_path / "new" / "runs").iterdir())
    logs = [f"log_globalrank-{rank}_localrank-{rank}.txt" for rank in range(4)]
    assert sorted(path.name for path in managers[0].work_dir.glob("log_*")) == logs
    assert len(list(managers[0].work_dir.glob("cmd-args_*"))) == 1


def test_machines_without_a_common_disk_each_get_the_folder(tmp_path, monkeypatch):
    said = []
    here = made(tmp_path / "here", 0, 0, broadcast_func=lambda text: said.append(text) or text)
    there = made(tmp_path / "there", 0, 4, broadcast_func=lambda text: said[0])
    assert here.work_dir.name == there.work_dir.name
    assert {path.name for path in there.work_dir.iterdir()} == {"log_globalrank-4_localrank-0.txt"}
    assert (there.ckpt_dir, there.tb_dir) == (there.work_dir / "checkpoints", there.work_dir / "tensorboard")


def test_folders_for_checkpoints_and_curves_need_to_be_writable_on_rank_0_only(tmp_path):
    (tmp_path / "file").touch()
    elsewhere = {"ckpt_dir": tmp_path / "file" / "c", "tb_dir": tmp_path / "file" / "t", "add_time": False}
    there = made(tmp_path / "exp", 0, 1, broadcast_func=lambda text: "2026-01-01_00-00-00", **elsewhere)
    assert (there.ckpt_dir, there.tb_dir) == (elsewhere["ckpt_dir"], elsewhere["tb_dir"])
    with pytest.raises(UsageError, match="file/c: the folder is not writable"):
        made(tmp_path / "exp", 0, 0, broadcast_func=lambda text: text, **elsewhere)


def join_with_folder(folder, kwargs):
    NeuralModuleFactory(log_dir=folder, placement=DeviceType.CPU, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"checkpoint_dir": "file/checkpoints"}, "file/checkpoints: the folder is not writable"),
        ({"files_to_copy": ["nowhere.yaml"]}, "nowhere.yaml: no such file; correct files_to_copy"),
    ],
)
def test_where_rank_0_cannot_all_ranks_fail_and_none_waits(kwargs, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    first, other = on_ranks(2, join_with_folder, tmp_path / "exp", kwargs)
    assert (first.code, other.code) == (2, 2), first.err + other.err
    assert told in first.err
    assert re.search(rf"rank 0 \(.*\) stopped.*UsageError: {re.escape(told)}", other.err), other.err
    assert other.seconds < 20
    assert list(tmp_path.glob("exp/**/log_*")) == []


def test_ranks_that_cannot_speak_to_each_other_may_share_a_folder(tmp_path):
    for rank in (1, 0):
        made(tmp_path / "exp", rank, rank, add_time=False, use_tb=False)
    assert len(list((tmp_path / "exp").glob("log_*"))) == 2


def test_a_file_to_copy_that_is_missing_is_named_and_nothing_is_made(tmp_path):
    with pytest.raises(UsageError, match=r"no\.yaml: no such file; correct files_to_copy"):
        ExpManager(tmp_path / "exp", files_to_copy=[tmp_path / "no.yaml"])
    assert not (tmp_path / "exp").exists()


def test_a_file_to_copy_is_needed_on_rank_0_only(tmp_path):
    made(
        tmp_path / "exp", 1, 1, files_to_copy=[tmp_path / "no.yaml"], broadcast_func=lambda text: "2026-01-01_00-00-00"
    )


def test_curves_without_a_place_are_refused(tmp_path):
    with pytest.raises(UsageError, match="use_tb needs a place for the events; give work_dir or tb_dir"):
        ExpManager()
    with pytest.raises(UsageError, match="there is no place for the events"):
        made(use_tb=False).get_tb_writer()


@pytest.mark.slow
def test_the_writer_is_made_when_first_asked_for_and_once(tmp_path):
    code = f"""
import sys
from nemo_lite.utils.exp_logging import ExpManager
manager = ExpManager({str(tmp_path)!r}, add_time=False)
assert "tensorboard" not in sys.modules
writer = manager.tb_writer
writer.add_scalar("loss", 1.0, 0)
writer.close()
assert manager.tb_writer is writer and manager.get_tb_writer() is writer
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list((tmp_path / "tensorboard").glob("events.*"))) == 1


def test_parameters_are_logged_line_by_line(tmp_path, capsys):
    made(tmp_path, use_tb=False, add_time=False).log_exp_info({"lr": 0.02})
    assert "lr\t0.02" in capsys.readouterr().out
