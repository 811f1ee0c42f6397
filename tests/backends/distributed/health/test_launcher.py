"""The launcher of a rank: found among its parents, and no rank trains on when it was killed."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from toys.ranks import start_ranks, wait_all

from nemo_lite.backends.pytorch.distributed.health import HealthMonitor, launcher_of_this_process
from nemo_lite.backends.pytorch.distributed.rendezvous import meet
from nemo_lite.utils.launch import who_am_i

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="parents are looked up in /proc")
OF_WORKERS = {"TORCHELASTIC_RESTART_COUNT": "0"}


def test_only_what_torchrun_started_has_a_launcher():
    assert launcher_of_this_process({"TORCHELASTIC_RUN_ID": "set by hand", "RANK": "0", "SLURM_PROCID": "0"}) is None
    assert launcher_of_this_process(OF_WORKERS) == os.getppid()


def test_the_launcher_is_found_through_a_shell_between(tmp_path):
    processes = {os.getppid(): (b"A=1\0TORCHELASTIC_RESTART_COUNT=0\0", 77), 77: (b"A=1\0", 1)}
    for pid, (environ, parent) in processes.items():
        (tmp_path / f"{pid}").mkdir()
        (tmp_path / f"{pid}/environ").write_bytes(environ)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (bash) -c) S {parent} 12")
    assert launcher_of_this_process(OF_WORKERS, tmp_path) == 77
    (tmp_path / "77/environ").unlink()
    assert launcher_of_this_process(OF_WORKERS, tmp_path) is None


def run_under_a_launcher(folder):
    """The process of this rank is its launcher: it starts the one that works and waits for it, as torchrun does."""
    worker = os.fork()
    if worker:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    os.environ.update(OF_WORKERS)
    info = who_am_i()
    meeting = meet(info, 20.0)  # with the store: kept
    HealthMonitor(meeting, info, 60.0, beat_seconds=0.1, grace_seconds=2.0)
    (folder / f"worker{info.rank}").write_text(str(os.getpid()))
    time.sleep(60)
    os._exit(0)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("victim", [0, 1])
def test_all_ranks_end_when_the_launcher_of_one_is_killed_and_it_is_named(victim, tmp_path):
    ranks = start_ranks(2, run_under_a_launcher, tmp_path)
    workers = [tmp_path / "worker0", tmp_path / "worker1"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(ranks[victim].pid, signal.SIGKILL)
    ends = wait_all(ranks, 30)
    while not all(has_ended(int(file.read_text())) for file in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told = [(rank.folder / "err").read_text() for rank in ranks]
    pid = int(workers[victim].read_text())
    reason = f"pid {pid}) is gone: process {ranks[victim].pid} was killed or has ended; nothing would end its ranks"
    assert sum(reason in text for text in told) == 1, told
    assert [text.count("\n") for text in told] == [1, 1], told
    assert [end.code for end in ends] == [-9 if rank == victim else 3 for rank in (0, 1)]
