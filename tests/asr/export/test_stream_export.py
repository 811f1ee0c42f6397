"""Models that run in chunks as ONNX files: the stream of the modules in torch, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from toys.random_models import CONFORMER, RATE, model_of, noise
from toys.tone_corpus import CONFIG

from nemo_asr.commands.cli.models import export
from nemo_asr.export import stream_export
from nemo_asr.export.stream_export import export_stream
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.run.onnx.onnx_stream import OnnxStreamedModel
from nemo_asr.run.transcribe.stream import FrameStream
from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import CheckpointError, FileInTheWayError, UsageError

SMALL = CONFORMER.replace("n_layers: 2", "n_layers: 1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_of(tmp_path_factory.mktemp("model"), SMALL)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """The file, and what was said about it."""
    path = tmp_path_factory.mktemp("stream") / "stream.onnx"
    return path, export_stream(model, path, [noise(3)])


@pytest.mark.slow
def test_the_file_gives_torchs_frames_for_recordings_of_every_length(model, exported):
    path, comparison = exported
    assert comparison.texts == 12  # eleven signals and a recording
    written, samples = OnnxStreamedModel(path), noise(1)
    chunk = 2 * 8 * 160
    lengths = [n + add for n in range(0, 2 * chunk + 1, 160) for add in (-1, 0, 1) if n + add > 0]
    for length in lengths:
        wanted = model.streamed().frames()(samples[:length], True)["log_probs"]
        got = written.frames()(samples[:length], True)["log_probs"]
        assert got.shape == wanted.shape, length
        np.testing.assert_allclose(got, wanted, atol=1e-3, err_msg=str(length))


@pytest.mark.slow
def test_the_text_is_that_of_the_whole_recording_however_it_arrives(model, exported):
    samples = noise(5, seed=1)
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    assert len(whole.text) >= 4
    for size in (97, 1600, len(samples)):
        stream = FrameStream(OnnxStreamedModel(exported[0]), RATE)
        for first in range(0, len(samples), size):
            stream.accept(samples[first : first + size])
        stream.finish()
        assert stream.text == whole.text


@pytest.mark.slow
def test_the_command_streams_the_file_without_torch(model, exported, tmp_path):
    samples = noise(2)
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    words = ["transcribe", str(exported[0]), str(tmp_path / "a.wav"), "--stream"]
    code = (
        f"import sys; from nemo_asr.run.cli.transcribe import main; main({words[1:]!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *events, has_torch = done.stdout.splitlines()
    assert has_torch == "False", done.stderr
    assert json.loads(events[-1])["text"] == model.transcribe([samples], RATE, cutting=None)[0].text


@pytest.mark.slow
def test_a_file_of_one_kind_is_not_taken_for_the_other(exported, tmp_path):
    soundfile.write(tmp_path / "a.wav", noise(1), RATE)
    with pytest.raises(
        CheckpointError, match=r"used otherwise: got format .*; give --stream: it takes audio in chunks"
    ):
        transcribe([str(exported[0]), str(tmp_path / "a.wav")])
    with pytest.raises(CheckpointError, match=r"used otherwise.*give --stream"):
        transcribe([str(exported[0]), str(tmp_path / "a.wav"), "--stream", "segments"])
    with pytest.raises(FileInTheWayError, match=r"stream\.onnx: the file exists already"):
        export_stream(None, exported[0])  # type: ignore[arg-type]  # looked at first


@pytest.mark.slow
def test_a_file_that_differs_is_not_written(model, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_export, "TOLERANCE", -1.0)
    monkeypatch.setattr(stream_export, "write_onnx", lambda *args: args[4](_Run(exported[0])))
    with pytest.raises(UsageError, match=r"stream\.onnx: the exported stream is not torch's, so no file is written"):
        export_stream(model, tmp_path / "new.onnx")


class _Run:
    def __init__(self, path):
        self.path = path


class _GraphInTorch:
    """What the file of a model computes, in torch: chunks and states of fixed sizes."""

    def __init__(self, model):
        self.parts = stream_export.StreamedParts.of(model)
        self._chunk = stream_export._Chunk(self.parts).eval()
        preprocessor = self.parts.preprocessor
        self._shift = self.parts.chunk * preprocessor.hop_length * preprocessor.frame_splicing
        self._before, self._window = preprocessor.graph_window(self.parts.chunk)

    @torch.no_grad()
    def __call__(self, samples):
        state = [torch.zeros_like(value) for value in self.parts.state(1).values()]
        waiting, left, found, is_whole = np.pad(samples, (self._before, 0)), len(samples), [], True
        while is_whole:
            waiting = np.pad(waiting, (0, max(self._window - len(waiting), 0)))
            signal = torch.from_numpy(waiting[None, : self._window])
            log_probs, number, *state = self._chunk(signal, torch.tensor([left]), *state)
            waiting, left = waiting[self._shift :], left - self._shift
            found.append(log_probs[0, : number[0]])
            is_whole = bool(number[0] == log_probs.shape[1])
        return torch.cat(found)[self.parts.late :].numpy()


def _conformer(**changes):
    """Without causal subsampling, and with other values of keys."""
    text = CONFORMER
    for key, value in {"causal_downsampling": "false", **changes}.items():
        text = re.sub(rf"(?m)^  {key}: .*$", f"  {key}: {value}", text)
    return text


FBANK = (
    "AudioToMelSpectrogramPreprocessor: {normalize: null, pad_to: 0, features: 32, dither: 0.0, generation: nemo_2.5}",
    "AudioToKaldiFbankPreprocessor: {features: 32, dither: 0.0}",
)
WENET = (
    _conformer(subsampling="conv2d", subsampling_factor=4, att_context_size="[8, 3]")
    .replace(*FBANK)
    .replace("n_layers: 2", "n_layers: 2\n  self_attention_model: rel_pos_no_shift\n  after_norm: true")
    .replace("d_model: 16", "d_model: 16\n  conv_pads_input: true")
)


def _jasper(*blocks):
    rows = []
    for block in blocks:
        keys = {"filters": 8, "repeat": 1, "kernel": [3], "stride": [1], "dilation": [1], "dropout": 0.0}
        rows.append(f"    - {json.dumps({**keys, 'residual': True, 'separable': True, **block})}\n")
    head, _, rest = CONFIG.replace("features: 32", "features: 32, normalize: null, pad_to: 0").partition("    - {")
    return head + "".join(rows) + rest[rest.index("labels:") :]


STRIDED = {"residual_mode": "stride_add", "stride_last": True, "stride": [3]}
QUARTZNET = _jasper(
    {"kernel": [11], "stride": [2], "residual": False},
    {"kernel": [5], "repeat": 2},
    {"kernel": [9], "dilation": [2], "separable": False},
)
FIXED = f"normalize: {{fixed_mean: {[-8.0] * 32}, fixed_std: {[4.0] * 32}}}"
GRAPHS = {  # a configuration, and how many of its first frames are late
    "causal": (CONFORMER, 0),
    "fbank": (CONFORMER.replace(*FBANK), 0),
    "spliced frames": (CONFORMER.replace("dither: 0.0", "dither: 0.0, frame_splicing: 2"), 0),
    "moving statistics": (CONFORMER.replace("normalize: null", f"{FIXED}, moving_seconds: 0.3"), 0),
    "striding": (_conformer(subsampling="striding"), 0),
    "stacking": (_conformer(subsampling="stacking_norm"), 0),
    "conv2d": (_conformer(subsampling="conv2d"), 2),
    "conv2d without frames behind": (_conformer(subsampling="conv2d", att_context_size="[8, 0]"), 1),
    "conv2d of a sixth": (_conformer(subsampling="conv2d", subsampling_factor=6), 2),
    "vggnet": (_conformer(subsampling="vggnet", subsampling_factor=4), 2),
    "WeNet": (WENET, 4),
    "QuartzNet": (QUARTZNET, 2 + 2 * 2 + 8),
    "dense": (_jasper(*({"kernel": [k], "residual_dense": True} for k in (3, 5, 7))), 1 + 2 + 3),
    "frames behind are few": (_jasper({"kernel": [11], "stride": [2], "residual": False, "future_context": 1}), 0),
    "strided residuals": (_jasper({"kernel": [1], **STRIDED}, {"repeat": 2, **STRIDED}), 0),
    "maximum": (_jasper(*({"kernel": [k], "filters": 32, "residual_mode": "max"} for k in (3, 5))), 1 + 2),
    "causal squeeze-and-excitation": (
        _jasper({"se": True, "se_context_window": 9, "se_interpolation_mode": "causal", "future_context": 0}),
        0,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_chunks_and_states_of_fixed_sizes_give_the_frames_of_the_stream(name, tmp_path, monkeypatch):
    text, late = GRAPHS[name]
    model = model_of(tmp_path, text)
    graph, samples = _GraphInTorch(model), noise(2)
    assert graph.parts.late == late
    lengths = (1, 399, 400, 1000, 2561, 9999, len(samples))
    wanted = [model.streamed().frames()(samples[:length], True)["log_probs"] for length in lengths]
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for length, log_probs in zip(lengths, wanted, strict=True):
        got = graph(samples[:length])
        assert got.shape == log_probs.shape, length
        np.testing.assert_allclose(got, log_probs, atol=3e-4, err_msg=str(length))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [QUARTZNET.replace("normalize: null", f"{FIXED}, moving_seconds: 0.3"), WENET],
    ids=["QuartzNet with moving statistics", "WeNet"],
)
def test_files_whose_first_frames_are_late_give_the_text_of_the_whole_recording(text, tmp_path):
    model, samples = model_of(tmp_path, text), noise(4, seed=1)
    export_stream(model, tmp_path / "s.onnx")
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    assert len(whole.text) >= 4
    for size in (97, 1600, len(samples)):
        written = OnnxStreamedModel(tmp_path / "s.onnx")
        stream = FrameStream(written, RATE)
        for first in range(0, len(samples), size):
            stream.accept(samples[first : first + size])
        stream.finish()
        assert stream.text == whole.text
    assert written.look_ahead >= model.streamed().look_ahead


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CONFIG,
            "normalize takes mean and deviation of the whole utterance; .*"
            "; stream with the model folder in segments: transcribe --stream segments$",
        ),
        (
            SMALL.replace("[8, 1]", "[-1, 1]"),
            "attention sees all frames before; --att_context_size LEFT RIGHT with a number limits them"
            "; stream with the model folder$",
        ),
    ],
)
def test_models_whose_chunks_have_no_fixed_sizes_are_refused_with_the_reason(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        export_stream(model_of(tmp_path, text), tmp_path / "s.onnx")
    assert not (tmp_path / "s.onnx").exists()


def test_several_modules_with_states_have_no_file(tmp_path):
    text = QUARTZNET.replace("labels:", "ContextNetDecoderForCTC: {hidden_size: 8}\nlabels:")
    (tmp_path / "model.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "model.yaml")
    model = TrainedModel("here", recipe, recipe.model(), describe(recipe))
    with pytest.raises(
        UsageError, match=r"got states of several modules: context_net_decoder_for_ctc, jasper_encoder; stream with"
    ):
        export_stream(model, tmp_path / "s.onnx")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "torch", "--stream"], "--stream has no effect with --format torch"),
        (["--format", "onnx", "--waveform"], "--waveform is for --format sherpa-onnx without --stream"),
        (["--int8", "--eval_datasets", "d.json", "--stream"], "--int8 is for --format onnx without --stream"),
    ],
)
def test_options_that_contradict_each_other_end_the_command(words, message, capsys):
    with pytest.raises(SystemExit):
        export(["model", "out", *words])
    assert message in capsys.readouterr().err
