"""AudioToWaveformPreprocessor: samples of mean 0 and variance 1, of each utterance for itself."""

from __future__ import annotations

import torch

from nemo_asr.features.waveform import AudioToWaveformPreprocessor


def test_each_utterance_has_mean_0_and_variance_1_and_zeros_behind() -> None:
    torch.manual_seed(0)
    samples, lengths = torch.randn(3, 1000) * 0.1 + 3, torch.tensor([1000, 700, 1])
    features, frames = AudioToWaveformPreprocessor()(samples, lengths)
    assert features.shape == (3, 1, 1000)
    assert torch.equal(frames, lengths)
    for row, length in enumerate(lengths.tolist()):
        own = samples[row, :length].double()
        wanted = (own - own.mean()) / (own.var(correction=0) + 1e-7).sqrt()
        torch.testing.assert_close(features[row, 0, :length], wanted.float(), rtol=1e-4, atol=1e-4)
        assert not features[row, 0, length:].any()


def test_without_normalisation_the_samples_stay_as_they_are() -> None:
    samples = torch.arange(8.0).reshape(2, 4)
    features, _ = AudioToWaveformPreprocessor(normalize=False)(samples, torch.tensor([4, 2]))
    assert features.tolist() == [[[0, 1, 2, 3]], [[4, 5, 0, 0]]]
    assert AudioToWaveformPreprocessor(normalize=False).summary == "samples of the waveform, as they are"


def test_silence_stays_silent() -> None:
    features, _ = AudioToWaveformPreprocessor()(torch.zeros(1, 50), torch.tensor([50]))
    assert not features.any()
