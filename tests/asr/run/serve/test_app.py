"""The server over sockets: answers, refusals, clients that leave, are slow or lie, websockets."""

from __future__ import annotations

import asyncio
import errno
import gc
import http.client
import io
import json
import os
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.served import FORM_TYPE, TellsLength, ask, form, head_of_post, raw, served, serving, transcribe, wav

import nemo_asr.run.serve.app as app
import nemo_asr.run.serve.stream as stream_module
import nemo_asr.run.serve.uploads as uploads
from nemo_asr.run.audio.files import AudioFile
from nemo_asr.run.cli.serve import tell_the_end
from nemo_asr.run.serve.openai_api import RESPONSE_FORMATS
from nemo_asr.run.transcribe.domain import Domain

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
client = pytest.importorskip("websockets.sync.client")
exceptions = pytest.importorskip("websockets.exceptions")

TALK = wav(5, 8)  # two segments: with 0.15 s around each 0.8 and 1.1 s
TEXT = "8 11"


@pytest.fixture
def model():
    model = TellsLength()
    yield model
    model.free.set()


@pytest.fixture
def address(model):
    with served(model) as address:
        yield address


def metric(address, name):
    found = re.search(rf"^nemo_lite_{re.escape(name)} (\S+)$", ask(address, "GET", "/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def post(address, body, kind=FORM_TYPE["Content-Type"]):
    return ask(address, "POST", "/v1/audio/transcriptions", body, Content_Type=kind)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Answers


def test_each_format_is_answered(address):
    assert transcribe(address, TALK).json == {"text": TEXT, "usage": {"type": "duration", "seconds": 5}}
    assert transcribe(address, TALK, response_format="text").text == f"{TEXT}\n"
    srt = transcribe(address, TALK, response_format="srt")
    assert srt.text.startswith("1\n00:00:00,930 --> 00:00:01,930\n8\n")
    assert srt.headers["content-type"].startswith("application/x-subrip")
    assert transcribe(address, TALK, response_format="vtt").text.startswith("WEBVTT\n\n00:00:00.930 -->")
    verbose = transcribe(address, TALK, response_format="verbose_json", **{"timestamp_granularities[]": ["word"]}).json
    assert verbose["words"][1] == {"word": "11", "start": 2.43, "end": 2.53, "confidence": 0.9}


def test_texts_of_segments_come_as_events(address):
    answer = transcribe(address, TALK, stream="true", **{"include[]": ["logprobs"]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [event["type"].rpartition(".")[2] for event in events] == ["delta", "delta", "done"]
    assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"] == TEXT
    assert [token["token"] for token in events[-1]["logprobs"]] == ["8", " 11"]


def test_events_that_are_waited_for_have_comments_and_proxies_hand_them_on_at_once(model, address, monkeypatch):
    monkeypatch.setattr(app, "_COMMENT_SECONDS", 0.05)
    model.free.clear()
    threading.Timer(0.3, model.free.set).start()
    answer = transcribe(address, TALK, stream="true")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.startswith(": the model computes\n\n: the model computes\n\n")
    assert f'"text": "{TEXT}"' in answer.text


def test_a_short_recording_takes_no_thread_but_that_of_its_model(address, monkeypatch):
    in_threads, run = [], asyncio.BaseEventLoop.run_in_executor
    monkeypatch.setattr(
        asyncio.BaseEventLoop, "run_in_executor", lambda loop, *call: in_threads.append(call) or run(loop, *call)
    )
    assert transcribe(address, TALK).json["text"] == TEXT
    assert in_threads == []
    assert transcribe(address, TALK, keywords="nairobi").json["text"] == TEXT
    assert len(in_threads) == 1


def test_a_recording_without_speech_has_an_empty_text(address):
    assert transcribe(address, wav()).json["text"] == ""
    assert '"text": ""' in transcribe(address, wav(), stream="true").text


def test_keywords_become_a_search(model, address):
    assert transcribe(address, TALK, keywords=["new york", "nairobi:9"]).status == 200
    assert set(model.searches) == {("new york", "nairobi:9")}


def test_any_name_means_the_only_model_and_the_answer_names_it(address):
    for name in ("whisper-1", "anything", "toy", ""):
        answer = transcribe(address, TALK, model=name, temperature="0", prompt="x")
        assert (answer.status, answer.headers["x-model"]) == (200, "toy")
        assert answer.headers["x-ignored-fields"] == "temperature, prompt"


def test_of_several_models_the_first_is_the_default_and_unknown_names_are_refused():
    with served(names=("first", "second")) as address:
        assert [model["id"] for model in ask(address, "GET", "/v1/models").json["data"]] == ["first", "second"]
        for name, meant in (("second", "second"), ("whisper-1", "first"), ("", "first")):
            assert transcribe(address, TALK, model=name).headers["x-model"] == meant
        answer = transcribe(address, TALK, model="third")
        assert (answer.status, answer.message) == (404, "model: got 'third', wanted first, second")
        second = ask(address, "GET", "/v1/models/second").json
        assert (second["id"], second["languages"], second["translates"]) == ("second", [], False)
        assert ask(address, "GET", "/v1/models/third").status == 404


def test_metrics_count_requests_and_audio(address):
    transcribe(address, TALK)
    transcribe(address, b"no audio")
    assert metric(address, 'requests_total{path="/v1/audio/transcriptions",status="200"}') == 1
    assert metric(address, 'requests_total{path="/v1/audio/transcriptions",status="400"}') == 1
    assert metric(address, "audio_seconds_total") == pytest.approx(1.98)
    assert metric(address, 'batch_rows_bucket{le="2.0"}') == 1
    assert metric(address, "request_seconds_count") == 2
    assert metric(address, "open_requests") == 0


# Refusals


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        (None, {}, "file: there is none, wanted an audio file"),
        (b"", {}, r"file: it is empty \(0 bytes\)"),
        (b"no audio", {}, "file: a.wav: is not a WAV, FLAC, .*; convert it"),
        (TALK[:60], {}, "file: a.wav: is damaged: .* bytes of samples promised, 16 are there"),
        (TALK, {"response_format": "xml"}, "response_format: got 'xml', wanted json, text"),
        (TALK, {"keywords": "!"}, "keywords: the labels cannot spell words of the list: got '!'"),
        (TALK, {"keywords": "@/etc/passwd"}, "keywords: got a word that begins with @"),
        (TALK, {"prompt": "x" * 70_000}, "the form cannot be read: the field 'prompt' is longer than 64 KiB"),
        (TALK, {"x": ["x" * 60_000] * 18}, "the form cannot be read: its fields are longer than 1024 KiB in all"),
    ],
)
def test_bad_requests_are_told_in_one_line(address, file, fields, message):
    answer = transcribe(address, file, **fields)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert re.match(message, answer.message), answer.message
    assert "\n" not in answer.message
    assert transcribe(address, TALK).json["text"] == TEXT


def test_the_name_of_a_file_in_its_place_is_told(address):
    answer = post(address, form(field="a.wav").replace(b"field", b"file"))
    assert (answer.status, answer.message) == (400, "file: got a text, wanted an audio file (curl: -F file=@a.wav)")


def test_a_file_without_a_file_name_is_told_so(address):
    answer = post(address, form(b"x" * 70_000).replace(b'; filename="a.wav"', b""))
    told = "the field 'file' is longer than 64 KiB; a file has a file name (curl: -F file=@a.wav)"
    assert (answer.status, answer.message) == (400, f"the form cannot be read: {told}")


def test_the_media_type_of_a_form_has_no_case_and_its_charset_does_not_count(address):
    boundary = FORM_TYPE["Content-Type"].partition("=")[2]
    for kind in (
        f"Multipart/Form-Data; Boundary={boundary}",
        f'multipart/form-data;boundary="{boundary}"; charset=utf-8',
        *(f"multipart/form-data; charset={name}; boundary={boundary}" for name in ("undefined", "punycode", "idna")),
    ):
        answer = post(address, form(TALK, language="中文", response_format="verbose_json"), kind)
        assert (answer.status, answer.json["language"]) == (200, "中文"), kind


@pytest.mark.parametrize("charset", ["punycode", "utf-8"])
def test_long_fields_of_any_charset_are_read_in_no_time(address, charset):
    value = ("a" * 25000 + "\U0001f600" * 30000).encode("punycode")[:65000].decode()
    kind = f"{FORM_TYPE['Content-Type']}; charset={charset}"
    started = time.monotonic()
    assert post(address, form(TALK, prompt=[value] * 10), kind).status == 200
    assert time.monotonic() - started < 3  # seconds; with the codec of the client's choice 10


def test_a_form_that_is_not_utf_8_is_told_so(address):
    body = form(TALK, keywords="Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich").replace(b"\xc3\xbc", b"\xfc")
    answer = post(address, body)
    told = "the form cannot be read: a field 'keywords' is not UTF-8: got the byte 0xfc"
    assert (answer.status, answer.message) == (400, told)
    assert post(address, form(TALK, language="\\ud800", response_format="verbose_json")).json["language"] == "\\ud800"
    assert post(address, form(TALK).replace(b"a.wav", b"\xfc.wav")).json["text"] == TEXT


def test_what_is_no_form_is_refused(address, caplog):
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=other"):
        answer = post(address, form(TALK), kind)
        assert answer.status == 400, kind
    assert caplog.text == ""
    assert ask(address, "GET", "/v1/audio/transcriptions").status == 405
    assert ask(address, "GET", "/nowhere").message == "GET /nowhere: Not Found; /docs lists what there is"


def test_a_name_of_a_file_is_no_path_of_the_server(address):
    answer = transcribe(address, b"no audio", name="../../etc/passwd")
    assert answer.message.startswith("file: passwd: is not")


def test_a_server_with_a_token_wants_it():
    with served(token="secret") as address:
        answer = transcribe(address, TALK)
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert transcribe(address, TALK, headers={"Authorization": "Bearer wrong"}).message.startswith("wrong token")
        assert transcribe(address, TALK, headers={"Authorization": "Bearer secret"}).json["text"] == TEXT
        for path in ("/v1/models", "/metrics"):
            assert ask(address, "GET", path).status == 401
            assert ask(address, "GET", path, Authorization="Bearer secret").status == 200
        assert ask(address, "GET", "/health").json["token_needed"] is True
        assert ask(address, "GET", "/").status == 200
        assert stream(address, TALK, token="wrong")[0]["message"].startswith("wrong token: wanted the header")
        assert stream(address, TALK, token="secret")[-1] == {"type": "done", "text": TEXT}


def test_a_request_whose_model_fails_is_told_so_and_its_neighbours_have_their_texts(caplog):
    def compute(rows, search):
        if any(row.source == "bad.wav" for row in rows):
            raise RuntimeError("CUDA out of memory")
        return TellsLength()(rows, search)

    with served(compute) as address:
        answer = transcribe(address, TALK, name="bad.wav")
        assert (answer.status, answer.json["error"]["code"]) == (500, "model_failed")
        assert answer.message == "the model has failed; the server's log says why"
        assert transcribe(address, TALK).json["text"] == TEXT
        gc.collect()
    assert "CUDA out of memory" in caplog.text
    assert "Traceback" not in caplog.text
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("token", [" p\xe4sswort \xe0\n", "\u5bc6\u7801", "a b"])
def test_a_token_of_any_letters_is_taken_as_utf_8_or_latin_1(token):
    with served(token=token) as address:
        for encoding in ("utf-8", "latin-1"):
            with suppress(UnicodeEncodeError):
                sent = token.strip().encode(encoding).decode("latin-1")  # as the header's bytes
                assert ask(address, "GET", "/v1/models", Authorization=f"bearer  {sent} ").status == 200
                assert ask(address, "GET", "/v1/models", Authorization=f"Bearer {sent}x").status == 401
        assert stream(address, TALK, token=token.strip())[-1] == {"type": "done", "text": TEXT}


def test_files_that_are_too_large_or_too_long_are_refused():
    with served(upload_bytes=1 << 20, audio_seconds=5.0) as address:
        in_chunks = iter([form(bytes(2 << 20))])  # without Content-Length
        for answer in (transcribe(address, bytes(2 << 20)), post(address, in_chunks)):
            assert (answer.status, answer.json["error"]["code"]) == (413, "file_too_large")
            assert answer.message == "file: it is too large, wanted at most 1 MiB"
        answer = transcribe(address, wav(60))
        assert (answer.status, answer.message) == (413, "file: it lasts 8 s, wanted at most 5 s")


def test_a_body_without_end_is_refused_while_it_comes():
    with served(upload_bytes=1 << 20) as address:
        head = head_of_post(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        endless = raw(address, head + b"%x\r\n" % (2 << 20) + form(bytes(2 << 20))[: 2 << 20])
        assert endless.recv(1 << 16).startswith(b"HTTP/1.1 413")
        endless.close()
        wait_for(lambda: metric(address, "open_requests") == 0)


def test_more_requests_than_may_wait_are_told_when_to_come_again(model):
    with served(model, requests=1) as address:
        model.free.clear()
        first = raw(address, head_of_post(len(form(TALK))) + form(TALK))
        wait_for(lambda: metric(address, "open_requests") == 1)
        answer = transcribe(address, TALK)
        assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")
        assert int(answer.headers["retry-after"]) >= 1
        model.free.set()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
        first.close()
        assert transcribe(address, TALK).status == 200


def test_an_answer_that_takes_too_long_is_given_up(model):
    with served(model, seconds=0.1) as address:
        model.free.clear()
        answer = transcribe(address, TALK)
        assert (answer.status, answer.json["error"]["code"]) == (503, "timeout")
        assert int(answer.headers["retry-after"]) >= 1
        assert '"code": "timeout"' in transcribe(address, TALK, stream="true").text
        assert metric(address, "open_requests") == 0
        model.free.set()


# Clients that leave, are slow, or lie


def test_what_is_queued_of_a_client_that_left_is_not_computed(model, address):
    model.free.clear()
    body = form(wav(*[1] * 40))
    gone = raw(address, head_of_post(len(body)) + body)
    wait_for(lambda: metric(address, "waiting_audio_seconds") > 0)
    gone.close()
    wait_for(lambda: metric(address, "open_requests") == 0)
    assert metric(address, 'requests_total{path="/v1/audio/transcriptions",status="499"}') == 1
    model.free.set()
    assert transcribe(address, TALK).json["text"] == TEXT
    assert model.num_rows < 40


@pytest.fixture
def slow_reading(monkeypatch):
    """Recordings that are read in pieces of 0.1 s of work each; how many pieces."""
    pieces, read = [], AudioFile._read

    def read_slowly(file, count, dtype):
        pieces.append(file)
        time.sleep(0.1)
        return read(file, count, dtype)

    monkeypatch.setattr("nemo_asr.run.audio.files._PIECE_VALUES", 16_000)
    monkeypatch.setattr(AudioFile, "_read", read_slowly)
    return pieces


LONG = wav(*[8] * 60)  # 109 s: 109 pieces


@pytest.mark.slow
def test_what_is_read_of_a_client_that_left_ends_within_a_second(slow_reading, address):
    body = form(LONG)
    gone = raw(address, head_of_post(len(body)) + body)
    wait_for(lambda: slow_reading)
    gone.close()
    started = time.monotonic()
    wait_for(lambda: metric(address, "open_requests") == 0)
    assert time.monotonic() - started < 1
    time.sleep(0.3)
    num_pieces = len(slow_reading)
    time.sleep(0.3)
    assert len(slow_reading) == num_pieces < 20
    assert metric(address, 'requests_total{path="/v1/audio/transcriptions",status="499"}') == 1


@pytest.mark.slow
def test_reading_has_the_deadline_of_its_request(slow_reading):
    with served(seconds=0.3) as address:
        started = time.monotonic()
        answer = transcribe(address, LONG)
        assert (answer.status, answer.json["error"]["code"]) == (503, "timeout")
        assert time.monotonic() - started < 2
        time.sleep(0.3)
        num_pieces = len(slow_reading)
        time.sleep(0.3)
        assert len(slow_reading) == num_pieces < 20


@pytest.mark.slow
def test_long_recordings_do_not_keep_a_short_one_waiting(slow_reading):
    with served() as address:
        body = form(LONG)
        long = [raw(address, head_of_post(len(body)) + body) for _ in range(3 * (os.cpu_count() or 1))]
        wait_for(lambda: metric(address, "open_requests") == len(long))
        started = time.monotonic()
        assert transcribe(address, TALK, keywords="nairobi").json["text"] == TEXT
        assert time.monotonic() - started < 4  # seconds; the long ones take 10 s each
        for connection in long:
            connection.close()


def test_a_client_that_leaves_its_events_is_forgotten(model, address):
    model.free.clear()
    body = form(wav(*[1] * 40), stream="true")
    gone = raw(address, head_of_post(len(body)) + body)
    wait_for(lambda: metric(address, "waiting_audio_seconds") > 0)
    gone.close()
    wait_for(lambda: metric(address, "open_requests") == 0)
    model.free.set()
    assert transcribe(address, TALK).json["text"] == TEXT


def test_a_body_that_is_shorter_than_it_says_ends_with_its_client(address):
    body = form(TALK)
    liar = raw(address, head_of_post(len(body) + 1000) + body)
    assert transcribe(address, TALK).json["text"] == TEXT
    liar.close()
    wait_for(lambda: metric(address, "open_requests") == 0)


def test_a_body_that_is_longer_than_it_says_is_cut_and_does_no_harm(address):
    body = form(TALK)
    liar = raw(address, head_of_post(len(body) // 2) + body)
    assert liar.recv(1 << 16).startswith(b"HTTP/1.1 400")
    liar.close()
    assert transcribe(address, TALK).json["text"] == TEXT


def test_a_form_that_was_cut_off_is_told_so(address):
    body = form(TALK, model="toy")
    for missing in (5, 100, len(TALK) + 100):
        answer = post(address, body[:-missing])
        assert (answer.status, answer.message) == (400, "the form cannot be read: it ends before its last boundary")
    for end in (b"", b"\r\n", b"\r\nan epilogue"):
        assert post(address, body.rstrip() + end).json["text"] == TEXT


def test_a_body_that_comes_too_slowly_is_refused(address, monkeypatch):
    monkeypatch.setattr(uploads, "_GRACE_SECONDS", 0.2)
    slow = raw(address, head_of_post(1000) + form(TALK)[:100])
    for _ in range(3):
        slow.sendall(b"x")
        time.sleep(0.02)
    with slow, slow.makefile("rb") as until_closed:  # the head and the body may come in two packets
        answer = until_closed.read()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer.lower()
    assert b"the body came too slowly: 10" in answer
    assert transcribe(address, TALK).json["text"] == TEXT


def test_a_connection_on_which_no_request_arrives_is_closed(monkeypatch):
    monkeypatch.setattr("nemo_asr.run.cli.serve._HEAD_SECONDS", 0.2)
    with served() as address, raw(address, b"GET /health HT") as idle:
        started = time.monotonic()
        assert idle.recv(100) == b""
        assert time.monotonic() - started >= 0.2
        assert transcribe(address, TALK).json["text"] == TEXT


@pytest.mark.slow
def test_a_connection_that_is_used_stays_open_as_does_one_that_rests(monkeypatch):
    monkeypatch.setattr("nemo_asr.run.cli.serve._HEAD_SECONDS", 0.3)
    with served() as address:
        used, resting = (http.client.HTTPConnection(*address, timeout=10) for _ in range(2))
        resting.request("GET", "/health")
        resting.getresponse().read()
        for _ in range(10):
            used.request("GET", "/health")
            assert used.getresponse().read()
            time.sleep(0.1)
        resting.request("GET", "/health")
        assert resting.getresponse().read()
        with raw(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as half:
            answer = b""
            while not answer.endswith(b"}"):
                answer += half.recv(1000)
            half.sendall(b"GET /he")  # the head of a second request, which never ends
            half.settimeout(5)
            assert half.recv(1000) == b""
        used.close()
        resting.close()


def test_what_is_no_http_is_refused(address):
    noise = raw(address, b"\x00\x01\x02 nonsense\r\n\r\n")
    assert noise.recv(1 << 16).startswith(b"HTTP/1.1 400")
    noise.close()
    assert transcribe(address, TALK).json["text"] == TEXT


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="files have names there")
def test_temporary_files_have_no_names_and_are_gone_after_each_request(model, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    large = wav(5, *[8] * 25)
    assert len(large) > 1 << 20
    with served(model, upload_bytes=4 << 20) as address:
        for file in (large, b"RIFF" + large[4:40] + bytes(2 << 20), bytes(5 << 20)):
            transcribe(address, file)
        model.free.clear()
        body = form(large)
        gone = raw(address, head_of_post(len(body)) + body)
        wait_for(lambda: metric(address, "waiting_audio_seconds") > 0)
        assert not list(tmp_path.iterdir())  # it has no name, so it stays nowhere where the process is killed
        gone.close()
        wait_for(lambda: metric(address, "open_requests") == 0)
        model.free.set()
        assert not list(tmp_path.iterdir())
        assert not [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if str(tmp_path) in path]


def test_temporary_files_with_names_are_removed_too(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(uploads, "_OPEN_FILES", tmp_path / "none")
    with served() as address:
        assert transcribe(address, wav(5, *[8] * 25)).status == 200
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_without_names_of_the_server_also_where_it_decodes(address, monkeypatch):
    def add(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/secret")

    monkeypatch.setattr("nemo_asr.run.audio.decoded.DecodedWriter.add", add)
    content = io.BytesIO()
    samples, rate = soundfile.read(io.BytesIO(TALK))
    soundfile.write(content, samples, rate, format="OGG")
    answer = transcribe(address, content.getvalue())
    assert (answer.status, answer.message) == (507, "the server's disk is full; try again later")


def test_a_full_disk_is_told_without_names_of_the_server(address, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/secret")

    monkeypatch.setattr("starlette.datastructures.UploadFile.write", write)
    answer = transcribe(address, TALK)
    assert (answer.status, answer.message) == (507, "the server's disk is full; try again later")
    assert answer.headers["retry-after"] == "60"


# The end


def test_requests_that_were_read_are_answered_and_those_that_come_later_are_told_that_the_server_ends(model):
    with serving(model) as (running, application, address):
        model.free.clear()
        body = form(TALK)
        first = raw(address, head_of_post(len(body)) + body)
        wait_for(lambda: metric(address, "open_requests") == 1)
        half = raw(address, head_of_post(len(body)) + body[:100])
        wait_for(lambda: metric(address, "open_requests") == 2)
        kept = http.client.HTTPConnection(*address, timeout=10)
        kept.request("GET", "/health")
        assert kept.getresponse().read()
        ending = threading.Thread(target=tell_the_end, args=(running, application, 10.0))
        ending.start()
        wait_for(application._ending.is_set)
        for connection in (kept, http.client.HTTPConnection(*address, timeout=10)):
            connection.request("POST", "/v1/audio/transcriptions", form(TALK), FORM_TYPE)
            answer = connection.getresponse()
            told = json.loads(answer.read())["error"]
            assert (answer.status, answer.getheader("connection"), answer.getheader("retry-after")) == (
                503,
                "close",
                "1",
            )
            assert (told["message"], told["code"]) == ("the server is about to end", "shutdown")
        with pytest.raises(exceptions.InvalidStatus, match="503"):
            client.connect(url(address))
        half.sendall(body[100:])
        time.sleep(0.2)
        model.free.set()
        for connection in (first, half):
            with connection, connection.makefile("rb") as until_closed:
                answer = until_closed.read().lower()
            assert answer.startswith(b"http/1.1 200")
            assert b"\r\nconnection: close\r\n" in answer
        ending.join(10)
        wait_for(lambda: not running.server_state.connections)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address[:2], timeout=5)


def test_what_a_stream_has_sent_is_transcribed_before_the_server_ends():
    with serving() as (running, application, address), client.connect(url(address)) as talking:
        talking.send(TALK[44:])
        wait_for(lambda: application.num_streams == 1)
        tell_the_end(running, application, 10.0)
        messages, closed = ending_of(talking)
    assert messages[-1] == {"type": "done", "text": TEXT}
    assert closed == (1012, "the server is about to end")


def test_a_server_on_which_nothing_is_open_ends_at_once():
    with serving() as (running, application, _):
        started = time.monotonic()
        tell_the_end(running, application, 10.0)
        assert time.monotonic() - started < 0.5


# Streams


def url(address):
    return f"ws://{address[0]}:{address[1]}/v1/stream"


def stream(address, file, block=3000, **start):
    """The messages of a websocket that gets the samples of a WAV file."""
    samples = np.frombuffer(file[44:], np.int16).tobytes()
    with client.connect(url(address)) as socket:
        if start:
            socket.send(json.dumps({"type": "start", **start}))
        try:
            for first in range(0, len(samples), block):
                socket.send(samples[first : first + block])
            socket.send('{"type": "stop"}')
        except exceptions.ConnectionClosed:
            pass  # what the server has said before says why
        messages = []
        with suppress(exceptions.ConnectionClosedError):  # with the code of an error
            for message in socket:
                messages.append(json.loads(message))
        return messages


def test_a_stream_has_the_texts_of_the_recording(model, address):
    for block in (3000, 3001):  # a block may end within a sample
        messages = stream(address, TALK, block)
        assert messages[-1] == {"type": "done", "text": TEXT}
        finals = [message for message in messages if message["type"] == "final"]
        assert [final["text"] for final in finals] == TEXT.split()
        assert finals[1]["words"] == [{"text": "11", "start": 2.43, "end": 2.53, "confidence": 0.9}]
    assert model.loudest == pytest.approx(0.3, abs=0.01)  # halves of samples that are mixed up are louder


def test_a_final_text_of_what_the_model_does_not_know_has_the_reason():
    with served(told={"domain": Domain(set="dev", ranges={"confidence": (0.95, 1.0)})}) as address:
        *_, final, done = stream(address, wav(5))
    assert final["unfamiliar"] == ["confidence 0.90, on dev 0.95 to 1.00"]
    assert done == {"type": "done", "text": final["text"]}


def test_a_stream_that_stops_before_it_began_has_an_empty_text(address):
    with client.connect(url(address)) as socket:
        socket.send('{"type": "stop"}')
        assert [json.loads(message) for message in socket] == [{"type": "done", "text": ""}]


def test_live_speech_is_cut_within_what_the_model_hears_at_once():
    with served(told={"longest_seconds": 2.0}) as address:
        texts = [each["text"] for each in stream(address, wav(50)) if each["type"] != "done"]
    assert len(texts) >= 3
    assert all(int(text) <= 20 for text in texts)  # tenths of a second


def test_a_request_in_the_place_of_a_websocket_is_told_what_is_wanted(address):
    answer = ask(address, "GET", "/v1/stream")
    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")
    assert "wanted a websocket (ws://)" in answer.message


def test_a_stream_may_have_another_rate_and_keywords(model, address):
    assert stream(address, wav(5, rate=8000), sample_rate=8000, keywords=["x"])[-1]["text"] == "8"
    assert set(model.searches) == {("x",)}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("nonsense", "this text is no JSON object"),
        ("[1]", "this text is no JSON object"),
        ("[" * 100_000, "this text is no JSON object"),
        ('{"type": "begin"}', 'wanted {"type": "start"}, or binary messages with samples'),
        ('{"type": "start", "sample_rate": 3}', "the sample rate is out of range: got 3 Hz"),
        ('{"type": "start", "sample_rate": "x"}', "sample_rate: wanted a whole number of Hz"),
        ('{"type": "start", "keywords": "x"}', "keywords: wanted a list of texts"),
        ('{"type": "start", "keywords": ["@x"]}', "keywords: got a word that begins with @"),
        ('{"type": "start", "keywords": ["!"]}', "the labels cannot spell"),
        ('{"type": "start", "token": 3}', "token: wanted a text"),
    ],
)
def test_a_stream_that_begins_wrongly_is_told_so(address, message, told):
    with client.connect(url(address)) as socket:
        socket.send(message)
        answer = json.loads(socket.recv(timeout=30))
        assert (answer["type"], answer["message"][: len(told)]) == ("error", told)
    assert transcribe(address, TALK).json["text"] == TEXT


def test_a_broken_frame_ends_its_stream_only(address):
    with client.connect(url(address)) as other:
        other.send('{"type": "start"}')
        with client.connect(url(address)) as socket:
            socket.send(b"\0\0" * 1000)
            socket.socket.sendall(b"\xff\xff\xff\xff nonsense")
        wait_for(lambda: metric(address, "open_streams") == 1)
        other.send(np.frombuffer(TALK[44:], np.int16).tobytes())
        other.send('{"type": "stop"}')
        assert [json.loads(message) for message in other][-1]["text"] == TEXT


def test_a_client_that_leaves_its_stream_is_forgotten(address):
    with client.connect(url(address)) as socket:
        socket.send(TALK[44:])
        wait_for(lambda: metric(address, "open_streams") == 1)
        socket.socket.close()
    wait_for(lambda: metric(address, "open_streams") == 0)


def ending_of(socket):
    """The messages of a websocket, and the code and the reason of its closing frame."""
    messages = []
    frame = None
    try:
        while True:
            messages.append(json.loads(socket.recv(timeout=10)))
    except exceptions.ConnectionClosed as closed:
        frame = closed.rcvd
    assert frame is not None, "there was no closing frame"
    return messages, (frame.code, frame.reason)


@pytest.mark.slow
def test_silent_websockets_take_no_place_and_are_closed(monkeypatch):
    monkeypatch.setattr(stream_module, "_FIRST_SECONDS", 1.0)
    with served(streams=1, token="secret") as address, ExitStack() as stack:
        silent = [stack.enter_context(client.connect(url(address))) for _ in range(3)]
        stranger = stack.enter_context(client.connect(url(address)))
        stranger.send(b"\0\0")
        assert ending_of(stranger)[1][0] == 1008
        assert stream(address, TALK, token="secret")[-1]["text"] == TEXT
        with client.connect(url(address), additional_headers={"Authorization": "Bearer secret"}) as socket:
            socket.send('{"type": "stop"}')
            assert json.loads(socket.recv(timeout=10)) == {"type": "done", "text": ""}
        for socket in silent:
            messages, closed = ending_of(socket)
            assert messages == [{"type": "error", "message": "there was no message for 1 s"}]
            assert closed == (1008, "there was no message for 1 s")


def test_a_stream_whose_model_fails_is_told_so(caplog):
    def fail(rows, search):
        raise RuntimeError("CUDA out of memory")

    with served(fail) as address, client.connect(url(address)) as socket:
        socket.send(TALK[44:])
        socket.send('{"type": "stop"}')
        messages, closed = ending_of(socket)
    assert messages == [{"type": "error", "message": "the model has failed; the server's log says why"}]
    assert closed == (1011, messages[0]["message"])
    assert "A stream failed: RuntimeError: CUDA out of memory" in caplog.text
    assert "Traceback" not in caplog.text


def test_the_reason_of_a_closing_frame_is_cut_between_letters(address):
    with client.connect(url(address)) as socket:
        socket.send(json.dumps({"type": "start", "model": "", "keywords": "x", "token": ""}))
        assert ending_of(socket)[1] == (1008, "keywords: wanted a list of texts")
    with served(names=("\u5317" * 80, "\u4eac")) as address, client.connect(url(address)) as socket:
        socket.send(json.dumps({"type": "start", "model": "x"}))
        (message,), (code, reason) = ending_of(socket)
    assert code == 1008
    assert message["message"].startswith(reason)
    assert 120 < len(reason.encode()) <= 123


@pytest.mark.slow
@pytest.mark.parametrize("message", [bytes((1 << 20) + 2), "x" * (5 << 20), bytes(20 << 20)], ids="123")
def test_a_message_that_is_too_large_closes_its_stream_with_the_code_for_it(address, message):
    with client.connect(url(address), max_size=None, compression=None) as socket:
        with suppress(exceptions.ConnectionClosed):
            socket.send(message)
        _, (code, reason) = ending_of(socket)
    assert code == 1009
    assert "1048576" in reason
    assert stream(address, TALK)[-1]["text"] == TEXT


def mp3_frames(header, size, number=3):
    return (header + bytes(size - len(header))) * number


FILES = {
    "WebM": b"\x1a\x45\xdf\xa3" + bytes(5000),
    "OGG": b"OggS" + bytes(5000),
    "WAV": TALK,
    "FLAC": b"fLaC" + bytes(5000),
    "MP4": b"\0\0\0\x20ftypisom" + bytes(5000),
    "MP3": b"ID3\4" + bytes(5000),
}
MP3_FRAMES = {
    "MPEG 1": mp3_frames(b"\xff\xfb\x90\x64", 417),  # 128 kbit/s, 44.1 kHz
    "with padding": mp3_frames(b"\xff\xfb\x92\x64", 418),
    "MPEG 2": mp3_frames(b"\xff\xf3\x40\x64", 104),  # 32 kbit/s, 22.05 kHz
    "MPEG 2.5": mp3_frames(b"\xff\xe3\x48\x64", 288),  # 32 kbit/s, 8 kHz
}
AAC_FRAMES = mp3_frames(b"\xff\xf1\x50\x80\x2e\x7f\xfc", 371)


@pytest.mark.parametrize(
    ("kind", "content"),
    [*FILES.items(), *(("MP3", content) for content in MP3_FRAMES.values()), ("AAC", AAC_FRAMES)],
    ids=[*FILES, *MP3_FRAMES, "AAC"],
)
def test_the_bytes_of_a_file_are_no_samples_and_its_kind_is_told(address, kind, content):
    for block in (7, 4000):
        with client.connect(url(address)) as socket:
            with suppress(exceptions.ConnectionClosed):
                for first in range(0, len(content[:4000]), block):
                    socket.send(content[first : first + block])
                socket.send('{"type": "stop"}')
            (message,), (code, _) = ending_of(socket)
        told = (
            f"these are the bytes of a file ({kind}), wanted samples of 16 bits of one channel, without a head; decode"
        )
        assert (code, message["message"][: len(told)]) == (1003, told)


def test_samples_that_look_like_a_frame_are_samples(address):
    samples = np.frombuffer(TALK[44:], np.int16).copy()
    for first in (b"\xff\xfb", b"\xff\xf1"):
        samples[:1] = np.frombuffer(first, np.int16)
        assert stream(address, TALK[:44] + samples.tobytes())[-1] == {"type": "done", "text": TEXT}


def test_more_streams_than_there_may_be_are_refused():
    with served(streams=1) as address:
        with client.connect(url(address)) as first:
            first.send(b"\0\0")
            wait_for(lambda: metric(address, "open_streams") == 1)
            (message,) = stream(address, TALK)
            assert message["message"] == "there are too many streams; try again later"
        wait_for(lambda: metric(address, "open_streams") == 0)
        assert stream(address, TALK)[-1]["text"] == TEXT


# The page and the description of the API


def page_files():
    from nemo_asr.run import serve

    return sorted((Path(serve.__file__).parent / "page").iterdir())


def test_the_page_comes_from_this_server_alone(address):
    for path in ("/", "/docs", "/page/page.js", "/page/page.css", "/page/worklet.js", "/page/docs.js"):
        answer = ask(address, "GET", path)
        assert answer.status == 200, path
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert ask(address, "GET", "/page/..%2Fapp.py").status == 404
    for file in page_files():
        assert not re.findall(r"https?://(?!\S*\$\{)\S+", file.read_text(encoding="utf-8")), file


def test_the_page_names_no_address_from_the_root_so_it_works_behind_a_prefix(address):
    for path in ("/", "/docs"):
        assert re.findall(r'(?:src|href)="/[^"]*"', ask(address, "GET", path).text) == []
    for file in page_files():
        if file.suffix == ".js":
            assert (
                re.findall(r"""["'`]/(?:v1|page|docs|health|openapi)[^"'`]*""", file.read_text(encoding="utf-8")) == []
            )


def test_the_page_has_each_text_in_both_languages():
    (script,) = (file.read_text(encoding="utf-8") for file in page_files() if file.name == "page.js")
    (page,) = (file.read_text(encoding="utf-8") for file in page_files() if file.name == "index.html")
    languages = [
        set(re.findall(r"(?:^|[{,] *)\s*(\w+): \"", block, re.MULTILINE))
        for block in re.findall(r"^  (?:en|zh): \{\n(.*?)^  \},", script, re.MULTILINE | re.DOTALL)
    ]
    assert len(languages) == 2
    assert languages[0] == languages[1]
    used = set(re.findall(r'data-(?:text|label|placeholder)="(\w+)"', page))
    used |= set(re.findall(r'\btext\("(\w+)"', script))
    assert used <= languages[0]


def test_the_description_of_the_api_is_that_of_the_routes(address):
    from nemo_asr.run.serve.app import Server

    described = ask(address, "GET", "/openapi.json").json
    routes = {getattr(route, "path", "") for route in Server(None).app().routes}
    assert set(described["paths"]) == routes - {"/", "/docs", "/openapi.json", "/page/{name}"}
    about = described["paths"]["/v1/audio/transcriptions"]["post"]
    fields = about["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert tuple(fields["response_format"]["enum"]) == RESPONSE_FORMATS
    assert {"400", "401", "403", "404", "408", "413", "429", "500", "503", "507"} < set(about["responses"])


def test_each_part_of_the_api_is_described(address):
    paths = ask(address, "GET", "/openapi.json").json["paths"]
    for path, about in ((path, about) for path, methods in paths.items() for about in methods.values()):
        assert about["summary"], path
        form = about.get("requestBody", {}).get("content", {}).get("multipart/form-data", {})
        fields = {**form.get("schema", {}).get("properties", {}), **about["responses"]}
        fields |= {parameter["name"]: parameter for parameter in about.get("parameters", [])}
        assert [name for name, field in fields.items() if not field.get("description")] == [], path
