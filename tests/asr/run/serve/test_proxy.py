"""The server behind nginx, below a prefix: the page, its websocket, events that come at once. The configuration is that
of docs/en/server.md."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from toys.browser import CHROMIUM, opened
from toys.served import FORM_TYPE, TellsLength, ask, form, served, wav

pytest.importorskip("starlette")

import nemo_asr.run.serve.app as app

client = pytest.importorskip("websockets.sync.client")
NGINX = shutil.which("nginx")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]

TALK = wav(5, 8)
PAGE = Path(__file__).parents[4] / "docs" / "en" / "server.md"
AROUND = """
daemon off; master_process off; pid {folder}/pid; error_log stderr error;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {documented}
}}
"""


def documented():
    """The block of nginx in the documentation."""
    (block,) = re.findall(r"```text\n(map \$http_upgrade.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return block


@contextmanager
def behind_nginx(address, folder):
    """The port of nginx in front of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    block = documented().replace("listen 80;", f"listen 127.0.0.1:{port};").replace(":8000/", f":{address[1]}/")
    assert f":{port};" in block
    assert f":{address[1]}/" in block
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder, documented=block))
    with subprocess.Popen([NGINX, "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"]) as process:
        try:
            deadline = time.monotonic() + 10
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
            yield port
        finally:
            process.terminate()


def test_the_api_and_streams_work_below_a_prefix(tmp_path):
    with served() as address, behind_nginx(address, tmp_path) as port:
        place = "127.0.0.1", port
        answer = ask(place, "POST", "/asr/v1/audio/transcriptions", form(TALK), Content_Type=FORM_TYPE["Content-Type"])
        assert answer.json["text"] == "8 11"
        large = form(wav(5, *[8] * 50))
        assert len(large) > 2 << 20  # nginx takes 1 MiB by itself
        answer = ask(place, "POST", "/asr/v1/audio/transcriptions", large, Content_Type=FORM_TYPE["Content-Type"])
        assert answer.json["text"].split()[:2] == ["8", "11"]
        with client.connect(f"ws://127.0.0.1:{port}/asr/v1/stream", origin=f"http://127.0.0.1:{port}") as websocket:
            websocket.send(TALK[44:])
            websocket.send('{"type": "stop"}')
            assert [json.loads(message) for message in websocket][-1] == {"type": "done", "text": "8 11"}
        assert ask(place, "GET", "/asr/health", Origin="https://evil.example").status == 403


def test_events_come_through_a_proxy_while_the_model_computes(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "_COMMENT_SECONDS", 0.05)
    model = TellsLength()
    with served(model) as address, behind_nginx(address, tmp_path) as port:
        model.free.clear()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/asr/v1/audio/transcriptions", form(TALK, stream="true"), FORM_TYPE)
        events = connection.getresponse()
        assert events.readline() == b": the model computes\n"
        model.free.set()
        assert b'"transcript.text.done"' in events.read()
        connection.close()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_works_below_a_prefix(tmp_path):
    (tmp_path / "talk.wav").write_bytes(TALK)
    with (
        served() as address,
        behind_nginx(address, tmp_path) as port,
        opened(tmp_path / "profile", tmp_path / "talk.wav") as page,
    ):
        root = f"http://127.0.0.1:{port}/asr/"
        page.open(f"{root}?lang=en")
        page.wait("document.getElementById('model').value === 'toy'")
        page.upload("#file", tmp_path / "talk.wav")
        page.wait("[...document.querySelectorAll('.word')].map((node) => node.textContent).join(' ') === '8 11'")
        page.press("r")
        page.wait("document.body.dataset.state === 'listening'")
        page.press("r")
        page.wait("document.body.dataset.state === 'idle'")
        page.open(f"{root}docs")
        page.wait("document.querySelectorAll('h2').length === 6")
        assert f"curl {root}v1/audio/transcriptions " in page.value("document.querySelector('pre').textContent")
        assert page.value("document.querySelector('h1 a').href") == root
        assert [name for name in page.requests if not name.startswith((root, "blob:", "data:"))] == []
        assert page.problems == []
