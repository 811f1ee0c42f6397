"""Models that say where somebody speaks: silero-vad's file, a classifier of ours, and what is neither."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from toys.onnx_toy import write_toy
from toys.silero import write_silero

from nemo_asr.run.audio.segments import DEFAULT_CUTTING
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.transcribe.driver import SpeechActivity
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.tasks.recipe import load_recipe, recipe_from_text
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import UsageError

RATE = 16000
CLASSIFIER = """labels: [background, speech]
AudioToSpeechLabelDataLayer: {}
AudioToMelSpectrogramPreprocessor: {features: 8, normalize: all_features}
JasperEncoder:
  activation: relu
  jasper:
    - {filters: 4, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.0, residual: false}
"""


def sound(*seconds: float, rate: int = RATE) -> np.ndarray:
    """Noise of 0.1 and of 0.001 in turn."""
    random = np.random.default_rng(0)
    parts = [random.normal(0.0, (0.001, 0.1)[k % 2], round(length * rate)) for k, length in enumerate(seconds)]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("rate", [RATE, 44100, 8000])
def test_silero_cuts_at_its_frames_at_any_rate_of_the_recording(tmp_path, rate):
    detector = load_detector(str(write_silero(tmp_path / "silero_vad.onnx")))
    recording = Recording("a", sound(1.0, 2.0, 1.5, 1.0, 1.0, rate=rate), rate)
    segments = SpeechActivity(recording, detector).segments(DEFAULT_CUTTING)
    assert [segment.offset for segment in segments] == pytest.approx([0.85, 4.35], abs=0.08)
    assert [segment.seconds for segment in segments] == pytest.approx([2.3, 1.3], abs=0.12)


def test_decisions_do_not_depend_on_the_pieces(tmp_path):
    detector = load_detector(str(write_silero(tmp_path / "silero_vad.onnx")))
    samples = sound(0.4, 0.7, 0.33)
    whole, seconds = detector([samples], RATE)
    assert seconds == 0.032
    assert len(whole) == -(-len(samples) // 512)
    assert np.array_equal(whole, detector(np.array_split(samples, 23), RATE)[0])


def test_another_onnx_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"this is no model of silero-vad: got inputs audio_signal, length, wanted"):
        load_detector(str(write_toy(tmp_path / "toy.onnx")))


def test_silero_is_found_in_its_package_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "silero_vad"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it imports torch')")
    write_silero(package / "data" / "silero_vad.onnx")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_detector("silero")([sound(0.5, 0.5)], RATE)[0].any()
    monkeypatch.undo()
    sys.path_importer_cache.clear()
    with pytest.raises(UsageError, match="silero-vad is not installed; pip install silero-vad, or name its file"):
        load_detector("silero")


@pytest.fixture
def classifier(monkeypatch):
    """Loading any folder gives a classifier without training."""
    recipe = recipe_from_text(CLASSIFIER, "model.yaml")
    model = TrainedModel("model", recipe, recipe.classifier(), describe(recipe))
    monkeypatch.setattr("nemo_asr.trained.model.load_classifier", lambda path: model)
    return model


@pytest.mark.parametrize("seconds", [0.2, 0.63, 3.0, 30.05])
def test_a_classifier_decides_each_tenth_of_a_second_whatever_the_pieces(classifier, seconds):
    detector = load_detector("runs/VoiceActivity")
    samples = sound(seconds / 2, seconds / 2)
    whole, frame_seconds = detector([samples], RATE)
    assert frame_seconds == 0.1
    assert abs(len(whole) - seconds / 0.1) <= 1
    assert np.array_equal(whole, detector(np.array_split(samples, 7), RATE)[0])


def test_a_classifier_without_the_label_speech_is_refused(classifier):
    classifier.card.labels[:] = ["one", "two"]
    with pytest.raises(UsageError, match=r"no label of this model is speech: got one, two; train one"):
        load_detector("runs/Commands")


def test_a_model_that_transcribes_decides_nothing(tmp_path):
    recipe = load_recipe("demo")
    TrainedModel("here", recipe, recipe.model(), describe(recipe)).save(tmp_path / "model")
    with pytest.raises(UsageError, match=r"model: the model transcribes: wanted a classifier of recordings"):
        load_detector(str(tmp_path / "model"))
