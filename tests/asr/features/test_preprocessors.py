"""Preprocessors: their numbers against librosa and NeMo's definition, independence of the batch, ports, messages."""

import math

import librosa
import numpy as np
import pytest
import scipy.fft
import soxr
import torch

from nemo_asr.features import audio_preprocessor, spectra
from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor
from nemo_asr.features.preprocessors import (
    AudioToMelSpectrogramPreprocessor,
    AudioToMFCCPreprocessor,
    AudioToSpectrogramPreprocessor,
)
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_types import AudioSignal, MelSpectrogramType, MFCCSpectrogramType, SpectrogramType
from nemo_lite.core.shapes import definitions, symbol, written

RATE, HOP = 16000, 160
ALL = [
    AudioToMelSpectrogramPreprocessor,
    AudioToSpectrogramPreprocessor,
    AudioToMFCCPreprocessor,
    AudioToKaldiFbankPreprocessor,
]


def speech(*lengths, seed=0):
    """Noise with a falling spectrum and changing loudness, padded with zeros: (B, T) and lengths (B,)."""
    generator = np.random.default_rng(seed)
    signal = torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        loudness = 0.1 + np.abs(np.sin(np.arange(length) / 3000 + row))
        samples = np.cumsum(generator.normal(size=length)) * 0.01
        signal[row, :length] = torch.from_numpy((samples - samples.mean()) * loudness)
    return signal, torch.tensor(lengths)


def evaluating(cls=AudioToMelSpectrogramPreprocessor, **arguments):
    return cls(**arguments).eval()


def run(module, signal, length):
    return module(input_signal=signal, length=length)


def nemo_mel(signal, normalize=True, features=64):
    """NeMo 0.11's definition for one utterance of a batch that ends where ``signal`` ends: (D, 1 + T // hop)."""
    emphasised = torch.cat([signal[:1], signal[1:] - 0.97 * signal[:-1]])
    window = torch.hann_window(320, periodic=False)
    spectrum = torch.stft(emphasised, 512, HOP, 320, window, center=True, return_complex=True)
    filters = torch.from_numpy(librosa.filters.mel(sr=RATE, n_fft=512, n_mels=features))
    return torch.log(filters @ spectrum.abs().square() + 2**-24)


def nemo_normalised(mel, length):
    own = mel[:, : math.ceil(length / HOP)]
    return (own - own.mean(1, keepdim=True)) / (own.std(1, keepdim=True) + 1e-5)


def test_mel_features_are_nemos_for_utterances_followed_by_padding():
    signal, length = speech(4000, 16000, 11111, 8161)
    processed, num_frames = run(evaluating(), signal, length)
    padded = torch.nn.functional.pad(signal, (0, 512))
    assert num_frames.tolist() == [25, 100, 70, 52]
    for row, frames in enumerate(num_frames.tolist()):
        expected = nemo_normalised(nemo_mel(padded[row]), int(length[row]))
        torch.testing.assert_close(processed[row, :, :frames], expected, rtol=1e-3, atol=1e-3)
        assert not processed[row, :, frames:].any()


def test_mel_features_differ_from_nemos_in_the_last_frame_of_the_batchs_longest_utterance_only():
    signal, length = speech(11111)
    processed, _ = run(evaluating(normalize=None, pad_to=0), signal, length)
    difference = (processed[0] - nemo_mel(signal[0])[:, :70]).abs().amax(0)
    assert difference[:-1].max() < 1e-3
    assert 1.0 < difference[-1] < 10.0


def test_the_last_frame_of_a_whole_number_of_strides_does_not_differ_either():
    signal, length = speech(11200)
    processed, _ = run(evaluating(normalize=None, pad_to=0), signal, length)
    torch.testing.assert_close(processed[0], nemo_mel(signal[0])[:, :70], rtol=1e-3, atol=1e-3)


