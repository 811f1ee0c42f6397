"""The websocket ``/v1/stream``: 16-bit samples in, partial and final texts out. Where texts come from: `Stream`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from nemo_asr.run.audio.heads import kind_of_start
from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.serve.models import ServedModel
from nemo_asr.run.serve.openai_api import ApiError, checked_keywords, json_of, prompt_of
from nemo_asr.run.text.labels import separator_of
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import STREAM_CUTTING, Partial, SegmentStream, Stream, message_of
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.nemo_logging import logging

# Any: values of JSON.

_RATE = 16000  # where the client does not say it
_WAITING_MESSAGES = 32  # then the client has to wait
_HEAD_BYTES = 4096  # in which a file is told from samples
_MOST_BYTES = 1 << 20  # of samples that are looked at together
_FIRST_SECONDS, _IDLE_SECONDS = 10.0, 120.0  # until the first message, and between two
# RFC 6455, section 7.4.1, and its registry.
_NORMAL, _UNSUPPORTED, _POLICY, _FAILED, _RESTART, TRY_LATER = 1000, 1003, 1008, 1011, 1012, 1013
_LAST_SECONDS = 0.05  # for what has arrived when the server is about to end
_REASON_BYTES = 123  # of a closing frame


@dataclass(frozen=True)
class StreamSettings:
    """What a stream needs of the server.

    Attributes:
        model_of: the model of a name; "" is the default one. ApiError for unknown names.
        check_token: ApiError for a wrong token.
        place: the stream counts inside of it; StreamError where there are too many.
        ending: set when the server is about to end.
    """

    model_of: Callable[[str], ServedModel]
    check_token: Callable[[str], None]
    place: Callable[[], AbstractContextManager[None]]
    ending: asyncio.Event


class StreamError(Exception):
    """A stream that ends with an error.

    Args:
        code: of the closing frame.
        message: one line.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


async def run_stream(websocket: WebSocket, settings: StreamSettings) -> None:
    """Serve one websocket to its end.

    The client may begin with ``{"type": "start", "sample_rate", "model", "language", "task", "keywords", "token"}``,
    sends samples of one channel (16 bits, little endian) as binary messages, and ends with ``{"type": "stop"}``. It
    gets ``partial`` and ``final`` messages, and ``done`` behind the last one.
    """
    await websocket.accept()
    try:
        first = await _message(websocket, _FIRST_SECONDS)
        opening = _opening(first) if isinstance(first, str) else {}
        try:
            settings.check_token(_text(opening, "token"))
        except ApiError as error:
            raise StreamError(_POLICY, error.message) from None
        with settings.place():
            stream = await asyncio.to_thread(_new_stream, opening, settings)
            content = b"" if isinstance(first, str) else first
            session = _Session(websocket, stream, settings.ending)
            await session.run(content, is_last=opening.get("type") == "stop")
    except WebSocketDisconnect:
        return
    except StreamError as refused:
        await _end(websocket, refused)
    except Exception as error:  # of the model
        logging.error("A stream failed: %s: %s", type(error).__name__, error)
        await _end(websocket, StreamError(_FAILED, "the model has failed; the server's log says why"))


async def _end(websocket: WebSocket, refused: StreamError) -> None:
    """Tell the client why, if it is still there."""
    with suppress(WebSocketDisconnect, RuntimeError):  # RuntimeError: it was closed already
        await _send(websocket, {"type": "error", "message": refused.message})
        await websocket.close(refused.code, refused.message.encode()[:_REASON_BYTES].decode(errors="ignore"))


