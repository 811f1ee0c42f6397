"""The errors of nemo_lite: each says place, got, wanted and what to do, in one line. Nothing else lives here."""

from __future__ import annotations

import difflib
import errno
import os
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from nemo_lite.base.interruption import Interrupted, name_of, stop_signals

_STDOUT = 1  # the file descriptor
_LEAST_LIKENESS = 0.75  # of a name that an error suggests, by difflib: 1 for equal names
MAX_LISTED = 5  # how many places an error or a summary names
_MAX_LINES = 50  # of problems with one file: more than a screen
_NO_HOME = "Could not determine home directory."  # of Path.expanduser
_LONGEST_TEXT = 300  # characters of an error of other code
# Called with the error that ends the program; when_failing sets it.
_tell_others: Callable[[BaseException], object] | None = None
# Characters that a terminal obeys or cannot show: controls, marks that turn the order of letters, half surrogates.
_NOT_PRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class NemoLiteError(Exception):
    """Base of all errors that a user can cause and mend.

    Args:
        problem: what is wrong, without a full stop.
        place: where: ``file:line``, a module's port, a flag.
        got: what was found.
        wanted: what would have been right.
        remedy: what the user can do. Who catches the error may know more, and change it.

    Attributes:
        exit_code: of a script that ends with it.
        is_common: every rank raises it by itself, so none has to tell the others.
    """

    exit_code = 2
    is_common = False

    def __init__(self, problem: str, *, place: str = "", got: str = "", wanted: str = "", remedy: str = "") -> None:
        self.problem, self.place, self.got, self.wanted, self.remedy = problem, place, got, wanted, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        details = [f"{label} {value}" for label, value in (("got", self.got), ("wanted", self.wanted)) if value]
        if details:
            text += ": " + ", ".join(details)
        return f"{text}; {self.remedy}" if self.remedy else text


class UsageError(NemoLiteError, ValueError):
    """Arguments that contradict each other, are missing or out of range."""


class UnknownArgumentError(UsageError, TypeError):
    """An argument that a call does not have."""


class OutOfRangeError(UsageError):
    """An argument outside of the range that its parameter has."""

    def __init__(self, place: str, got: str, wanted: str) -> None:
        super().__init__("is out of range", place=place, got=got, wanted=wanted)

    def _text(self) -> str:
        return f"{self.place} is {self.got}, wanted {self.wanted}"


class FileInTheWayError(UsageError, FileExistsError):
    """A file that would have to be replaced, and is not."""


