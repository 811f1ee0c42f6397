"""Signal processing: each function against an independent implementation, blocks against the whole."""

import librosa
import numpy as np
import pytest
import scipy.fft
import torch

from nemo_asr.features import preprocessors, spectra
from nemo_lite.base.errors import UnknownNameError

N_FFT, HOP = 512, 160


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def all_power(signal, length, *, preemph=None, window=None):
    """The power of all frames, (B, U, bins)."""
    window = spectra.window_function("hann", N_FFT, periodic=True) if window is None else window
    own = spectra.own_samples(signal, length)
    extended = spectra.extended_signal(own, len(window), preemph)
    num_frames = spectra.frame_count(own.shape[1], HOP)
    return torch.cat([power for _, power in spectra.power_spectra(extended, window, HOP, num_frames)], 1)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
@pytest.mark.parametrize("periodic", [False, True])
def test_windows_are_those_of_scipy(name, periodic):
    from scipy import signal  # at the top, each process of the tests would take 0.7 s for it

    expected = signal.get_window(name, 320, fftbins=periodic)
    np.testing.assert_allclose(spectra.window_function(name, 320, periodic=periodic), expected, atol=1e-7)


@pytest.mark.parametrize("name", ["ones", "none", None])
def test_no_window_weighs_all_samples_alike(name):
    assert spectra.window_function(name, 5, periodic=True).tolist() == [1.0] * 5


def test_an_unknown_window_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r'window "han" is not known; known: .*\(did you mean hann\?\)'):
        spectra.window_function("han", 320, periodic=True)


@pytest.mark.parametrize(("size", "n_fft"), [(320, 512), (5, 8), (4, 9), (8, 8)])
def test_a_window_is_centred_where_librosa_puts_it(size, n_fft):
    window = torch.arange(1.0, size + 1)
    expected = librosa.util.pad_center(window.numpy(), size=n_fft)
    assert spectra.centred(window, n_fft).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("rate", "n_fft", "num_mels", "low", "high"),
    [(16000, 512, 64, 0, 8000), (16000, 512, 80, 20, 7600), (8000, 256, 40, 0, 4000), (44100, 2048, 24, 300, 3000)],
)
@pytest.mark.parametrize(("scale", "equal_area"), [("slaney", True), ("htk", False)])
def test_mel_filters_are_those_of_librosa(rate, n_fft, num_mels, low, high, scale, equal_area):
    filters = spectra.mel_filterbank(rate, n_fft, num_mels, low, high, scale=scale, equal_area=equal_area)
    expected = librosa.filters.mel(
        sr=rate,
        n_fft=n_fft,
        n_mels=num_mels,
        fmin=low,
        fmax=high,
        htk=scale == "htk",
        norm="slaney" if equal_area else None,
    )
    np.testing.assert_allclose(filters, expected, rtol=1e-5, atol=1e-7 * expected.max())


@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_mel_scales_are_those_of_librosa_and_have_an_inverse(scale):
    hz = np.array([0.0, 20.0, 999.9, 1000.0, 1000.1, 8000.0, 22050.0])
    mel = spectra.hz_to_mel(hz, scale)
    np.testing.assert_allclose(mel, librosa.hz_to_mel(hz, htk=scale == "htk"))
    np.testing.assert_allclose(spectra.mel_to_hz(mel, scale), hz, rtol=1e-12)