class _Session:
    """Takes messages while samples are transcribed in a thread: what came meanwhile is looked at together."""

    def __init__(self, websocket: WebSocket, stream: Stream, ending: asyncio.Event) -> None:
        self._websocket, self._stream, self._ending = websocket, stream, ending
        self._messages: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_WAITING_MESSAGES)
        self._head, self._rest = b"", b""

    async def run(self, content: bytes, is_last: bool) -> None:
        receiving = asyncio.create_task(self._receive())
        try:
            while not is_last:
                if not content:
                    content, is_last = await self._next()
                samples = self._samples(content)
                content = b""
                if len(samples):
                    await self._tell(await asyncio.to_thread(self._stream.accept, samples))
            await self._tell(await asyncio.to_thread(self._stream.finish))
            await _send(self._websocket, {"type": "done", "text": self._stream.text})
            if self._ending.is_set():
                await self._websocket.close(_RESTART, "the server is about to end")
            else:
                await self._websocket.close(_NORMAL)
        finally:
            receiving.cancel()

    async def _receive(self) -> None:
        """Queue messages until the last one, or the end of the server; a full queue keeps the client waiting."""
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            while True:
                coming = asyncio.ensure_future(_message(self._websocket, _IDLE_SECONDS))
                coming.add_done_callback(_note_error)
                try:
                    await asyncio.wait([coming, ending], return_when=asyncio.FIRST_COMPLETED)
                    if ending.done():
                        await asyncio.wait([coming], timeout=_LAST_SECONDS)
                finally:
                    coming.cancel()  # what has come stays
                if not coming.done():
                    await self._messages.put(None)
                    return
                message = coming.result()
                if isinstance(message, bytes):
                    await self._messages.put(message)
                elif _object(message).get("type") == "stop":
                    await self._messages.put(None)
                    return
                else:
                    raise StreamError(_UNSUPPORTED, 'wanted binary messages with samples, or {"type": "stop"}')
        except (WebSocketDisconnect, StreamError) as error:
            await self._messages.put(error)
        finally:
            ending.cancel()

    async def _next(self) -> tuple[bytes, bool]:
        """All samples that have come, and whether they are the last ones."""
        message = await self._messages.get()
        content = bytearray()
        while True:
            if isinstance(message, Exception):
                raise message
            if message is None:
                return bytes(content), True
            content += message
            if self._messages.empty() or len(content) >= _MOST_BYTES:
                return bytes(content), False
            message = self._messages.get_nowait()

    def _samples(self, content: bytes) -> Samples:
        """Of full scale 1; half a sample waits for its other half. StreamError for the bytes of a file."""
        if len(self._head) < _HEAD_BYTES:
            self._head += content[:_HEAD_BYTES]
            if kind := kind_of_start(self._head):
                wanted = "wanted samples of 16 bits of one channel, without a head"
                problem = f"these are the bytes of a file ({kind}), {wanted}"
                raise StreamError(_UNSUPPORTED, f"{problem}; decode it, or post it to /v1/audio/transcriptions")
        content = self._rest + content
        whole = len(content) // 2 * 2
        self._rest = content[whole:]
        return np.frombuffer(content[:whole], "<i2").astype(np.float32) / np.float32(32768)

    async def _tell(self, events: Sequence[Partial]) -> None:
        for event in events:
            await _send(self._websocket, message_of(event))


def _note_error(task: asyncio.Future[Any]) -> None:
    """The loop does not tell of an error for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


async def _message(websocket: WebSocket, most_seconds: float) -> str | bytes:
    """The next message."""
    try:
        message = await asyncio.wait_for(websocket.receive(), most_seconds)
    except TimeoutError:
        raise StreamError(_POLICY, f"there was no message for {most_seconds:g} s") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", _NORMAL))
    content: str | bytes | None = message.get("bytes")
    return message.get("text", "") if content is None else content


def _object(text: str) -> dict[str, Any]:
    try:
        value = json_of(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StreamError(_UNSUPPORTED, "this text is no JSON object")
    return value


def _opening(text: str) -> dict[str, Any]:
    """The first message; a client that stops before it has said anything gets an empty text."""
    opening = _object(text)
    if opening.get("type") not in ("start", "stop"):
        raise StreamError(_UNSUPPORTED, 'wanted {"type": "start"}, or binary messages with samples')
    return opening


def _new_stream(start: dict[str, Any], settings: StreamSettings) -> Stream:
    """A stream as the client asks for it. In a thread: it may make a search."""
    try:
        model = settings.model_of(_text(start, "model"))
        keywords = start.get("keywords") or []
        if not isinstance(keywords, list) or not all(isinstance(word, str) for word in keywords):
            raise StreamError(_POLICY, "keywords: wanted a list of texts")
        task = _text(start, "task")
        if task not in ("", "transcribe", "translate"):
            raise StreamError(_POLICY, f"task: got {task[:60]!r}, wanted transcribe or translate")
        prompt = prompt_of(_text(start, "language"), task == "translate", model.languages, model.translates)
        search = model.search_for(checked_keywords(keywords), prompt)
        rate = start.get("sample_rate", _RATE)
        if not isinstance(rate, int):
            raise StreamError(_POLICY, "sample_rate: wanted a whole number of Hz")

        if model.frame_stream is not None:
            return model.frame_stream(rate, search)

        def transcribe(recording: Recording) -> Transcript:
            transcripts, faults = model.batcher.submit([recording], search).result.result()
            if faults:
                raise DataError(faults[0])
            return transcripts[0]

        cutting = STREAM_CUTTING.within(model.longest_seconds)
        return SegmentStream(transcribe, rate, cutting, separator=separator_of(model.labels), domain=model.domain)
    except (ApiError, UsageError, DataError) as error:
        raise StreamError(_POLICY, str(error)) from None


def _text(start: dict[str, Any], name: str) -> str:
    value = start.get(name, "")
    if not isinstance(value, str):
        raise StreamError(_POLICY, f"{name}: wanted a text")
    return value


async def _send(websocket: WebSocket, message: dict[str, Any]) -> None:
    await websocket.send_text(json.dumps(message, ensure_ascii=False))
