"""Families in files outside of the package: they transcribe with times, search with hot words, stream and export."""

from __future__ import annotations

import importlib.util
import json
import re
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import toys
from toys.random_models import RATE, noise
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.export.onnx_asr_export import export_onnx_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.export.sherpa_export import export_sherpa
from nemo_asr.export.stream_export import export_stream
from nemo_asr.export.torch_export import export_torch
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.transcribe.stream import FrameStream
from nemo_asr.tasks import registry
from nemo_asr.tasks.family import FAMILIES, search_of
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import UsageError

pytestmark = pytest.mark.slow
STREAMING = CONFIG.replace("Preprocessor: {", "Preprocessor: {normalize: null, pad_to: 0, ")


@pytest.fixture(scope="module")
def files():
    """The modules of the two files, registered while this module's tests run."""
    known, families = dict(registry.KNOWN), dict(FAMILIES)
    defaults = {name: dict(of_family) for name, of_family in registry.DEFAULTS.items()}
    yield {name: _run_file(Path(toys.__file__).parent / f"{name}.py") for name in ("own_transducer", "own_hybrid")}
    for now, before in ((registry.KNOWN, known), (FAMILIES, families), (registry.DEFAULTS, defaults)):
        now.clear()
        now.update(before)


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"outside_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(files, tmp_path_factory) -> dict[str, TrainedModel]:
    """With random weights that say something."""
    return {name: _random_model(name, tmp_path_factory.mktemp(name)) for name in files}


def _random_model(family: str, folder: Path) -> TrainedModel:
    (folder / "model.yaml").write_text(f"family: {family}\n{STREAMING}")
    torch.manual_seed(0)
    recipe = nemo_asr.load_recipe(folder / "model.yaml")
    modules: Any = recipe.model()
    with torch.no_grad():
        for layer in modules.encoder.modules():
            if isinstance(layer, torch.nn.BatchNorm1d):
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.5, 2)
        encoded, _ = modules.encoder.eval()(
            *modules.preprocessor(torch.from_numpy(noise(3)[None]), torch.tensor([3 * RATE]))
        )
        if family == "own_transducer":
            joint, prediction = modules.others["joint"], modules.others["prediction"]
            joint.of_frames.weight /= encoded.std() / 4
            joint.head.weight *= 8
            for parameter in prediction.parameters():
                parameter *= 2
            joint.head.bias[-1] += 4.0
        else:
            head = modules.decoder.decoder_layers[0]
            head.weight *= 3 / encoded.std()
            head.bias -= (head(encoded)).mean((0, 2))
    for module in modules.modules.values():
        module.eval()
    return TrainedModel(str(folder), recipe, modules, describe(recipe))


@pytest.fixture(params=["own_transducer", "own_hybrid"])
def model(request, models) -> TrainedModel:
    return models[request.param]


def search(model: TrainedModel, **options):
    return search_of(model.modules, model.card.labels, SearchOptions(**options) if options else None)


def times(transcript):
    return [(word.text, word.start, word.end) for word in transcript.words]


def test_words_have_times_and_confidences_also_where_frames_come_in_windows(model):
    samples = noise(3)
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    (windows,) = model.transcribe([samples], RATE, cutting=None, batch_seconds=0.5)
    assert len(whole.text.replace(" ", "")) > 5
    assert times(windows) == times(whole)
    for word in whole.words:
        assert 0.0 <= word.start < word.end <= 3.0
        assert 0.0 < word.confidence <= 1.0


def test_a_search_with_hot_words_and_several_hypotheses_is_the_family_s_own(model, files):
    samples, name = noise(1.5), model.modules.family
    plain, hot = search(model, beam_size=6), search(model, beam_size=6, hotwords=("cab",), hotword_weight=40.0)
    own = {"own_transducer": "OwnTransducerSearch", "own_hybrid": "RescoringSearch"}[name]
    assert type(plain) is type(hot) is getattr(files[name], own)
    (before,), (after,) = (model.transcribe([samples], RATE, cutting=None, decoder=each) for each in (plain, hot))
    assert "cab" not in before.text.split()
    assert "cab" in after.text.split()
    (several,) = model.transcribe([samples], RATE, cutting=None, decoder=plain, nbest=3)
    texts = [each.text for each in several.hypotheses]
    assert texts[0] == several.text == before.text
    assert len(set(texts)) == 3
    scores = [each.score for each in several.hypotheses]
    assert scores == sorted(scores, reverse=True)