@pytest.mark.parametrize("norm", ["ortho", None])
def test_the_dct_is_that_of_scipy(norm):
    values = noise(3, 40)
    matrix = spectra.dct_matrix(13, 40, orthonormal=norm == "ortho")
    expected = scipy.fft.dct(values.numpy(), type=2, norm=norm)[:, :13]
    np.testing.assert_allclose(values @ matrix.T, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.xdist_group("librosa")
def test_power_spectra_are_those_of_librosa_followed_by_silence():
    signal = noise(2, 4000)
    power = all_power(signal, torch.tensor([4000, 4000]))
    silence = np.pad(signal.numpy(), ((0, 0), (0, N_FFT)))
    expected = np.abs(librosa.stft(silence, n_fft=N_FFT, hop_length=HOP, pad_mode="reflect")) ** 2
    assert power.shape == (2, 25, 257)
    np.testing.assert_allclose(power.mT, expected[..., :25], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("limit", [1, 3 * N_FFT, 2**18])
def test_blocks_of_any_size_give_the_whole(monkeypatch, limit):
    monkeypatch.setattr(spectra, "SPECTRUM_VALUES", 2**30)
    signal, length = noise(2, 4000), torch.tensor([4000, 3000])
    whole = all_power(signal, length, preemph=0.97)
    monkeypatch.setattr(spectra, "SPECTRUM_VALUES", limit)
    torch.testing.assert_close(all_power(signal, length, preemph=0.97), whole)


def test_blocks_cover_everything_once():
    cpu, gpu = torch.zeros(1), torch.zeros(1, device="meta")
    assert [(b.start, b.stop) for b in spectra.blocks(7, 100, 300, cpu)] == [(0, 3), (3, 6), (6, 7)]
    assert [(b.start, b.stop) for b in spectra.blocks(2, 100, 10, cpu)] == [(0, 1), (1, 2)]
    assert [(b.start, b.stop) for b in spectra.blocks(7, 100, 300, gpu)] == [(0, 7)]
    assert list(spectra.blocks(0, 0, 300, cpu)) == list(spectra.blocks(0, 0, 300, gpu)) == []


def test_an_utterance_shorter_than_half_a_frame_is_mirrored_with_its_silence():
    own = torch.tensor([[1.0, 2.0, 3.0]])
    extended = spectra.extended_signal(own, 8)
    assert extended.tolist() == [[0.0, 0.0, 3.0, 2.0, 1.0, 2.0, 3.0, *[0.0] * 8]]


def test_pre_emphasis_reaches_one_sample_beyond_the_utterance():
    extended = spectra.extended_signal(torch.tensor([[1.0, 2.0]]), 2, preemph=0.5)
    assert extended.tolist() == [[1.5, 1.0, 1.5, -1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.int16, torch.float64, torch.float32, torch.bfloat16])
def test_own_samples_are_a_float32_copy_of_any_type(dtype):
    signal = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=dtype)
    own = spectra.own_samples(signal, torch.tensor([1, 3]))
    assert own.dtype == torch.float32
    assert own.tolist() == [[1, 0, 0], [5, 6, 7]]
    assert signal.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_what_stands_beyond_an_utterance_is_ignored_even_if_it_is_not_a_number():
    signal = torch.tensor([[1.0, float("nan"), float("inf")], [1.0, 2.0, 3.0]])
    assert spectra.own_samples(signal, torch.tensor([1, 3]), dither=0.0)[0].tolist() == [1.0, 0.0, 0.0]


def test_a_deviation_below_the_least_one_counts_as_that():
    values = noise(2, 3, 50)
    values[:, 1] *= 1e-3
    plain = preprocessors.normalize_(values.clone(), torch.tensor([50, 40]), (2,))
    bounded = preprocessors.normalize_(values.clone(), torch.tensor([50, 40]), (2,), 0.1)
    assert torch.equal(bounded[:, [0, 2]], plain[:, [0, 2]])
    assert bounded[0, 1].std() == pytest.approx(values[0, 1].std() / 0.1, rel=1e-3)


def test_dither_has_its_deviation_and_stays_within_the_utterance():
    dithered = spectra.own_samples(torch.zeros(2, 20000), torch.tensor([20000, 10000]), dither=0.5)
    assert dithered[0].std().item() == pytest.approx(0.5, rel=0.05)
    assert dithered[1, :10000].all()
    assert not dithered[1, 10000:].any()


@pytest.mark.parametrize("over", [(2,), (1, 2)])
def test_normalising_gives_the_mean_and_the_unbiased_deviation_of_the_valid_frames(over):
    values, lengths = noise(3, 4, 50) * 3 + 7, [50, 20, 2]
    normalized = preprocessors.normalize_(values.clone(), torch.tensor(lengths), over)
    for row, length in enumerate(lengths):
        own = values[row, :, :length]
        axes = (1,) if over == (2,) else (0, 1)
        expected = (own - own.mean(axes, keepdim=True)) / (own.std(axes, keepdim=True) + 1e-5)
        torch.testing.assert_close(normalized[row, :, :length], expected, rtol=1e-4, atol=1e-5)
        assert not normalized[row, :, length:].any()


def test_one_frame_is_normalised_to_zero():
    normalized = preprocessors.normalize_(noise(2, 3, 4), torch.tensor([1, 4]), (2,))
    assert normalized.isfinite().all()
    assert not normalized[0].any()


@pytest.mark.parametrize("over", [(2,), (1, 2)])
@pytest.mark.parametrize("num_frames", [3, 7, 1000])
def test_a_feature_that_never_changes_is_normalised_to_exactly_zero(over, num_frames):
    constant = torch.full((1, 2, num_frames), -16.635532)
    assert not preprocessors.normalize_(constant, torch.tensor([num_frames]), over).any()


def test_an_utterance_without_frames_is_all_zero():
    assert not preprocessors.normalize_(noise(1, 3, 4), torch.tensor([0]), (2,)).any()


def test_splicing_stacks_neighbouring_frames():
    spliced = spectra.splice_frames(torch.arange(8.0).view(1, 2, 4), 2)
    assert spliced.tolist() == [[[0, 2], [4, 6], [1, 3], [5, 7]]]


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (1, 1), (160, 1), (161, 2), (16000, 100)])
def test_frames_are_counted_by_rounding_up(samples, frames):
    assert spectra.frame_count(samples, HOP) == frames
    assert spectra.frame_count(torch.tensor([samples]), HOP).tolist() == [frames]


@pytest.mark.parametrize("num_bands", [8, 40, 64, 80, 128])
def test_bands_of_blocks_are_those_of_one_product(num_bands):
    filters = spectra.mel_filterbank(16000, N_FFT, num_bands, 0.0, 8000.0).t().contiguous()
    power = noise(2, 30, filters.shape[0]).square()
    blocks = spectra.band_blocks(filters)
    assert len(blocks) == (1 if num_bands < 48 else 3)
    torch.testing.assert_close(spectra.into_bands(power, filters, blocks), power @ filters)


def test_bands_above_half_the_sample_rate_are_zero():
    filters = spectra.mel_filterbank(16000, N_FFT, 64, 0.0, 30000.0).t().contiguous()
    power = noise(2, 30, filters.shape[0]).square()
    bands = spectra.into_bands(power, filters, spectra.band_blocks(filters))
    assert not bands[:, :, -16:].any()
    torch.testing.assert_close(bands, power @ filters)


def test_an_utterance_without_samples_has_no_frames():
    assert spectra.extended_signal(noise(2, 0), N_FFT, 0.97).eq(0).all()
