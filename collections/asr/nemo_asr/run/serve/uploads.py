"""The form of a request: its fields, and its file, which is in memory or a temporary one. No models in here."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from nemo_asr.run.audio.files import forget_audio
from nemo_asr.run.serve.openai_api import ApiError
from nemo_lite.base.errors import DataError

# Any: values of a form.

IN_MEMORY_BYTES = 1 << 20
"""Larger files are temporary ones."""
_GRACE_SECONDS, _LEAST_RATE = 20.0, 20_000.0  # a body has so long, and a second more for so many bytes of it
_FIELD_BYTES, _FIELDS_BYTES, _MOST_FIELDS = 1 << 16, 1 << 20, 2000  # of one field, of all, and how many
_OVERHEAD_BYTES = 1 << 18  # of a form, beside its file
# Source: RFC 2046, section 5.1.1. Other parameters of the media type do not count: a form is UTF-8 (RFC 7578, section
# 5.1.2), and some charsets of Python take the square of a text's length to decode.
_BOUNDARY = re.compile(
    r";[ \t]*boundary=(?:\"([\w'()+,./:=? -]{1,70})\"|([\w'()+./:=?-]{1,70}))", re.ASCII | re.IGNORECASE
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_OPEN_FILES = Path("/proc/self/fd")  # Linux: each descriptor can be opened anew by its path
# Its warnings tell of a client's mistakes, which the answer tells the client.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Upload:
    """The file of a request: in memory where it is small, else a temporary file, which is gone after `close`.

    On Linux the file has no name, so nothing stays behind where the process is killed.

    Attributes:
        name: the client's.
        audio: the content or the path.
    """

    def __init__(self) -> None:
        self.name = ""
        self.audio: bytes | str = b""
        self._descriptor = -1
        self._reader: asyncio.Future[Any] | None = None

    def keep_for(self, reader: asyncio.Future[Any]) -> None:
        """The file stays until somebody who reads it in another thread has ended, also behind `close`."""
        self._reader = reader

    async def take(self, file: UploadFile) -> None:
        """Take the content over."""
        name = _utf_8(file.filename or "", "replace")
        self.name = os.path.basename(name)[:200] or "file"
        if (file.size or 0) <= IN_MEMORY_BYTES:
            self.audio = await file.read()
        elif _OPEN_FILES.is_dir():
            self._descriptor = os.dup(file.file.fileno())
            self.audio = str(_OPEN_FILES / str(self._descriptor))
        else:
            await asyncio.to_thread(self._copy, file)

    def _copy(self, file: UploadFile) -> None:
        descriptor, path = tempfile.mkstemp(prefix="nemo-lite-upload-")
        self.audio = path
        with open(descriptor, "wb") as copy:
            shutil.copyfileobj(file.file, copy, 1 << 20)

    def close(self) -> None:
        """Remove the file, and what was decoded of it, as soon as nobody reads it."""
        if self._reader is not None and not self._reader.done():
            self._reader.add_done_callback(self._ended)
        else:
            self._close()

    def _ended(self, reader: asyncio.Future[Any]) -> None:
        if not reader.cancelled():
            reader.exception()  # nobody else asks for it, and the loop would tell it
        self._close()

    def _close(self) -> None:
        if self.audio:
            with suppress(DataError):
                forget_audio(self.audio)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        elif isinstance(self.audio, str):
            Path(self.audio).unlink(missing_ok=True)
        self.audio = b""


async def read_form(request: Request, upload: Upload, most_bytes: int) -> list[tuple[str, Any]]:
    """The fields of a request; its file goes into ``upload``.

    Args:
        request: its body is not read yet.
        upload: gets the file.
        most_bytes: of the file.

    Raises:
        ApiError: it is no form, has no file, is too large or too slow; or the disk is full.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise ApiError(400, f"Content-Type: got {kind[:80] or 'nothing'}, wanted multipart/form-data")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most_bytes + _OVERHEAD_BYTES:
        raise _too_large(most_bytes)
    try:
        return await _taken(await _parsed(request, most_bytes), upload, most_bytes)
    except OSError as error:
        if error.errno in _FULL:
            raise disk_is_full() from None
        raise


