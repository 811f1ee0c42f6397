"""AudioToWhisperMelPreprocessor: the features of Hugging Face's WhisperFeatureExtractor, of windows of 30 s."""

from __future__ import annotations

import librosa
import pytest
import torch
from toys.nemo_conformers import RATE, signal_of

from nemo_asr.features.whisper_mel import AudioToWhisperMelPreprocessor
from nemo_lite.base.errors import UsageError


def batch_of(*recordings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.nn.utils.rnn.pad_sequence([*recordings], batch_first=True, padding_value=0.7), torch.tensor(
        [len(recording) for recording in recordings]
    )


RECORDINGS = [
    signal_of(1.0),
    0.01 * torch.randn(30 * RATE, generator=torch.Generator().manual_seed(0)),
    signal_of(0.02),
]


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_logarithms_of_mel_bands_within_8_decades_of_the_windows_loudest(bands: int) -> None:
    features, frames = AudioToWhisperMelPreprocessor(features=bands)(*batch_of(*RECORDINGS))
    assert features.shape == (3, bands, 3000)
    assert frames.tolist() == [100, 3000, 2]
    filters = torch.from_numpy(librosa.filters.mel(sr=RATE, n_fft=400, n_mels=bands, fmax=8000))
    for row, recording in enumerate(RECORDINGS):
        window = torch.nn.functional.pad(recording, (0, 30 * RATE - len(recording))).double()
        spectrum = torch.stft(window, 400, 160, window=torch.hann_window(400).double(), return_complex=True)
        values = (filters.double() @ spectrum[:, :-1].abs().square()).clamp(min=1e-10).log10()
        wanted = (values.maximum(values.max() - 8) + 4) / 4
        torch.testing.assert_close(features[row], wanted.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_those_of_transformers(bands: int) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    wanted = extractor([each.numpy() for each in RECORDINGS], sampling_rate=RATE, return_tensors="pt").input_features
    features, _ = AudioToWhisperMelPreprocessor(features=bands)(*batch_of(*RECORDINGS))
    torch.testing.assert_close(features, wanted, rtol=0, atol=1e-4)


def test_an_utterance_has_the_same_features_alone_and_in_a_batch() -> None:
    preprocessor = AudioToWhisperMelPreprocessor()
    features, _ = preprocessor(*batch_of(*RECORDINGS))
    for row, recording in enumerate(RECORDINGS):
        alone, _ = preprocessor(*batch_of(recording))
        assert torch.equal(features[row], alone[0])


def test_a_longer_utterance_is_refused_with_what_to_do() -> None:
    problem = r"longer than the window: got 30\.1 s, wanted at most 30 s; leave it out, or cut it"
    with pytest.raises(UsageError, match=problem):
        AudioToWhisperMelPreprocessor()(torch.zeros(1, 31 * RATE), torch.tensor([int(30.1 * RATE)]))
    # What is behind the lengths does not count.
    AudioToWhisperMelPreprocessor()(torch.zeros(1, 31 * RATE), torch.tensor([30 * RATE]))


def test_a_hop_that_does_not_divide_the_window_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hop does not divide the window: got hop_length 7, wanted a divisor"):
        AudioToWhisperMelPreprocessor(hop_length=7)
