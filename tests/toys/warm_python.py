"""A ``python`` that starts at once, and a ``nemo-lite``: they are forked off a process that has imported torch.

Launchers start their workers with the command in ``PYTHON_EXEC``. ``serve_warm_python()`` makes one that lets this
process fork and hands the fork its streams, arguments, environment, folder and namespaces: one that is started on a
machine of ``toys.machines`` runs there. Run as a script, this file is the other end: what the launcher started, watches
and stops.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

_SPACES = [f"/proc/self/ns/{name}" for name in ("net", "uts", "mnt")]


@contextmanager
def serve_warm_python() -> Iterator[str]:
    """Gives the path of ``python``; ``nemo-lite`` is beside it.

    Before this process has threads: a fork does not take them along.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # a TemporaryDirectory would be removed at the end of each fork
    with listen(folder) as listener:
        server = os.fork()
        if not server:
            serve(listener)
        try:
            yield str(folder / "python")
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            shutil.rmtree(folder)


def listen(folder: Path) -> socket.socket:
    """Make the commands in a folder; the socket at which they ask."""
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    ask = [sys.executable, "-IS", __file__, address]
    for name, words in (("nemo-lite", [str(Path(sys.executable).with_name("nemo-lite"))]), ("python", [])):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join([*ask, *words])} "$@"\n')
        (folder / name).chmod(0o700)
    return listener


def serve(listener: socket.socket) -> NoReturn:
    """Let the commands run in forks of this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are not waited for
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _supervise(connection)
        connection.close()


def _supervise(connection: socket.socket) -> NoReturn:
    """Run what the other end asks for in a fork, and tell it how that ended; the fork ends with the other end."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3 + len(_SPACES))
    asked = json.loads(connection.makefile().readline())
    child = os.fork()
    if not child:
        connection.close()
        _run(asked, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    threading.Thread(target=_signal_with, args=(connection, child), daemon=True).start()
    connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _signal_with(connection: socket.socket, child: int) -> None:
    """The fork gets the signals of what the launcher started, and ends with it."""
    with suppress(ProcessLookupError):  # it has ended
        while number := connection.recv(1):
            os.kill(child, number[0])
        os.kill(child, signal.SIGKILL)


def _run(asked: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Be the script or the module that was asked for, with those streams, in those namespaces."""
    for stream, number in zip(descriptors, range(3), strict=False):
        os.dup2(stream, number)
    for space, path in zip(descriptors[3:], _SPACES, strict=False):  # elsewhere than on Linux there are none
        if os.fstat(space).st_ino != os.stat(path).st_ino and ctypes.CDLL(None).setns(space, 0):
            raise OSError(f"{path}: cannot be entered")
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.argv = [word for word in asked["argv"] if word != "-u"]
    is_module = sys.argv[0] == "-m"
    del sys.argv[: int(is_module)]
    sys.path.insert(0, "" if is_module else str(Path(sys.argv[0]).resolve().parent))
    code = 1
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _ask(address: str, argv: list[str]) -> int:
    """Let the server run ``python *argv``; its exit code. Ended by the signal that ended it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        spaces = [os.open(path, os.O_RDONLY) for path in _SPACES if os.path.exists(path)]
        socket.send_fds(connection, [b"."], [0, 1, 2, *spaces])
        asked = {"argv": argv, "environ": dict(os.environ), "folder": os.getcwd()}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: connection.sendall(bytes([number])))
        code = int(connection.recv(16) or -signal.SIGKILL)
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_ask(sys.argv[1], sys.argv[2:]))