class ConfigError(NemoLiteError, ValueError):
    """A configuration file that cannot be used. ``problems`` holds one line for each thing found; the text shows 50."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        more = [f"... and {len(problems) - _MAX_LINES} more"] if len(problems) > _MAX_LINES else []
        super().__init__("\n".join([*problems[:_MAX_LINES], *more]))


class UnknownNameError(NemoLiteError, ValueError):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, place: str = "") -> None:
        known = sorted(known)
        super().__init__(
            f'{kind} "{name}" is not known', place=place, remedy=f"known: {', '.join(known)}{did_you_mean(name, known)}"
        )


class TakenKeyError(NemoLiteError, KeyError):
    """A key that is in use already."""


class UnknownFeatureTypeError(UnknownNameError, NotImplementedError):
    """A sort of features that no NeMo had."""


class UnknownKeyError(UnknownNameError, KeyError):
    """A key that is not among the known ones."""


class DataError(NemoLiteError, ValueError):
    """A datum (a manifest line, an audio file) that cannot be used."""


class DataChangedError(DataError):
    """The source of the data is not what it was when the run started: no item of it can be read any more."""


class DataWorkerError(NemoLiteError, RuntimeError):
    """A process that reads data (``num_workers``) and that the system ended, got no memory, or hangs."""


class DeviceError(NemoLiteError, ValueError):
    """A device that was asked for and is not there."""


class CheckpointError(NemoLiteError, ValueError):
    """A checkpoint that is missing, damaged, or does not fit the modules."""


class ModelNotFoundError(CheckpointError, FileNotFoundError):
    """A model that is asked for by file or by name, and is not there."""


class NonFiniteLossError(NemoLiteError, ValueError):
    """The loss became NaN or infinite, and the run stops in that case."""


class DistributedError(NemoLiteError, RuntimeError):
    """Ranks that do not find each other, or one that failed, died or hangs while others wait for it.

    Args:
        exit_code: that of the rank that failed first, where it is known: all ranks end with the same one.

    Attributes:
        is_told: the user has read it already.
    """

    exit_code = 3
    is_told = False

    def __init__(self, problem: str, *, exit_code: int | None = None, **details: str) -> None:
        super().__init__(problem, **details)
        if exit_code:
            self.exit_code = exit_code


class DagError(NemoLiteError, ValueError):
    """Wires that do not form one DAG with one data layer."""


class CountError(UsageError, IndexError):
    """A list that has too few or too many values."""


class MissingOptionError(UsageError, AssertionError):
    """An argument that another one needs."""


class GraphConnectionError(DagError, ConnectionError):
    """A graph that was given in place of a wire and is not the active one."""


class GraphTypeError(DagError, TypeError):
    """A use of a graph with a value of a wrong kind, or of a graph in one of another mode."""


class GraphKeyError(DagError, KeyError):
    """A name that a graph does not have, or has already."""


class NameTakenError(UsageError, NameError):
    """A name that another living module or graph has."""


class ConfigStructureError(ConfigError, ImportError):
    """A configuration file that lacks a section, or describes something else than what is read from it."""


class UnknownClassError(ConfigStructureError, ModuleNotFoundError):
    """A configuration that names a class which is not loaded."""


class ConfigurationError(NemoLiteError, ValueError):
    """A setting that this machine or this graph cannot have."""


class NeuralTypeError(NemoLiteError, ValueError):
    """A neural type, or a use of one, that is wrong."""


class NeuralPortNameMismatchError(NeuralTypeError):
    """A port name that the module does not have, or a needed port left unconnected."""


class NotAWireError(NeuralPortNameMismatchError, TypeError):
    """Something beside wires in a call that connects."""


class CanNotInferResultNeuralType(NeuralTypeError):  # noqa: N818 - NeMo 0.9's name
    """Nothing raises it here; scripts of NeMo 0.9 import it."""


class NeuralPortNmTensorMismatchError(NeuralTypeError):
    """A wire whose type does not fit the port it was given to.

    Its text has several lines: both ends, both types and the remedy.
    """

    def _text(self) -> str:
        lines = [f"{self.problem}:", f"  got    {self.got}", f"  wanted {self.wanted}"]
        return "\n".join([*lines, f"  {self.remedy}"] if self.remedy else lines)


def printable(text: str) -> str:
    """A text that may come from a file, for a terminal or a log: control characters become ``\\x1b``.

    Tabs and ends of lines stay.
    """
    return _NOT_PRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def marked(word: str, stream: TextIO | None = None) -> str:
    """``error:`` or ``warning:``, in colour where the stream (by default stderr) is a terminal.

    Without colour where NO_COLOR is set (no-color.org), or the terminal has none.
    """
    stream = stream or sys.stderr
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain or stream is None or not stream.isatty():
        return word
    return f"\x1b[{'33' if word.startswith('warning') else '31'}m{word}\x1b[0m"


def counted(number: int, singular: str, plural: str = "") -> str:
    """``1 step``, ``2 steps``. Give ``plural`` for nouns that do not just add an s: ``batches``."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def with_line(error: BaseException, code: type | str) -> str:
    """``KeyError: 'swish' (mine.py:14)``: an error that somebody else's code raised, in one line.

    Args:
        error: it was raised; of its text the first line is told.
        code: the file of that code, or a class in it. The innermost line of the file is told; where none of it ran, the
            innermost line of all.
    """
    file = code if isinstance(code, str) else getattr(sys.modules.get(code.__module__), "__file__", None)
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    path, number = next((line for line in reversed(lines) if line[0] == file), lines[-1] if lines else ("", 0))
    first = next(iter(str(error).splitlines()), "")[:_LONGEST_TEXT]
    if isinstance(error, SyntaxError) and error.filename:
        path, number, first = error.filename, error.lineno or 0, error.msg
    text = first if isinstance(error, NemoLiteError) else f"{type(error).__name__}: {first}".removesuffix(": ")
    return f"{text} ({os.path.basename(path)}:{number})" if path else text