@pytest.mark.xdist_group("librosa")
@pytest.mark.slow
@pytest.mark.parametrize("window", ["hann", "hamming", "blackman", "bartlett"])
@pytest.mark.parametrize("stft_conv", [False, True])
def test_mel_features_are_those_of_librosa(window, stft_conv):
    signal, length = speech(9600)
    arguments = {"preemph": None, "normalize": None, "pad_to": 0, "features": 40, "lowfreq": 20, "highfreq": 7600}
    module = evaluating(window=window, stft_conv=stft_conv, n_fft=1024, **arguments)
    mel = librosa.feature.melspectrogram(
        y=np.pad(signal[0].numpy(), (0, 1024)),
        sr=RATE,
        n_fft=1024,
        hop_length=HOP,
        win_length=320,
        window=np.asarray(spectra.window_function(window, 320, periodic=stft_conv)),
        pad_mode="reflect",
        n_mels=40,
        fmin=20,
        fmax=7600,
    )
    processed, _ = run(module, signal, length)
    np.testing.assert_allclose(processed[0], np.log(mel[:, :60] + 2**-24), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cls", ALL)
def test_an_utterance_has_the_same_features_alone_and_among_others(cls):
    lengths = (4000, 9999, 321, 16000, 1, 7777)
    signal, length = speech(*lengths)
    signal[torch.arange(16000) >= length[:, None]] = 7.0
    together, num_frames = run(evaluating(cls), signal, length)
    for row, size in enumerate(lengths):
        alone, frames = run(evaluating(cls), signal[row : row + 1, :size], length[row : row + 1])
        count = int(num_frames[row])
        assert frames.tolist() == [count]
        torch.testing.assert_close(alone[0, :, :count], together[row, :, :count], rtol=1e-4, atol=1e-4)
        assert not together[row, :, count:].any()


def test_decibels_are_limited_by_the_loudest_frame_of_the_utterance_itself():
    signal, length = speech(1600, 4000)
    signal[0, :1599] *= 1e-6
    signal[1] *= 1e6
    together, _ = run(evaluating(AudioToMFCCPreprocessor, log=False), signal, length)
    alone, _ = run(evaluating(AudioToMFCCPreprocessor, log=False), signal[:1, :1600], length[:1])
    torch.testing.assert_close(together[0, :, :10], alone[0], rtol=1e-4, atol=1e-2)


def test_silence_has_the_same_features_alone_and_among_others():
    signal, length = torch.zeros(2, 16000), torch.tensor([16000, 5000])
    signal[0] = speech(16000)[0]
    processed, _ = run(evaluating(), signal, length)
    assert not processed[1].any()


@pytest.mark.parametrize("cls", ALL)
def test_blocks_of_any_size_give_the_features_of_the_whole_batch(monkeypatch, cls):
    signal, length = speech(4000, 9999, 321, 5000)
    monkeypatch.setattr(audio_preprocessor, "ROWS_VALUES", 2**40)
    monkeypatch.setattr(spectra, "SPECTRUM_VALUES", 2**40)
    whole, _ = run(evaluating(cls), signal, length)
    monkeypatch.setattr(audio_preprocessor, "ROWS_VALUES", 2 * 63 * 512)
    monkeypatch.setattr(spectra, "SPECTRUM_VALUES", 20 * 512)
    blocks, _ = run(evaluating(cls), signal, length)
    torch.testing.assert_close(blocks, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("training", [False, True])
def test_off_the_cpu_no_value_is_read_by_the_host(cls, training):
    module = cls().to("meta").train(training)
    signal, length = torch.zeros(3, 4000, device="meta"), torch.zeros(3, dtype=torch.int64, device="meta")
    processed, num_frames = module.forward(signal, length)
    assert (processed.device.type, num_frames.device.type) == ("meta", "meta")
    assert processed.shape[:2] == (3, module.num_features)


def test_evaluation_repeats_its_numbers_and_training_dithers_without_touching_the_input():
    signal, length = speech(4000)
    before = signal.clone()
    module = AudioToMelSpectrogramPreprocessor(dither=0.1)
    one, two = (run(module.eval(), signal, length)[0] for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(run(module.train(), signal, length)[0], one)
    assert torch.equal(signal, before)


def upsampled(as_16_bit):
    """Noise in syllables at 8 kHz, at 16 kHz: nothing is above 4 kHz."""
    rng = np.random.default_rng(2)
    syllables = np.repeat(10.0 ** rng.uniform(-3, 0, 40), 400)
    samples = soxr.resample(0.02 * syllables * rng.standard_normal(16000), 8000, RATE)
    return torch.from_numpy((np.round(samples * 32768) / 32768 if as_16_bit else samples).astype(np.float32))[None]


@pytest.mark.parametrize("as_16_bit", [False, True])
def test_evaluation_hears_the_features_of_training_also_where_there_is_no_signal(as_16_bit):
    signal = upsampled(as_16_bit)
    length = torch.tensor([signal.shape[1]])

    def difference(module):
        """The root mean square of (training - evaluation), by band."""
        torch.manual_seed(0)
        trained, evaluated = (run(module.train(mode), signal, length)[0][0, :, :200] for mode in (True, False))
        return (trained - evaluated).square().mean(1).sqrt()

    assert difference(AudioToMelSpectrogramPreprocessor()).max() < 0.25
    assert difference(AudioToMelSpectrogramPreprocessor(std_floor=0)).max() > 0.7  # noise of unit variance


def test_bands_with_signal_have_nemos_numbers_with_any_floor_of_the_deviation():
    signal = upsampled(as_16_bit=False)
    length = torch.tensor([signal.shape[1]])
    ours, nemos = (run(evaluating(**given), signal, length)[0] for given in ({}, {"std_floor": 0}))
    assert torch.equal(ours[:, :40], nemos[:, :40])
    assert ours[:, 52:].abs().max() < 0.5
    assert nemos[:, 52:].abs().max() > 2


def test_without_the_logarithm_there_is_no_floor():
    signal, length = speech(4000)
    ours, nemos = (run(evaluating(log=False, std_floor=floor), signal, length)[0] for floor in (0.1, 0.0))
    assert torch.equal(ours, nemos)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 32767.0])
def test_samples_of_any_scale_give_finite_features(cls, scale):
    signal, length = speech(4000, 160, 1)
    processed, _ = run(evaluating(cls), signal * scale, length)
    assert processed.isfinite().all()


def test_integer_samples_are_taken():
    signal, length = speech(4000)
    pcm = (signal * 1000).to(torch.int16)
    torch.testing.assert_close(run(evaluating(), pcm, length)[0], run(evaluating(), pcm.float(), length)[0])


def test_under_half_precision_the_features_stay_float32():
    signal, length = speech(4000)
    expected, _ = run(evaluating(), signal, length)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        processed, _ = run(evaluating(), signal, length)
    assert processed.dtype == torch.float32
    assert torch.equal(processed, expected)


def test_features_have_no_gradient():
    signal, length = speech(4000)
    assert not run(AudioToMelSpectrogramPreprocessor(), signal.requires_grad_(), length)[0].requires_grad


@pytest.mark.parametrize("cls", ALL)
def test_windows_and_filters_follow_the_module_but_are_not_saved(cls):
    module = cls()
    assert module.state_dict() == {}
    assert {buffer.device.type for buffer in cls().to("meta").buffers()} == {"meta"}


@pytest.mark.parametrize(("pad_to", "size"), [(0, 13), (1, 13), (8, 16), (16, 16), (13, 13), ("max", 1680)])
@pytest.mark.parametrize("training", [False, True])
def test_time_is_padded_alike_in_training_and_evaluation(pad_to, size, training):
    module = AudioToMelSpectrogramPreprocessor(pad_to=pad_to, pad_value=-3.0).train(training)
    processed, num_frames = run(module, *speech(2000, 1000))
    assert processed.shape == (2, 64, size)
    assert num_frames.tolist() == [13, 7]
    assert (processed[1, :, 7:] == -3.0).all()
    assert (processed[0, :, 13:] == -3.0).all()


def test_max_padding_takes_longer_audio_too():
    processed, _ = run(evaluating(pad_to="max", features=4), torch.zeros(1, 17 * RATE), torch.tensor([17 * RATE]))
    assert processed.shape[2] == 1712


def test_all_features_share_mean_and_deviation():
    signal, length = speech(4000, 3000)
    raw, num_frames = run(evaluating(normalize=None), signal, length)
    processed, _ = run(evaluating(normalize="all_features"), signal, length)
    for row, frames in enumerate(num_frames.tolist()):
        own = raw[row, :, :frames]
        expected = (own - own.mean()) / (own.std() + 1e-5)
        torch.testing.assert_close(processed[row, :, :frames], expected, rtol=1e-4, atol=1e-4)


def test_fixed_means_and_deviations_are_used_for_each_feature():
    signal, length = speech(4000, 3000)
    raw, num_frames = run(evaluating(normalize=None, features=2), signal, length)
    fixed = {"fixed_mean": [1, -2], "fixed_std": [0.5, 4]}
    processed, _ = run(evaluating(normalize=fixed, features=2), signal, length)
    expected = (raw - torch.tensor([[1.0], [-2.0]])) / torch.tensor([[0.5], [4.0]])
    torch.testing.assert_close(processed[0, :, :25], expected[0, :, :25])
    assert not processed[1, :, num_frames[1] :].any()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("add", 0.5, lambda mel: torch.log(mel + 0.5)),
        ("clamp", 0.5, lambda mel: torch.log(mel.clamp(min=0.5))),
        ("clamp", "tiny", lambda mel: torch.log(mel.clamp(min=torch.finfo(torch.float32).tiny))),
        ("add", "eps", lambda mel: torch.log(mel + torch.finfo(torch.float32).eps)),
    ],
)
def test_powers_are_guarded_before_the_logarithm(kind, value, expected):
    signal, length = speech(4000)
    signal[:, 1000:2000] = 0.0
    mel, _ = run(evaluating(normalize=None, log=False, pad_to=0), signal, length)
    module = evaluating(normalize=None, log_zero_guard_type=kind, log_zero_guard_value=value, pad_to=0)
    torch.testing.assert_close(run(module, signal, length)[0], expected(mel))


