"""Contents that others may have made: JSON, headers of tensor files, tar and zip archives, each with bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from typing import BinaryIO, NoReturn, TypeAlias, cast

from nemo_lite.errors import NemoLiteError
from nemo_lite.files import FileKind as FileKind
from nemo_lite.files import FilePath
from nemo_lite.files import decode_text as decode_text
from nemo_lite.files import kind_unless_file as kind_unless_file
from nemo_lite.files import numbered_lines as numbered_lines
from nemo_lite.files import open_descriptor as open_descriptor
from nemo_lite.files import open_file as open_file
from nemo_lite.files import read_bytes as read_bytes
from nemo_lite.files import read_text as read_text

# JSON that others may have written: depth and number of values first, keys once, numbers finite.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# The end of a text is optional: else one that lacks it would be looked for from each of its quotes.
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_NOT_OPENING = bytes(set(range(256)) - set(b"[{\n"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 40  # characters of a key or a number in a message


@dataclass(frozen=True)
class JsonLimits:
    """What is checked before a value is built.

    Attributes:
        depth: lists and objects within each other.
        values: numbers, texts, lists and objects in all.
        digits: of one number. More than NumPy's generators need for theirs, and fewer than Python takes long for.
        surrogates: texts may hold halves of surrogate pairs, which cannot be written as UTF-8.
        constants: numbers may be NaN or infinite, as Python writes them.
    """

    depth: int = 64
    values: int = 1_000_000
    digits: int = 1_000
    surrogates: bool = False
    constants: bool = False


class _RefusedError(Exception):
    """What is wrong with a JSON text, in words."""


def read_json(path: FilePath, kind: FileKind, limits: JsonLimits = JsonLimits()) -> Json:
    """The value in a JSON file.

    Raises:
        NemoLiteError: of the kind, as :func:`read_bytes` and :func:`parse_json`.
    """
    return parse_json(read_bytes(path, kind), path, kind, limits)


def parse_json(
    data: bytes | str,
    place: FilePath,
    kind: FileKind,
    limits: JsonLimits = JsonLimits(),
) -> Json:
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
    except _RefusedError as error:
        raise kind.refusal(f"{kind.name} cannot be read: {error}", place) from None


def problem_of_json(raw: bytes, limits: JsonLimits = JsonLimits()) -> str:
    """What :func:`parse_json` would refuse a text for, in words; "" where it would not."""
    try:
        _parsed(raw, limits)
    except _RefusedError as error:
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
    _check_structure(raw, limits)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _RefusedError(f"the byte {raw[error.start]:#04x} is not UTF-8") from None

    def integer(digits: str) -> int:
        if len(digits) > limits.digits:
            raise _RefusedError(
                f"the number {digits[:_SHOWN]}... has {len(digits)} digits, at most {limits.digits} are read"
            )
        return int(digits)

    def fraction(digits: str) -> float:
        value = float(digits) if len(digits) <= limits.digits else math.nan
        if math.isnan(value) or (math.isinf(value) and not limits.constants):
            raise _RefusedError(f"the number {digits[:_SHOWN]} is out of range")
        return value

    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=integer,
            parse_float=fraction,
            parse_constant=float if limits.constants else _refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"invalid JSON ({error})") from None
    if not limits.surrogates and _SURROGATE.search(raw):
        _check_texts(value)
    return value


def _check_structure(raw: bytes, limits: JsonLimits) -> None:
    """Depth and number of values, from the brackets and commas outside of texts."""
    if len(raw) <= limits.depth and len(raw) <= limits.values:
        return  # nothing so short is too deep
    structure = _TEXT.sub(b"", raw).translate(None, _NOT_STRUCTURE)
    depth = max(accumulate(map(_STEP.__getitem__, structure)), default=0)
    if depth > limits.depth:
        raise _RefusedError(f"it is nested {depth} levels deep, at most {limits.depth} are read")
    num_values = 1 + len(structure) - structure.count(b"]") - structure.count(b"}")
    if num_values > limits.values:
        raise _RefusedError(f"it has {num_values} values, at most {limits.values} are read")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _RefusedError(f"the key {twice[:_SHOWN]} occurs twice")
    return values


def _refuse_constant(name: str) -> Json:
    raise _RefusedError(f"{name} is no finite number")


def _check_texts(value: Json) -> None:
    """Texts that cannot be written as UTF-8 would end the program where it writes them."""
    if isinstance(value, str):
        if not _is_utf_8(value):
            raise _RefusedError("a text has half of a surrogate pair")
    elif isinstance(value, list):
        for item in value:
            _check_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key)
            _check_texts(item)


def _is_utf_8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# The header of a safetensors file, checked before the library reads the file. No tensors in here.
# Source of the format: https://github.com/huggingface/safetensors#format. Eight bytes with the header's length, the
# header (a JSON object: for each tensor its type, its shape and its place in the data), then the data.


MAX_HEADER_BYTES = 32 << 20
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_LIMITS = JsonLimits(depth=4, values=MAX_HEADER_BYTES // 8)


def check_tensor_file(path: FilePath, kind: FileKind) -> dict[str, Json]:
    """The header of a safetensors file whose tensors cover its data exactly, each byte once.

    Raises:
        NemoLiteError: of the kind: as :func:`open_file`; the header is longer than the file or than
            MAX_HEADER_BYTES, is no JSON, has a key twice, a type that is not known, or tensors that overlap, leave
            bytes out, or claim other bytes than the file has.
    """
    with open_file(path, kind) as file:
        size = os.fstat(file.fileno()).st_size
        num_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= num_bytes <= min(size - _LENGTH_BYTES, MAX_HEADER_BYTES):
            wanted = f"at most {MAX_HEADER_BYTES}, within the file's {size} bytes"
            raise kind.refusal("the file is damaged: its header is too long", path, got=str(num_bytes), wanted=wanted)
        header = parse_json(file.read(num_bytes), path, kind, _LIMITS)
    if not isinstance(header, dict):
        raise kind.refusal("the file is damaged: its header is no object", path)
    _Header(header, path, kind).check(size - _LENGTH_BYTES - num_bytes)
    return header


class _Header:
    def __init__(self, header: Mapping[str, Json], path: FilePath, kind: FileKind) -> None:
        self._header, self._path, self._kind = header, path, kind

    def check(self, num_bytes: int) -> None:
        """See that the tensors cover so many bytes."""
        metadata = self._header.get(_METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            self._refuse(f"{_METADATA} holds something else than texts")
        end = 0
        spans = [(*self._span(name), name) for name in self._header if name != _METADATA]
        for first, last, name in sorted(spans):
            if first != end:
                self._refuse(f"the tensor {name[:80]} starts at byte {first} of the data, the one before ends at {end}")
            end = last
        if end != num_bytes:
            self._refuse(f"its tensors have {end} bytes, its data {num_bytes}")

    def _span(self, name: str) -> tuple[int, int]:
        entry = self._header[name]
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._refuse(f"{name[:80]} is not described as a tensor")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
            self._refuse(f"{name[:80]} has the type {str(dtype)[:20]}")
        if not isinstance(shape, list) or not all(type(count) is int and count >= 0 for count in shape):
            self._refuse(f"{name[:80]} has the shape {str(shape)[:40]}")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(each) is int for each in offsets)):
            self._refuse(f"{name[:80]} has the place {str(offsets)[:40]}")
        first, last = (int(str(each)) for each in offsets)
        promised = math.prod(count for count in shape if isinstance(count, int)) * _DTYPE_BYTES[dtype]
        if first < 0 or last - first != promised:
            self._refuse(f"{name[:80]} has {last - first} bytes, its shape wants {promised}")
        return first, last

    def _refuse(self, problem: str) -> NoReturn:
        raise self._kind.refusal(f"the file is damaged: {problem}", self._path)


# Tar and zip files that somebody else may have made: what is in them, within limits. Nothing is written to disk here.
# The standard library reads the headers. It would follow a size to the end of the memory, take a member twice, and
# some of its patterns take the square of a header's length; so it reads through :class:`TarGuard`, and each member is
# checked.


_BLOCK = 512  # bytes: the unit of tar files
_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 64 << 10  # of one extended header: a path has at most 4096 bytes
_LONG_NUMBER = re.compile(rb"[0-9]{256}")  # tarfile searches such headers from each digit on
_MAX_NAME, _MAX_PART = 4096, 255  # bytes of a path and of one name in it, as Linux has them
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, KeyError, RecursionError)

# The records at the end of a zip file, see APPNOTE.TXT of PKWARE, 4.3.14 to 4.3.16.
_END, _LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES, _LOCATOR_BYTES, _LARGE_END_BYTES = 22, 20, 56
_MAX_TAIL_BYTES = _LARGE_END_BYTES + _LOCATOR_BYTES + _END_BYTES + 0xFFFF  # and a comment
_MAX_DIRECTORY_BYTES = 4 << 20
_IN_LARGE_END = 0xFFFF_FFFF


@dataclass(frozen=True)
class TarLimits:
    """How large an archive can be.

    Attributes:
        members: files and folders.
        expanded_bytes: of the archive when it is decompressed.
    """

    members: int
    expanded_bytes: int


class Tar:
    """An archive that is open. :meth:`members` gives what is in it, once, and :meth:`chunks` the content of a file."""

    def __init__(self, guard: TarGuard, place: str, kind: FileKind, limits: TarLimits) -> None:
        self._archive, self._guard = tarfile.TarFile(fileobj=cast("BinaryIO", guard)), guard
        self._place, self._kind, self._limits = place, kind, limits

    def members(self) -> Iterator[tarfile.TarInfo]:
        """The files and folders, in order.

        Raises:
            NemoLiteError: of the kind: a member that is a link, a device or sparse, that leads out of its folder, has a
                name that no file can have or is there twice; more members or bytes than allowed; damage.
        """
        names: set[str] = set()
        num_bytes = 0
        while (member := self._next()) is not None:
            num_bytes += member.size
            self._check(member, names, num_bytes)
            names.add(_normal(member.name))
            yield member
        with _refusing_damage(self._place, self._kind):
            self._guard.read_to_the_end()

    def chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        left, place = member.size, member.offset_data
        while left:
            with _refusing_damage(self._place, self._kind):
                self._guard.seek(place)
                chunk = self._guard.content(min(left, _CHUNK_BYTES))
            if not chunk:
                raise self._refusal("a member ends early", member.name)
            left, place = left - len(chunk), place + len(chunk)
            yield chunk

    def _next(self) -> tarfile.TarInfo | None:
        with _refusing_damage(self._place, self._kind):
            member = self._archive.next()
            self._archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
            return member

    def _check(self, member: tarfile.TarInfo, names: set[str], num_bytes: int) -> None:
        problem = problem_of_name(member.name)
        if problem:
            raise self._refusal(problem, member.name)
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise self._refusal("a member is no file: it is a link, a device or sparse", member.name)
        if member.isreg() and _normal(member.name) in names:
            raise self._refusal("a member is there twice", member.name)
        if member.size < 0 or num_bytes > self._limits.expanded_bytes:
            wanted = f"at most {self._limits.expanded_bytes} bytes in all"
            raise self._refusal("the members are too large", f"{num_bytes} bytes up to {member.name}", wanted)
        if len(names) >= self._limits.members:
            raise self._refusal("there are too many members", wanted=f"at most {self._limits.members}")

    def _refusal(self, problem: str, got: str = "", wanted: str = "") -> Exception:
        got = got if len(got) <= 200 else f"{got[:200]}... ({len(got)} characters)"
        return self._kind.refusal(problem, self._place, got=got, wanted=wanted)


@contextmanager
def open_tar(path: FilePath, kind: FileKind, limits: TarLimits) -> Iterator[Tar]:
    """Open a tar file: plain, or compressed with gzip, bzip2 or xz.

    Raises:
        NemoLiteError: of the kind: as :func:`open_file`, or it is no tar file, or a damaged one.
    """
    place = os.fspath(path)
    with open_file(path, kind) as file:
        with _refusing_damage(place, kind):
            guard = TarGuard(_decompressed(file), place, kind, limits)
            tar = Tar(guard, place, kind, limits)
        yield tar


@contextmanager
def _refusing_damage(place: str, kind: FileKind) -> Iterator[None]:
    try:
        yield
    except NemoLiteError:
        raise
    except _DAMAGED as error:
        got = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise kind.refusal(f"{kind.name} is no tar file, or a damaged one", place, got=got) from None


def problem_of_name(name: str) -> str:
    """What is wrong with the name of a member, in words; "" for one that may be used below a folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        return "a member lies outside its folder"
    data = name.encode("utf-8", "surrogateescape")
    if len(data) > _MAX_NAME or any(len(part) > _MAX_PART for part in data.split(b"/")):
        return "a member's name is too long"
    if any(byte < ord(" ") or byte == 0x7F for byte in data):
        return "a member's name has a control character"
    return ""


