"""The command ``nemo-lite serve``: its options, and a process that is asked, told to end, and ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from toys.onnx_toy import write_toy
from toys.served import ask, form, head_of_post, raw, transcribe, wav
from toys.tone_corpus import record
from toys.tone_model import train_tones

import nemo_asr
import nemo_lite as nemo
from nemo_asr.run.cli.serve import ServeParser, allowed_of, listening_socket, main
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import UsageError

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")


def parsed(*words):
    return ServeParser().parse_args(["MODEL", *words])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host, monkeypatch, capsys):
    monkeypatch.delenv("NEMO_LITE_SERVE_TOKEN", raising=False)
    with pytest.raises(SystemExit):
        parsed("--host", host)
    assert f"--host {host} can be reached from other machines; give --token TOKEN" in capsys.readouterr().err
    assert parsed("--host", host, "--token", "x").token == "x"
    monkeypatch.setenv("NEMO_LITE_SERVE_TOKEN", "y")
    assert parsed("--host", host).token == "y"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_an_address_of_this_machine_needs_none(host, monkeypatch):
    monkeypatch.delenv("NEMO_LITE_SERVE_TOKEN", raising=False)
    assert parsed("--host", host).token == ""


def test_a_token_that_is_empty_is_not_taken_for_none(capsys):
    for token in ("", " \n"):
        with pytest.raises(SystemExit):
            parsed("--token", token)
        assert "--token: it is empty; give one, or leave the option out" in capsys.readouterr().err


def test_a_token_is_taken_without_the_line_end_of_its_file_and_with_no_other(monkeypatch, capsys):
    monkeypatch.setenv("NEMO_LITE_SERVE_TOKEN", " p\xe4ss w\xe0\xa0\r\n")
    assert parsed().token == "p\xe4ss w\xe0\xa0"
    for token in ("a\nb", "a\0", "\x7f"):
        with pytest.raises(SystemExit):
            parsed("--token", token)
        assert "--token: it has control characters or line ends" in capsys.readouterr().err
    monkeypatch.delenv("NEMO_LITE_SERVE_TOKEN")
    with pytest.raises(SystemExit):
        parsed("--host", "0.0.0.0", "--token", " \n")


def test_hosts_and_origins_are_lists_and_what_is_none_is_told(capsys):
    args = parsed(
        "--allowed_hosts", "ASR.example.org, *.example.net,[fe80::1]", "--allowed_origins", "http://a:3000,null"
    )
    assert args.allowed_hosts == ("asr.example.org", "*.example.net", "[fe80::1]")
    assert args.allowed_origins == ("http://a:3000", "null")
    for origin in ("*", "file://", "chrome-extension://abc", "http://[::1]:3000"):
        assert parsed("--allowed_origins", origin).allowed_origins == (origin,)
    for words, told in (
        (("--allowed_hosts", "a:80"), "got 'a:80', wanted names or addresses without ports"),
        (("--allowed_hosts", "a.*"), "wanted names or addresses without ports: asr.example.org"),
        (("--allowed_origins", "a.org"), "got 'a.org', wanted schemes and hosts, no paths: https://example.org"),
        (("--allowed_origins", "https://a.org/"), "got 'https://a.org/', wanted schemes and hosts"),
    ):
        with pytest.raises(SystemExit):
            parsed(*words)
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ((), ("127.0.0.1",)),
        (("--token", "x"), None),
        (("--token", "x", "--allowed_hosts", "a.org"), ("127.0.0.1", "a.org")),
        (("--host", "localhost", "--allowed_hosts", "a.org"), ("localhost", "a.org")),
    ],
)
def test_hosts_are_checked_where_there_is_no_token_or_some_are_named(words, hosts, monkeypatch):
    monkeypatch.delenv("NEMO_LITE_SERVE_TOKEN", raising=False)
    assert allowed_of(parsed(*words)).hosts == hosts


def test_an_answers_body_does_not_wait_until_its_head_is_acknowledged():
    options = []

    async def answer(reader, writer):
        options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect():
        listening = listening_socket(SimpleNamespace(host="127.0.0.1", port=0))
        async with await asyncio.start_server(answer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(connect())
    assert options == [1]


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications"])
def test_missing_packages_are_told_with_their_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    if "nemo_asr.run.serve" in sys.modules:  # the package is to hold what other tests have imported, afterwards too
        monkeypatch.setattr(sys.modules["nemo_asr.run"], "serve", sys.modules["nemo_asr.run.serve"])
    for name in [name for name in sys.modules if name.startswith("nemo_asr.run.serve")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=rf"^the package {package} is not installed; pip install starlette uvicorn"):
        main(["nowhere"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("models") / "tones"
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """A process that serves, and its address."""
    with running("serve", folder, "--port", "0", "--placement", "CPU") as found:
        yield found


@contextmanager
def running(*words):
    """A process of the command, and the address at which it serves."""
    command = [sys.executable, "-m", "nemo_lite", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        lines = []
        while not (lines and (found := re.search(r"Serving at http://([\d.]+):(\d+)", lines[-1]))):
            line = process.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
        yield process, (found[1], int(found[2]))
    finally:
        process.kill()
        process.communicate()


NAMES = ["cabbac", "abc", "ccab", "bab", "acb", "cc"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Paths."""
    folder = tmp_path_factory.mktemp("recordings")
    for name in NAMES:
        record(folder / f"{name}.wav", name)
    return [folder / f"{name}.wav" for name in NAMES]


