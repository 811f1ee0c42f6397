"""The ``logging`` object: NeMo's singleton, on top of the standard library's logging. No experiment folders here.

On a terminal a line is the message alone; warnings and errors are marked, and at level DEBUG the place in the source
is shown. In the style "nemo" (:meth:`Logger.set_style`, or NEMO_LITE_LOG_STYLE=nemo) it reads
``[NeMo I 2026-01-01 12:00:00 train:17] message``: level, local time, module and line of the caller. In files it always
does, with the rank behind the line: ``train:17 rank:0]``.
INFO and below go to stdout, the rest to stderr. Ranks above 0 (as the launcher's variables say) write to files only,
unless NEMO_TESTING is set. NEMO_REDIRECT_LOGS_TO_STDERR sends everything to stderr.
"""

from __future__ import annotations

import enum
import logging as _logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from nemo_lite.base.errors import UnknownNameError, marked, printable
from nemo_lite.base.files import AppendedFile
from nemo_lite.base.launch import rank_in

# Names of environment variables that the log reads, where NeMo has them.


NEMO_ENV_VARNAME_ENABLE_COLORING = "NEMO_ENABLE_COLORING"
NEMO_ENV_VARNAME_REDIRECT_LOGS_TO_STDERR = "NEMO_REDIRECT_LOGS_TO_STDERR"
NEMO_ENV_VARNAME_TESTING = "NEMO_TESTING"


STYLES = ("plain", "nemo")
_STYLE_VARIABLE = "NEMO_LITE_LOG_STYLE"
LEVELS = ("debug", "info", "warning", "error")


class LogMode(enum.Enum):
    """How often a message is written: each time, or the first time only."""

    EACH = 0
    ONCE = 1


