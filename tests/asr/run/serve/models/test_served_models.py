"""Models of a server: the same transcripts as of `transcribe`, in torch and in ONNX Runtime; searches; names."""

from __future__ import annotations

import functools
import itertools
import json
import threading

import numpy as np
import pytest
import soundfile
import torch
from toys.onnx_toy import RATE as TOY_RATE
from toys.onnx_toy import write_toy
from toys.served import served
from toys.tone_corpus import record
from toys.tone_model import STREAMING, stored_tones, train_tones

import nemo_asr
import nemo_lite as nemo
from nemo_asr.run.audio.segments import DEFAULT_CUTTING
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.known_searches import ctc_search
from nemo_asr.run.search.ngram import NgramCounter, estimate, load_language_model, write_arpa
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.run.serve.models import Searches, names_of_models, serve_model
from nemo_asr.run.transcribe.driver import Segmented
from nemo_asr.run.transcribe.inputs import recordings_in
from nemo_asr.trained.model import ModelEngine, TrainedModel, describe
from nemo_lite.base.errors import UsageError

RATE = 16000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("models") / "tones"
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return str(folder)


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)


@pytest.fixture
def serve(factory):
    served = []

    def serve(path, options=None):
        is_file = str(path).endswith(".onnx")
        engine = OnnxModel(path) if is_file else ModelEngine(nemo_asr.load_model(path, factory=factory), factory)
        model = serve_model(engine, "toy", options, 16, 240.0, lambda *_: None)
        served.append(model)
        return model

    yield serve
    for model in served:
        model.batcher.close()


@pytest.fixture
def files(tmp_path):
    names = ["cabbac", "abc", "ccab", "bab"]
    for name in names:
        record(tmp_path / f"{name}.wav", name)
    (tmp_path / "none.wav").write_bytes(b"")
    return [str(tmp_path / f"{name}.wav") for name in names]


def transcribed(model, audio, search=None, rate=None, cutting=DEFAULT_CUTTING):
    """As the server does it, all requests at once."""
    segmented = [Segmented([item], cutting, model.labels) for item in recordings_in(audio, rate)]
    jobs = [model.batcher.submit(item.rows, search) for item in segmented]
    return [item.transcribed(*job.result.result(60)).transcripts[0] for item, job in zip(segmented, jobs, strict=True)]


@pytest.mark.slow
def test_a_served_model_has_the_transcripts_of_transcribe(serve, folder, files, factory):
    expected = nemo_asr.load_model(folder, factory=factory).transcribe(files, factory=factory)
    assert transcribed(serve(folder), files) == expected
    assert all(transcript.words for transcript in expected)


@pytest.mark.slow
def test_a_request_leaves_its_model_in_evaluation_mode_for_streams_in_other_threads(folder, files, factory):
    model = nemo_asr.load_model(folder, factory=factory)
    found = model.batch_transcriber(factory)([each.measured() for each in recordings_in(files[:1], None)])
    assert found.transcripts[0].text
    modules = [module for module in model.modules.modules.values() if isinstance(module, torch.nn.Module)]
    assert modules
    assert not any(part.training for module in modules for part in module.modules())


@pytest.mark.slow
def test_a_search_of_the_server_is_that_of_transcribe(serve, folder, files, factory, tmp_path):
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("cabbab\nbb\n")
    decoder = nemo_asr.BeamSearchCTCDecoder([" ", "a", "b", "c"], lexicon=str(lexicon), hotwords=["bb"])
    expected = nemo_asr.load_model(folder, factory=factory).transcribe(files, factory=factory, decoder=decoder)
    model = serve(folder, SearchOptions(lexicon=str(lexicon)))
    always, hot = model.search_for(()), model.search_for(("bb",))
    assert transcribed(model, files, hot) == expected
    assert {word.text for found in expected for word in found.words} <= {"cabbab", "bb"}
    assert model.search_for(("bb",)) is hot is not always
    assert model.search_for(()) is always
    with pytest.raises(ValueError, match="labels cannot spell"):
        model.search_for(("xyz",))


@pytest.mark.slow
def test_greedy_decoding_stays_beside_a_search_of_a_request(serve, folder, files, factory):
    model, reference = serve(folder), nemo_asr.load_model(folder, factory=factory)
    decoder = nemo_asr.BeamSearchCTCDecoder([" ", "a", "b", "c"], hotwords=["cab"])
    hot, greedy = (reference.transcribe(files, factory=factory, decoder=search) for search in (decoder, None))
    assert hot != greedy
    assert transcribed(model, files, model.search_for(("cab",))) == hot
    assert model.search_for(()) is None
    assert transcribed(model, files) == greedy


