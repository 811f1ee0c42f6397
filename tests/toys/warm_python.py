"""A ``python`` that starts at once, for tests that call launchers: it is forked off a process that has imported torch.

Launchers start their workers with the command in ``PYTHON_EXEC``. ``serve_warm_python()`` makes one that lets this
process fork and hands the fork its streams, arguments, environment and folder. Run as a script, this file is the other
end: what the launcher started, watches and stops.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serve_warm_python() -> Iterator[str]:
    """Gives the path of the command. Before this process has threads: a fork does not take them along."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # a TemporaryDirectory would be removed at the end of each fork
    with socket.socket(socket.AF_UNIX) as listener:
        address = str(folder / "socket")
        listener.bind(address)
        listener.listen()
        command = folder / "python"
        words = shlex.join([sys.executable, "-IS", __file__, address])
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o700)
        server = os.fork()
        if not server:
            _serve(listener)
        try:
            yield str(command)
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            shutil.rmtree(folder)


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are not waited for
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(connection)
        connection.close()


def _run(connection: socket.socket) -> None:
    """Be the script that the other end was asked to run. Never returns."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    for stream, number in zip(streams, range(3), strict=True):
        os.dup2(stream, number)
    asked = json.loads(connection.makefile().readline())
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.argv = [word for word in asked["argv"] if word != "-u"]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    connection.sendall(bytes([code]))
    os._exit(code)


def _end_with(connection: socket.socket) -> None:
    """The launcher ends what it started: when that is gone, so is this process."""
    if not connection.recv(1):
        os._exit(1)


def _ask(address: str, argv: list[str]) -> int:
    """Let the server run ``python *argv``; its exit code. Killed when that was killed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        asked = {"argv": argv, "environ": dict(os.environ), "folder": os.getcwd()}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = connection.recv(1)
    if not answer:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer[0]


if __name__ == "__main__":
    sys.exit(_ask(sys.argv[1], sys.argv[2:]))
