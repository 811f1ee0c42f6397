"""The page in Chromium: a file, the microphone, words, downloads, keys, both languages, a dark and a narrow window."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile
from toys.browser import CHROMIUM, opened
from toys.served import TellsLength, served, wav

from nemo_asr.run.engines import Prompt

pytest.importorskip("starlette")
pytest.importorskip("websockets")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]

WORDS = "[...document.querySelectorAll('.word')].map((node) => node.textContent).join(' ')"
IDLE = "document.body.dataset.state === 'idle'"
NOTE_PARTIAL = "partials.push(...[...document.querySelectorAll('.partial')].map((node) => node.textContent))"
TRANSCRIPT = "document.getElementById('transcript'), {childList: true}"
# A connection that opens after the first word, and a browser that asks until `allow` is called.
SLOW_SOCKET = """window.WebSocket = class extends WebSocket {
    get readyState() { return this.isLate ? super.readyState : 0; }
    set onopen(call) { super.onopen = (event) => setTimeout(() => { this.isLate = true; call(event); }, 4000); }
}; 0"""
SLOW_MICROPHONE = """{
    const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (wanted) => {
        await new Promise((done) => { window.allow = done; });
        return window.media = await ask(wanted);
    };
} 0"""
STATUS = "document.getElementById('status-text').textContent"


@pytest.fixture
def files(tmp_path):
    """A recording of two segments, and the same for a microphone, which may lose its beginning."""
    (tmp_path / "talk.wav").write_bytes(wav(5, 8))
    samples, rate = soundfile.read(io.BytesIO(wav(5, 8, rate=48000)))
    silence = np.zeros(2 * rate)
    soundfile.write(tmp_path / "microphone.wav", np.concatenate([silence, samples, silence]), rate, subtype="PCM_16")
    return tmp_path


@pytest.fixture
def page(files):
    with opened(files / "profile", files / "microphone.wav") as page:
        page.size(1000, 800)
        yield page
        assert page.problems == []


def root(address):
    return f"http://{address[0]}:{address[1]}/"


def test_a_file_becomes_words_that_can_be_heard_and_saved(page, files):
    with served() as address:
        page.open(f"{root(address)}?lang=en")
        page.wait(f"{IDLE} && document.getElementById('model').value === 'toy'")
        page.upload("#file", files / "talk.wav")
        page.wait(f"{WORDS} === '8 11'")
        assert page.value(STATUS).startswith("4.3 s of audio, 2 words, in ")
        page.wait("!document.getElementById('picture').hidden")
        drawn = "[...{}.getContext('2d').getImageData(0, 0, 900, 60).data].some((value) => value > 0 && value < 200)"
        for canvas in ("wave", "spectrogram"):
            assert page.value(drawn.format(f"document.getElementById('{canvas}')")), canvas
        page.value("document.querySelectorAll('.word')[1].click()")
        page.wait("document.getElementById('player').currentTime >= 2.4")
        page.value("document.getElementById('player').pause(), document.querySelector('.word').focus(), 0")
        page.press("ArrowRight")
        assert page.value("document.activeElement.textContent") == "11"
        page.call("Page.setDownloadBehavior", behavior="deny")
        page.value("window.saved = []; const make = URL.createObjectURL.bind(URL); 0")
        page.value("URL.createObjectURL = (blob) => (saved.push(blob), make(blob)); 0")
        page.value("document.querySelectorAll('[data-download]').forEach((button) => button.click())")
        srt, vtt, content = (page.value(f"saved[{number}].text()") for number in range(3))
        assert srt.startswith("1\n00:00:00,930 --> 00:00:01,030\n8\n\n2\n")
        assert vtt.startswith("WEBVTT\n\n00:00:00.930 --> ")
        assert json.loads(content)["text"] == "8 11"
        assert json.loads(content)["words"][0] == {"text": "8", "start": 0.93, "end": 1.03, "confidence": 0.9}
        own = [name for name in page.requests if name.startswith((root(address), "blob:", "data:"))]
        assert own == page.requests
        page.value("document.getElementById('language').click()")
        assert page.value("document.getElementById('open').textContent") == "打开录音"


def test_one_word_is_told_as_one(page, files):
    (files / "one.wav").write_bytes(wav(5))
    with served() as address:
        page.open(f"{root(address)}?lang=en")
        page.wait(f"{IDLE} && document.getElementById('model').value === 'toy'")
        page.upload("#file", files / "one.wav")
        page.wait(f"{WORDS} === '8'")
        page.wait(f"{STATUS}.includes(' s of audio, 1 word, in ')")


def test_speech_becomes_partial_and_then_final_words(page):
    with served() as address:
        page.open(f"{root(address)}?lang=en")
        page.wait(IDLE)
        page.value(f"window.partials = []; new MutationObserver(() => {NOTE_PARTIAL}).observe({TRANSCRIPT}); 0")
        page.press("r")
        page.wait("document.body.dataset.state === 'listening'")
        page.wait("document.querySelectorAll('.word').length === 2")
        assert len(page.value("partials")) >= 2
        page.press("r")
        page.wait(IDLE)
        first, second = map(int, page.value(WORDS).split())
        assert abs(first - 8) <= 1
        assert abs(second - 11) <= 1
        assert "2 words" in page.value(STATUS)
        assert page.value("document.getElementById('player').src").startswith("blob:")


@pytest.mark.long
def test_what_is_said_before_the_connection_is_open_is_heard(page):
    with served() as address:
        page.open(f"{root(address)}?lang=en")
        page.wait(IDLE)
        page.value(SLOW_SOCKET)
        page.press("r")
        page.wait("document.body.dataset.state === 'listening'")
        page.wait("document.querySelectorAll('.word').length === 2")
        page.press("r")
        page.wait(IDLE)
        assert abs(int(page.value(WORDS).split()[0]) - 8) <= 1


def test_a_stop_while_the_browser_asks_ends_the_microphone(page):
    with served() as address:
        page.open(f"{root(address)}?lang=en")
        page.wait(IDLE)
        page.value(SLOW_MICROPHONE)
        page.press("r")
        page.wait("!!window.allow")
        page.press("r")
        assert page.value(STATUS) == "Cancelled."
        page.value("allow()")
        page.wait("window.media && media.getTracks().every((track) => track.readyState === 'ended')")
        assert page.value("document.body.dataset.state") == "idle"


def test_errors_of_the_server_and_a_cancelled_request_are_told(page, files):
    model = TellsLength()
    with served(model) as address:
        (files / "text.wav").write_text("no audio")
        page.open(f"{root(address)}?lang=en")
        page.wait(IDLE)
        page.upload("#file", files / "text.wav")
        page.wait("document.body.dataset.state === 'error'")
        assert page.value(STATUS).startswith("file: text.wav: is not a WAV")
        for part in ("transcript-box", "picture", "player"):
            assert page.value(f"document.getElementById('{part}').hidden"), part
        page.problems.clear()  # the browser notes the status 400
        model.free.clear()
        page.upload("#file", files / "talk.wav")
        page.wait("document.body.dataset.state === 'working'")
        page.press("Escape")
        page.wait(IDLE)
        assert page.value(STATUS) == "Cancelled."
        model.free.set()


def test_a_model_with_languages_is_told_the_one_that_is_spoken_and_to_translate(page, files):
    model = TellsLength()
    told = {"languages": ["auto", "zh", "de", "x1!"], "translates": True}
    with served(model, told=told, token="secret") as address:
        page.open(f"{root(address)}?lang=en")
        page.wait("!document.getElementById('token').hidden")
        assert page.value("document.getElementById('told').hidden")  # who has no token learns nothing
        page.value("document.getElementById('token').value = 'secret'; document.getElementById('token').onchange(); 0")
        page.wait("!document.getElementById('told').hidden")
        options = "[...document.getElementById('spoken').options].map((option) => option.text).join(', ')"
        found = "as the server is set, found by the model, Chinese (zh), German (de), x1!"
        assert page.value(options) == found
        page.value("document.getElementById('spoken').value = 'de'; document.getElementById('language').click()")
        assert "德语 (de)" in page.value(options)
        page.upload("#file", files / "talk.wav")
        page.wait(f"{WORDS} === '8 11'")
        page.value("document.getElementById('english').checked = true; document.querySelector('.word').remove()")
        page.upload("#file", files / "talk.wav")
        page.wait(f"{WORDS} === '8 11' && {IDLE}")
        assert {*model.searches} == {((), Prompt("de")), ((), Prompt("de", translate=True))}
        model.searches.clear()
        page.value("document.getElementById('token').blur()")  # in a field R is a letter
        page.press("r")
        page.wait("document.querySelectorAll('.word').length >= 1 && document.body.dataset.state === 'listening'")
        page.press("r")
        page.wait(IDLE)
        assert {*model.searches} == {((), Prompt("de", translate=True))}


def test_a_token_is_asked_for_and_kept_for_the_session(page, files):
    with served(token="secret") as address:
        page.open(f"{root(address)}?lang=en")
        page.wait("!document.getElementById('token').hidden")
        page.value("document.getElementById('token').value = 'secret'; document.getElementById('token').onchange(); 0")
        page.upload("#file", files / "talk.wav")
        page.wait(f"{WORDS} === '8 11'")
        page.open(root(address))
        assert page.value("document.getElementById('token').value") == "secret"


@pytest.mark.long
def test_the_page_fits_a_phone_and_follows_a_dark_system(page):
    with served() as address:
        for width, is_dark in ((360, False), (360, True), (1200, True)):
            page.size(width, 700, is_dark)
            page.open(f"{root(address)}?lang={'en' if is_dark else 'zh'}")
            assert page.value("document.documentElement.scrollWidth") <= width
            assert page.value("document.documentElement.dataset.theme") == ("dark" if is_dark else "light")
            assert page.value("document.querySelector('h1').offsetHeight") < 40
            page.value("document.getElementById('transcript-box').hidden = false")
            tops = "[...document.querySelectorAll('.tools button')].map((button) => button.offsetTop)"
            assert len(set(page.value(tops))) == 1
            page.open(f"{root(address)}docs")
            page.wait("document.querySelectorAll('h2').length === 7")
            assert page.value("document.documentElement.scrollWidth") <= width


def test_a_page_of_another_origin_opens_no_stream_unless_it_is_allowed(page):
    from nemo_asr.run.serve.origins import Allowed

    opening = "new Promise((told) => {{ const socket = new WebSocket('ws://127.0.0.1:{port}/v1/stream');"
    opening += " socket.onopen = () => told('open'); socket.onerror = () => told('refused'); }})"
    with served() as stranger, served() as address, served(allowed=Allowed((), [root(stranger)[:-1]])) as free:
        page.open(root(stranger))
        found = [page.value(opening.format(port=other[1])) for other in (stranger, address, free)]
    assert found == ["open", "refused", "open"]
    page.problems.clear()  # the browser notes what was refused
