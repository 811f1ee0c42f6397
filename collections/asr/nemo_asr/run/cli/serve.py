"""Serve models over HTTP: OpenAI's transcription API, a websocket for live speech, and a page for the browser."""

from __future__ import annotations

import asyncio
import ipaddress
import logging as standard_logging
import os
import re
import socket
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal

from nemo_asr.run.cli.transcribe import MODEL_HELP, MODEL_MISSING, Segments, check_segments, cutting_of
from nemo_asr.run.engines import BATCH_SECONDS, BATCH_SIZE, open_engines
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import (
    OnnxRuntime,
    OwnModules,
    PromptOptions,
    SearchArguments,
    check_search_options,
    search_options,
)
from nemo_lite.base.errors import UsageError
from nemo_lite.base.nemo_logging import logging
from nemo_lite.base.options import Device, OneLineParser, fold_precision, option, option_group, seconds
from nemo_lite.base.ranges import Between, PositiveFloat, PositiveInt

# Any: a namespace has no types, and neither have packages that may be missing.

PROGRAM = "nemo-lite serve"
_VARIABLE = "NEMO_LITE_SERVE_TOKEN"
_INSTALL = "starlette uvicorn python-multipart websockets"
_HEAD_SECONDS = 20.0  # in which a client has to send the head of a request
# Connections on which nothing comes are kept longer than proxies keep them (nginx: 60 s). Else a proxy may send a
# request on one that is closed at this moment.
_KEPT_SECONDS = 65
_LAST_SECONDS = 1.0  # in which kept connections are told that the server ends
_MOST_MESSAGE_BYTES = 1 << 20  # of a websocket
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]"
_HOST, _ORIGIN = rf"\*|(?:\*\.)?(?:{_NAME})", rf"\*|null|file://|[a-z][a-z0-9+.-]*://(?:{_NAME})(?::\d{{1,5}})?"


def host_names(text: str) -> tuple[str, ...]:
    """An argparse type: names of hosts, without ports."""
    return _listed(text, _HOST, "wanted names or addresses without ports: asr.example.org,*.example.net or *")


def origins(text: str) -> tuple[str, ...]:
    """An argparse type: origins of pages."""
    return _listed(text, _ORIGIN, "wanted schemes and hosts, no paths: https://example.org,http://localhost:3000 or *")


def _listed(text: str, pattern: str, wanted: str) -> tuple[str, ...]:
    values = tuple(filter(None, (value.strip().lower() for value in text.split(","))))
    for value in values:
        if not re.fullmatch(pattern, value):
            raise ArgumentTypeError(f"got {value[:80]!r}, {wanted}")
    return values


@option_group
class Serving(OwnModules):
    """Where the server listens, and what it refuses."""

    page: ClassVar[str] = "serving"
    host: str = option(
        "127.0.0.1", "address to listen on; another one than this machine's own needs --token", metavar="ADDRESS"
    )
    port: Annotated[int, Between(0, 65535)] = option(8000, "port to listen on; 0: any that is free")
    token: str | None = option(
        None, "requests must say it (Authorization: Bearer TOKEN); by default the value of NEMO_LITE_SERVE_TOKEN"
    )
    allowed_hosts: tuple[str, ...] | None = option(
        None,
        "names of this server in addresses, with commas between them, beside localhost; *: any, as with a token by "
        "default",
        type=host_names,
        metavar="NAMES",
    )
    allowed_origins: tuple[str, ...] | None = option(
        None,
        "pages of other addresses that may ask, with commas between them (https://example.org); *: all",
        type=origins,
        metavar="ORIGINS",
    )
    access_log: bool = option(False, "a line on stderr for each request")
    max_upload: Annotated[int, Between(1, 2048)] = option(100, "MiB of a file")
    max_minutes: PositiveFloat = option(240.0, "of a recording")
    max_requests: PositiveInt = option(
        64, "transcriptions that wait or are computed at once; more are told to try again later"
    )
    max_streams: PositiveInt = option(16, "websockets that are open at once")
    timeout: float = option(600.0, "seconds from the end of a request to its answer", type=seconds)
    segments: Literal["energy", "off"] = option(
        "energy",
        "cut recordings at pauses, by their levels (energy), or transcribe them as they are (off)",
        page="segments",
    )
    vad: str | None = option(
        None,
        "a voice-activity model in the place of levels, for files: see nemo-lite transcribe",
        page="segments",
        metavar="MODEL",
    )
    batch_size: PositiveInt = option(BATCH_SIZE, "most segments in a batch, of all requests together")
    batch_seconds: float = option(BATCH_SECONDS, "most seconds of audio computed at once", type=seconds)