class Logger(_logging.LoggerAdapter[_logging.Logger]):
    """The class of ``nemo.logging``; there is one object, called ``logging``.

    A message with arguments is formatted as in the standard library: ``logging.info("step %d", step)``.
    """

    CRITICAL = _logging.CRITICAL
    ERROR = _logging.ERROR
    WARNING = _logging.WARNING
    INFO = _logging.INFO
    DEBUG = _logging.DEBUG
    NOTSET = _logging.NOTSET

    def __init__(self, name: str = "nemo_lite") -> None:
        super().__init__(_logging.getLogger(name))
        self.logger.propagate = False
        self._once: set[str] = set()
        self._style: str | None = None
        self._stdout, self._stderr = _StandardStream("stdout"), _StandardStream("stderr")
        for stream in (self._stdout, self._stderr):
            stream.setFormatter(_TerminalFormatter(self, stream))
        self._stdout.addFilter(lambda record: not _is_for_stderr(record))
        self._stderr.addFilter(_is_for_stderr)
        for handler in (self._stdout, self._stderr):
            handler.addFilter(_is_on_writing_rank)
        self._files: dict[Path, _LogFile] = {}
        self._show_warning = warnings.showwarning
        self.setLevel(_logging.DEBUG if _is_set("NEMO_TESTING") else _logging.INFO)
        self.add_stream_handlers()

    def log(  # type: ignore[override]  # `options` are the named ones of the standard library
        self, level: int, msg: object, *args: object, mode: LogMode = LogMode.EACH, **options: Any
    ) -> None:
        """Write a message of a level; so do :meth:`debug`, :meth:`info`, :meth:`warning`, :meth:`error`.

        Args:
            level: a number: ``logging.INFO``.
            msg: the message.
            args: its arguments.
            mode: ``LogMode.ONCE`` leaves out a text that was written with it before.
            options: ``exc_info``, ``stacklevel`` and what else the standard library takes.
        """
        if not self.isEnabledFor(level):
            return
        if mode is LogMode.ONCE:
            text = str(msg) % args if args else str(msg)
            if text in self._once:
                return
            self._once.add(text)
        options["stacklevel"] = options.get("stacklevel", 1) + 1  # this method
        super().log(level, msg, *args, **options)

    def set_verbosity(self, level: int | str) -> None:
        """The same as :meth:`setLevel`."""
        self.setLevel(level)

    def get_verbosity(self) -> int:
        """The level below which nothing is written."""
        return self.logger.level

    @contextmanager
    def temp_verbosity(self, level: int | str) -> Iterator[None]:
        """Use another level inside a ``with`` block."""
        before = self.get_verbosity()
        self.setLevel(level)
        try:
            yield
        finally:
            self.setLevel(before)

    @property
    def style(self) -> str:
        """How lines look on a terminal: "plain" or "nemo"."""
        return self._style or ("nemo" if os.environ.get(_STYLE_VARIABLE, "").lower() == "nemo" else "plain")

    def set_style(self, style: str | None) -> None:
        """Show lines on a terminal as messages alone ("plain") or with NeMo's heads ("nemo").

        Args:
            style: one of the two; ``None``: what NEMO_LITE_LOG_STYLE says, by default "plain".

        Raises:
            UnknownNameError: another style, here or in NEMO_LITE_LOG_STYLE.
        """
        if style is not None and style not in STYLES:
            raise UnknownNameError("style of the log", style, STYLES)
        of_environment = os.environ.get(_STYLE_VARIABLE, "")
        if style is None and of_environment and of_environment.lower() not in STYLES:
            raise UnknownNameError("style of the log", of_environment, STYLES, place=_STYLE_VARIABLE)
        self._style = style

    def add_stream_handlers(self) -> None:
        """Write to stdout and stderr (the default); a second call changes nothing."""
        for handler in (self._stdout, self._stderr):
            self.logger.addHandler(handler)

    def remove_stream_handlers(self) -> None:
        """Stop writing to stdout and stderr; files stay."""
        for handler in (self._stdout, self._stderr):
            self.logger.removeHandler(handler)

    def reset_stream_handler(self) -> None:
        """Undo :meth:`remove_stream_handlers` and every patched stream."""
        self._stdout.patched = self._stderr.patched = None
        self.add_stream_handlers()

    def patch_stdout_handler(self, stream: TextIO) -> _PatchedStream:
        """Write to ``stream`` instead of stdout: from now on, or within a ``with`` block if used as one."""
        return _PatchedStream(self._stdout, stream)

    def patch_stderr_handler(self, stream: TextIO) -> _PatchedStream:
        """Write to ``stream`` instead of stderr: from now on, or within a ``with`` block if used as one."""
        return _PatchedStream(self._stderr, stream)

    def add_file_handler(self, log_file: str | Path) -> None:
        """Append to this file as well, on every rank; a file is added once.

        Where it cannot be written, one warning says so, and each further line is tried.
        """
        path = Path(log_file).absolute()
        if path not in self._files:
            self._files[path] = handler = _LogFile(path, self.warning)
            self.logger.addHandler(handler)

    def remove_file_handler(self, log_file: str | Path) -> None:
        """Stop writing to this file, and close it; unknown files are ignored."""
        handler = self._files.pop(Path(log_file).absolute(), None)
        if handler is not None:
            self.logger.removeHandler(handler)
            handler.close()

    def captureWarnings(self, capture: bool) -> None:  # noqa: N802 - the standard library's spelling
        """Turn warnings of ``warnings.warn`` into log lines of level WARNING, or stop doing so."""
        if capture and warnings.showwarning != self._log_warning:
            self._show_warning, warnings.showwarning = warnings.showwarning, self._log_warning
        elif not capture and warnings.showwarning == self._log_warning:
            warnings.showwarning = self._show_warning

    def _log_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        record = self.logger.makeRecord(
            self.logger.name, _logging.WARNING, filename, lineno, f"{category.__name__}: {message}", (), None
        )
        self.logger.handle(record)


