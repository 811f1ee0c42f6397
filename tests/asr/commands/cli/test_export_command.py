"""nemo-lite export and transcribe: one file, which gives torch's texts without torch."""

import json
import shutil
from types import SimpleNamespace

import onnxruntime
import pytest
import torch
from toys.tone_corpus import record
from toys.tone_model import train_tones

from nemo_asr.commands.cli.models import export
from nemo_asr.export.onnx_export import weights_digest
from nemo_asr.features.spectra import extended_signal
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.trained.model import TrainedModel, describe, load_model, trained_modules
from nemo_lite.base.errors import CheckpointError, ConfigError, DataError, UsageError

pytestmark = pytest.mark.slow  # the exporter takes its time


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder."""
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("model")
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return folder


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """The file, what was said about it, and a folder of recordings of which two were compared."""
    folder = tmp_path_factory.mktemp("exported")
    for name, text in (("a", "cab"), ("b", "abba"), ("c", "acb")):
        record(folder / f"{name}.wav", text)
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("builtins.print", lambda *texts, **_: said.append(" ".join(map(str, texts))))
        assert (
            export([str(model), str(folder / "tones.onnx"), "--audio", *(str(folder / f"{name}.wav") for name in "ac")])
            is None
        )
    return folder / "tones.onnx", said


def test_the_comparison_is_told(exported):
    path, said = exported
    assert said[0].startswith(f"{path}: Tones, step 0 (epoch 0), ")
    assert said[1].startswith("compared with ONNX Runtime: 8 batches of 1 to 4 signals, 0.01 to 5.20 s: largest")
    assert said[1].endswith("15 of 15 texts equal")
    assert [each.name for each in path.parent.iterdir() if "onnx" in each.name] == ["tones.onnx"]


def test_the_file_takes_any_batch_and_gives_torchs_log_probabilities(model, exported):
    session = onnxruntime.InferenceSession(str(exported[0]))
    shapes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
    assert shapes["audio_signal"] == ["batch", "time"]
    assert shapes["length"] == ["batch"]
    assert (shapes["log_probs"][0], shapes["log_probs"][2]) == ("batch", 5)
    assert shapes["log_probs_length"] == ["batch"]
    model = load_model(model).modules
    for module in (model.preprocessor, model.encoder, model.decoder):
        module.eval()
    for lengths in ((12345,), (4000, 160, 9999, 1, 8000, 30000, 16000)):
        signal, length = torch.randn(len(lengths), max(lengths)), torch.tensor(lengths)
        with torch.no_grad():
            encoded, frames = model.encoder(*model.preprocessor(input_signal=signal, length=length))
            wanted = model.decoder(encoded)
        got, got_frames = session.run(None, {"audio_signal": signal.numpy(), "length": length.numpy()})
        assert got_frames.tolist() == frames.tolist()
        for row, (a, b) in enumerate(zip(torch.from_numpy(got), wanted, strict=True)):
            torch.testing.assert_close(a[: frames[row]], b[: frames[row]], rtol=1e-3, atol=1e-3)


def test_the_file_says_how_to_use_it(model, exported):
    metadata = onnxruntime.InferenceSession(str(exported[0])).get_modelmeta().custom_metadata_map
    loaded = load_model(model)
    assert json.loads(metadata["labels"]) == [" ", "a", "b", "c"]
    numbers = ("sample_rate", "blank_id", "feature_stride_samples", "frame_stride_samples", "subsampling_factor")
    assert [int(metadata[name]) for name in numbers] == [16000, 4, 160, 320, 2]
    assert float(metadata["frame_seconds"]) == loaded.card.frame_seconds == 0.02
    assert metadata["weights_sha256"] == weights_digest(trained_modules(loaded.modules))


def test_it_transcribes_as_the_model_does(model, exported, capsys):
    folder = str(exported[0].parent)
    assert transcribe([str(exported[0]), folder, "--format", "json"]) == 0
    from_file = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert transcribe([str(model), folder, "--format", "json", "--placement", "CPU"]) == 0
    from_torch = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["text"] for each in from_file] == ["cab", "abba", "acb"]
    for a, b in zip(from_file, from_torch, strict=True):
        assert {**a, "words": []} == {**b, "words": []}
        for word, other in zip(a["words"], b["words"], strict=True):
            assert word["confidence"] == pytest.approx(other["confidence"], abs=0.002)
            assert {**word, "confidence": 0} == {**other, "confidence": 0}


def test_options_that_only_torch_knows_are_refused(exported):
    with pytest.raises(UsageError, match=r"in one process on the CPU: got --placement, --amp_opt_level; leave it out"):
        transcribe([str(exported[0]), str(exported[0].parent), "--placement", "GPU", "--amp_opt_level", "O1"])


def test_a_damaged_file_is_refused_in_one_line(exported, tmp_path):
    shutil.copy(exported[0], tmp_path / "cut.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "cut.onnx").read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"cut\.onnx: this is no ONNX file that can be run"):
        transcribe([str(tmp_path / "cut.onnx"), str(exported[0].parent)])


def test_files_of_import_run_first_and_weights_of_nemo_need_a_configuration(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(7)")
    with pytest.raises(SystemExit, match="7"):
        export([str(tmp_path), str(tmp_path / "m.onnx"), "--import", str(tmp_path / "mine.py")])
    (tmp_path / "JasperEncoder-STEP-1.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        export([str(tmp_path), str(tmp_path / "m.onnx"), "--model_config", str(tmp_path / "none.yaml")])


def test_another_ending_and_a_file_that_is_there_are_refused(model, exported, tmp_path):
    with pytest.raises(UsageError, match=r"another ending: got .*m\.pt, wanted FILE\.onnx"):
        export([str(model), str(tmp_path / "m.pt")])
    with pytest.raises(UsageError, match=r"tones\.onnx: the file exists already"):
        export([str(model), str(exported[0])])


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        ("there.onnx", UsageError, r"there\.onnx: the file exists already"),
        ("there --format sherpa-onnx", UsageError, "there: the folder exists already"),
        ("there.onnx/m.onnx", UsageError, r"there\.onnx: there is a file where a folder is wanted"),
        ("m.onnx --int8 --eval_datasets none.json", DataError, "none.json"),
    ],
)
def test_what_cannot_be_written_or_measured_is_refused_before_the_model_is_read(
    words, error, told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").touch()
    (tmp_path / "there").mkdir()
    with pytest.raises(error, match=told):
        export(["no-model", *words.split()])


def test_a_file_that_differs_from_torch_is_not_written(model, exported, tmp_path, monkeypatch):
    """The broken twin: the modules in torch emphasise differently from those that were exported."""
    emphasised = "nemo_asr.features.audio_preprocessor.extended_signal"
    monkeypatch.setattr(emphasised, lambda own, n_fft, _, **ends: extended_signal(own, n_fft, 0.5, **ends))
    program = SimpleNamespace(
        model=SimpleNamespace(producer_name="", metadata_props={}, graph=()),
        save=lambda path, external_data: shutil.copy(exported[0], path),
    )
    monkeypatch.setattr("nemo_lite.backends.pytorch.export._program", lambda *_, **settings: program)
    monkeypatch.setattr("nemo_lite.backends.pytorch.export._forget_sources", lambda graph: None)
    with pytest.raises(UsageError, match=r"exported log-probabilities are not torch's, so no file is written"):
        export([str(model), str(tmp_path / "m.onnx")])
    assert list(tmp_path.iterdir()) == []