class ServeParser(OneLineParser):
    """The options of ``nemo-lite serve``."""

    groups = (Serving, Segments, SearchArguments, PromptOptions, Device, OnnxRuntime)
    on_missing = MODEL_MISSING
    most_used = "host port token max_upload max_requests decoder lm placement"
    pages = {
        "serving": "addresses, limits, batches, modules of your own",
        "segments": "where recordings are cut: pauses, lengths",
        "decoding": "beam search, lexicon, language model, hot words",
        "launching": "devices, precision",
    }

    def __init__(self) -> None:
        super().__init__(prog=PROGRAM, description="Models over HTTP: OpenAI's API, a websocket, a page")
        self.add_argument("models", metavar="MODEL", nargs="+", help=MODEL_HELP)

    def check(self, parsed: Any) -> None:
        """What the options of decoding, segments and addresses mean together."""
        super().check(parsed)
        check_search_options(self, parsed)
        check_segments(self, parsed)
        fold_precision(self, parsed)
        given = parsed.token
        token = given if given is not None else os.environ.get(_VARIABLE, "")
        parsed.token = token.strip(" \t\r\n")  # a line end, where it comes from a file
        if re.search(r"[\0-\x1f\x7f]", parsed.token):
            self.error("--token: it has control characters or line ends, which a header cannot have")
        if given is not None and not parsed.token:  # of a shell's variable without a value
            self.error(
                "--token: it is empty; give one, or leave the option out: then everybody on this machine may ask"
            )
        if not parsed.token and not _is_own_address(parsed.host):
            self.error(f"--host {parsed.host} can be reached from other machines; give --token TOKEN or {_VARIABLE}")


def _is_own_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal; what runs is finished first.

    Raises:
        UsageError: packages are missing, or the address is taken.
    """
    args = ServeParser().parse_args(arguments)
    try:
        import uvicorn

        from nemo_asr.run.serve.app import Limits, Server
        from nemo_asr.run.serve.models import names_of_models, serve_model
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in _INSTALL.replace("-", "_").split():
            raise
        problem, remedy = f"the package {error.name} is not installed", f"pip install {_INSTALL}"
        raise UsageError(problem, remedy=remedy) from None
    with logging.patch_stdout_handler(sys.stderr):
        if args.access_log:
            _log_requests()
        limits = Limits(
            upload_bytes=args.max_upload << 20,
            audio_seconds=60 * args.max_minutes,
            requests=args.max_requests,
            streams=args.max_streams,
            seconds=args.timeout,
        )
        detector = load_detector(args.vad) if args.vad else None
        server = Server(cutting_of(args), detector, args.token, limits, allowed_of(args))
        names = names_of_models(args.models)
        for engine, name in zip(open_engines(args.models, args), names, strict=True):
            options = search_options(args)
            server.add(serve_model(engine, name, options, args.batch_size, args.batch_seconds, server.observe))
        _run(uvicorn.Server(uvicorn.Config(server.app(), **uvicorn_settings(args))), server, args.timeout)
    return 0


def allowed_of(args: Namespace) -> Any:
    """Who may ask; see `nemo_asr.run.serve.origins.Allowed`."""
    from nemo_asr.run.serve.origins import Allowed

    # With a token, a page that leads a name of its own here gets nothing.
    hosts = None if args.token and args.allowed_hosts is None else (args.host, *(args.allowed_hosts or ()))
    return Allowed(hosts, args.allowed_origins or ())


def _log_requests() -> None:
    """Lines of uvicorn for each request; in its path control characters are escaped."""
    handler = standard_logging.StreamHandler(sys.stderr)
    handler.setFormatter(standard_logging.Formatter("%(asctime)s %(message)s"))
    access = standard_logging.getLogger("uvicorn.access")
    access.addHandler(handler)
    access.setLevel(standard_logging.INFO)


def uvicorn_settings(args: Namespace) -> dict[str, Any]:
    """Of ``uvicorn.Config``."""
    try:
        from nemo_asr.run.serve.protocol import LingeringWebSocket

        websockets: Any = LingeringWebSocket
    except ImportError:  # of another version
        websockets = "auto"
    return {
        "host": args.host,
        "port": args.port,
        "log_config": None,
        "access_log": args.access_log,
        "server_header": False,
        "http": "h11",  # the same whatever else is installed
        "ws": websockets,
        "ws_max_size": _MOST_MESSAGE_BYTES,
        "timeout_keep_alive": _KEPT_SECONDS,
        "timeout_graceful_shutdown": round(args.timeout),
        "limit_concurrency": 8 * (args.max_requests + args.max_streams),
    }


def _run(server: Any, application: Any, timeout: float) -> None:
    """Until a signal, which ends the main thread's waiting; uvicorn finishes in a thread of its own what runs."""
    sock = listening_socket(server.config)
    host, port = sock.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    logging.info("Serving at http://%s:%d (API at /docs, metrics at /metrics); Ctrl-C ends it", address, port)
    with sock, ThreadPoolExecutor(1, "server") as executor:
        running = executor.submit(asyncio.run, serve_on(server, sock))
        try:
            running.result()
        except KeyboardInterrupt:
            logging.info("Ending: what runs is finished first; a second signal leaves at once")
            tell_the_end(server, application, timeout)
            running.result()


