"""The lock of a folder of checkpoints: who holds it, who frees it, and the serial numbers that it keeps."""

from __future__ import annotations

import errno
import os
import signal
import socket

import pytest

from nemo_lite.backends.pytorch.checkpoint.store.lock import FolderLock
from nemo_lite.errors import UsageError


def holder(folder, then=signal.pause):
    """Another process that holds the lock."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        taken = FolderLock(folder)
        taken.take()
        os.write(told, b"x")
        then()
        os._exit(0)
    os.read(ready, 1)
    return child


def end(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_second_process_is_refused_by_the_first_ones_name_until_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jasper.py", "--lr", "0.1", "a\nb\x1b"])
    child = holder(tmp_path)
    held, host = FolderLock(tmp_path), socket.gethostname()
    message = rf"saves checkpoints in this folder: got process {child} on {host}: jasper.py --lr 0.1 'ab'; wait"
    try:
        with pytest.raises(UsageError, match=message):
            held.take()
        assert not held.is_held
    finally:
        end(child)
    held.take()
    assert held.is_held


def test_processes_forked_by_the_holder_do_not_hold_it(tmp_path):
    child = holder(tmp_path, then=lambda: (os.fork() and os._exit(0)) or signal.alarm(20) or signal.pause())
    os.waitpid(child, 0)
    FolderLock(tmp_path).take()


def test_a_lock_that_is_released_is_free_and_within_a_process_it_keeps_nobody_out(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.take()
    first.take()
    second.take()
    second.release()
    first.release()
    end(holder(tmp_path))


def test_serial_numbers_grow_also_over_holders_and_where_the_file_is_damaged(tmp_path):
    for expected in (1, 2):
        held = FolderLock(tmp_path)
        held.take()
        assert held.give_serial(0) == expected
        held.release()
    held.take()
    assert [held.give_serial(above) for above in (0, 9, 3)] == [3, 10, 11]
    for damaged in (b"", b"[" * 3000, b"[]", b'{"last_serial": -1}', b'{"last_serial": 1e400}'):
        (tmp_path / ".lock").write_bytes(damaged)
        assert held.give_serial(4) == 5


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
