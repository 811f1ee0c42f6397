"""ExpManager: the folder of one experiment, its log file, and the writer of its curves for TensorBoard.

TensorBoard's packages are slow to import, and most commands never write an event: they are imported where one is
written. Its own event file is written by a thread. When the disk is full that thread ends, with a traceback on the
terminal, and the next number that is written, or the flush at the end, raises its error. So the file is one of ours,
which a run can do without.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import AppendedFile, make_writable_folder, write_atomically
from nemo_lite.base.launch import as_typed
from nemo_lite.base.nemo_logging import logging

if TYPE_CHECKING:
    from torch.utils.tensorboard import FileWriter, SummaryWriter


class _Event(Protocol):
    """What is needed of TensorBoard's event."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


_FLUSH_SECONDS = 5.0
_numbers = itertools.count()


def curve_writer(folder: Path, tell: Callable[[str], object]) -> SummaryWriter:
    """A SummaryWriter. Where its file cannot be written, the first failure is told and curves have a gap.

    Args:
        folder: of the event files; it exists.
        tell: called once, with a line for the user.
    """
    from torch.utils.tensorboard import FileWriter, SummaryWriter

    class OwnFile(FileWriter):
        def __init__(self) -> None:
            self.event_writer = _EventFile(folder, tell)

    class CurveWriter(SummaryWriter):
        def _get_file_writer(self) -> FileWriter:
            if self.file_writer is None:
                self.file_writer = OwnFile()  # type: ignore[assignment]
                self.all_writers = {self.log_dir: self.file_writer}  # type: ignore[assignment]
            return self.file_writer  # type: ignore[return-value]

    return CurveWriter(str(folder))