@pytest.mark.xdist_group("librosa")
@pytest.mark.parametrize("mag_power", [1.0, 3.0])
def test_any_power_of_the_magnitudes_can_be_filtered(mag_power):
    signal, length = speech(4000)
    arguments = {"normalize": None, "log": False, "preemph": None, "pad_to": 0}
    processed, _ = run(evaluating(mag_power=mag_power, **arguments), signal, length)
    stft = librosa.stft(
        np.pad(signal[0].numpy(), (0, 512)),
        n_fft=512,
        hop_length=HOP,
        win_length=320,
        window=torch.hann_window(320, periodic=False).numpy(),
        pad_mode="reflect",
    )
    expected = librosa.filters.mel(sr=RATE, n_fft=512, n_mels=64) @ np.abs(stft[:, :25]) ** mag_power
    np.testing.assert_allclose(processed[0], expected, rtol=1e-3, atol=1e-5)


def test_splicing_stacks_frames_shortens_time_and_pads_the_last_group():
    signal, length = speech(4000, 1120)
    single, _ = run(evaluating(pad_to=0), signal, length)
    spliced, num_frames = run(evaluating(frame_splicing=3, pad_to=4, pad_value=-1.0), signal, length)
    assert spliced.shape == (2, 192, 12)
    assert num_frames.tolist() == [9, 3]
    for offset in range(3):
        block = spliced[0, 64 * offset : 64 * (offset + 1), :8]
        torch.testing.assert_close(block, single[0, :, offset:24:3])
    assert (spliced[1, 64:, 2] == -1.0).all()
    assert (spliced[:, :, 9:] == -1.0).all()


