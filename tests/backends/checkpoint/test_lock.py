"""The lock of a folder of checkpoints: who holds it, and who frees it."""

from __future__ import annotations

import errno
import os
import signal
import socket

import pytest
from toys.lock_holders import held_elsewhere

from nemo_lite.backends.pytorch.checkpoint.store import FolderLock
from nemo_lite.base.errors import UsageError


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