def tell_the_end(server: Any, application: Any, timeout: float) -> None:
    """End a server of uvicorn: for a moment requests on open connections are told so, and streams are finished.

    Args:
        server: of uvicorn.
        application: the `Server` that it runs.
        timeout: seconds that streams may take.
    """
    application.end()
    started = time.monotonic()
    while server.server_state.connections and time.monotonic() - started < _LAST_SECONDS:
        time.sleep(_LAST_SECONDS / 20)
    while application.num_streams and time.monotonic() - started < timeout:
        time.sleep(_LAST_SECONDS / 20)
    server.should_exit = True


def listening_socket(config: Any) -> Any:
    """The socket of the server. uvicorn would end the program where it cannot have it."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With its protocol named, asyncio sets TCP_NODELAY: else an answer's body waits 0.04 s behind its head.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen()  # who comes before uvicorn is ready waits
    except (OSError, OverflowError) as error:
        sock.close()
        problem, remedy = "the server cannot listen there", "give another --host or --port"
        place = f"{config.host}:{config.port}"
        raise UsageError(problem, place=place, got=str(error), remedy=remedy) from None
    return sock


async def serve_on(server: Any, sock: Any) -> None:
    """Run a server of uvicorn on a socket until it is told to exit."""
    closing = asyncio.create_task(_close_slow_heads(server))
    try:
        await server.serve(sockets=[sock])
    finally:
        closing.cancel()


async def _close_slow_heads(server: Any) -> None:
    """Close connections on which the head of a request does not arrive: uvicorn would wait for ever."""
    since: dict[Any, tuple[Any, float]] = {}  # by connection: its last request, and since when the head does not come
    while True:
        await asyncio.sleep(_HEAD_SECONDS / 20)
        now = time.monotonic()
        waiting = [connection for connection in server.server_state.connections if _waits_for_head(connection)]
        before, since = since, {}
        for connection in waiting:
            last, first = before.get(connection, (None, now))
            since[connection] = (connection.cycle, first if last is connection.cycle else now)
            if now - since[connection][1] > _HEAD_SECONDS:
                connection.transport.close()


def _waits_for_head(connection: Any) -> bool:
    """Whether a head has begun, or has never come; kept connections on which nothing comes are closed by uvicorn."""
    cycle = getattr(connection, "cycle", None)
    is_kept = getattr(connection, "timeout_keep_alive_task", None) is not None
    return hasattr(connection, "cycle") and not is_kept and (cycle is None or cycle.response_complete)