def test_a_batch_without_samples_gives_no_frames():
    processed, num_frames = run(evaluating(), torch.zeros(2, 0), torch.tensor([0, 0]))
    assert processed.shape == (2, 64, 0)
    assert num_frames.tolist() == [0, 0]


def test_an_empty_utterance_among_others_is_padding():
    signal, length = speech(4000, 1)
    length[1] = 0
    processed, num_frames = run(evaluating(), signal, length)
    assert num_frames.tolist() == [25, 0]
    assert not processed[1].any()


def test_an_empty_batch_is_an_empty_batch():
    processed, num_frames = run(evaluating(), torch.zeros(0, 1600), torch.zeros(0, dtype=torch.int64))
    assert (processed.shape, num_frames.shape) == ((0, 64, 16), (0,))


@pytest.mark.parametrize("normalized", [True, False])
def test_spectrograms_are_those_of_torchaudio(normalized):
    signal, length = speech(9600)
    processed, _ = run(evaluating(AudioToSpectrogramPreprocessor, normalized=normalized), signal, length)
    window = torch.hann_window(320)
    # torchaudio.transforms.Spectrogram: |STFT|^2, the STFT divided by the root of the window's sum of squares.
    padded = torch.nn.functional.pad(signal[0], (0, 512))
    spectrum = torch.stft(padded, 512, HOP, 320, window, center=True, return_complex=True)[:, :60]
    expected = (spectrum / window.square().sum().sqrt() if normalized else spectrum).abs().square()
    torch.testing.assert_close(processed[0], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.xdist_group("librosa")
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("norm", ["ortho", None])
def test_cepstra_are_those_of_librosa_on_htk_mels(log, norm):
    signal, length = speech(9600)
    signal[0, 3000:6000] = 0.0
    module = evaluating(AudioToMFCCPreprocessor, n_mels=40, n_mfcc=13, log=log, norm=norm, lowfreq=50, highfreq=7000)
    processed, num_frames = run(module, signal, length)
    mel = librosa.feature.melspectrogram(
        y=np.pad(signal[0].numpy(), (0, 512)),
        sr=RATE,
        n_fft=512,
        hop_length=HOP,
        win_length=320,
        pad_mode="reflect",
        n_mels=40,
        fmin=50,
        fmax=7000,
        htk=True,
        norm=None,
    )[:, :60]
    scaled = np.log(mel + 1e-6) if log else librosa.power_to_db(mel, amin=1e-10, top_db=80.0)
    expected = scipy.fft.dct(scaled, axis=0, type=2, norm=norm)[:13]
    assert (processed.shape, num_frames.tolist()) == ((1, 13, 60), [60])
    np.testing.assert_allclose(processed[0], expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("cls", "spectrogram", "size"),
    [
        (AudioToMelSpectrogramPreprocessor, MelSpectrogramType, 64),
        (AudioToSpectrogramPreprocessor, SpectrogramType, 257),
        (AudioToMFCCPreprocessor, MFCCSpectrogramType, 64),
    ],
)
def test_ports_carry_the_sample_rate_and_the_number_of_features(cls, spectrogram, size):
    module = cls(sample_rate=RATE)
    assert module.input_ports["input_signal"].brief == "B T AudioSignal(16000)"
    assert list(module.input_ports) == ["input_signal", "length"]
    assert list(module.output_ports) == ["processed_signal", "processed_length"]
    assert module.output_ports["processed_signal"].brief == f"B D={size} T {spectrogram()}"
    assert cls.converts == (AudioSignal, spectrogram)
    assert cls.keep_float32


def test_shapes_follow_from_the_samples():
    module = AudioToMelSpectrogramPreprocessor(frame_splicing=2)
    shapes = module.output_shapes({"input_signal": (symbol("B"), symbol("samples")), "length": (symbol("B"),)})
    assert written(shapes["processed_signal"]) == "B 128 T"
    assert definitions(shapes.values()) == {"T": "samples/320"}


def test_sizes_in_samples_replace_those_in_seconds():
    module = AudioToMelSpectrogramPreprocessor(
        window_size=None, window_stride=None, n_window_size=400, n_window_stride=200
    )
    assert (module.win_length, module.hop_length, module.n_fft) == (400, 200, 512)


@pytest.mark.parametrize(("rate", "window_size", "samples"), [(16000, 0.02, 320), (11025, 0.02, 220), (100, 0.29, 29)])
def test_seconds_become_whole_samples_whatever_the_rounding(rate, window_size, samples):
    module = AudioToSpectrogramPreprocessor(sample_rate=rate, window_size=window_size)
    assert module.win_length == samples


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_window_size": 320}, r"give one of window_size and n_window_size: got both; pass window_size=None as well"),
        ({"n_window_stride": 160}, r"give one of window_stride and n_window_stride: got both"),
        ({"window_size": None}, r"give one of window_size and n_window_size: got neither"),
        ({"window_stride": 1e-6}, r"window_stride must be at least one sample: got 1e-06 s at 16000 Hz"),
        ({"window_size": None, "n_window_size": -4}, r"n_window_size is -4, wanted int from 1 to 65536"),
    ],
)
def test_impossible_frames_are_refused(cls, arguments, message):
    with pytest.raises(UsageError, match=f"{cls.__name__}[:.] ?{message}"):
        cls(**arguments)


