"""Several ranks on one machine, for tests: processes that fork off a server which has imported torch once.

    results = on_ranks(2, function, argument)     # one Finished for each rank

``function`` is a module-level function of a test file; it runs in every rank with the environment of a launcher. What
it returns must be picklable. Errors of nemo_lite end a rank as they end a script: one line, and their exit code.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
# What test files, scripts and launchers import when they start, too: on a rank it takes longer than most tests.
_CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.run", "torch.utils.tensorboard"),
        *("numpy.ma", "pytest", "nemo_lite", "nemo_lite.factory"),
        *("nemo_asr", "nemo_asr.argparse", "nemo_asr.helpers", "nemo_asr.tasks.recipe"),
    ]
)


@dataclass
class Finished:
    """How a rank ended.

    Attributes:
        code: exit code; negative for a signal.
        out, err: what it printed.
        result: what its function returned, None if it did not get so far.
        seconds: from the start of all ranks to its end.
    """

    code: int
    out: str
    err: str
    result: Any
    seconds: float


class Rank:
    """A process that runs as one rank."""

    def __init__(self, env: Mapping[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rank-"))
        self.started, self.ended = time.perf_counter(), 0.0
        self.process = _CONTEXT.Process(target=_run, args=(self.folder, dict(env), function, args))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def out(self) -> str:
        """What it has printed so far."""
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def wait(self, deadline: float) -> Finished:
        """Its end; killed at the deadline."""
        self.process.join(max(deadline - time.perf_counter(), 0.01))
        seconds = time.perf_counter() - self.started
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        result = self.folder / "result"
        err = (self.folder / "err").read_text() if (self.folder / "err").exists() else ""
        value = pickle.loads(result.read_bytes()) if result.exists() else None
        assert self.process.exitcode is not None
        return Finished(self.process.exitcode, self.out(), err, value, seconds)


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start_ranks(
    world_size: int, function: Callable[..., Any], *args: Any, env: Mapping[str, str] | None = None
) -> list[Rank]:
    """Start them with the environment that torchrun sets on one machine, ``env`` on top of it."""
    port = str(free_port())
    ranks = []
    for rank in range(world_size):
        launched = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        ranks.append(Rank({**launched, **(env or {})}, function, args))
    return ranks


def wait_all(ranks: list[Rank], timeout: float = 60.0) -> list[Finished]:
    """The ends of all, in order of the ranks; those that still run after ``timeout`` seconds are killed."""
    deadline = time.perf_counter() + timeout
    return [rank.wait(deadline) for rank in ranks]


def on_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> list[Finished]:
    """Run ``function(*args)`` on every rank and wait for all."""
    return wait_all(start_ranks(world_size, function, *args, env=env), timeout)


def results_of(world_size: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """What the function returned on each rank; a rank that failed fails the test with what it printed."""
    finished = on_ranks(world_size, function, *args, **kwargs)
    failed = "\n".join(
        f"rank {rank} ended with {end.code}:\n{end.err}" for rank, end in enumerate(finished) if end.code
    )
    assert not failed, failed
    return [end.result for end in finished]


def _run(folder: Path, env: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ.update(env)
    import torch

    from nemo_lite.base.errors import NemoLiteError

    torch.set_num_threads(1)
    gc.freeze()  # names that are used again make the engine collect: what the server has imported stays anyway
    try:
        value = function(*args)
    except NemoLiteError as error:
        if not getattr(error, "is_told", False):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    finally:
        atexit._run_exitfuncs()  # a forked process would leave them out; a script runs them
    (folder / "result").write_bytes(pickle.dumps(value))
