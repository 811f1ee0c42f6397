"""A server in a thread of the test, and what a client sends: forms, raw bytes."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import socket
import threading
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import soundfile

from nemo_asr.run.audio.segments import DEFAULT_CUTTING
from nemo_asr.run.cli.serve import listening_socket, serve_on, uvicorn_settings
from nemo_asr.run.engines import NO_PROMPT
from nemo_asr.run.serve.batching import Batcher
from nemo_asr.run.serve.models import ServedModel
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript, Word
from nemo_lite.base.errors import UsageError

RATE = 16000
BOUNDARY = "-----a-boundary"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def message(self):
        return self.json["error"]["message"]


class TellsLength:
    """In the place of a model: a row's text is how many tenths of a second it lasts. Held until ``free`` is set."""

    def __init__(self):
        self.free, self.num_rows, self.searches, self.loudest = threading.Event(), 0, [], 0.0
        self.free.set()

    def __call__(self, rows, search):
        assert self.free.wait(30)
        self.num_rows += len(rows)
        self.searches.append(search)
        heard = [float(np.abs(row.audio).max()) for row in rows if isinstance(row.audio, np.ndarray)]
        self.loudest = max([self.loudest, *heard])
        return Transcribed([self.transcript(row) for row in rows], {}, 0.0)

    @staticmethod
    def transcript(row):
        text = str(round(10 * row.seconds))
        return Transcript(text, (Word(text, 0.1, 0.2, 0.9),), row.seconds, row.source, offset=row.offset)


def search_for(words, prompt=NO_PROMPT):
    """Refuses words as labels do that cannot spell them."""
    if "!" in "".join(words):
        raise UsageError("the labels cannot spell words of the list", got="'!'")
    return (words, prompt) if prompt != NO_PROMPT else words or None


@contextmanager
def served(compute=None, names=("toy",), token="", models=(), allowed=None, told=None, **limits):
    """The address of a server of toys, or of some models; ``told`` says what toys can be told."""
    with serving(compute, names, token, models, allowed, told or {}, **limits) as (_, _, address):
        yield address


@contextmanager
def serving(compute=None, names=("toy",), token="", models=(), allowed=None, told=MappingProxyType({}), **limits):
    """Uvicorn's server, the application and the address of `served`."""
    import uvicorn

    from nemo_asr.run.serve.app import Limits, Server
    from nemo_asr.run.serve.origins import DEFAULT_ALLOWED

    server = Server(DEFAULT_CUTTING, None, token, Limits(**limits), allowed or DEFAULT_ALLOWED)
    for model in models:
        server.add(model)
    for name in names if not models else ():
        batcher = Batcher(compute or TellsLength(), observe=server.observe)
        server.add(ServedModel(name, [" ", "a"], RATE, batcher, search_for, **told))
    options = {"host": "127.0.0.1", "port": 0, "access_log": False, "timeout": 30}
    options |= {"max_requests": Limits(**limits).requests, "max_streams": Limits(**limits).streams}
    settings = {**uvicorn_settings(SimpleNamespace(**options)), "log_level": "critical", "limit_concurrency": None}
    running = uvicorn.Server(uvicorn.Config(server.app(), **settings))
    listening = listening_socket(running.config)
    thread = threading.Thread(target=lambda: asyncio.run(serve_on(running, listening)))
    thread.start()
    try:
        yield running, server, listening.getsockname()
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wav(*tenths, rate=RATE):
    """A WAV file: tones of so many tenths of a second, with a second of silence around each."""
    silence = np.zeros(rate, np.float32)
    parts = [silence]
    for number in tenths:
        parts += [0.3 * np.sin(np.arange(number * rate // 10) * 0.2).astype(np.float32), silence]
    content = io.BytesIO()
    soundfile.write(content, np.concatenate(parts), rate, format="WAV", subtype="PCM_16")
    return content.getvalue()


def form(file=None, name="a.wav", **fields):
    """The body of a form; a field with a list comes several times."""
    parts = []
    for field, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{one}\r\n'.encode())
    if file is not None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        parts.append(f"{head}Content-Type: audio/wav\r\n\r\n".encode() + file + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


FORM_TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def ask(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(*address[:2], timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read().decode())
    finally:
        connection.close()


def transcribe(address, file=None, name="a.wav", headers=None, path="/v1/audio/transcriptions", **fields):
    """Post a form to the transcription API."""
    named = {key.replace("-", "_"): value for key, value in {**FORM_TYPE, **(headers or {})}.items()}
    return ask(address, "POST", path, form(file, name, **fields), **named)


def raw(address, content):
    """Send bytes; the socket."""
    connection = socket.create_connection(address[:2], timeout=60)
    connection.sendall(content)
    return connection


def head_of_post(length):
    return (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        f"Content-Type: {FORM_TYPE['Content-Type']}\r\n\r\n"
    ).encode()
