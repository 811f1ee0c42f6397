"""Which hosts and origins may ask: names that lead here, pages of others, addresses of pages that were allowed."""

from __future__ import annotations

import pytest
from toys.served import FORM_TYPE, ask, form, served, transcribe, wav

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

from starlette.datastructures import Headers

from nemo_asr.run.serve.origins import Allowed

client = pytest.importorskip("websockets.sync.client")
exceptions = pytest.importorskip("websockets.exceptions")

TALK = wav(5, 8)


def problem(allowed, **headers):
    return allowed.problem(Headers(headers))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8000", "LOCALHOST", "localhost.", "nemo.localhost:8000"),
        *("127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8000"),
    ],
)
def test_names_that_always_mean_this_machine_may_ask(host):
    assert problem(Allowed(), host=host) == ""
    assert problem(Allowed(), host=host, origin=f"http://{host}".lower()) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost"),
        *("user@localhost", "localhost/x", "evil.example#localhost", "a b", "x" * 3000, "", "["),
        *("192.168.1.5", "128.0.0.1"),
    ],
)
def test_other_names_may_not_unless_they_are_allowed(host):
    told = problem(Allowed(), host=host)
    assert told.startswith(f"Host: got {host[:80]!r}, wanted a name of this server; nemo-lite serve --allowed_hosts")
    assert len(told) < 200
    for hosts in (None, ["*"]):
        assert problem(Allowed(hosts), host=host) == ""


def test_allowed_hosts_are_names_without_ports_or_all_below_one():
    allowed = Allowed(["asr.example.org", "*.example.net", "[fe80::1]", "fe80::2"])
    for host in ("ASR.example.org:443", "a.example.net", "a.b.example.net", "[fe80::1]:8000", "[fe80::2]", "127.0.0.1"):
        assert problem(allowed, host=host) == "", host
    for host in ("example.org", "x.asr.example.org", "example.net", "xexample.net"):
        assert problem(allowed, host=host), host


def test_pages_of_the_server_itself_may_ask_also_behind_a_proxy_that_takes_https_off():
    everybody = Allowed(None)
    for host, origin in (
        ("localhost:8000", "http://localhost:8000"),
        ("asr.example.org", "https://asr.example.org"),
        ("asr.example.org:443", "https://asr.example.org"),
        ("asr.example.org", "http://asr.example.org:80"),
        ("asr.example.org:8443", "https://ASR.example.org:8443"),
    ):
        assert problem(everybody, host=host, origin=origin) == "", origin


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "null", "", "file://", "chrome-extension://abc", "localhost:8000"),
        *("http://localhost:3000", "http://127.0.0.1:8000", "https://localhost:8001"),
        "http://localhost:8000.evil.example",
    ],
)
def test_pages_of_others_may_not_ask_unless_they_are_allowed(origin):
    told = problem(Allowed(None), host="localhost:8000", origin=origin)
    assert told.startswith(f"Origin: got {origin!r}, wanted a page of this server; nemo-lite serve --allowed_origins")
    for origins in (["*"], ["https://other.example", origin]):
        assert problem(Allowed(None, origins), host="localhost:8000", origin=origin) == ""


def url(address):
    return f"ws://{address[0]}:{address[1]}/v1/stream"


def test_strangers_get_nothing_of_a_server_without_a_token():
    with served() as address:
        for path in ("/", "/docs", "/health", "/metrics", "/v1/models", "/page/page.js", "/nowhere"):
            for headers in ({"Host": "evil.example:8000"}, {"Origin": "https://evil.example"}):
                answer = ask(address, "GET", path, **headers)
                assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden"), path
                assert "access-control-allow-origin" not in answer.headers
            assert ask(address, "GET", path, Host="localhost", Origin="http://localhost").status in (200, 404)
        answer = transcribe(address, TALK, headers={"Origin": "https://evil.example"})
        assert (answer.status, answer.message[:30]) == (403, "Origin: got 'https://evil.exam")
        assert transcribe(address, TALK, headers={"Origin": f"http://127.0.0.1:{address[1]}"}).json["text"] == "8 11"
        with pytest.raises(exceptions.InvalidStatus, match="403"):
            client.connect(url(address), origin="https://evil.example")
        with client.connect(url(address), origin=f"http://127.0.0.1:{address[1]}") as socket:
            socket.send('{"type": "stop"}')
            assert '"done"' in socket.recv(timeout=10)


@pytest.mark.slow
def test_a_page_that_is_allowed_asks_as_browsers_do():
    page = "https://app.example.org"
    preflight = {"Origin": page, "Access-Control-Request-Method": "POST"}
    preflight["Access-Control-Request-Headers"] = "authorization, x-stainless-lang"
    path = "/v1/audio/transcriptions"
    with served(allowed=Allowed((), [page]), token="secret") as address:
        answer = ask(address, "OPTIONS", path, **preflight)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, page)
        assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
        headers = {"Origin": page, "Authorization": "Bearer secret", **FORM_TYPE}
        answer = ask(address, "POST", path, form(TALK), **{key.replace("-", "_"): headers[key] for key in headers})
        assert (answer.json["text"], answer.headers["access-control-allow-origin"]) == ("8 11", page)
        assert "X-Model" in answer.headers["access-control-expose-headers"]
        assert ask(address, "POST", path, form(TALK), Origin=page).headers["access-control-allow-origin"] == page
        for origin in ("https://evil.example", f"{page}.evil.example", "http://app.example.org"):
            assert ask(address, "OPTIONS", path, **{**preflight, "Origin": origin}).status == 403
    with served(allowed=Allowed((), ["*"])) as address:
        assert ask(address, "OPTIONS", path, **preflight).headers["access-control-allow-origin"] == "*"
    with served() as address:
        assert ask(address, "OPTIONS", path, **preflight).status == 403
