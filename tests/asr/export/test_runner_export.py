"""Files for other programs: each is run by its program where that is installed, and gives the model's texts."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import soundfile
import torch
from toys.random_models import CONFORMER, RATE, model_of, noise
from toys.tone_corpus import CONFIG, TEXTS, record
from toys.tone_model import train_tones

from nemo_asr.commands.cli.models import export
from nemo_asr.export import onnx_export, runner_export, sherpa_export
from nemo_asr.export.onnx_asr_export import export_onnx_asr, onnx_asr_features_problem
from nemo_asr.export.runner_export import greedy_texts, symbols_of
from nemo_asr.export.sherpa_export import (
    export_sherpa,
    export_sherpa_stream,
    samples_behind,
    sherpa_features_problem,
)
from nemo_asr.export.torch_export import export_torch
from nemo_asr.trained.model import TrainedModel, describe, load_model
from nemo_lite.base.errors import FileInTheWayError, UsageError

# What sherpa-onnx and onnx-asr compute.
FEATURES = "features: 80, window_size: 0.025"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model that has learned the tones."""
    folder = tmp_path_factory.mktemp("tones")
    recipe, modules = train_tones(folder, CONFIG.replace("features: 32", FEATURES))
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder, samples = tmp_path_factory.mktemp("recordings"), []
    for number, text in enumerate(TEXTS):
        record(folder / f"{number}.wav", text)
        samples.append(soundfile.read(folder / f"{number}.wav", dtype="float32")[0])
    return samples


def metadata_of(folder):
    return onnxruntime.InferenceSession(str(folder / "model.onnx")).get_modelmeta().custom_metadata_map


def heard(written, recordings):
    """The program's texts."""
    texts = written.hear(recordings, RATE)
    if texts is None:
        pytest.skip(f"{written.package} is not installed")
    return texts


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_gives_the_models_texts_from_its_own_features(model, recordings, tmp_path):
    loaded = load_model(model)
    written = export_sherpa(loaded, tmp_path / "sherpa")
    metadata = metadata_of(tmp_path / "sherpa")
    wanted = {"vocab_size": "4", "subsampling_factor": "1", "normalize_type": "", "model_type": "EncDecCTCModel"}
    assert {name: metadata[name] for name in wanted} == wanted
    assert (tmp_path / "sherpa" / "tokens.txt").read_text(encoding="utf-8") == "\u2581 0\na 1\nb 2\nc 3\n<blk> 4\n"
    assert str(written).startswith("sherpa_onnx.OfflineRecognizer.from_nemo_ctc(model='")
    assert str(written).endswith("feature_dim=80)")
    assert written.before == 80
    assert heard(written, recordings) == greedy_texts(loaded, recordings) == TEXTS
    with pytest.raises(FileInTheWayError, match="sherpa: the folder exists already"):
        export_sherpa(loaded, tmp_path / "sherpa")


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_gives_the_models_texts_and_times_from_the_waveform(tmp_path, recordings):
    folder = tmp_path / "tones"
    folder.mkdir()
    recipe, modules = train_tones(folder)  # windows of 0.02 s, which sherpa-onnx does not compute
    loaded = TrainedModel("here", recipe, modules, describe(recipe))
    with pytest.raises(
        UsageError, match=r"computes other features: got windows have 0\.02 s every 0\.01 s, not 0\.025 s"
    ):
        export_sherpa(loaded, tmp_path / "sherpa", waveform=False)
    assert not (tmp_path / "sherpa").exists()
    written = export_sherpa(loaded, tmp_path / "sherpa")
    assert "from_omnilingual_asr_ctc" in str(written)
    quiet = [samples * np.float32(0.02) for samples in recordings]
    for signals in (recordings, quiet):  # the file finds out how loud they were
        assert heard(written, signals) == greedy_texts(loaded, signals)
    import sherpa_onnx

    recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(**written.arguments)
    stream = recognizer.create_stream()
    stream.accept_waveform(RATE, recordings[0])
    recognizer.decode_stream(stream)
    (transcript,) = loaded.transcribe([recordings[0]], RATE, cutting=None)
    assert stream.result.timestamps[0] == pytest.approx(transcript.words[0].start, abs=0.001)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_asr_gives_the_models_texts(model, recordings, tmp_path):
    loaded = load_model(model)
    written = export_onnx_asr(loaded, tmp_path / "asr")
    assert sorted(file.name for file in (tmp_path / "asr").iterdir()) == ["config.json", "model.onnx", "vocab.txt"]
    config = json.loads((tmp_path / "asr" / "config.json").read_text())
    assert config == {"model_type": "nemo-conformer-ctc", "features_size": 80, "subsampling_factor": 1}
    assert "std_floor: 0.1 held them down" in written.advice[0]
    assert heard(written, recordings) == greedy_texts(loaded, recordings)