def texts_of(address, contents, num_clients):
    """The texts of recordings, asked for by so many clients at once, in the order of the recordings."""
    answers = [""] * len(contents)

    def ask_for(first):
        for number in range(first, len(contents), num_clients):
            answers[number] = transcribe(address, contents[number]).json["text"]

    with ThreadPoolExecutor(num_clients) as clients:
        list(clients.map(ask_for, range(num_clients)))
    return answers


@pytest.mark.slow
def test_texts_are_those_of_transcribe_also_of_64_clients_at_once(server, folder, recordings):
    _, address = server
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    model = nemo_asr.load_model(folder, factory=factory)
    found = model.transcribe([str(path) for path in recordings], factory=factory)
    expected = [transcript.text for transcript in found]
    contents = [path.read_bytes() for path in recordings]
    assert texts_of(address, contents, 1) == expected
    assert texts_of(address, contents * 11, 64) == expected * 11


@pytest.mark.long
def test_memory_is_flat_and_texts_stay_the_same_over_3000_requests_and_killed_clients(server, recordings):
    process, address = server
    contents = [path.read_bytes() for path in recordings]
    expected = texts_of(address, contents, 1)
    sizes = []
    for num_clients in (1, 8, 64, 64, 64):
        assert texts_of(address, contents * 100, num_clients) == expected * 100
        killed = [raw(address, head_of_post(len(form(file))) + form(file)) for file in contents]
        killed += [raw(address, head_of_post(10_000) + form(contents[0])[:1000]) for _ in range(30)]
        for connection in killed:
            connection.close()
        time.sleep(1.0)  # in which the places of clients that left are free again
        assert "nemo_lite_open_requests 0\n" in ask(address, "GET", "/metrics").text
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        sizes.append(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024)
    print("MiB behind each 600 requests:", *(f"{size:.1f}" for size in sizes))
    assert sizes[-1] - sizes[-3] < 8, sizes


@pytest.mark.slow
def test_the_client_of_openai_works(server, tmp_path):
    openai = pytest.importorskip("openai", reason="pip install openai")
    _, address = server
    record(tmp_path / "abc.wav", "abc")
    client = openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="none", max_retries=0)

    def create(**fields):
        with open(tmp_path / "abc.wav", "rb") as file:
            return client.audio.transcriptions.create(file=file, model="whisper-1", **fields)

    text = create().text
    assert text
    assert create(response_format="text") == f"{text}\n"
    assert create(response_format="srt").startswith("1\n00:00:0")
    assert create(response_format="vtt").startswith("WEBVTT")
    verbose = create(response_format="verbose_json", timestamp_granularities=["word", "segment"], language="en")
    assert (verbose.text, verbose.segments[0].text, verbose.language) == (text, text, "en")
    assert " ".join(word.word for word in verbose.words) == text
    heard = create(include=["logprobs"], keywords=["abc"], prompt="x", temperature=0.2)
    assert heard.logprobs[0].logprob <= 0
    strategy = {"type": "server_vad", "silence_duration_ms": 200, "prefix_padding_ms": 50}
    assert create(chunking_strategy=strategy).usage.type == "duration"
    events = list(create(stream=True))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[-1].text == text
    assert [model.id for model in client.models.list()] == ["tones"]
    with pytest.raises(openai.BadRequestError, match="response_format: got 'diarized_json'"):
        create(response_format="diarized_json")


@pytest.mark.slow
def test_an_access_log_has_a_line_for_each_request(tmp_path):
    pytest.importorskip("onnxruntime")
    model = write_toy(tmp_path / "toy.onnx")
    with running("serve", model, "--port", "0", "--threads", "1", "--access_log") as (process, address):
        assert ask(address, "GET", "/v1/models/x%0Ay%1B[31m").status == 404
        assert ask(address, "GET", "/health").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        lines = process.stderr.read().splitlines()
    found = [re.fullmatch(r"\d{4}-\S+ \S+ 127\.0\.0\.1:\d+ - \"(.*)\" (\d+)", line) for line in lines]
    asked = [(line[1], line[2]) for line in found if line]
    assert asked[0] == ("GET /v1/models/x%0Ay%1B%5B31m HTTP/1.1", "404")
    assert asked[1] == ("GET /health HTTP/1.1", "200")


@pytest.mark.slow
def test_an_address_that_is_taken_is_told(server, folder):
    _, (host, port) = server
    with pytest.raises(UsageError, match=rf"{host}:{port}: the server cannot listen there: got .*in use"):
        main([str(folder), "--port", str(port), "--placement", "CPU"])


@pytest.mark.slow
def test_a_signal_ends_the_server_when_what_runs_is_finished(server):
    """The last one: the process is gone afterwards."""
    process, address = server
    answers = []
    long = wav(*[8] * 120)
    thread = threading.Thread(target=lambda: answers.append(transcribe(address, long)))
    thread.start()
    while "nemo_lite_open_requests 1" not in ask(address, "GET", "/metrics").text:
        assert not answers, "it was too short"
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert process.wait(30) == 0
    assert [answer.status for answer in answers] == [200]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=5)
