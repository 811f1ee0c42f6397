"""The end of a server: answers say that their connection closes, and new requests come too late. No routes in here."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_asr.run.serve.openai_api import ApiError

_BODY_SECONDS = 1.0  # in which the body of a request that comes too late is read: else its client sees no answer


def is_about_to_end(retry_after: int) -> ApiError:
    """What requests are told that come too late."""
    return ApiError(503, "the server is about to end", code="shutdown", retry_after=retry_after)


class Ending:
    """Once the server is about to end, answers requests with 503; those that came before get their answer.

    Args:
        app: gets all that come before.
        ending: set when the server is about to end.
    """

    def __init__(self, app: ASGIApp, ending: asyncio.Event) -> None:
        self._app, self._ending = app, ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        is_over = self._ending.is_set() and scope["type"] in ("http", "websocket")
        if not is_over:
            await self._app(scope, receive, self._closing(send) if scope["type"] == "http" else send)
            return
        if scope["type"] == "http":
            with suppress(TimeoutError):
                async with asyncio.timeout(_BODY_SECONDS):
                    while (await receive()).get("more_body"):
                        pass
        error = is_about_to_end(retry_after=1)
        headers = {"Connection": "close", "Retry-After": str(error.retry_after)}
        await JSONResponse(error.as_json(), error.status, headers)(scope, receive, send)

    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._ending.is_set():
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        return closing
