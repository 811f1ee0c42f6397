"""Folders of verified files: a record lists each with its size and SHA-256, and has a digest of itself.

The record is written last, so that a folder counts whole or not at all. Any change of a listed file or of the record is
noticed, and only what a record lists is deleted. Checkpoints and model folders are such folders; what else their
records say is theirs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, cast

import msgspec

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import FileKind, JsonLimits, digest_of_file, json_text, parse_json, read_bytes

Fields = TypeVar("Fields")
_DIGEST = "sha256"  # of the other fields; a field of the file, not of what it says
# So often what was written is sent to the disk: who waits for a slow one sees that it still takes it.
_SENT_BYTES = 64 * 2**20


class VerifiedFile(msgspec.Struct, frozen=True):
    """One file of a folder.

    Attributes:
        name: its name in the folder.
        sha256: of its content when it was written.
        bytes: its size when it was written.
    """

    name: str
    sha256: str
    bytes: int

    def problem(self, folder: Path, *, contents: bool) -> str:
        """How it differs from what was written, or "". Without ``contents`` only the size is compared."""
        path = folder / self.name
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                return f"{self.name} is no file"
            if status.st_size != self.bytes:
                return f"{self.name} has {status.st_size} bytes, {self.bytes} were written"
            if contents and digest_of_file(path) != self.sha256:
                return f"{self.name} has changed (SHA-256 differs)"
        except FileNotFoundError:
            return f"lacks {self.name}"
        except (OSError, UsageError) as error:
            return f"{self.name} cannot be read ({getattr(error, 'strerror', '') or error})"
        return ""


class LaterVersionError(CheckpointError):
    """A record of a later nemo_lite: not damaged, so nothing of before takes its place."""


@dataclass(frozen=True)
class RecordKind(Generic[Fields]):
    """A kind of record.

    Attributes:
        file: what it is called, how large it may be, and its error.
        format: the text under ``format`` in each.
        version: the newest that is read.
        fields: the class of what it says.
        digested: the text of some fields whose digest is stored.
        limits: of its JSON.
        may_be_edited: by a person: its layout does not count, and one without a digest is read as it is.
    """

    file: FileKind
    format: str
    version: int
    fields: type[Fields]
    digested: Callable[[Mapping[str, object]], str]
    limits: JsonLimits
    may_be_edited: bool = False

    def text(self, content: Mapping[str, object]) -> str:
        """The text of a record: the content and, as the last key, its digest.

        Raises:
            TypeError, ValueError, RecursionError: JSON cannot hold the content.
        """
        content = json.loads(json_text(content))  # a tuple becomes a list, a number as a key a text
        return json_text({**content, _DIGEST: self._digest_of(content)}, indent=1)

    def _digest_of(self, content: Mapping[str, object]) -> str:
        return hashlib.sha256(self.digested(content).encode()).hexdigest()

    def read(self, path: Path) -> Fields:
        """What the record in a file says.

        Raises:
            CheckpointError: it cannot be read, was changed or damaged, is of another kind, or a later version wrote it
                (:class:`LaterVersionError`).
        """
        name, refusal, place = self.file.name, self.file.refusal, str(path)
        text = read_bytes(path, self.file)
        content = parse_json(text, path, self.file, self.limits)
        if not isinstance(content, dict):
            raise refusal(f"{name} cannot be read: it is no object", place)
        digest = content.pop(_DIGEST, None)
        if self.may_be_edited:
            is_as_written = digest in (None, self._digest_of(content))
        else:
            is_as_written = self.text(content).encode() == text
        if not is_as_written:
            remedy = f'copy the folder again, or remove "{_DIGEST}" from it' if self.may_be_edited else ""
            problem, got = f"{name} was changed or damaged", "another content than that of its SHA-256"
            raise CheckpointError(problem, place=place, got=got, remedy=remedy)
        form, version = content.get("format"), content.get("version")
        if form == self.format and isinstance(version, int) and version > self.version:
            raise LaterVersionError(
                f"{name} was written by a later nemo_lite",
                place=place,
                got=f"version {version}",
                wanted=f"at most {self.version}",
                remedy="update nemo_lite, or choose another folder",
            )
        if form != self.format or not isinstance(version, int):
            got, wanted = f'format "{form}", version {version}', f'format "{self.format}", version {self.version}'
            raise refusal(f"{name} is of another kind", place, got=got, wanted=wanted)
        try:
            return msgspec.convert(content, self.fields)
        except msgspec.ValidationError as error:
            raise refusal(f"{name} cannot be read: {error}", place) from None


class _Digesting(io.RawIOBase):
    """A file to be written, with the digest and the size of what was given to it."""

    def __init__(self, file: BinaryIO, sent: Callable[[], object]) -> None:
        self._file, self._sent = file, sent
        self.digest, self.num_bytes, self._num_sent = hashlib.sha256(), 0, 0

    def writable(self) -> bool:
        return True

    def write(self, content: bytes, /) -> int:  # type: ignore[override]  # any buffer
        self._file.write(content)
        self.digest.update(content)
        size = memoryview(content).nbytes
        self.num_bytes += size
        if self.num_bytes - self._num_sent >= _SENT_BYTES:
            self.send()
        return size

    def send(self) -> None:
        """Wait until all of it has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._num_sent = self.num_bytes
        self._sent()


def write_verified(
    path: Path, write: Callable[[BinaryIO], object], sent: Callable[[], object] = lambda: None
) -> VerifiedFile:
    """Write a file of a folder that is not there yet for others, down to the disk.

    Args:
        path: the file.
        write: writes its content from the beginning to the end.
        sent: called whenever some of it has reached the disk.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "wb") as file:
        digesting = _Digesting(file, sent)
        write(cast("BinaryIO", digesting))
        digesting.send()
    return VerifiedFile(path.name, digesting.digest.hexdigest(), digesting.num_bytes)


def delete_listed(folder: Path, names: Iterable[str]) -> None:
    """Delete files of a folder that a record lists.

    Raises:
        OSError: one cannot be deleted.
    """
    for name in names:
        (folder / name).unlink(missing_ok=True)
