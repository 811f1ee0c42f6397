"""Which hosts and origins may ask: a page of somebody else in the user's browser may not. No routes in here.

A page may send requests to this machine, and, where a name of its own leads here (DNS rebinding), read the answers.
Its requests have its name in the header Host, or its own address in Origin, which a page cannot change.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_asr.run.serve.openai_api import ApiError

ANY = "*"
_PORTS = {"http": "80", "https": "443"}
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+?)\.?(?::(\d{1,5}))?", re.IGNORECASE)


@dataclass(frozen=True)
class Allowed:
    """Who may ask.

    Attributes:
        hosts: names and addresses of the server, beside localhost and the loopback addresses; ``*.example.org``: all
            that end so; None or ``*``: any.
        origins: pages that may ask, beside the server's own, as ``https://example.org``; ``*``: any.
    """

    hosts: Sequence[str] | None = ()
    origins: Sequence[str] = ()

    def problem(self, headers: Headers) -> str:
        """Why a request with these headers is refused; "": it is not."""
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_own(host):
            name = host[:80]
            return f"Host: got {name!r}, wanted a name of this server; nemo-lite serve --allowed_hosts adds one"
        if origin is not None and not self._may_ask(origin, host or ""):
            page = origin[:80]
            return f"Origin: got {page!r}, wanted a page of this server; nemo-lite serve --allowed_origins adds others"
        return ""

    def _is_own(self, address: str) -> bool:
        if self.hosts is None or ANY in self.hosts:
            return True
        name = _parts(address)[0]
        return is_loopback(name) or any(
            name == host.strip("[]") or (host.startswith("*.") and name.endswith(host[1:]))
            for host in map(str.lower, self.hosts)
        )

    def _may_ask(self, origin: str, host: str) -> bool:
        if ANY in self.origins or origin.lower() in self.origins:
            return True
        scheme, _, address = origin.lower().partition("://")
        # A proxy may have taken HTTPS off: the scheme of the server's address is not known.
        (name, port), (own, own_port), usual = _parts(address), _parts(host), _PORTS.get(scheme)
        return bool(name) and usual is not None and (name, port or usual) == (own, own_port or usual)


DEFAULT_ALLOWED = Allowed()


class Gate:
    """Answers requests and websockets of strangers with 403.

    Args:
        app: gets all others.
        allowed: who may ask.
    """

    def __init__(self, app: ASGIApp, allowed: Allowed) -> None:
        self._app, self._allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        problem = self._allowed.problem(Headers(scope=scope)) if scope["type"] in ("http", "websocket") else ""
        if problem:
            error = ApiError(403, problem, code="forbidden")
            await JSONResponse(error.as_json(), error.status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_loopback(name: str) -> bool:
    """Whether a name or an address always means this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _parts(address: str) -> tuple[str, str]:
    """The name in small letters and the port of NAME:PORT; "" for what is not there, or is no address."""
    found = _ADDRESS.fullmatch(address)
    return (found[1].lower().strip("[]"), found[2] or "") if found else ("", "")