def test_what_a_search_cannot_do_is_refused_with_its_family(models):
    with pytest.raises(UsageError, match=r"family own_transducer: this search has no such option: got lm, alpha"):
        search(models["own_transducer"], lm="words.arpa", alpha=0.5)


@pytest.mark.parametrize("options", [{}, {"beam_size": 4, "hotwords": ("ab",)}], ids=["own", "hot words"])
@pytest.mark.parametrize("size", [701, pytest.param(4001, marks=pytest.mark.long), 24_000])
def test_a_stream_has_the_text_of_the_whole_recording_however_it_arrives(model, options, size):
    samples = noise(1.5)
    decoder = search(model, **options)
    (whole,) = model.transcribe([samples], RATE, cutting=None, decoder=decoder)
    stream = model.stream(decoder=decoder, rules=nemo_asr.EndpointRules(silence=9, pause=9))
    assert isinstance(stream, FrameStream)
    events = []
    for first in range(0, len(samples), size):
        events += stream.accept(samples[first : first + size])
    *partials, final = [*events, *stream.finish()]
    assert not any(event.is_final for event in partials)
    assert final.text == stream.text == whole.text
    assert times(final) == times(whole)
    assert partials or size > 16_000


@pytest.mark.parametrize("options", [{}, {"beam_size": 4}], ids=["own", "beam"])
def test_the_search_of_a_stream_goes_on_where_the_chunk_before_has_ended(models, options):
    decoder = search(models["own_transducer"], **options)
    encoded = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32) * 3
    whole = decoder.recognise({"encoded": encoded}).best
    assert len(whole.ids) > 4
    stream, first, parts = decoder.stream(100), 0, []
    while first < len(encoded):
        counted = iter(range(1, 8))  # each part ends after 7 frames, whatever is said
        number = stream.accept({"encoded": encoded[first : first + 11]}, lambda _, counted=counted: next(counted) == 7)
        parts.append((first, stream.end(number)))
        first += number
    assert stream.ids() == whole.ids
    if not options:  # with a beam, what was said may be heard otherwise later
        starts = [first + start for first, part in parts for start in part.starts]
        assert starts == list(whole.starts)
        assert [label for _, part in parts for label in part.ids] == whole.ids


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory) -> Path:
    """The file of the transducer's encoder, with those of its other parts beside it."""
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    assert "values" in str(export_onnx(models["own_transducer"], path))
    return path