class _EventFile:
    """An event file for torch's FileWriter. Events reach the disk within some seconds, and with ``flush``."""

    def __init__(self, folder: Path, tell: Callable[[str], object]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder, self._tell, self._lock = folder, tell, threading.Lock()
        self._events = _Bytes()
        self._records = RecordWriter(self._events)
        self._header = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._open()

    def _open(self) -> None:
        # The name that TensorBoard looks for, and by which it knows the order of files.
        about = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._file = AppendedFile(self._folder / f"events.out.tfevents.{about}", self._tell)
        self._flushed_at = 0.0
        self.add_event(self._header)

    def get_logdir(self) -> str:
        return str(self._folder)

    def add_event(self, event: _Event) -> None:
        with self._lock:
            self._records.write(event.SerializeToString())
            is_due = time.monotonic() - self._flushed_at >= _FLUSH_SECONDS
        if is_due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            self._file.append(bytes(self._events))
            self._events.clear()
            self._flushed_at = time.monotonic()

    def close(self) -> None:
        self.flush()

    def reopen(self) -> None:
        self._open()


class _Bytes(bytearray):
    """Takes what a RecordWriter writes."""

    def write(self, data: bytes) -> None:
        self.extend(data)


if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class ExpManager:
    """Creates ``work_dir[/time]`` with ``checkpoints/``, ``tensorboard/``, a log file a rank, and copies of files.

    Only rank 0 writes checkpoints and events and makes folders for them. The other ranks need ``work_dir`` on their
    machines for their log files.

    Args:
        work_dir: the folder; None creates nothing but what ``ckpt_dir`` and ``tb_dir`` name.
        local_rank: index of this process on its machine; None for a single process.
        global_rank: index of this process among all; None for a single process.
        use_tb: make a TensorBoard writer available (on rank 0).
        exist_ok: accept a ``work_dir`` that exists.
        ckpt_dir: where checkpoints go, instead of ``work_dir/checkpoints``.
        tb_dir: where events go, instead of ``work_dir/tensorboard``.
        files_to_copy: files to keep with the results, such as the configuration; the copies have the time in the name.
        add_time: make a sub-folder named after the current time.
        broadcast_func: takes a text, returns rank 0's. Rank 0 calls it when its folders are made; the others wait for
            it, and use the same time. Who calls this on several ranks must end the others when rank 0 fails.

    Attributes:
        work_dir, ckpt_dir, tb_dir, log_file: where things go, or None.

    Raises:
        UsageError: a folder that is not writable, exists already, or is missing in the arguments; a file that is
            missing on rank 0; several ranks that would have to agree without ``broadcast_func``. Nothing has been
            copied or logged then.
    """

    def __init__(
        self,
        work_dir: str | Path | None = None,
        local_rank: int | None = None,
        global_rank: int | None = None,
        use_tb: bool = True,
        exist_ok: bool = True,
        ckpt_dir: str | Path | None = None,
        tb_dir: str | Path | None = None,
        files_to_copy: Iterable[str | Path] | None = None,
        add_time: bool = True,
        broadcast_func: Callable[[str], str] | None = None,
    ) -> None:
        self.local_rank, self.global_rank = local_rank or 0, global_rank or 0
        self._is_first = self.global_rank == 0
        self._use_tb = use_tb and self._is_first
        self._tb_writer: SummaryWriter | None = None
        copied = [Path(file) for file in files_to_copy or ()]
        if use_tb and not work_dir and not tb_dir:
            raise UsageError("use_tb needs a place for the events", remedy="give work_dir or tb_dir, or use_tb=False")
        if global_rank is None:
            broadcast_func = None
        elif broadcast_func is None:
            _check_apart(add_time, exist_ok)
        missing = next((file for file in copied if not file.is_file()), None)
        if self._is_first and missing is not None:
            raise UsageError("no such file", place=str(missing), remedy="correct files_to_copy")
        now = time.strftime("%Y-%m-%d_%H-%M-%S")
        if broadcast_func is not None and not self._is_first:
            now = broadcast_func(now)  # rank 0 answers when it has made its folders
        self.work_dir: Path | None = None
        if work_dir:
            # Only rank 0 can tell a folder of an earlier run from the one that another rank has just made.
            folder = Path(work_dir) / (now if add_time else "")
            self.work_dir = make_writable_folder(folder, exist_ok=exist_ok or not self._is_first)
        self.ckpt_dir = self._folder(ckpt_dir, "checkpoints")
        self.tb_dir = self._folder(tb_dir, "tensorboard") if use_tb or tb_dir else None
        if broadcast_func is not None and self._is_first:
            broadcast_func(now)
        self.log_file: Path | None = None
        if self.work_dir is not None:
            self.log_file = self.work_dir / f"log_globalrank-{self.global_rank}_localrank-{self.local_rank}.txt"
            logging.add_file_handler(self.log_file)
        if self.work_dir and self._is_first:
            _keep(self.work_dir, copied, now)

    def _folder(self, path: str | Path | None, default: str) -> Path | None:
        folder = path or (self.work_dir / default if self.work_dir else None)
        if folder is None:
            return None
        return make_writable_folder(folder) if self._is_first else Path(folder).expanduser()

    @property
    def tb_writer(self) -> SummaryWriter | None:
        """The TensorBoard writer, made at the first access; None without ``use_tb`` and on ranks above 0."""
        return self.get_tb_writer() if self._use_tb else None

    def get_tb_writer(self, tb_dir: str | Path | None = None) -> SummaryWriter | None:
        """The TensorBoard writer into ``tb_dir`` (default: this experiment's); None on ranks above 0."""
        if not self._is_first:
            return None
        folder = make_writable_folder(tb_dir) if tb_dir else self.tb_dir
        if folder is None:
            raise UsageError("there is no place for the events", remedy="give tb_dir, or make ExpManager with use_tb")
        if self._tb_writer is None or folder != self.tb_dir:
            self._tb_writer, self.tb_dir = curve_writer(folder, logging.warning), folder
        return self._tb_writer

    def log_exp_info(self, params: Mapping[str, object], print_everywhere: bool = False) -> None:
        """Log one line for each parameter, and where the results lie; on rank 0 only unless ``print_everywhere``."""
        if print_everywhere or self._is_first:
            logging.info("parameters of the experiment:")
            for name, value in params.items():
                logging.info("%s\t%s", name, value)
            logging.info("results are stored in %s", self.work_dir)

    def reset_loggers(self) -> None:
        """Write to the log file no longer."""
        if self.log_file is not None:
            logging.remove_file_handler(self.log_file)


def _check_apart(add_time: bool, exist_ok: bool) -> None:
    """Without ``broadcast_func``, several ranks may only do what needs no exchange."""
    if add_time:
        raise UsageError(
            "several ranks cannot agree on the time in the folder's name",
            remedy="give broadcast_func, or add_time=False",
        )
    if not exist_ok:
        raise UsageError(
            "rank 0 cannot tell a folder of an earlier run from one that another rank has just made",
            remedy="give broadcast_func, or exist_ok=True",
        )


def _keep(folder: Path, files: Iterable[Path], now: str) -> None:
    """Copy the files and the command line into the folder."""
    for file in files:
        write_atomically(folder / f"{file.stem}_{now}{file.suffix}", partial(shutil.copyfile, file))
    command = os.fsencode(shlex.join(as_typed(sys.argv)) + "\n")  # the bytes of names that are no UTF-8
    write_atomically(folder / f"cmd-args_{now}.log", lambda path: path.write_bytes(command))
