"""Models that run in chunks as ONNX files: the stream of the modules in torch, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from toys.random_models import CONFORMER, RATE, model_of, noise
from toys.tone_corpus import CONFIG

from nemo_asr.cli.models import export
from nemo_asr.cli.transcribe import main as transcribe
from nemo_asr.transcribe import stream_export
from nemo_asr.transcribe.frame_stream import FrameStream
from nemo_asr.transcribe.onnx_stream import OnnxStreamedModel
from nemo_asr.transcribe.stream_export import export_stream
from nemo_lite.errors import CheckpointError, FileInTheWayError, UsageError

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
        wanted = model.streamed().frames()(samples[:length], True)
        got = written.frames()(samples[:length], True)
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
    code = f"import sys; from nemo_asr.cli.transcribe import main; main({words[1:]!r}); print('torch' in sys.modules)"
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG, "normalize takes mean and deviation of the whole utterance"),
        (
            CONFIG.replace("features: 32", "features: 32, normalize: null, pad_to: 0"),
            "the first chunk of JasperEncoder",
        ),
        (SMALL.replace("[8, 1]", "[-1, 1]"), "attention sees all frames before; att_context_size with a number"),
        (
            SMALL.replace("ToMelSpectrogram", "ToKaldiFbank").replace(", generation: nemo_2.5", ""),
            "the frames of AudioToKaldiFbankPreprocessor have no form in chunks of a file",
        ),
        (
            SMALL.replace(
                "normalize: null",
                f"normalize: {{fixed_mean: {[-8.0] * 32}, fixed_std: {[4.0] * 32}}}, moving_seconds: 2.0",
            ),
            "moving_seconds has no form in chunks of a file",
        ),
        (SMALL.replace("dw_striding", "conv2d").replace("causal_downsampling: true", "causal_downsampling: false"), ""),
    ],
)
def test_models_whose_chunks_have_no_fixed_sizes_are_refused_with_the_reason(tmp_path, text, message):
    with pytest.raises(UsageError, match=message or "subsampling conv2d gives fewer frames of the first chunk"):
        export_stream(model_of(tmp_path, text), tmp_path / "s.onnx")
    assert not (tmp_path / "s.onnx").exists()


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