async def _taken(form: FormData, upload: Upload, most_bytes: int) -> list[tuple[str, Any]]:
    """The fields of a form, of which its file is taken over."""
    try:
        fields = [(_decoded("name of a field", name), _value(name, value)) for name, value in form.multi_items()]
        file = next((value for name, value in fields if name == "file" and isinstance(value, UploadFile)), None)
        if file is None:
            got = "got a text" if any(name == "file" for name, _ in fields) else "there is none"
            raise ApiError(400, f"file: {got}, wanted an audio file (curl: -F file=@a.wav)", param="file")
        if not file.size:
            raise ApiError(400, "file: it is empty (0 bytes)", param="file")
        if file.size > most_bytes:
            raise _too_large(most_bytes)
        await upload.take(file)
    finally:
        await form.close()
    return fields


async def _parsed(request: Request, most_bytes: int) -> FormData:
    """The form; a client that is too slow, or sends too much, is refused while it sends."""
    now = asyncio.get_running_loop().time
    started, num_bytes = now(), 0

    async def body() -> AsyncGenerator[bytes, None]:
        nonlocal num_bytes
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > most_bytes + _OVERHEAD_BYTES:
                raise _too_large(most_bytes)
            limit.reschedule(started + _GRACE_SECONDS + num_bytes / _LEAST_RATE)
            yield chunk

    boundary = _BOUNDARY.search(request.headers["content-type"])
    if boundary is None:
        raise ApiError(400, "Content-Type: got no boundary as of RFC 2046, wanted multipart/form-data; boundary=...")
    # As Latin-1 each byte is kept, and texts are decoded later, see `_decoded`.
    kind = f'multipart/form-data; charset=latin-1; boundary="{boundary[1] or boundary[2]}"'
    parser = _FormParser(Headers({"content-type": kind}), body(), max_files=1, max_fields=_MOST_FIELDS)
    try:
        async with asyncio.timeout(_GRACE_SECONDS) as limit:
            form = await parser.parse()
    except TimeoutError:
        text = f"the body came too slowly: {num_bytes} bytes in {now() - started:.0f} s"
        raise ApiError(408, text, code="request_timeout") from None
    except MultiPartException as error:
        raise ApiError(400, f"the form cannot be read: {error.message}") from None
    if not parser.is_complete:
        await form.close()
        raise ApiError(400, "the form cannot be read: it ends before its last boundary")
    return form


class _FormParser(MultiPartParser):
    """Knows whether the form has ended: what was cut off has no last boundary. Bounds the fields that are texts."""

    spool_max_size = IN_MEMORY_BYTES
    is_complete = False
    _num_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._current_part
        if part.file is None:
            self._num_bytes += end - start
            if len(part.data) + end - start > _FIELD_BYTES:
                name = _utf_8(part.field_name[:60], "replace")
                remedy = f"; a file has a file name (curl: -F {name}=@a.wav)" if name == "file" else ""
                raise MultiPartException(f"the field {name!r} is longer than {_FIELD_BYTES >> 10} KiB{remedy}")
            if self._num_bytes > _FIELDS_BYTES:
                raise MultiPartException(f"its fields are longer than {_FIELDS_BYTES >> 10} KiB in all")
        super().on_part_data(data, start, end)

    def on_end(self) -> None:
        self.is_complete = True


def _value(name: str, value: str | UploadFile) -> str | UploadFile:
    return _decoded(f"field {_utf_8(name, 'replace')[:60]!r}", value) if isinstance(value, str) else value


def _decoded(what: str, text: str) -> str:
    """The text of a form, whose bytes came as Latin-1."""
    try:
        return _utf_8(text)
    except UnicodeDecodeError as error:
        got = f"the byte 0x{error.object[error.start]:02x}"
        raise ApiError(400, f"the form cannot be read: a {what} is not UTF-8: got {got}") from None


def _utf_8(text: str, errors: str = "strict") -> str:
    return text.encode("latin-1").decode("utf-8", errors)


def disk_is_full() -> ApiError:
    """There is no place for a temporary file."""
    return ApiError(507, "the server's disk is full; try again later", code="insufficient_storage", retry_after=60)


def _too_large(most_bytes: int) -> ApiError:
    text = f"file: it is too large, wanted at most {most_bytes >> 20} MiB"
    return ApiError(413, text, param="file", code="file_too_large")