@pytest.mark.long
@pytest.mark.slow
def test_torch_alone_runs_the_program_on_any_batch(model, recordings, tmp_path):
    assert export([str(model), str(tmp_path / "tones.pt2"), "--format", "torch"]) is None
    np.save(tmp_path / "a.npy", recordings[0])
    code = f"""
import sys, json, numpy, torch
files = {{"metadata.json": ""}}
run = torch.export.load({str(tmp_path / "tones.pt2")!r}, extra_files=files).module()
signal = torch.from_numpy(numpy.load({str(tmp_path / "a.npy")!r}))[None]
log_probs, frames = run(signal.repeat(3, 1), torch.tensor([signal.shape[1], 160, 8000]))
labels = json.loads(files["metadata.json"])["labels"]
ids = log_probs[0, : frames[0]].argmax(1).tolist()
print("".join(json.loads(labels)[i] for i, before in zip(ids, [-1, *ids]) if i != before and i < 4))
print(frames.tolist(), [name for name in sys.modules if name.startswith("nemo")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, rest = done.stdout.splitlines()
    assert text == TEXTS[0]
    assert rest == f"[{-(-len(recordings[0]) // 320)}, 1, 25] []"


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_streams_a_conformer_in_chunks(tmp_path):
    text = CONFORMER.replace("n_layers: 2", "n_layers: 1").replace("features: 32", FEATURES)
    loaded = model_of(tmp_path, text)
    written = export_sherpa_stream(loaded, tmp_path / "stream")
    metadata = metadata_of(tmp_path / "stream")
    wanted = {"window_size": "16", "chunk_shift": "16", "vocab_size": "4", "cache_last_channel_dim3": str(8 * 16)}
    assert {name: metadata[name] for name in wanted} == wanted
    assert (written.before, written.behind) == (80, samples_behind(16, 0, 160, 400) + 8000)
    samples = noise(3)
    (got,) = heard(written, [samples])
    # It hears the silence behind too, and never that the recording has ended.
    padded = np.concatenate([samples, np.zeros(written.behind, np.float32)])
    (whole,) = greedy_texts(loaded, [padded])
    assert len(got) > 4
    assert whole.startswith(got)
    (own,) = greedy_texts(loaded, [samples])
    assert len(got) >= len(own) - 1


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_streams_convolutions_whose_first_frames_are_late_blanks(tmp_path):
    text = CONFIG.replace("features: 32, n_fft: 512", f"{FEATURES}, normalize: null, pad_to: 0, generation: nemo_2.5")
    loaded = model_of(tmp_path, text)
    written = export_sherpa_stream(loaded, tmp_path / "stream")
    assert (written.before, written.behind) == (80, samples_behind(10, 2 * 2, 160, 400) + 8000)
    assert "subtract 0.04 s from its times: a frame waits for those behind it" in written.advice
    samples = noise(3)
    (got,) = heard(written, [samples])
    padded = np.concatenate([samples, np.zeros(written.behind, np.float32)])
    (whole,), (own,) = (greedy_texts(loaded, [signal]) for signal in (padded, samples))
    assert len(own) > 40
    assert got[:30] == whole[:30]  # later a random model has ties, which rounding decides
    assert len(own) - 1 <= len(got) <= len(whole)


@pytest.mark.parametrize(("chunk", "late"), [(8, 0), (104, 0), (10, 38)])
def test_a_stream_gives_all_frames_with_the_zeros_behind_and_not_with_a_frame_less(chunk, late):
    hop, window = 160, 400
    lengths = np.arange(window, window + 2 * chunk * hop)
    needed = lengths // hop + 1 + late
    behind = samples_behind(chunk, late, hop, window)

    def decoded(zeros):
        """As sherpa-onnx counts: frames whose window is there, the first around sample 80; chunks with one more."""
        ready = (hop // 2 + lengths + zeros - (hop + window) // 2) // hop + 1
        return (ready - 1) // chunk * chunk

    assert (decoded(behind) >= needed).all()
    assert not (decoded(behind - hop) >= needed).all()


@pytest.mark.slow
def test_the_command_tells_how_to_load_it_and_what_the_program_hears(model, recordings, tmp_path, capsys, monkeypatch):
    for number, samples in enumerate(recordings[:3]):
        soundfile.write(tmp_path / f"{number}.wav", samples, RATE)

    def write(module, arguments, outputs, path, *_):
        path.write_bytes(b"")
        return 0.5

    monkeypatch.setattr(sherpa_export, "write_features", write)
    monkeypatch.setattr(runner_export.Written, "hear", lambda self, signals, rate: ["cab", "abba", "cb"])
    monkeypatch.setattr("nemo_asr.commands.cli.models.version", lambda package: "1.2")
    audio = [str(tmp_path / f"{number}.wav") for number in range(3)]
    export([str(model), str(tmp_path / "out"), "--format", "sherpa-onnx", "--audio", *audio])
    said = capsys.readouterr().out.partition(f"{tmp_path / 'out'}: Tones, ")[2].splitlines()
    assert said[1] == "compared with ONNX Runtime: largest difference of log-probabilities 5.0e-01"
    assert said[2].startswith("load it with sherpa_onnx.OfflineRecognizer.from_nemo_ctc(")
    assert said[3] == "put 80 zero samples before the audio, and 0 behind it"
    assert said[4:] == ["sherpa-onnx 1.2: 2 of 3 texts equal the model's", "  sherpa-onnx: 'cb', model: 'bc'"]
    monkeypatch.setattr(runner_export.Written, "hear", lambda self, signals, rate: None)
    export([str(model), str(tmp_path / "again"), "--format", "sherpa-onnx", "--audio", *audio])
    assert capsys.readouterr().out.endswith("its texts are not compared: sherpa-onnx is not installed\n")


@pytest.mark.long
@pytest.mark.slow
def test_a_program_or_file_that_differs_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "TOLERANCE", -1.0)
    with pytest.raises(UsageError, match=r"tones\.pt2: the exported log-probabilities are not torch's, so no file"):
        export_torch(load_model(model), tmp_path / "tones.pt2")
    with pytest.raises(
        UsageError, match=r"model\.onnx: the exported log-prob.* are not torch's, so nothing is written: got 1\.0e\+00"
    ):
        runner_export.difference_of(torch.zeros(3), torch.ones(3), "model.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("features: 80, window_size: 0.02", r"windows have 0\.02 s every 0\.01 s, not 0\.025 s every 0\.01 s"),
        (f"{FEATURES}, n_fft: 1024", "the window is no symmetric Hann window in n_fft 512"),
        (f"{FEATURES}, stft_conv: true", "the window is no symmetric Hann window"),
        (f"{FEATURES}, lowfreq: 20", "mel bands do not go from 0 Hz to half the sample rate"),
        (f"{FEATURES}, preemph: 0.9", r"they are no logarithms of powers behind a pre-emphasis of 0\.97"),
        (f"{FEATURES}, frame_splicing: 2", "frame_splicing is 2"),
    ],
)
def test_models_with_other_features_are_refused_with_the_reason(tmp_path, change, problem):
    config = CONFIG.replace("features: 32, n_fft: 512", change)
    loaded = model_of_features(tmp_path, config)
    assert sherpa_features_problem(loaded.modules.preprocessor)
    with pytest.raises(
        UsageError, match=f"here: onnx-asr computes other features: got {problem}.*; train with window_si"
    ):
        export_onnx_asr(loaded, tmp_path / "asr")


def model_of_features(folder, config):
    import nemo_asr

    (folder / "tones.yaml").write_text(config)
    recipe = nemo_asr.load_recipe(folder / "tones.yaml")
    return TrainedModel("here", recipe, recipe.model(), describe(recipe))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("features: 64, window_size: 0.025", "64 bands at 16000 Hz, not 80 or 128 at 16000 Hz"),
        (f"{FEATURES}, normalize: null", "they are not normalised per_feature"),
    ],
)
def test_onnx_asr_needs_its_bands_and_normalisation(tmp_path, change, problem):
    loaded = model_of_features(tmp_path, CONFIG.replace("features: 32, n_fft: 512", change))
    assert not sherpa_features_problem(loaded.modules.preprocessor)
    assert onnx_asr_features_problem(loaded.modules.preprocessor) == problem


def test_symbols_stand_on_lines_and_labels_that_cannot_are_refused():
    assert symbols_of([" ", "\u2581ab", "c"], "m") == "\u2581 0\n\u2581ab 1\nc 2\n<blk> 3\n"
    for labels in (["a", "<blk>"], ["a\tb"], ["a", "a"], [" ", "\u2581"]):
        with pytest.raises(UsageError, match="m: a label cannot be a symbol of other programs: got '"):
            symbols_of(labels, "m")


def test_frames_are_repeated_so_that_all_of_them_are_read():
    class Rest(torch.nn.Module):
        def forward(self, features, length):
            frames = length // 8 + 1  # as causal subsampling has them: one more than ceil(T / 8)
            values = torch.arange(float(int(frames.max()))).view(1, -1, 1).expand(len(length), -1, 2)
            return values, frames

    length = torch.tensor([16, 9])
    out = runner_export.Stretched(Rest())(torch.zeros(2, 3, 16), length)[..., 0]
    assert out.shape == (2, 16)
    assert out[0].tolist() == [0] * 6 + [1] * 5 + [2] * 5
    assert out[1, :9].tolist() == [0] * 5 + [1] * 4