class _StandardStream(_logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stdout`` or ``sys.stderr``, so that redirections take effect."""

    def __init__(self, name: str) -> None:
        self.patched: TextIO | None = None
        self._name_in_sys, self._is_told = name, False
        super().__init__()

    @property
    def stream(self) -> TextIO:
        return self.patched or getattr(sys, self._name_in_sys)

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignored: the base class sets the stream of the moment when it was made."""

    def handleError(self, record: _logging.LogRecord) -> None:  # noqa: N802 - the standard library's spelling
        """A full disk or a closed pipe costs lines, and is told once on stderr. Other errors show their traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_told:
            self._is_told = True
            if self._name_in_sys == "stdout" and not isinstance(error, BrokenPipeError):  # `| head` is meant so
                print(f"warning: stdout cannot be written: {error.strerror}; the run goes on", file=sys.stderr)


class _LogFile(_logging.Handler):
    """Appends lines to a file; a full disk costs lines and not the run."""

    def __init__(self, path: Path, tell: Callable[[str], object]) -> None:
        super().__init__()
        self.setFormatter(_NemoFormatter(with_rank=True))
        self._file = AppendedFile(path, tell)
        self._file.append(b"")  # the file is there from now on

    def emit(self, record: _logging.LogRecord) -> None:
        try:
            self._file.append(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except Exception:  # a message that does not fit its arguments
            self.handleError(record)


class _PatchedStream:
    """A replaced stream, which ``as`` gives; leaving the ``with`` block restores the one before."""

    def __init__(self, handler: _StandardStream, stream: TextIO) -> None:
        self._handler, self._before = handler, handler.patched
        handler.patched = self._stream = stream

    def __enter__(self) -> TextIO:
        return self._stream

    def __exit__(self, *exception: object) -> None:
        self._handler.patched = self._before


class _NemoFormatter(_logging.Formatter):
    """``[NeMo I 2026-01-01 12:00:00 train:17] message``; with the rank if asked to, or where all ranks write."""

    def __init__(self, with_rank: bool = False) -> None:
        self._with_rank = with_rank
        super().__init__(
            "[NeMo %(levelname).1s %(asctime)s %(module)s:%(lineno)d%(rank)s] %(message)s", "%Y-%m-%d %H:%M:%S"
        )

    def formatMessage(self, record: _logging.LogRecord) -> str:  # noqa: N802 - the standard library's spelling
        is_shown = self._with_rank or _is_set("NEMO_TESTING")
        record.rank = f" rank:{rank_in(os.environ)}" if is_shown else ""
        record.message = printable(record.message)
        return super().formatMessage(record)


class _TerminalFormatter(_logging.Formatter):
    """The message, marked if it is a warning or an error; or NeMo's line, as the logger's style says."""

    def __init__(self, logger: Logger, handler: _StandardStream) -> None:
        super().__init__()
        self._logger, self._handler, self._nemo = logger, handler, _NemoFormatter()

    def format(self, record: _logging.LogRecord) -> str:
        return self._nemo.format(record) if self._logger.style == "nemo" else super().format(record)

    def formatMessage(self, record: _logging.LogRecord) -> str:  # noqa: N802 - the standard library's spelling
        parts = []
        if self._logger.isEnabledFor(_logging.DEBUG):
            parts.append(f"[{record.module}:{record.lineno}]")
        if _is_set("NEMO_TESTING"):
            parts.append(f"[rank {rank_in(os.environ)}]")
        if record.levelno >= _logging.WARNING:
            word = "error:" if record.levelno >= _logging.ERROR else "warning:"
            parts.append(marked(word, self._handler.stream))
        return " ".join([*parts, printable(record.message)])


def _is_on_writing_rank(record: _logging.LogRecord) -> bool:
    return not rank_in(os.environ) or _is_set("NEMO_TESTING")


def _is_for_stderr(record: _logging.LogRecord) -> bool:
    return record.levelno > _logging.INFO or _is_set("NEMO_REDIRECT_LOGS_TO_STDERR")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no")


logging = Logger()
logging_mode = LogMode  # NeMo's name


def get_logger(name: str = "nemo_lite") -> Logger:
    """The one logging object; ``name`` is accepted and not used."""
    return logging