@pytest.mark.slow
def test_a_stream_of_a_model_has_the_texts_of_transcribe(folder, factory):
    model, pause = nemo_asr.load_model(folder, factory=factory), np.zeros(RATE, np.float32)
    tones = [0.3 * np.sin(2 * np.pi * hertz * np.arange(RATE // 4) / RATE).astype(np.float32) for hertz in (500, 1200)]
    samples = np.concatenate([pause, tones[0], tones[1], pause, tones[1], pause])
    (expected,) = model.transcribe([samples], RATE, factory=factory)
    stream = model.stream(factory=factory)
    events = [event for first in range(0, len(samples), 1600) for event in stream.accept(samples[first : first + 1600])]
    finals = [event for event in [*events, *stream.finish()] if event.is_final]
    assert " ".join(final.text for final in finals) == expected.text
    assert [word for final in finals for word in final.words] == list(expected.words)
    assert len(finals) == 2


@pytest.mark.slow
def test_a_websocket_streams_by_frames_also_with_hot_words(serve, tmp_path, factory):
    client = pytest.importorskip("websockets.sync.client")
    for package in ("starlette", "uvicorn", "python_multipart"):
        pytest.importorskip(package)
    stored_tones(tmp_path, STREAMING)
    record(tmp_path / "a.wav", "cabcab")
    samples, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
    model = nemo_asr.load_model(tmp_path / "model", factory=factory)
    texts = []
    with served(models=[serve(tmp_path / "model")]) as (host, port):
        for keywords in ([], ["bb:100", "aba:40"]):
            decoder = nemo_asr.BeamSearchCTCDecoder(model.card.labels, hotwords=keywords) if keywords else None
            (whole,) = model.transcribe([str(tmp_path / "a.wav")], cutting=None, factory=factory, decoder=decoder)
            with client.connect(f"ws://{host}:{port}/v1/stream") as socket:
                socket.send(json.dumps({"type": "start", "sample_rate": RATE, "keywords": keywords}))
                for first in range(0, len(samples), 3000):
                    socket.send(samples[first : first + 3000].tobytes())
                socket.send('{"type": "stop"}')
                *events, final, done = [json.loads(message) for message in socket]
            assert [event["type"] for event in (final, done)] == ["final", "done"]
            assert all(event["type"] == "partial" for event in events)
            assert events
            assert final["text"] == done["text"] == whole.text
            assert [word["start"] for word in final["words"]] == [word.start for word in whole.words]
            texts.append(done["text"])
    assert texts[0] == "cabcab" != texts[1]


class Sized:
    """In the place of a search."""

    def __init__(self, options, prompt, problem=""):
        if problem:
            raise UsageError(problem)
        self.options, self.num_bytes = options, 1


def test_a_search_is_made_once_also_for_requests_that_come_at_once():
    made, may_go_on = [], threading.Event()

    def new_search(options, prompt):
        made.append(options)
        assert may_go_on.wait(10)
        return Sized(options, prompt)

    searches, found = Searches(new_search, None), []
    threads = [threading.Thread(target=lambda: found.append(searches(("a",)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4
    assert len(set(map(id, found))) == len(made) == 1
    assert searches(()) is None
    found = Searches(Sized, SearchOptions(hotwords=("x",), lm="a"))(("b",))
    assert found.options == SearchOptions(hotwords=("x", "b"), lm="a")


def test_a_search_that_cannot_be_made_is_tried_again():
    searches = Searches(functools.partial(Sized, problem="the labels cannot spell it"), None)
    for _ in range(2):
        with pytest.raises(UsageError, match="the labels cannot spell it"):
            searches(("a",))
    assert not searches._made


def test_searches_are_kept_up_to_a_number_and_a_size():
    searches = Searches(Sized, None)
    first, *others = [searches((str(number),)) for number in range(17)]
    assert not searches.keeps(first)
    assert all(map(searches.keeps, others))
    others[3].num_bytes = 200 << 20  # tables grow while it searches
    others[5].num_bytes = 100 << 20
    last = searches(("large",))
    assert [searches.keeps(search) for search in (*others, last)] == [False] * 4 + [True] * 13
    last.num_bytes = 1 << 40
    newest = searches(("newest",))
    assert (searches.keeps(newest), searches.keeps(last)) == (True, False)


def test_searches_with_a_language_model_share_it_and_say_their_size(tmp_path):
    words = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]
    counter = NgramCounter(2)
    counter.add(words)
    write_arpa(tmp_path / "a.arpa", estimate(counter).tables)
    options = SearchOptions(lm=str(tmp_path / "a.arpa"))
    searches = Searches(lambda asked, _: ctc_search([" ", *"abcdefgh"], asked), options)
    always, hot, other = searches(()), searches(("aaa",)), searches(("bbb",))
    assert always._words._model is hot._words._model is other._words._model
    assert 1_000 < hot.num_bytes < 1_000_000
    assert TextSearch(["a"]).num_bytes == 0
    (tmp_path / "a.arpa").touch()
    assert load_language_model(tmp_path / "a.arpa") is not always._words._model


def test_a_served_onnx_file_has_the_transcripts_of_its_model(serve, tmp_path):
    path = write_toy(tmp_path / "toy.onnx")
    audio = [np.array([4, 1, 1, 4, 2, 0, 3, 4, label], np.float32) for label in (1, 2, 3)]
    expected = OnnxModel(path).transcribe(audio, audio_rate=TOY_RATE, cutting=None).transcripts
    assert transcribed(serve(path), audio, rate=TOY_RATE, cutting=None) == expected
    assert [transcript.text for transcript in expected] == ["ab ca", "ab cb", "ab cc"]


def test_a_stream_of_an_onnx_file_has_its_texts(tmp_path):
    model = OnnxModel(write_toy(tmp_path / "toy.onnx", {**_metadata(), "sample_rate": "1000"}))
    stream = model.stream()
    sounds = np.tile(np.array([1, 4, 2, 4], np.float32), 50)
    assert not stream.accept(np.full(1000, 4, np.float32))
    finals = [*stream.accept(np.concatenate([sounds, np.full(600, 4, np.float32)])), *stream.finish()]
    assert [(final.is_final, final.text) for final in finals] == [(True, "ab" * 50)]


def _metadata():
    from toys.onnx_toy import METADATA

    return METADATA


def test_models_are_called_as_their_files_and_folders(tmp_path):
    assert names_of_models([str(tmp_path / "runs" / "demo"), "a.onnx", "b/QuartzNet15x5.nemo"]) == [
        *("demo", "a", "QuartzNet15x5"),
    ]
    with pytest.raises(ValueError, match=r"demo: two models are called demo; rename a file or a folder"):
        names_of_models(["a/demo", "b/demo.onnx"])
