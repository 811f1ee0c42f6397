"""WaveformFeaturizer: from files to tensors, perturbed on the way."""

import io

import numpy as np
import soundfile
import torch

from nemo_asr.audio.augmentation import WaveformFeaturizer
from nemo_asr.audio.segment import AudioSegment


def test_a_file_or_its_content_becomes_a_tensor_at_the_rate(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(8000, 0.25), 8000)
    featurizer = WaveformFeaturizer.from_config({"sample_rate": 16000, "int_values": False})
    from_path = featurizer.process(str(tmp_path / "a.wav"))
    from_content = featurizer.process(io.BytesIO((tmp_path / "a.wav").read_bytes()))
    assert (from_path.dtype, from_path.shape) == (torch.float32, (16000,))
    assert torch.equal(from_path, from_content)
    assert featurizer.process(str(tmp_path / "a.wav"), offset=0.5, duration=0.25).shape == (4000,)


def test_perturbations_act_and_are_foreseen():
    gain = {"gain": {"prob": 1.0, "min_gain_dbfs": -6.0206, "max_gain_dbfs": -6.0206}}
    featurizer = WaveformFeaturizer.from_config({}, gain)
    samples = featurizer.process_segment(AudioSegment(np.full(100, 0.5), 16000))
    torch.testing.assert_close(samples, torch.full((100,), 0.25), rtol=1e-4, atol=0)
    slower = WaveformFeaturizer.from_config({}, [{"aug_type": "speed", "prob": 1.0, "cfg": {"sr": 16000}}])
    assert slower.max_augmentation_length(9.0) == 10.0
