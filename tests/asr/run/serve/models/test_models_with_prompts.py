"""Languages and translation by request: each request gets the text of a model with its prompt."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import toys.hugging_face_transducers as transducers
import toys.prompted_models as prompted
import toys.whisper_models as whisper
from toys.nemo_conformers import RATE, signal_of
from toys.served import served, transcribe, wav

import nemo_lite as nemo
from nemo_asr.run.engines import Prompt
from nemo_asr.run.serve.models import ServedModel, serve_model
from nemo_asr.trained.model import ModelEngine, TrainedModel, load_model

for package in ("starlette", "uvicorn", "python_multipart"):
    pytest.importorskip(package)

SIGNAL = signal_of(whisper.SECONDS).numpy()
TRANSLATIONS = "/v1/audio/translations"


def recording() -> bytes:
    content = io.BytesIO()
    soundfile.write(content, SIGNAL, RATE, format="WAV", subtype="PCM_16")
    return content.getvalue()


def text_of(model: TrainedModel) -> str:
    samples, _ = soundfile.read(io.BytesIO(recording()), dtype="float32")
    return model.transcribe([samples], RATE, cutting=None)[0].text


@pytest.fixture
def models(tmp_path: Path) -> Iterator[dict[str, tuple[TrainedModel, ServedModel]]]:
    """By name: a model, and the same as a server has it."""
    shapes = prompted.stored_cases()["canary"]["shapes"]
    folders = {
        "whisper": whisper.write_folder(tmp_path / "whisper", state=whisper.state_of(seed=5)),
        "canary": prompted.write_folder(tmp_path / "canary", "canary", state=prompted.state_of("canary", shapes, 0)),
        "streaming": transducers.write_folder(tmp_path / "streaming", "nemotron3_5_asr"),
    }
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    made = {}
    for name, folder in folders.items():
        engine = ModelEngine(load_model(folder, factory=factory), factory)
        made[name] = (engine.loaded, serve_model(engine, name, None, 16, 240.0, lambda *_: None))
    yield made
    for _, model in made.values():
        model.batcher.close()


def test_each_request_has_the_text_of_its_own_language_also_beside_others(models) -> None:
    model, one = models["whisper"]
    prompts = [
        *((Prompt(language), "/v1/audio/transcriptions") for language in ("", "en", "de", "zh")),
        *((Prompt(language, translate=True), TRANSLATIONS) for language in ("de", "zh")),
    ]
    wanted = [text_of(model.with_prompt(prompt)) for prompt, _ in prompts]
    assert len({*wanted}) >= 4
    before = text_of(model)
    with served(models=[one]) as address, ThreadPoolExecutor(12) as clients:
        asked = [
            clients.submit(
                transcribe, address, recording(), path=path, language=prompt.language.upper(), chunking_strategy="auto"
            )
            for prompt, path in prompts * 4
        ]
        found = [each.result(60).json["text"] for each in asked]
    assert found == wanted * 4
    assert text_of(model) == before == wanted[0]


def test_a_model_with_a_prompt_shares_the_weights_of_the_one_that_stays_as_it_is(models) -> None:
    for model, language in (
        (models["whisper"][0], "de"),
        (models["canary"][0], "fr"),
        (models["streaming"][0], "de-DE"),
    ):
        prompted = model.with_prompt(Prompt(language))
        pairs = zip(model.modules.modules.values(), prompted.modules.modules.values(), strict=True)
        for mine, theirs in pairs:
            if hasattr(mine, "parameters"):
                assert [*map(id, mine.parameters())] == [*map(id, theirs.parameters())]
        model.set_language(model.languages[1])
        assert text_of(prompted) == text_of(model.with_prompt(Prompt(language)))


def test_a_translation_of_canary_is_its_text_in_english(models) -> None:
    model, one = models["canary"]
    assert model.translates
    model.set_language("de")
    model.set_target_language("en")
    wanted = text_of(model)
    with served(models=[one]) as address:
        told = {"path": TRANSLATIONS, "language": "de", "response_format": "verbose_json"}
        found = transcribe(address, recording(), **told).json
    assert (found["text"], found["task"], found["language"]) == (wanted, "translate", "en")
    assert wanted != text_of(model.with_prompt(Prompt("de")))


def test_a_stream_by_frames_has_its_own_language(models) -> None:
    client = pytest.importorskip("websockets.sync.client")
    model, one = models["streaming"]
    assert one.frame_stream is not None
    samples = (32767 * np.concatenate([SIGNAL, SIGNAL[::-1]])).astype(np.int16)
    texts = {}
    with served(models=[one]) as (host, port):
        for language in ("", *model.languages):
            with client.connect(f"ws://{host}:{port}/v1/stream") as socket:
                socket.send(json.dumps({"type": "start", "sample_rate": RATE, "language": language}))
                socket.send(samples.tobytes())
                socket.send('{"type": "stop"}')
                texts[language] = json.loads([*socket][-1])["text"]
        with client.connect(f"ws://{host}:{port}/v1/stream") as socket:
            socket.send(json.dumps({"type": "start", "language": "xx"}))
            refused = json.loads(socket.recv())
    for language, text in texts.items():
        stream = model.with_prompt(Prompt(language)).stream(RATE)
        stream.accept(samples.astype(np.float32) / 32768)
        stream.finish()
        assert stream.text == text
    assert len({*texts.values()}) >= 2
    assert refused == {"type": "error", "message": f"language: got 'xx', wanted one of {', '.join(model.languages)}"}


def test_a_stream_has_the_translation_that_it_asks_for(models) -> None:
    client = pytest.importorskip("websockets.sync.client")
    model, one = models["canary"]
    samples, texts = (32767 * np.tile(SIGNAL, 2)).astype(np.int16), {}
    with served(models=[one, models["streaming"][1]]) as (host, port):

        def told(task: str, **start: str) -> str:
            with client.connect(f"ws://{host}:{port}/v1/stream") as socket:
                socket.send(json.dumps({"type": "start", "sample_rate": RATE, "task": task, **start}))
                if start.get("model") or task == "sing":
                    refused: dict[str, str] = json.loads(socket.recv())
                    return refused["message"]
                socket.send(samples.tobytes())
                socket.send('{"type": "stop"}')
                done: dict[str, str] = json.loads([*socket][-1])
                return done["text"]

        for task in ("transcribe", "translate"):
            texts[task] = told(task, language="de")
        assert told("sing") == "task: got 'sing', wanted transcribe or translate"
        cannot = "model: this one does not translate; ask for a transcription, or another model"
        assert told("translate", model="streaming") == cannot
    for task, prompt in {"transcribe": Prompt("de"), "translate": Prompt("de", translate=True)}.items():
        stream = model.with_prompt(prompt).stream(RATE)
        stream.accept(samples.astype(np.float32) / 32768)
        stream.finish()
        assert texts[task] == stream.text != ""
    assert texts["transcribe"] != texts["translate"]


def test_what_a_model_cannot_be_told_is_one_line(models) -> None:
    with served(models=[models["whisper"][1]]) as address:
        unknown = transcribe(address, recording(), language="klingon")
    assert (unknown.status, unknown.json["error"]["param"]) == (400, "language")
    assert unknown.message == "language: got 'klingon', wanted one of auto, en, de, zh"


def test_a_model_without_languages_ignores_the_field_and_does_not_translate() -> None:
    with served() as address:
        ignoring = transcribe(address, wav(5), language="xx", prompt="a")
        refused = transcribe(address, wav(5), path=TRANSLATIONS)
    assert (ignoring.status, ignoring.headers["x-ignored-fields"]) == (200, "language, prompt")
    assert (refused.status, refused.json["error"]["param"]) == (400, "model")
    assert refused.message == "model: this one does not translate; ask for a transcription, or another model"


def test_a_language_that_counts_is_not_among_the_ignored_fields() -> None:
    with served(told={"languages": ["en"], "translates": True}) as address:
        answers = [
            transcribe(address, wav(5), language="en", path=path) for path in ("/v1/audio/transcriptions", TRANSLATIONS)
        ]
    assert [answer.status for answer in answers] == [200, 200]
    assert not any("x-ignored-fields" in answer.headers for answer in answers)