def listed(problems: Sequence[str], total: int) -> str:
    """The first few problems, one a line, and how many more of them there are."""
    shown = problems[:MAX_LISTED]
    more = [f"... and {total - len(shown)} more"] if total > len(shown) else []
    return "\n".join([*shown, *more])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean x?)`` for the nearest known name, or an empty string."""
    near = nearest(str(name), known)
    return f" (did you mean {near[0]}?)" if near else ""


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known names that are most like a name; a name that is less like it than 0.75 of 1 would mislead.

    Names that differ in case, underscores and dashes alone come before all others.
    """
    known = list(known)
    same = [each for each in known if _letters(each) == _letters(name)]
    like = difflib.get_close_matches(name, [each for each in known if each not in same], count, _LEAST_LIKENESS)
    return [*same, *like][:count]


def _letters(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def when_failing(tell: Callable[[BaseException], object]) -> None:
    """Let a function know the error with which :func:`reported_to_user` ends the program, after the user has read it.

    It takes the place of the one before: a backend tells other processes, which wait for this one.
    """
    global _tell_others
    _tell_others = tell


@contextmanager
def reported_to_user(program: str = "") -> Iterator[None]:
    """Turn a user's mistake into a line on stderr and its exit code: no traceback. For the ``main`` of a script.

    The line begins with ``PROGRAM: error:``, as those about options do. ``program`` is by default the script's name.

    The same for a signal that ends the program: SIGINT (exit code 130), SIGTERM, SIGUSR1 and SIGHUP (75: preempted, can
    go on); and for a full disk. Where nobody reads stdout any more, as after ``| head``, the end is quiet (exit code
    141).
    """
    program = program or os.path.basename(sys.argv[0])
    with stop_signals():
        try:
            yield
            sys.stdout.flush()
        except NemoLiteError as error:  # first, because one may be an OSError too
            if not getattr(error, "is_told", False):
                print(f"{program}: {marked('error:')} {error}", file=sys.stderr, flush=True)
            _tell(error)
            sys.exit(error.exit_code)
        except OSError as error:
            _end_if_files_run_out(error, program)
            _end_if_output_fails(error, program)
            raise
        except RuntimeError as error:
            if str(error) != _NO_HOME:
                raise
            problem = "a path begins with ~, and there is no such home folder; write it without ~, or set HOME"
            print(f"{program}: {marked('error:')} {problem}", file=sys.stderr)
            _tell(error)
            sys.exit(UsageError.exit_code)
        except SystemExit as end:
            if isinstance(end.__cause__, NemoLiteError):
                _tell(end.__cause__)
            raise
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
            if not stopped.is_told:
                print(f"{name_of(stopped.number)}: stopped; {stopped.kept}", file=sys.stderr)
                _tell(stopped)
            sys.exit(stopped.exit_code)


def _tell(error: BaseException) -> None:
    if _tell_others is not None:
        with suppress(KeyboardInterrupt):  # a signal ends the telling, and the exit code stays
            _tell_others(error)


def more_open_files() -> str:
    """What to do where no more files can be opened."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"raise the limit of open files, {limit} now (ulimit -n; in a container docker run --ulimit nofile): rank 0 "
        "needs about 4 for each rank"
    )


def _end_if_files_run_out(error: OSError, program: str) -> None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        place = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {marked('error:')} {place}{error.strerror}; {more_open_files()}", file=sys.stderr)
        _tell(error)
        sys.exit(UsageError.exit_code)


def _end_if_output_fails(error: OSError, program: str) -> None:
    """End the program where nobody reads stdout any more, and where a disk is full; other errors go on."""
    if isinstance(error, BrokenPipeError) and _nobody_reads():
        _drop_output()
        sys.exit(128 + signal.SIGPIPE)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        print(
            f"{program}: {marked('error:')} the output cannot be written: {error.strerror}; free some space",
            file=sys.stderr,
        )
        sys.exit(UsageError.exit_code)


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose other end is closed. Pipes of other processes break too."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_output() -> None:
    """Let the interpreter's last writes to stdout go nowhere, where they cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
