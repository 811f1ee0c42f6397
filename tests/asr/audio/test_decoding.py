"""Samples in pieces: the same as all at once, in bounded memory, and none that were not read."""

import io
import os
import re
import tracemalloc
from functools import partial

import numpy as np
import pytest
import soundfile
import soxr
from toys.hostile_audio import RATE, chunk, encoded, format_chunk, speech_like, wav

from nemo_asr.audio import reading as decoding
from nemo_asr.audio.reading import audio_seconds, open_part, read_audio
from nemo_lite.errors import DataError

LEFT_BEHIND = 12345


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that nobody wrote into holds ``LEFT_BEHIND``, as it might hold anything."""
    empty = np.empty

    def filled(*given, **named):
        array = empty(*given, **named)
        array.fill(LEFT_BEHIND)
        return array

    monkeypatch.setattr(np, "empty", filled)


@pytest.mark.parametrize("num_channels", [1, 2])
def test_two_bytes_lost_from_a_flac_file_give_an_error_and_never_what_was_in_memory(num_channels, poisoned):
    content = encoded(speech_like(3000, num_channels), "FLAC")
    for byte in [*range(100), *range(100, len(content) - 2, 61)]:
        with pytest.raises(DataError, match=r"is damaged|is not a WAV"):
            read_audio(content[:byte] + content[byte + 2 :], sample_rate=None)


@pytest.mark.parametrize("num_channels", [1, 2])
def test_a_decoder_that_reads_nothing_and_reports_nothing_is_noticed(num_channels, poisoned, monkeypatch):
    content = encoded(speech_like(3000, num_channels), "FLAC")
    lost = content[:30] + content[32:]
    with soundfile.SoundFile(io.BytesIO(lost)) as file:  # what libsndfile makes of it
        assert file.frames == 3000
        (block,) = file.blocks(1 << 16, dtype="int16", always_2d=True)
        assert (block == LEFT_BEHIND).all()
    monkeypatch.setattr(decoding, "check_head", lambda *_: "FLAC")
    with pytest.raises(DataError, match="the audio is damaged: 3000 samples promised, 0 could be read"):
        read_audio(lost, sample_rate=None)


@pytest.mark.parametrize("num_channels", [1, 2, 3])
@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
@pytest.mark.parametrize("rate", [RATE, 8000, 44100, 655349])
def test_samples_read_in_pieces_are_to_the_bit_those_read_at_once(num_channels, kind, rate, monkeypatch):
    if kind == "FLAC" and rate == 655349:
        rate = 655350  # FLAC has only multiples of 10 there
    content = encoded(speech_like(20011, num_channels), kind, rate=rate)
    whole = read_audio(content, sample_rate=RATE, offset=0.001).samples
    monkeypatch.setattr(decoding, "_PIECE_VALUES", 1000)
    in_pieces = read_audio(content, sample_rate=RATE, offset=0.001).samples
    assert whole.tobytes() == in_pieces.tobytes()


def test_the_pieces_of_a_part_are_what_a_resampler_gets(monkeypatch):
    monkeypatch.setattr(decoding, "_PIECE_VALUES", 1000)
    samples = speech_like(20000)[:, 0]
    with open_part(encoded(samples, rate=8000), offset=0.5, duration=1.0) as part:
        assert [len(piece) for piece in part.pieces()] == [1000] * 8
        assert (part.kind, part.seconds, part.num_samples) == ("WAV", 1.0, 8000)
        expected = soxr.resample((samples[4000:12000] / 32768).astype(np.float32), 8000, RATE)
        np.testing.assert_array_equal(part.samples(RATE), expected)


@pytest.mark.parametrize(("rate", "num_channels"), [(RATE, 1), (48000, 1), (RATE, 8)])
def test_a_long_file_takes_little_more_memory_than_its_samples(rate, num_channels, tmp_path):
    seconds, path = 300, str(tmp_path / "a.flac")
    with soundfile.SoundFile(path, "w", rate, num_channels, "PCM_16", format="FLAC") as file:
        for _ in range(seconds // 10):
            file.write(np.zeros((10 * rate, num_channels), np.int16))
    tracemalloc.start()
    try:
        samples = read_audio(path, sample_rate=RATE, trim_silence=True, duration=seconds).samples
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert samples.nbytes == 4 * seconds * RATE
    assert most - samples.nbytes < 40e6  # at once: some 100 to 200 MB


def claiming(content, frames):
    """A FLAC file whose head promises so many samples a channel."""
    packed = int.from_bytes(content[18:26], "big") >> 36 << 36 | frames
    return content[:18] + packed.to_bytes(8, "big") + content[26:]


@pytest.mark.parametrize("duration", [None, 3540.0])
@pytest.mark.parametrize("strict", [False, True])
def test_an_hour_of_silence_at_an_absurd_rate_is_refused_by_its_head(duration, strict, monkeypatch):
    content = claiming(encoded(np.zeros(5000, np.int16), "FLAC", rate=655350), 3540 * 655350)
    monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", None)
    told = "the audio claims 3540 s of 1 x 655350 samples a second: wanted at most 691200000 samples in all; resample"
    with pytest.raises(DataError, match=told):
        read_audio(content, sample_rate=RATE, duration=duration, strict=strict)


def test_more_than_an_hour_is_refused_whatever_a_line_says(monkeypatch):
    content = claiming(encoded(speech_like(5000), "FLAC"), 36000 * RATE)
    monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", None)
    for duration in (None, 36000.0):
        with pytest.raises(DataError, match="the audio claims 36000 s of audio: wanted at most 3600 s"):
            read_audio(content, sample_rate=RATE, duration=duration)


def test_a_flac_file_of_unknown_length_says_so_and_a_part_of_it_can_be_read():
    samples = speech_like(8000)[:, 0]
    content = claiming(encoded(samples, "FLAC"), 0)
    with pytest.raises(DataError, match="the audio does not say how long it is; write it again"):
        read_audio(content, sample_rate=RATE)
    part = read_audio(content, sample_rate=RATE, duration=0.25, strict=False).samples
    np.testing.assert_array_equal(part, (samples[:4000] / 32768).astype(np.float32))


@pytest.mark.parametrize("offset", [1e308, 1e18, float("inf"), float("nan"), -0.1])
def test_an_offset_that_no_file_reaches_is_refused(offset):
    with pytest.raises(DataError, match=r"offset (1e\+308|1e\+18|inf|nan|-0\.1) s leaves nothing of the audio"):
        read_audio(encoded(speech_like(3000)), sample_rate=RATE, offset=offset, duration=0.1, strict=False)


@pytest.mark.parametrize("int_values", [False, True])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.nan, "has samples that are NaN or infinite"),
        (-np.inf, "has samples that are NaN or infinite"),
        (1e308, "has samples that are NaN or infinite"),
        (-3e38, r"has samples that are too large: got 3e\+38, wanted floats of full scale 1"),
        (2.2e9, r"has samples that are too large: got 2\.2e\+09"),
    ],
)
def test_floats_that_are_no_samples_are_refused_also_as_whole_numbers(value, told, int_values):
    data = np.array([0.1, value, 0.2], "<f8").tobytes()
    content = wav(format_chunk(tag=3, bits=64), chunk(b"data", data))
    with pytest.raises(DataError, match=told):
        read_audio(content, sample_rate=RATE, int_values=int_values)


def test_whole_numbers_of_32_bits_that_were_stored_as_floats_are_read():
    content = wav(format_chunk(tag=3, bits=32), chunk(b"data", np.array([2.0**31, -(2.0**31)], "<f4").tobytes()))
    np.testing.assert_array_equal(read_audio(content, sample_rate=RATE).samples, [2.0**31, -(2.0**31)])


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    os.symlink("loop.wav", tmp_path / "loop.wav")
    (tmp_path / "folder.wav").mkdir()
    told = {
        "pipe.wav": "is a pipe or a device: wanted a regular file",
        "folder.wav": "is a folder: wanted a regular file",
        "loop.wav": r"cannot be opened \(Too many levels of symbolic links\)",
        "a\0.wav": r"cannot be opened \((?:open: )?embedded null (?:byte|character in path)\)",
    }
    for name, reason in told.items():
        path = os.path.join(tmp_path, name)
        for read in (partial(read_audio, sample_rate=RATE), audio_seconds):
            written = re.escape(path.replace("\0", "\\x00"))
            with pytest.raises(DataError, match=f"^m:1: the audio file {written} {reason}"):
                read(path, place="m:1")
    with pytest.raises(DataError, match="/dev/zero is a pipe or a device"):
        read_audio("/dev/zero", sample_rate=RATE)