@pytest.mark.parametrize("cls", [cls for cls in ALL if cls is not AudioToKaldiFbankPreprocessor])
def test_a_window_longer_than_the_transform_is_refused(cls):
    message = "the window is longer than n_fft: got 320 and 256 samples; raise n_fft, or leave it out"
    with pytest.raises(UsageError, match=f"{cls.__name__}: {message}"):
        cls(n_fft=256)


def test_no_normalisation_is_also_written_false():
    signal, length = torch.randn(1, 4000), torch.tensor([4000])
    torch.testing.assert_close(*(run(evaluating(normalize=off), signal, length)[0] for off in (False, None)))


def test_bands_above_half_the_sample_rate_are_told_and_hear_nothing(capsys):
    processed, _ = run(evaluating(normalize=None, highfreq=12000), torch.randn(1, 4000), torch.tensor([4000]))
    assert "highfreq 12000 Hz is above half the sample rate" in capsys.readouterr().err
    assert processed.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lowfreq": 8000, "highfreq": 9000}, UsageError, r"wanted 0 <= lowfreq < highfreq, and lowfreq < 8000 Hz"),
        ({"lowfreq": 5000, "highfreq": 4000}, UsageError, r"lowfreq and highfreq do not fit the sample rate"),
        ({"features": 0}, UsageError, r"features is 0, wanted int from 1 to 1024"),
        ({"dither": -1.0}, UsageError, r"dither is -1.0, wanted float from 0 to 1000"),
        ({"std_floor": -1.0}, UsageError, r"std_floor is -1.0, wanted"),
        ({"frame_splicing": 0}, UsageError, r"frame_splicing is 0, wanted int from 1"),
        ({"pad_to": -1}, UsageError, r'pad_to is -1, wanted int from 0 to 4096 or "max"'),
        ({"pad_to": "min"}, UsageError, r"pad_to cannot be used: got min"),
        (
            {"log_zero_guard_type": "sub"},
            UnknownNameError,
            r'log_zero_guard_type "sub" is not known; known: add',
        ),
        ({"log_zero_guard_value": "huge"}, UnknownNameError, r'log_zero_guard_value "huge" is not known'),
        ({"log_zero_guard_value": 0.0}, UsageError, r"log_zero_guard_value is 0.0, wanted float above 0"),
        (
            {"normalize": "per_featur"},
            UnknownNameError,
            r'"per_featur" is not known.*did you mean per_feature',
        ),
        ({"normalize": {"fixed_mean": [0.0]}}, UsageError, r"normalize has no usable fixed_mean: .*64 numbers each"),
        (
            {"moving_seconds": 3.0},
            UsageError,
            r"moving_seconds needs statistics to begin with: wanted normalize with fixed_mean",
        ),
        (
            {"features": 1, "normalize": {"fixed_mean": [0.0], "fixed_std": [0.0]}},
            UsageError,
            r"normalize has no usable fixed_std",
        ),
        ({"window": "han"}, UnknownNameError, r'window "han" is not known'),
    ],
)
def test_impossible_mel_features_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        AudioToMelSpectrogramPreprocessor(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dct_type": 3}, UsageError, r"dct_type is 3, wanted 2"),
        ({"norm": "slaney"}, UnknownNameError, r'norm "slaney" is not known; known: ortho'),
        ({"n_mfcc": 65}, UsageError, r"n_mfcc does not fit n_mels: got 65, wanted 1 to 64"),
        ({"lowfreq": 9000.0}, UsageError, r"lowfreq and highfreq do not fit the sample rate"),
    ],
)
def test_impossible_cepstra_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        AudioToMFCCPreprocessor(**arguments)


