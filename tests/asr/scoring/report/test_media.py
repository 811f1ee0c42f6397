"""Players and spectrograms as data URLs."""

import base64
import io

import numpy as np
import pytest
import soundfile
from PIL import Image
from toys.run_folder import tone

from nemo_asr.run.audio.reading import read_audio
from nemo_asr.scoring.report.media import MAX_SECONDS, SAMPLE_RATE, data_url, make_clip, png, spectrogram
from nemo_lite.base.errors import DataError


def content(url, kind):
    head, _, body = url.partition(",")
    assert head == f"data:{kind};base64"
    return base64.b64decode(body, validate=True)


def heard(clip):
    return soundfile.read(io.BytesIO(content(clip.audio, "audio/flac")))


def seen(clip):
    return np.asarray(Image.open(io.BytesIO(content(clip.picture, "image/png"))).convert("RGB"))


def test_a_clip_holds_the_recording_and_its_picture(tmp_path):
    path = tone(tmp_path / "a.wav", 1.2)
    clip = make_clip(path)
    samples, rate = heard(clip)
    assert rate == SAMPLE_RATE
    assert np.abs(samples - soundfile.read(path)[0]).max() < 1e-4
    assert clip.seconds == pytest.approx(1.2)
    assert not clip.is_cut
    assert seen(clip).shape == (80, 120, 3)
    assert clip.num_bytes == len(clip.audio) + len(clip.picture)


def test_a_part_is_cut_out_and_another_rate_converted(tmp_path):
    clip = make_clip(tone(tmp_path / "a.wav", 2.0, rate=8000), offset=0.5, duration=1.0)
    samples, rate = heard(clip)
    assert (len(samples), rate) == (16000, 16000)
    spectrum = np.abs(np.fft.rfft(samples[:1600]))
    assert spectrum.argmax() * 10 == pytest.approx(200 + 400 * 0.55, abs=40)  # the pitch at 0.55 s of 2 s


@pytest.mark.parametrize("duration", [None, 20.0])
def test_a_long_recording_ends_early(tmp_path, duration):
    clip = make_clip(tone(tmp_path / "a.wav", 20.0), duration=duration)
    assert len(heard(clip)[0]) == MAX_SECONDS * SAMPLE_RATE
    assert (clip.seconds, clip.is_cut) == (MAX_SECONDS, True)
    assert seen(clip).shape[1] <= 700


def test_of_a_long_recording_only_what_is_shown_is_read(tmp_path, monkeypatch):
    read, lengths = read_audio, []

    def noted(*given, **named):
        audio = read(*given, **named)
        lengths.append(len(audio.samples) / SAMPLE_RATE)
        return audio

    monkeypatch.setattr("nemo_asr.scoring.report.media.read_audio", noted)
    make_clip(tone(tmp_path / "a.wav", 60.0))
    assert lengths == [MAX_SECONDS + 1]


def test_the_picture_shows_low_frequencies_below_and_time_to_the_right():
    time = np.arange(16000) / 16000
    samples = (np.sin(2 * np.pi * np.where(time < 0.5, 300, 4000) * time) * 0.5).astype(np.float32)
    shades = spectrogram(samples)
    assert shades.shape == (80, 100)
    assert shades.max() == 63
    brightest = shades.argmax(axis=0)
    assert set(brightest[5:45] > 60) == {True}  # rows are counted from above
    assert set(brightest[55:95] < 30) == {True}


@pytest.mark.parametrize("num_samples", [1, 100, 511, 16000])
def test_silence_and_short_recordings_have_pictures(num_samples):
    assert spectrogram(np.zeros(num_samples, np.float32)).shape == (80, -(-num_samples // 160))


def test_a_png_has_the_shades_in_their_places():
    shades = np.array([[0, 63, 10], [20, 30, 40]], np.uint8)
    image = Image.open(io.BytesIO(png(shades)))
    assert (image.size, image.mode) == ((3, 2), "P")
    assert np.array_equal(np.asarray(image), shades)
    colours = np.asarray(image.convert("RGB")).astype(int).sum(axis=2)
    assert colours[0, 0] < colours[0, 2] < colours[1, 0] < colours[1, 2] < colours[0, 1]


def test_bytes_become_an_address():
    assert content(data_url("image/png", b"\x00\xffabc"), "image/png") == b"\x00\xffabc"


def test_a_recording_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF damaged")
    with pytest.raises(DataError, match=r"bad\.wav is not a WAV"):
        make_clip(tmp_path / "bad.wav")
