"""Files: the one door for what others may have made, files written whole or not at all, and digests.

Behind the door the libraries of the formats read, and what they raise becomes an error of the file's kind.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import accumulate
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from nemo_lite.base.errors import DataError, FileInTheWayError, NemoLiteError, UsageError

# Opening and reading: regular files only, and no more bytes than a kind has.


FilePath: TypeAlias = str | os.PathLike[str]

MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ADDRESS = re.compile(r"(?i:https?|ftp|s3|gs|az|hdfs):/{1,2}[^/]")
DOWNLOAD = "download it first, and name the file"


@dataclass(frozen=True)
class FileKind:
    """A kind of file, as its reader declares it.

    Attributes:
        name: with its article, for messages: ``the lexicon``.
        max_bytes: the largest that such a file can be.
        error: makes the error; it takes what :class:`NemoLiteError` takes.
        remedy: what the user can do about a file that cannot be used.
    """

    name: str
    max_bytes: int
    error: Callable[..., NemoLiteError] = DataError
    remedy: str = ""

    def refusal(self, problem: str, place: FilePath, *, got: str = "", wanted: str = "") -> NemoLiteError:
        """The error about a file of this kind, or about a place in one."""
        return self.error(problem, place=os.fspath(place), got=got, wanted=wanted, remedy=self.remedy)

    def too_large(self, place: FilePath, num_bytes: int | None = None) -> NemoLiteError:
        """The error about a file that has more bytes than its kind may have."""
        got = "" if num_bytes is None else f"{num_bytes} bytes"
        return self.refusal(f"{self.name} is too large", place, got=got, wanted=f"at most {self.max_bytes} bytes")


def is_address(path: FilePath) -> bool:
    """Whether a path is one of the web or of a store (``https://``, ``s3://``), also where two slashes became one."""
    return _ADDRESS.match(os.fspath(path)) is not None


def kind_unless_file(status: os.stat_result) -> str:
    """The kind of something that is no file, in words; "" for a file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"


def open_descriptor(path: FilePath, kind: FileKind, *, place: FilePath = "") -> int:
    """A descriptor of a regular file, for reading. The caller closes it.

    Args:
        path: the file.
        kind: of the file.
        place: its name for messages, by default the path: ``train.json:17: words.txt``.

    Raises:
        NemoLiteError: of the kind: it cannot be opened; it is a folder, a pipe, a socket or a device; it is too large.
    """
    place = place or path
    try:
        # Without waiting: the opening of a named pipe would last until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        if is_address(path):
            raise replace(kind, remedy=DOWNLOAD).refusal(f"{kind.name} is an address, no file", place) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise kind.refusal(f"{kind.name} cannot be opened ({reason})", place) from error
    try:
        status = os.fstat(descriptor)
        if other := kind_unless_file(status):
            raise kind.refusal(f"{kind.name} is {other}", place, wanted="a regular file")
        if status.st_size > kind.max_bytes:
            raise kind.too_large(place, status.st_size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: FilePath, kind: FileKind, *, place: FilePath = "") -> BinaryIO:
    """The same as a file object. It may grow later: a reader of all of it takes :func:`read_bytes`.

    Raises:
        NemoLiteError: as :func:`open_descriptor`.
    """
    return os.fdopen(open_descriptor(path, kind, place=place), "rb")


def read_bytes(path: FilePath, kind: FileKind, *, place: FilePath = "") -> bytes:
    """All of a file.

    Raises:
        NemoLiteError: as :func:`open_descriptor`, or it cannot be read, or grew beyond its kind's size.
    """
    with open_file(path, kind, place=place) as file:
        try:
            # As much as is there: Python sets aside what is asked for.
            data = file.read(min(os.fstat(file.fileno()).st_size, kind.max_bytes) + 1)
            while len(data) <= kind.max_bytes and (more := file.read(1 << 20)):  # the file grew, or tells no size
                data += more
        except OSError as error:
            raise kind.refusal(f"{kind.name} cannot be read ({error.strerror})", place or path) from error
    if len(data) > kind.max_bytes:
        raise kind.too_large(place or path)
    return data


def read_text(path: FilePath, kind: FileKind, *, place: FilePath = "") -> str:
    """All of a file of UTF-8 text. A byte order mark is left out.

    Raises:
        NemoLiteError: as :func:`read_bytes` and :func:`decode_text`.
    """
    return decode_text(read_bytes(path, kind, place=place), place or path, kind)


def numbered_lines(path: FilePath, kind: FileKind) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that hold something, one by one, each after its place: ``train.json:17``.

    Raises:
        NemoLiteError: as :func:`open_descriptor`, or a line is longer than MAX_LINE_BYTES, or it cannot be read.
    """
    with open_file(path, kind) as file:
        number = 0
        while True:
            number += 1
            place = f"{os.fspath(path)}:{number}"
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
            except OSError as error:
                raise kind.refusal(f"{kind.name} cannot be read ({error.strerror})", place) from error
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise kind.refusal(f"{kind.name} has a line of more than {MAX_LINE_BYTES} bytes", place)
            line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if line := line.strip():
                yield place, line


def decode_text(data: bytes, place: FilePath, kind: FileKind) -> str:
    """The text that some bytes are, without a byte order mark.

    Raises:
        NemoLiteError: of the kind, with the line: they are not UTF-8.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"the byte {data[error.start]:#04x}"
        line = data.count(b"\n", 0, error.start) + 1
        raise kind.refusal(f"{kind.name} is not UTF-8", f"{os.fspath(place)}:{line}", got=got) from None


# JSON: depth and number of values first, keys once, numbers finite.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# The end of a text is optional: else one that lacks it would be looked for from each of its quotes.
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_NOT_OPENING = bytes(set(range(256)) - set(b"[{\n"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DIGITS = 300  # of one number: float() takes as many
_SHOWN = 40  # characters of a key or a number in a message


@dataclass(frozen=True)
class JsonLimits:
    """Checked before a value is built.

    Attributes:
        depth: lists and objects within each other.
        values: numbers, texts, lists and objects in all.
        surrogates: texts may hold halves of surrogate pairs, which cannot be written as UTF-8.
        constants: numbers may be NaN or infinite, as Python writes them.
    """

    depth: int = 64
    values: int = 1_000_000
    surrogates: bool = False
    constants: bool = False


def read_json(path: FilePath, kind: FileKind) -> Json:
    """The value in a JSON file.

    Raises:
        NemoLiteError: of the kind, as :func:`read_bytes` and :func:`parse_json`.
    """
    return parse_json(read_bytes(path, kind), path, kind)


def parse_json(data: bytes | str, place: FilePath, kind: FileKind, limits: JsonLimits = JsonLimits()) -> Json:
    """The value that a JSON text stands for.

    Args:
        data: the text; bytes are UTF-8.
        place: of the text, for messages.
        kind: of the file; ``max_bytes`` bounds the text.
        limits: checked before the value is built.

    Raises:
        NemoLiteError: of the kind: the text is no JSON, is nested too deeply, has too many values, a number that is
            not finite or too long, or a key twice in an object (also where it is spelled in two ways).
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > kind.max_bytes:
        raise kind.too_large(place, len(raw))
    try:
        return _parsed(raw, limits)
    except ValueError as error:
        raise kind.refusal(f"{kind.name} cannot be read: {error}", place) from None


def finite_or_null(value: object) -> object:
    """A tree of values for JSON, which has neither NaN nor infinity: None in their place, keys as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite_or_null(item) for key, item in value.items()}
    return [finite_or_null(item) for item in value] if isinstance(value, (list, tuple)) else value


def json_text(value: object, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON that UTF-8 can hold: half surrogates, which stand in a name that is no UTF-8, are escaped.

    Args:
        indent: spaces for each level; None: one line.
        default: makes a value that JSON has of one that it lacks.

    Raises:
        TypeError, ValueError, RecursionError: JSON cannot hold it.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=default)
    return _HALF_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def problem_of_json(raw: bytes, limits: JsonLimits = JsonLimits()) -> str:
    """Why :func:`parse_json` would refuse a text, in words; "" where it would not."""
    try:
        _parsed(raw, limits)
    except ValueError as error:
        return str(error)
    return ""


def may_be_deeper(depth: int, block: bytes) -> bool:
    """Whether some line has more opening brackets than it may have levels. For lines by the million.

    Args:
        depth: the most levels.
        block: whole lines, or their opening brackets and ends alone.
    """
    opening = block.translate(None, _NOT_OPENING)
    num_lines = opening.count(b"\n")
    return len(opening) - 2 * num_lines >= depth and max(map(len, opening.split(b"\n"))) > depth


def _parsed(raw: bytes, limits: JsonLimits) -> Json:
    """The value. Raises ValueError with the reason in words."""
    if len(raw) > min(limits.depth, limits.values):  # nothing shorter is too deep
        _check_structure(raw, limits)

    def number(digits: str) -> int | float:
        if len(digits) > _MAX_DIGITS:
            raise ValueError(
                f"the number {digits[:_SHOWN]}... has {len(digits)} digits, at most {_MAX_DIGITS} are read"
            )
        value = int(digits) if digits.lstrip("-").isdigit() else float(digits)
        if not (limits.constants or math.isfinite(value)):
            raise ValueError(f"{digits[:_SHOWN]} is no finite number")
        return value

    try:
        text = raw.decode("utf-8")
        value: Json = json.loads(
            text, object_pairs_hook=_object, parse_int=number, parse_float=number, parse_constant=number
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"the byte {raw[error.start]:#04x} is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"invalid JSON ({error})") from None
    if not limits.surrogates and _SURROGATE.search(raw):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair") from None
    return value


def _check_structure(raw: bytes, limits: JsonLimits) -> None:
    """Compare depth and number of values, from the brackets and commas outside of texts. Raises ValueError."""
    structure = _TEXT.sub(b"", raw).translate(None, _NOT_STRUCTURE)
    depth = max(accumulate(map(_STEP.__getitem__, structure)), default=0)
    if depth > limits.depth:
        raise ValueError(f"it is nested {depth} levels deep, at most {limits.depth} are read")
    num_values = 1 + len(structure) - structure.count(b"]") - structure.count(b"}")
    if num_values > limits.values:
        raise ValueError(f"it has {num_values} values, at most {limits.values} are read")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:_SHOWN]} occurs twice")
    return values


# Writing files and folders so that a crash, a kill or a full disk leaves nothing half-written.


_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<host>[A-Za-z0-9-]*)\.(?P<pid>[0-9]+)\.[0-9a-f]{8}\.(?P<suffix>[a-z]+)")
_ABANDONED_AFTER_SECONDS = 86_400
# Writers in other languages say it in words, without the system's number: torch.save when the disk is full.
_FULL_DISK = re.compile(r"unexpected pos [0-9]+ vs [0-9]+|No space left on device|PytorchStreamWriter failed writing")


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file of the same name in a temporary sub-folder, then move it to ``path`` in one step.

    Whatever happens, ``path`` holds either what it held before or all of the new content: the temporary file lies on
    the same file system, is synchronised to the disk and renamed, then the folder is synchronised. The next write into
    the folder removes sub-folders that killed processes left behind.

    Args:
        path: the file to create or replace.
        write: takes the temporary path and writes the whole content to it.

    Raises:
        UsageError: the folder cannot be written to, the disk is full, or there is a folder, a device or a pipe of this
            name; nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(temporary_name(path.name))
    with refusing_unwritable(path, "the file cannot be written"):
        try:
            check_replaceable(path)
            sweep_temporaries(path.parent)
            temporary.mkdir()
            write(temporary / path.name)
            # Some writers make their file readable by its owner only; the folder has the bits that the user allows.
            os.chmod(temporary / path.name, temporary.stat().st_mode & 0o666)
            synchronise(temporary / path.name)
            os.replace(temporary / path.name, path)
            synchronise(path.parent)
        except UsageError as error:
            if error.place == str(temporary / path.name):  # the user knows the other one
                error.place = str(path)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path) -> None:
    """See that there is no such file or folder yet, before anything is computed for it.

    Raises:
        FileInTheWayError: there is one.
    """
    if os.path.lexists(path):
        kind = "folder" if path.is_dir() else "file"
        raise FileInTheWayError(f"the {kind} exists already", place=str(path), remedy="give another name, or remove it")


def check_replaceable(path: Path) -> None:
    """See that there is nothing but a file under a name: a rename would put one in the place of ``/dev/stdout``.

    Raises:
        UsageError: there is a folder, a device or a pipe.
    """
    folder = os.path.realpath(path.parent)  # /dev/stdout is a link, perhaps to a file
    if folder == "/dev" or folder.startswith("/proc/") or (path.exists() and not path.is_file()):
        problem = "this is a folder" if path.is_dir() else "this is a pipe or a device"
        raise UsageError(problem, place=str(path), wanted="the name of a file")


def path_in_list(path: str, folder: str) -> str:
    """A path as a list in ``folder`` names it, ready to open.

    A relative one starts at the folder; if it leads to something only in the working directory, it starts there.
    """
    path = os.path.expanduser(path)
    beside = os.path.join(folder, path)
    if not folder or os.path.isabs(path) or os.path.exists(beside) or not os.path.exists(path):
        return beside
    return path


def temporary_name(name: str, suffix: str = "tmp") -> str:
    """A hidden name that tells which process made it: ``.name.host.process.random.suffix``."""
    return f".{name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.{suffix}"


def name_in(temporary: str, suffix: str = "tmp") -> str | None:
    """The name for which :func:`temporary_name` made this one; None where it did not."""
    match = _TEMPORARY.fullmatch(temporary)
    return match["name"] if match and match["suffix"] == suffix else None


def is_abandoned(path: Path) -> bool:
    """Whether a folder with a :func:`temporary_name` belongs to a process that ended (elsewhere: a day ago)."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None or match["suffix"] != "tmp" or not path.is_dir():
        return False
    if match["host"] == _HOST:
        try:
            os.kill(int(match["pid"]), 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user
            pass
        return False
    return time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS


def sweep_temporaries(folder: Path) -> None:
    """Remove the abandoned temporaries of :func:`write_atomically` and :func:`make_writable_folder`."""
    for name in names_in(folder):
        if is_abandoned(folder / name):
            shutil.rmtree(folder / name, ignore_errors=True)


def names_in(folder: str | Path) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unwritable(error, Path(folder), "the folder cannot be read") or error from None


def make_writable_folder(folder: str | Path, *, exist_ok: bool = True) -> Path:
    """Create ``folder`` and its parents, and prove that a file can be written there.

    Temporaries that killed processes left in it, a proof like this one too, are removed.

    Raises:
        UsageError: it cannot be created or written to, or it exists and ``exist_ok`` is false.
    """
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
        sweep_temporaries(folder)
        probe = folder / temporary_name("probe")
        probe.mkdir()
        remove_probe(probe)
    except FileExistsError:
        problem = "the folder exists already" if folder.is_dir() else "there is a file where a folder is wanted"
        raise UsageError(problem, place=str(folder), remedy="choose another folder, or move this one away") from None
    except OSError as error:
        raise UsageError(
            "the folder is not writable",
            place=str(folder),
            got=f'"{error.strerror or error}"',
            remedy="choose another folder, or correct its permissions",
        ) from None
    return folder


def check_writable_folder(folder: str | Path) -> None:
    """See that a folder can be created and written to, before anything is computed for it; nothing of it stays.

    Raises:
        UsageError: as :func:`make_writable_folder`, about the folder, or the nearest one above that is there.
    """
    folder = Path(folder).expanduser()
    make_writable_folder(next(place for place in (folder, *folder.parents) if os.path.lexists(place)))


def remove_probe(probe: Path) -> None:
    """Remove an empty folder of this process. Where that fails it is tried once more, so that it does not stay.

    Raises:
        OSError: of the first try, also where the second one went well: the folder is not to be trusted.
    """
    try:
        probe.rmdir()
    except OSError:
        with suppress(OSError):
            probe.rmdir()
        raise


def synchronise(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(error: BaseException, path: Path, problem: str = "the file cannot be written") -> UsageError | None:
    """The error about a file that cannot be written: its path, and the system's text and number.

    Args:
        error: of the system, or of a writer that hides it (torch and safetensors do).
        path: of the file.
        problem: what was tried, unless the disk is full.

    Returns:
        None of an error that has other causes, or says itself what is wrong.
    """
    if isinstance(error, NemoLiteError):  # some are an OSError too
        return None
    number = error.errno if isinstance(error, OSError) else None
    name = f" ({errno.errorcode.get(number, f'errno {number}')})" if number else ""
    if number in (errno.ENOSPC, errno.EDQUOT) or (not isinstance(error, OSError) and _FULL_DISK.search(str(error))):
        remedy = f"free some space; nothing that was there before has been changed{name}"
        return UsageError("the disk is full", place=str(path), remedy=remedy)
    if not isinstance(error, OSError):
        return None
    got = f'"{os.strerror(number) if number else error}"{name}'
    is_gone = number in (errno.ENOENT, errno.ESTALE, errno.ENODEV)
    remedy = (
        "its folder is not there: was it deleted or unmounted?"
        if is_gone
        else "choose another folder, or correct its permissions"
    )
    return UsageError(problem, place=str(path), got=got, remedy=remedy)


@contextmanager
def refusing_unwritable(path: Path, problem: str = "cannot be written") -> Iterator[None]:
    """Around work on files: an error of the system becomes that of :func:`unwritable`.

    Raises:
        UsageError: in the place of an OSError.
    """
    try:
        yield
    except Exception as error:
        explained = unwritable(error, path, problem)
        if explained is None:
            raise
        raise explained from error


# A folder from elsewhere could have a pipe there, whose opening waits for ever, or a link to a file of the user's.
_CAREFUL = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPENING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | _CAREFUL


class AppendedFile:
    """A file that a run appends to, and can do without: each piece is written whole or not at all.

    A piece that cannot be written is lost; the first failure is told.

    The disk may be full for an hour of a run of weeks: each piece is tried, so the file goes on when there is space.
    The file is opened for each piece, so it may be moved away and starts anew. A pipe or a symbolic link of its name is
    left alone, as what cannot be written.

    Args:
        path: the file.
        tell: called once, with a line for the user.
    """

    def __init__(self, path: str | Path, tell: Callable[[str], object]) -> None:
        self.path = Path(path)
        self._tell, self._is_told = tell, False

    def append(self, data: bytes) -> bool:
        """Append a piece; whether it is in the file now."""
        try:
            descriptor = os.open(self.path, _OPENING, 0o666)
            try:
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is a pipe")
                _append(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                reason = error.strerror or str(error)
                self._tell(f"{self.path}: cannot be written: {reason}; the run goes on, and what is to come is tried")
            return False
        return True


def _append(descriptor: int, data: bytes) -> None:
    size = os.fstat(descriptor).st_size
    rest = memoryview(data)
    try:
        while rest:
            num_written = os.write(descriptor, rest)
            if not num_written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[num_written:]
    except OSError:
        with suppress(OSError):  # a device cannot be cut
            os.ftruncate(descriptor, size)
        raise


# Digests of values, files and packages, which ranks compare to find out whether they run the same. No network.


Plain = str | int | float | bool | None

_MOST_CHARACTERS = 120  # of a value that is shown as it is
_MISSING = "none"


class Content(str):
    """A digest of data that each machine has a copy of: of a file, or of what was read from files."""


def plain_values(name: str, value: object) -> Iterator[tuple[str, Plain]]:
    """A value under a name, to be compared and shown; a mapping is an entry for each of its keys (``name.key``).

    Numbers, texts and None are themselves, other short values JSON, long ones a digest. What counts of a value is as in
    :func:`digest_of`.
    """
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            yield from plain_values(f"{name}.{key}", inner)
        return
    described = _described(value)
    if isinstance(described, dict) and described.keys() == {"object"}:
        described = described["object"]
    is_plain = isinstance(described, (str, int, type(None)))  # a bool is an int
    if not is_plain and not (isinstance(described, float) and math.isfinite(described)):
        described = _as_json(described)
    yield name, described if len(str(described)) <= _MOST_CHARACTERS else digest_of(value)


def digest_of(value: object) -> str:
    """The sha256 of a value: texts, bytes, numbers, enumerations, None, and lists, sets and mappings of these.

    Of a path only the file name counts, because folders may differ between machines. Of any other object only the
    class counts, because most have no content that is the same in two processes.
    """
    return hashlib.sha256(_as_json(_described(value)).encode()).hexdigest()


def digest_of_files(paths: Iterable[str | Path]) -> dict[str, str]:
    """The sha256 of each file's content by its file name; the second file of the same name gets `` (2)``.

    Args:
        paths: files. One that is given twice counts once. A missing one has the digest ``none``, so that a comparison
            can say which rank lacks it.

    Raises:
        UsageError: a file that cannot be read.
    """
    digests: dict[str, str] = {}
    for path in dict.fromkeys(os.path.realpath(path) for path in paths):
        name = unused_name(os.path.basename(path), digests)
        digests[name] = digest_of_file(path) if os.path.exists(path) else _MISSING
    return digests


def unused_name(name: str, used: Mapping[str, object]) -> str:
    """``name``, or ``name (2)``, ``name (3)``, ... where that is used already."""
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name} ({number})"
    return free


def digest_of_package(folder: str | Path) -> str:
    """The sha256 of the names and contents of the Python files of a package and of its sub-packages."""
    digest = hashlib.sha256()
    for path in _source_files(Path(folder)):
        digest.update(os.fsencode(f"{path.relative_to(folder).as_posix()}\n{digest_of_file(path)}\n"))
    return digest.hexdigest()


def _source_files(folder: Path) -> Iterable[Path]:
    yield from sorted(folder.glob("*.py"))
    # Only packages: a folder of code may also hold a corpus of a million files.
    for inner in sorted(folder.glob("*/__init__.py")):
        yield from _source_files(inner.parent)


def digest_of_file(path: str | Path) -> str:
    """The sha256 of a file's content.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError("the file cannot be read", place=str(path), got=f'"{error.strerror}"') from None


def _as_json(described: object) -> str:
    return json.dumps(described, sort_keys=True, separators=(",", ":"))


def _described(value: object) -> Any:
    """A JSON value that is different for different values."""
    if isinstance(value, Enum):
        return {type(value).__qualname__: value.name}
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Real):  # NumPy's numbers too
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(digest_of(item) for item in value)}
    if isinstance(value, Mapping):
        return {"mapping": {f"{type(key).__name__} {key}": _described(item) for key, item in value.items()}}
    if isinstance(value, os.PathLike):
        return {"file": os.path.basename(os.fspath(value))}
    if isinstance(value, partial):
        return {"partial": _described([value.func, value.args, value.keywords])}
    kind = value if isinstance(value, type) or callable(value) else type(value)
    return {"object": f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"}
