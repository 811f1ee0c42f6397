"""The form of a request: its fields, and its file, which is in memory or a temporary one. No models in here."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from nemo_asr.audio.reading import forget_audio
from nemo_asr.serve.openai_api import ApiError
from nemo_lite.errors import DataError

# Any: values of a form.

IN_MEMORY_BYTES = 1 << 20
"""Larger files are temporary ones."""
_GRACE_SECONDS, _LEAST_RATE = 20.0, 20_000.0  # a body has so long, and a second more for so many bytes of it
_FIELD_BYTES, _MOST_FIELDS = 1 << 16, 2000
_OVERHEAD_BYTES = 1 << 18  # of a form, beside its file
# Its warnings tell of a client's mistakes, which the answer tells the client.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Upload:
    """The file of a request: in memory where it is small, else a temporary file, which `close` removes.

    Attributes:
        name: the client's.
        audio: the content or the path.
    """

    def __init__(self) -> None:
        self.name = ""
        self.audio: bytes | str = b""

    async def take(self, file: UploadFile) -> None:
        """Take the content over."""
        self.name = os.path.basename(file.filename or "file")[:200] or "file"
        if (file.size or 0) <= IN_MEMORY_BYTES:
            self.audio = await file.read()
        else:
            await asyncio.to_thread(self._copy, file)

    def _copy(self, file: UploadFile) -> None:
        descriptor, path = tempfile.mkstemp(prefix="nemo-lite-upload-")
        self.audio = path
        with open(descriptor, "wb") as copy:
            shutil.copyfileobj(file.file, copy, 1 << 20)

    def close(self) -> None:
        """Remove the file, and what was decoded of it."""
        if self.audio:
            with suppress(DataError):
                forget_audio(self.audio)
        if isinstance(self.audio, str):
            Path(self.audio).unlink(missing_ok=True)
        self.audio = b""


async def read_form(request: Request, upload: Upload, most_bytes: int) -> list[tuple[str, Any]]:
    """The fields of a request; its file goes into ``upload``.

    Args:
        request: its body is not read yet.
        upload: gets the file.
        most_bytes: of the file.

    Raises:
        ApiError: it is no form, has no file, is too large or too slow.
    """
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise ApiError(400, f"Content-Type: got {kind[:80] or 'nothing'}, wanted multipart/form-data")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most_bytes + _OVERHEAD_BYTES:
        raise _too_large(most_bytes)
    form = await _parsed(request, most_bytes)
    try:
        fields = form.multi_items()
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

    parser = _FormParser(request.headers, body(), max_files=1, max_fields=_MOST_FIELDS, max_part_size=_FIELD_BYTES)
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
    """Knows whether the form has ended: what was cut off has no last boundary."""

    spool_max_size = IN_MEMORY_BYTES
    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True


def _too_large(most_bytes: int) -> ApiError:
    text = f"file: it is too large, wanted at most {most_bytes >> 20} MiB"
    return ApiError(413, text, param="file", code="file_too_large")
