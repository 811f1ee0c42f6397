"""The web application: routes, limits, answers. What fields and answers look like: ``openai_api``."""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from nemo_asr.run.audio.segments import Cutting, Detector
from nemo_asr.run.serve.ending import Ending, is_about_to_end
from nemo_asr.run.serve.endpoints import ENDPOINTS, openapi_document
from nemo_asr.run.serve.metrics import Metrics
from nemo_asr.run.serve.models import ServedModel
from nemo_asr.run.serve.openai_api import (
    MEDIA_TYPES,
    OPENAI_MODELS,
    ApiError,
    Asked,
    answer,
    asked_for,
    delta_event,
    done_event,
)
from nemo_asr.run.serve.origins import DEFAULT_ALLOWED, Allowed, Gate
from nemo_asr.run.serve.stream import TRY_LATER, StreamError, StreamSettings, run_stream
from nemo_asr.run.serve.transcription import CLIENT_LEFT, Transcription
from nemo_asr.run.serve.uploads import Upload, read_form
from nemo_asr.run.serve.watching import Turns, Watch
from nemo_asr.run.transcribe.transcript import Transcript

# Any: bodies in JSON.

_PAGE = {"": "index.html", "docs": "docs.html"}
_SCRIPT = "text/javascript"
_ASSETS = {"page.js": _SCRIPT, "worklet.js": _SCRIPT, "docs.js": _SCRIPT, "page.css": "text/css"}
# Nothing from elsewhere runs on the page, and no other page frames it.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; media-src blob:; connect-src 'self' ws: wss:; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Proxies hand each event on at once: nginx knows the last header.
_EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_MORE_THREADS = 4  # beside those of streams
_TOLD_HEADERS = ["X-Model", "X-Ignored-Fields", "Retry-After"]  # to pages of other origins
_USUAL_VALUES = 2 * 48000  # a second of two channels: of more channels or higher rates less may last
_COMMENT_SECONDS = 15.0  # events that are waited for: proxies close connections on which nothing comes for 60 s


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused.

    Attributes:
        upload_bytes: of a file (413).
        audio_seconds: of a recording (413).
        requests: that wait or are computed at once (429).
        streams: websockets at once.
        seconds: a request may take from its last byte to its answer (503).
    """

    upload_bytes: int = 100 << 20
    audio_seconds: float = 4 * 3600.0
    requests: int = 64
    streams: int = 16
    seconds: float = 600.0


class Server:
    """The routes and what they share.

    Args:
        cutting: where recordings are cut; None: not at all.
        detector: says where somebody speaks; None: levels.
        token: requests must have it; "": none is needed.
        limits: of requests.
        allowed: hosts and origins that may ask.
    """

    def __init__(
        self,
        cutting: Cutting | None,
        detector: Detector | None = None,
        token: str = "",
        limits: Limits = Limits(),
        allowed: Allowed = DEFAULT_ALLOWED,
    ) -> None:
        self._models: dict[str, ServedModel] = {}
        self._cutting, self._detector, self._limits, self._allowed = cutting, detector, limits, allowed
        self._tokens = _as_bytes(token)
        self._created = int(time.time())
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._num_open = self.num_streams = 0
        self._busy_seconds = self._computed_seconds = 0.0
        self._turns = Turns(os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(limits.requests, "uploads")  # most of which wait for their turn
        gauges: dict[str, Callable[[], float]] = {
            "open_requests": lambda: self._num_open,
            "open_streams": lambda: self.num_streams,
            "waiting_audio_seconds": lambda: self._waiting_seconds,
        }
        self.metrics = Metrics(gauges)

    def add(self, model: ServedModel) -> None:
        """Have a model; the first one is the default."""
        self._models[model.name] = model

    def observe(self, rows: int, audio_seconds: float, took: float) -> None:
        """Of a batch; see `Batcher`."""
        self._busy_seconds += took
        self._computed_seconds += audio_seconds
        self.metrics.count("audio_seconds_total", audio_seconds)
        self.metrics.count("busy_seconds_total", took)
        self.metrics.observe("batch_rows", rows)

    def end(self) -> None:
        """The server is about to end, said in any thread: requests that come from now on are told so."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    def app(self) -> Starlette:
        """The ASGI application."""
        operations: Mapping[str, Callable[..., Any]] = {
            "transcribe": functools.partial(self._transcriptions, translate=False),
            "translate": functools.partial(self._transcriptions, translate=True),
            "stream": self._no_websocket,
            "models": self._list_models,
            "model": self._show_model,
            "health": self._health,
            "metrics": self._show_metrics,
        }
        routes = [
            WebSocketRoute("/v1/stream", self._stream),
            *(Route(one.path, operations[one.operation], methods=[one.method]) for one in ENDPOINTS),
            Route("/openapi.json", self._openapi),
            *(Route(f"/{path}", functools.partial(self._page, name)) for path, name in _PAGE.items()),
            Route("/page/{name}", self._asset),
        ]
        handlers: Mapping[Any, Any] = {
            ApiError: self._refused,
            HTTPException: self._refused_by_route,
            Exception: self._failed,
        }
        middleware = [Middleware(Ending, ending=self._ending), Middleware(Gate, allowed=self._allowed)]
        if self._allowed.origins:
            cors = functools.partial(
                CORSMiddleware,
                allow_origins=self._allowed.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=_TOLD_HEADERS,
            )
            middleware.append(Middleware(cors))
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        # Each stream waits for its model in a thread.
        self._loop.set_default_executor(ThreadPoolExecutor(self._limits.streams + _MORE_THREADS, "streams"))
        yield
        for model in self._models.values():
            await asyncio.to_thread(model.batcher.close)
        self._threads.shutdown()

    # Small answers.

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "models": list(self._models), "token_needed": bool(self._tokens)})

    async def _show_metrics(self, request: Request) -> Response:
        self._check_token(request.headers)
        return PlainTextResponse(self.metrics.as_text(), media_type="text/plain; version=0.0.4")

    async def _list_models(self, request: Request) -> Response:
        self._check_token(request.headers)
        return JSONResponse({"object": "list", "data": [self._about(name) for name in self._models]})

    async def _show_model(self, request: Request) -> Response:
        self._check_token(request.headers)
        name = request.path_params["name"]
        if name not in self._models:
            raise self._unknown_model(name)
        return JSONResponse(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        model = self._models[name]
        told = {"languages": list(model.languages), "translates": model.translates}
        return {"id": name, "object": "model", "created": self._created, "owned_by": "nemo-lite", **told}

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_document(), headers=_PAGE_HEADERS)

    async def _page(self, name: str, request: Request) -> Response:
        return _file(name, "text/html")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404)
        return _file(name, _ASSETS[name])

    # Errors.

    async def _refused(self, request: Request, error: ApiError) -> Response:
        headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status == 408:  # the rest of the body may never come
            headers["Connection"] = "close"
        return JSONResponse(error.as_json(), error.status, headers)

    async def _refused_by_route(self, request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path}: {error.detail}; /docs lists what there is"
        return JSONResponse(ApiError(error.status_code, text).as_json(), error.status_code, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return JSONResponse(ApiError(500, "the server has failed; its log says why").as_json(), 500)

    def _check_token(self, headers: Mapping[str, str], also: str = "") -> None:
        """ApiError where the token is not the server's."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # A header is bytes, which are told as Latin-1.
        given = token.strip(" \t").encode("latin-1") if scheme.lower() == "bearer" else also.encode()
        if self._tokens and not any(hmac.compare_digest(given, token) for token in self._tokens):
            problem = "wrong token" if given else "no token"
            raise ApiError(401, f"{problem}: wanted the header Authorization: Bearer TOKEN", code="invalid_api_key")

    def _unknown_model(self, name: str) -> ApiError:
        text = f"model: got {name[:80]!r}, wanted {', '.join(self._models)}"
        return ApiError(404, text, param="model", code="model_not_found")

    # Transcriptions.

    async def _transcriptions(self, request: Request, translate: bool) -> ASGIApp:
        self._check_token(request.headers)
        path = request.url.path
        if self._num_open >= self._limits.requests:
            text = f"{self._num_open} requests are open: wanted fewer than {self._limits.requests}"
            self._count(path, 429)
            raise ApiError(429, text, code="rate_limit_exceeded", retry_after=self._retry_after)
        self._num_open += 1
        started, behind, status = time.monotonic(), ExitStack(), 500

        def close() -> None:
            self._num_open -= 1
            behind.close()
            self._count(path, status)
            self.metrics.observe("request_seconds", time.monotonic() - started)

        try:
            response = await self._transcription(request, translate, behind)
        except BaseException as error:
            status = error.status if isinstance(error, ApiError) else status
            status = CLIENT_LEFT if isinstance(error, ClientDisconnect) else status
            close()
            if isinstance(error, ClientDisconnect):
                return Response(status_code=status)
            raise
        status = response.status_code

        async def sent(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                async with asyncio.timeout(2 * self._limits.seconds):  # a client may read slowly
                    await response(scope, receive, send)
            finally:
                close()

        return sent

    def _count(self, path: str, status: int) -> None:
        self.metrics.count("requests_total", path=path, status=status)

    async def _transcription(self, request: Request, translate: bool, behind: ExitStack) -> Response:
        """The response; ``behind`` gets what is to be done when it was sent, or nobody waits for it any more."""
        upload = Upload()
        behind.callback(upload.close)
        fields = await read_form(request, upload, self._limits.upload_bytes)
        deadline = time.monotonic() + self._limits.seconds
        asked = asked_for(fields, self._cutting, translate)
        model = self._model(asked.model)
        headers = {"X-Model": quote(model.name)}
        ignored = [*(["language"] if asked.language and not model.languages else []), *asked.ignored]
        if ignored:
            headers["X-Ignored-Fields"] = ", ".join(quote(name[:40], safe="[]") for name in ignored[:20])
        texts: asyncio.Queue[Transcript | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(text: Transcript | None) -> None:
            loop.call_soon_threadsafe(texts.put_nowait, text)

        on_row = (lambda _, transcript: tell(transcript)) if asked.stream else None
        most_values = math.ceil(self._limits.audio_seconds * _USUAL_VALUES)
        watch = Watch(self._turns, most_values, deadline, self._timed_out())
        work = Transcription(model, asked, upload, self._limits.audio_seconds, self._detector, watch)
        behind.callback(work.cancel)
        with model.batcher.expected() as has_come:
            if work.read_if_quick():
                work.begin(on_row, has_come)
            else:
                begun = loop.run_in_executor(self._threads, work.begin_in_turn, on_row, has_come)
                upload.keep_for(begun)
                await self._unless_client_leaves(request, begun, deadline)
                begun.result()
        assert work.job is not None, "it has begun"
        if not asked.stream:
            await self._unless_client_leaves(request, asyncio.wrap_future(work.job.result), deadline)
            return _response(self._whole(work), asked, headers)
        work.job.result.add_done_callback(lambda _: tell(None))
        events = self._events(work, asked, texts, deadline)
        return StreamingResponse(events, media_type="text/event-stream", headers={**headers, **_EVENT_HEADERS})

    async def _unless_client_leaves(self, request: Request, result: asyncio.Future[Any], deadline: float) -> None:
        """Wait until a result is there. ClientDisconnect, or ApiError behind the deadline: then it goes on."""
        left: asyncio.Future[Any] = asyncio.create_task(_client_leaves(request))
        try:
            seconds = max(0.0, deadline - time.monotonic())
            await asyncio.wait([left, result], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not result.done():
                raise ClientDisconnect()
            if not result.done():
                raise self._timed_out()
            if not result.cancelled():
                result.exception()  # told by who asks for the result; the loop would tell it, too
        finally:
            left.cancel()

    def _timed_out(self) -> ApiError:
        text = f"the answer took longer than {self._limits.seconds:.0f} s"
        return ApiError(503, text, code="timeout", retry_after=self._retry_after)

    def _model(self, name: str) -> ServedModel:
        """The model of this name; OpenAI's names, and with one model every name, mean the first."""
        if name in self._models:
            return self._models[name]
        if name and name not in OPENAI_MODELS and len(self._models) > 1:
            raise self._unknown_model(name)
        return next(iter(self._models.values()))

    def _whole(self, work: Transcription) -> Transcript:
        if work.job is None or work.job.result.cancelled():
            raise is_about_to_end(self._retry_after)
        return work.transcript()

    async def _events(
        self, work: Transcription, asked: Asked, texts: asyncio.Queue[Transcript | None], deadline: float
    ) -> AsyncIterator[str]:
        """Server-sent events: the text of each segment as soon as it is known, then the whole."""
        separator = ""
        try:
            while True:
                left = deadline - time.monotonic()
                try:
                    transcript = await asyncio.wait_for(texts.get(), max(0.0, min(left, _COMMENT_SECONDS)))
                except TimeoutError:
                    if left <= _COMMENT_SECONDS:
                        raise self._timed_out() from None
                    yield ": the model computes\n\n"
                    continue
                if transcript is None:
                    break
                if transcript.text:
                    yield _event(delta_event(separator + transcript.text))
                    separator = work.separator
            yield _event(done_event(self._whole(work), asked))
        except ApiError as error:
            yield _event(error.as_json())

    # Streams.

    async def _no_websocket(self, request: Request) -> Response:
        text = "GET /v1/stream: got a request of HTTP, wanted a websocket (ws://); /docs shows its messages"
        return JSONResponse(ApiError(426, text).as_json(), 426, {"Upgrade": "websocket", "Connection": "Upgrade"})

    async def _stream(self, websocket: WebSocket) -> None:
        settings = StreamSettings(
            model_of=self._model,
            check_token=lambda token: self._check_token(websocket.headers, token),
            place=self._place_of_stream,
            ending=self._ending,
        )
        await run_stream(websocket, settings)

    @contextmanager
    def _place_of_stream(self) -> Iterator[None]:
        if self.num_streams >= self._limits.streams:
            raise StreamError(TRY_LATER, "there are too many streams; try again later")
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1

    # Shared.

    @property
    def _waiting_seconds(self) -> float:
        return sum(model.batcher.waiting_seconds for model in self._models.values())

    @property
    def _retry_after(self) -> int:
        """Seconds that what is queued will take, by the speed so far."""
        speed = self._busy_seconds / self._computed_seconds if self._computed_seconds else 0.1
        return max(1, min(600, math.ceil(self._waiting_seconds * speed)))


def _as_bytes(token: str) -> list[bytes]:
    """A token as clients send it: most as UTF-8, some as Latin-1."""
    token = token.strip(" \t\r\n")  # as headers are
    forms = [token.encode("utf-8", "surrogateescape")]
    with suppress(UnicodeEncodeError):
        forms.append(token.encode("latin-1"))
    return list(filter(None, forms))


def _response(transcript: Transcript, asked: Asked, headers: Mapping[str, str]) -> Response:
    body = answer(transcript, asked)
    if isinstance(body, str):
        return PlainTextResponse(body, media_type=MEDIA_TYPES[asked.response_format], headers=headers)
    return JSONResponse(body, headers=headers)


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _file(name: str, media_type: str) -> Response:
    content = files(__package__).joinpath("page", name).read_bytes()
    return Response(content, media_type=media_type, headers=_PAGE_HEADERS)