# Statistics of the frames within 40 dB of the loudest.


BY_SPEECH = {"normalize": "per_feature_speech", "pad_to": 0}


def around(signal, seconds, level=0.0):
    """One utterance with silence or noise of so many seconds at both ends: (1, T)."""
    ends = level * torch.randn(2, int(seconds * RATE), generator=torch.Generator().manual_seed(1))
    return torch.cat([ends[0], signal, ends[1]])[None]


def test_statistics_of_speech_are_those_of_its_loud_frames():
    signal, length = speech(16000)
    signal[0, 4000:8000] *= 1e-4
    raw, _ = run(evaluating(normalize=None, pad_to=0), signal, length)
    processed, _ = run(evaluating(**BY_SPEECH), signal, length)
    levels = raw.exp().sum(1)[0]
    loud = raw[0][:, levels >= levels.max() * 1e-4]
    assert 60 < loud.shape[1] < 80
    expected = (raw[0] - loud.mean(1, keepdim=True)) / (loud.std(1, keepdim=True) + 1e-5)
    torch.testing.assert_close(processed[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_silence_around_speech_changes_no_feature_of_the_speech(level):
    signal, length = speech(16000)
    alone, _ = run(evaluating(**BY_SPEECH), signal, length)
    padded = around(signal[0], 2.0, level)
    inside = slice(200 + 3, 200 + 97)  # not the frames at the borders, which see both
    processed, _ = run(evaluating(**BY_SPEECH), padded, torch.tensor([padded.shape[1]]))
    assert (processed[0, :, inside] - alone[0, :, 3:97]).abs().mean() < 0.05
    usual, _ = run(evaluating(pad_to=0), padded, torch.tensor([padded.shape[1]]))
    first, _ = run(evaluating(pad_to=0), signal, length)
    assert (usual[0, :, inside] - first[0, :, 3:97]).abs().mean() > 0.3, "with statistics of all frames it does"


def test_statistics_of_speech_do_not_depend_on_the_batch():
    signal, length = speech(16000, 4000, 9000)
    together, _ = run(evaluating(**BY_SPEECH), signal, length)
    for row, frames in enumerate([100, 25, 57]):
        alone, _ = run(evaluating(**BY_SPEECH), signal[row : row + 1, : length[row]], length[row : row + 1])
        torch.testing.assert_close(together[row, :, :frames], alone[0], atol=1e-4, rtol=1e-4)
        assert not together[row, :, frames:].any()


@pytest.mark.parametrize("num_samples", [0, 1, 160, 4000])
def test_statistics_of_silence_are_finite(num_samples):
    processed, _ = run(evaluating(**BY_SPEECH), torch.zeros(1, num_samples), torch.tensor([num_samples]))
    assert torch.isfinite(processed).all()
    assert not processed.any()


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["per_feature", "per_feature_speech"])
def test_an_exported_preprocessor_gives_the_same_numbers(normalize):
    module = evaluating(normalize=normalize)
    free = torch.export.Dim.DYNAMIC
    program = torch.export.export(module, speech(8000, 6000), dynamic_shapes=({0: free, 1: free}, {0: free})).module()
    signal, length = speech(16000, 4000, 9000)
    signal[:, 2000:4000] = 0.0
    for exported, computed in zip(program(signal, length), run(module, signal, length), strict=True):
        torch.testing.assert_close(exported, computed, atol=2e-3, rtol=1e-3)