def check_zip(file: BinaryIO, place: str, kind: FileKind) -> list[zipfile.ZipInfo]:
    """The members of a zip file that is open; its directory is bounded before it is read.

    Raises:
        NemoLiteError: of the kind: it is damaged, its directory is too large, or a member is there twice.
    """
    num_bytes = _directory_bytes(file)
    if num_bytes is None:
        raise kind.refusal(f"{kind.name} is damaged: it has no directory", place)
    if num_bytes > _MAX_DIRECTORY_BYTES:
        got, wanted = f"{num_bytes} bytes", f"at most {_MAX_DIRECTORY_BYTES}"
        raise kind.refusal("the directory of the archive is too large", place, got=got, wanted=wanted)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, *_DAMAGED) as error:
        raise kind.refusal(f"{kind.name} is damaged", place, got=str(error)) from None
    if len({each.filename for each in members}) < len(members):
        raise kind.refusal("a member is there twice", place)
    file.seek(0)
    return members


def _directory_bytes(file: BinaryIO) -> int | None:
    """The size of a zip file's directory, as the records at its end say; None where they are not there."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _MAX_TAIL_BYTES))
    tail = file.read(_MAX_TAIL_BYTES)
    start = tail.rfind(_END)
    if start < 0 or len(tail) - start < _END_BYTES:
        return None
    (num_bytes,) = struct.unpack_from("<L", tail, start + 12)
    before = start - _LOCATOR_BYTES - _LARGE_END_BYTES
    if before >= 0 and tail.startswith(_LOCATOR, start - _LOCATOR_BYTES):
        (large,) = struct.unpack_from("<Q", tail, before + 40)
        return int(large if num_bytes == _IN_LARGE_END else max(large, num_bytes))
    return int(num_bytes)


def _normal(name: str) -> str:
    return str(PurePosixPath(name))


def _decompressed(file: BinaryIO) -> BinaryIO:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    return cast("BinaryIO", lzma.LZMAFile(file)) if start.startswith(b"\xfd7zXZ\0") else file


class TarGuard:
    """What tarfile reads from, instead of a file: headers of a bounded size, and no place beyond the largest archive.

    Args:
        stream: the archive, decompressed.
        place: its name, for messages.
        kind: of the file.
        limits: of the archive.
    """

    def __init__(self, stream: BinaryIO, place: str, kind: FileKind, limits: TarLimits) -> None:
        self._stream, self._place, self._kind = stream, place, kind
        # Each member has a header, often an extended one, and is filled up to a block.
        self._end = limits.expanded_bytes + limits.members * 8 * _BLOCK + _MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Bytes of headers."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            wanted = f"at most {_MAX_HEADER_BYTES}"
            raise self._kind.refusal("a header is too long", self._place, got=f"{size} bytes", wanted=wanted)
        data = self._stream.read(size)
        if size > _BLOCK and _LONG_NUMBER.search(data):
            raise self._kind.refusal("a header has an endless number", self._place)
        return data

    def content(self, size: int) -> bytes:
        """Bytes of a file."""
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        """Go to a place; what lies before it is decompressed."""
        if not 0 <= position <= self._end:
            raise self._kind.refusal("the archive grows too large", self._place, got=f"{position} bytes")
        return self._stream.seek(position)

    def read_to_the_end(self) -> None:
        """Read what is left of a compressed archive: its checksum comes last."""
        while not isinstance(self._stream, io.BufferedReader) and self.content(_CHUNK_BYTES):
            self.seek(self.tell())

    def tell(self) -> int:
        """The place that is read next."""
        return self._stream.tell()