@pytest.mark.long
def test_a_transducer_is_exported_in_parts_that_say_their_wires(models, exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = models["own_transducer"]
    parts = {path.name: onnxruntime.InferenceSession(path) for path in exported.parent.iterdir()}
    assert sorted(parts) == ["m.joint.onnx", "m.onnx", "m.prediction.onnx"]
    said = {name: part.get_modelmeta().custom_metadata_map for name, part in parts.items()}
    assert {name: json.loads(each["wires"]) for name, each in said.items()} == {
        "m.onnx": {"encoded": "B D=64 T AcousticEncodedRepresentation", "num_frames": "B Lengths"},
        "m.prediction.onnx": {
            "states": "B T D EncodedRepresentation",
            "new_memory": "D B D EncodedRepresentation",
        },
        "m.joint.onnx": {"lattice": "Lattice"},
    }
    assert {each["family"] for each in said.values()} == {"own_transducer"}
    files = {name: each["file"] for name, each in json.loads(said["m.onnx"]["parts"]).items()}
    assert files == {"prediction": "m.prediction.onnx", "joint": "m.joint.onnx"}
    samples = noise(2)
    (wanted,) = model.transcribe([samples], RATE, cutting=None)
    assert _text_of_files(parts, samples, model.card.labels) == wanted.text


def _text_of_files(parts, samples, labels):
    """Greedy search with the files alone."""
    blank, memory = len(labels), np.zeros((1, 1, 32), np.float32)
    lengths = np.array([len(samples)])
    encoded, number = parts["m.onnx"].run(None, {"audio_signal": samples[None], "length": lengths})

    def behind(label, memory):
        return parts["m.prediction.onnx"].run(None, {"label": np.array([[label]]), "memory": memory})

    states, memory = behind(blank, memory)
    ids = []
    for frame in range(int(number[0])):
        for _ in range(4):
            inputs = {"encoded": encoded[:, :, frame : frame + 1], "states": states}
            label = int(parts["m.joint.onnx"].run(None, inputs)[0][0, 0, 0].argmax())
            if label == blank:
                break
            ids.append(label)
            states, memory = behind(label, memory)
    return " ".join("".join(labels[label] for label in ids).split())


@pytest.mark.long
def test_a_file_of_a_family_without_a_search_here_is_refused(exported):
    with pytest.raises(UsageError, match="there is no search for exported models of family own_transducer"):
        OnnxModel(exported).new_search()


EXPORTS = {
    "torch": export_torch,
    "sherpa-onnx": export_sherpa,
    "onnx-asr": export_onnx_asr,
    "a file with states": export_stream,
}


@pytest.mark.parametrize("program", EXPORTS)
def test_a_layout_that_holds_log_probabilities_refuses_a_family_without(models, tmp_path, program):
    problem = f"family own_transducer does not give log_probs, log_probs_length, which {program} takes: got "
    with pytest.raises(UsageError, match=f"{problem}encoder: encoded, num_frames; prediction: states, new_memory; "):
        EXPORTS[program](models["own_transducer"], tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_hybrid_is_exported_as_a_ctc_model_and_the_file_says_so(models, tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    export_onnx(models["own_hybrid"], tmp_path / "m.onnx")
    assert "m.onnx ends at log_probs: RescoringSearch of the configuration" in capfd.readouterr().err
    written = OnnxModel(tmp_path / "m.onnx")
    assert (written.metadata["family"], written.metadata["search"]) == ("ctc", "RescoringSearch")
    samples = noise(2)
    greedy = nemo_asr.GreedyCTCDecoder()
    (wanted,) = models["own_hybrid"].transcribe([samples], RATE, cutting=None, decoder=greedy)
    assert written.transcribe([samples], audio_rate=RATE, cutting=None).transcripts[0].text == wanted.text


# Files beside those of CTC itself: its searches, heads, losses and wiring.
OF_CTC = ("decoding/", "models/", "run/search/", "tasks/families.py", "compat/")
NAMES_OF_CTC = re.compile(r"CTC(?!_SHARE)|PathSearch|TextSearch|labels_of_path|\bblank\b|is_ctc|ctc\"")
MAY_NAME_CTC = {
    "tasks/known_modules.py": "registers its modules",
    "tasks/family.py": "the family of files of NeMo, which name none",
    "tasks/transducer.py": "a hybrid has a head of CTC",
    "tasks/attention.py": "likewise",
    "trained/nemo_files.py": "the head that published models have",
    "trained/hugging_face.py": "likewise",
    "trained/hugging_face_files.py": "likewise",
    "trained/waveform_models.py": "likewise",
    "trained/ctc_folders.py": "likewise",
    "trained/frame_models.py": "likewise",
    "trained/nemo_transducers.py": "the loss of the second head of hybrids",
    "trained/wenet.py": "likewise",
    "wenet_keys.py": "likewise",
    "trained/fine_tuning.py": "rows of what is no label",
    "export/sherpa_export.py": "a layout of another program, for its frames",
    "export/onnx_asr_export.py": "likewise",
    "export/attention_networks.py": "the head that can be exported in the place of an attention decoder",
}


def test_no_other_file_of_the_collection_names_ctc() -> None:
    folder = Path(nemo_asr.__file__).parent
    files = [
        path for path in sorted(folder.rglob("*.py")) if not path.relative_to(folder).as_posix().startswith(OF_CTC)
    ]
    named = {path.relative_to(folder).as_posix(): names for path in files if (names := _names_of_ctc(path))}
    assert named.keys() == MAY_NAME_CTC.keys(), named


def _names_of_ctc(path: Path) -> set[str]:
    """The names in the code of a file, and the texts in it that are one name; not messages, comments and docstrings."""
    with path.open("rb") as file:
        tokens = [each for each in tokenize.tokenize(file.readline) if each.type in (tokenize.NAME, tokenize.STRING)]
    return {each.string for each in tokens if " " not in each.string and NAMES_OF_CTC.search(each.string)}
