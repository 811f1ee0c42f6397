"""ExpManager: the folder of one experiment and what lies in it. Checkpoints and curves are written by others."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_lite.errors import UsageError
from nemo_lite.utils.files import make_writable_folder
from nemo_lite.utils.nemo_logging import logging

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Before what rank 0 says instead of the time when it could not make the folders.
_FAILED = "failed: "


class ExpManager:
    """Creates ``work_dir[/time]`` with ``checkpoints/``, ``tensorboard/``, a log file a rank and copies of some files.

    Checkpoints and events are written on rank 0, which alone makes folders for them; the others need ``work_dir`` on
    their machines, for their log files.

    Args:
        work_dir: the folder; None creates nothing but what ``ckpt_dir`` and ``tb_dir`` name.
        local_rank: index of this process on its machine; None for a single process.
        global_rank: index of this process among all; None for a single process.
        use_tb: offer a TensorBoard writer (on rank 0).
        exist_ok: accept a ``work_dir`` that exists.
        ckpt_dir: where checkpoints go, instead of ``work_dir/checkpoints``.
        tb_dir: where events go, instead of ``work_dir/tensorboard``.
        files_to_copy: files to keep beside the results, such as the configuration; the time is put into their names.
        add_time: make a sub-folder named after the current time.
        broadcast_func: takes a text, returns rank 0's. With it rank 0 makes the folders first and the others use the
            same time; where rank 0 cannot, all of them fail. All ranks have to get here then.

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
        self._use_tb = use_tb and self.global_rank == 0
        self._tb_writer: SummaryWriter | None = None
        copied = [Path(file) for file in files_to_copy or ()]
        if use_tb and not work_dir and not tb_dir:
            raise UsageError("use_tb needs a place for the events", remedy="give work_dir or tb_dir, or use_tb=False")
        if global_rank is not None and broadcast_func is None:
            _check_apart(add_time, exist_ok)

        self._time = ""
        self.work_dir: Path | None = None
        self.ckpt_dir: Path | None = None
        self.tb_dir: Path | None = None

        def make(now: str) -> None:
            self._time = now
            if self.global_rank == 0:
                _check_files(copied)
            if work_dir:
                # Only rank 0 can tell a folder of an earlier run from the one that another rank has just made.
                folder = Path(work_dir) / (now if add_time else "")
                self.work_dir = make_writable_folder(folder, exist_ok=exist_ok or self.global_rank > 0)
            self.ckpt_dir = self._folder(ckpt_dir, "checkpoints")
            self.tb_dir = self._folder(tb_dir, "tensorboard") if use_tb or tb_dir else None

        if global_rank is None or broadcast_func is None:
            make(_now())
        else:
            _make_in_turn(make, global_rank == 0, broadcast_func)
        self.log_file = self._start_log_file()
        if self.work_dir and self.global_rank == 0:
            self._keep(self.work_dir, copied)

    def _folder(self, given: str | Path | None, default: str) -> Path | None:
        folder = given or (self.work_dir / default if self.work_dir else None)
        if folder is None:
            return None
        return make_writable_folder(folder) if self.global_rank == 0 else Path(folder).expanduser()

    def _start_log_file(self) -> Path | None:
        if self.work_dir is None:
            return None
        log_file = self.work_dir / f"log_globalrank-{self.global_rank}_localrank-{self.local_rank}.txt"
        logging.add_file_handler(log_file)
        return log_file

    def _keep(self, folder: Path, files: Iterable[Path]) -> None:
        for file in files:
            shutil.copyfile(file, folder / f"{file.stem}_{self._time}{file.suffix}")
        (folder / f"cmd-args_{self._time}.log").write_text(shlex.join(sys.argv) + "\n", encoding="utf-8")

    @property
    def tb_writer(self) -> SummaryWriter | None:
        """The TensorBoard writer: made when first asked for; None without ``use_tb`` and on ranks above 0."""
        return self.get_tb_writer() if self._use_tb else None

    def get_tb_writer(self, tb_dir: str | Path | None = None) -> SummaryWriter | None:
        """The TensorBoard writer into ``tb_dir`` (default: this experiment's); None on ranks above 0."""
        if self.global_rank > 0:
            return None
        folder = make_writable_folder(tb_dir) if tb_dir else self.tb_dir
        if folder is None:
            raise UsageError("there is no place for the events", remedy="give tb_dir, or make ExpManager with use_tb")
        if self._tb_writer is None or folder != self.tb_dir:
            # Here and not above: this import is slow, and most commands never write an event.
            from torch.utils.tensorboard import SummaryWriter

            self._tb_writer, self.tb_dir = SummaryWriter(str(folder)), folder
        return self._tb_writer

    def log_exp_info(self, params: Mapping[str, object], print_everywhere: bool = False) -> None:
        """Log one line for each parameter, and where the results lie; on rank 0 only unless ``print_everywhere``."""
        if print_everywhere or self.global_rank == 0:
            logging.info("parameters of the experiment:")
            for name, value in params.items():
                logging.info("%s\t%s", name, value)
            logging.info("results are stored in %s", self.work_dir)

    def reset_loggers(self) -> None:
        """Write to the log file no longer."""
        if self.log_file is not None:
            logging.remove_file_handler(self.log_file)


def _make_in_turn(make: Callable[[str], None], is_first: bool, broadcast: Callable[[str], str]) -> None:
    """Rank 0 makes, then the others, with rank 0's time; where rank 0 cannot, all fail and none waits."""
    if not is_first:
        answer = broadcast("")
        if answer.startswith(_FAILED):
            raise UsageError(f"on rank 0: {answer.removeprefix(_FAILED)}")
        make(answer)
        return
    now = _now()
    try:
        make(now)
    except UsageError as error:
        broadcast(f"{_FAILED}{error}")
        raise
    broadcast(now)


def _check_apart(add_time: bool, exist_ok: bool) -> None:
    """Several ranks that cannot speak to each other may only do what needs no agreement."""
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


def _check_files(files: Iterable[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise UsageError("no such file", place=str(file), remedy="correct files_to_copy")


def _now() -> str:
    """The current time as ``2026-01-01_12-00-00``."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")
