"""TensorBoard's SummaryWriter on a file that a run can do without.

Its packages are slow to import, and most commands never write an event: they are imported where one is written.

TensorBoard's own event file is written by a thread. When the disk is full that thread ends, with a traceback on the
terminal, and the next number that is written, or the flush at the end, raises its error.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nemo_lite.base.files import AppendedFile

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
