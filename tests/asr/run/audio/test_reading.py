"""Audio files to samples: parts, rates, pieces, and what is refused."""

import ctypes
import io
import os
import re
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from toys.hostile_audio import RATE, chunk, encoded, format_chunk, speech_like, wav

from nemo_asr.run.audio import files, reading
from nemo_asr.run.audio.files import check_head
from nemo_asr.run.audio.kinds import ALL_KINDS, CONTAINER_KINDS, KINDS
from nemo_asr.run.audio.reading import audio_seconds, open_part, read_audio, tolerance, trimmed
from nemo_asr.run.cli.transcribe import TranscribeParser
from nemo_lite.base.errors import DataError

DOCS = Path(__file__).parents[4] / "docs/en"

# Reading audio: every format and channel count to one mono array, and a clear refusal of what is not as promised.


def tone(seconds=0.5, rate=RATE, hertz=440.0, amplitude=0.25):
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


@pytest.fixture
def save(tmp_path):
    def saved(samples, name="a.wav", rate=RATE, subtype=None):
        path = str(tmp_path / name)
        soundfile.write(path, samples, rate, subtype=subtype, format="NIST" if name.endswith(".sph") else None)
        return path

    return saved


def wav_bytes(tag=1, *, order="<", chunks=b"", data=b"\0\0" * 100, extensible=None):
    body = struct.pack(f"{order}HHIIHH", tag, 1, RATE, 2 * RATE, 2, 16)
    if extensible is not None:
        body += struct.pack(f"{order}HHIH", 22, 16, 4, extensible) + bytes.fromhex("000000001000800000aa00389b71")
    fmt = b"fmt " + struct.pack(f"{order}I", len(body)) + body
    content = b"WAVE" + chunks + fmt + b"data" + struct.pack(f"{order}I", len(data)) + data
    return (b"RIFF" if order == "<" else b"RIFX") + struct.pack(f"{order}I", len(content)) + content


@pytest.mark.parametrize(
    ("name", "subtype", "error"),
    [
        ("a.wav", "PCM_16", 1e-4),
        ("a.wav", "PCM_24", 1e-6),
        ("a.wav", "PCM_32", 1e-6),
        ("a.wav", "PCM_U8", 1e-2),
        ("a.wav", "FLOAT", 1e-7),
        ("a.wav", "DOUBLE", 1e-7),
        ("a.wav", "ULAW", 2e-2),
        ("a.wav", "ALAW", 2e-2),
        ("a.flac", "PCM_16", 1e-4),
        ("a.flac", "PCM_24", 1e-6),
        ("a.ogg", "VORBIS", 3e-2),
        ("a.ogg", "OPUS", 1e-1),
        ("a.mp3", "MPEG_LAYER_III", 1e-1),
        ("a.wav", "IMA_ADPCM", 0.2),
        ("a.wav", "MS_ADPCM", 0.2),
        ("a.aiff", "PCM_16", 1e-4),
        ("a.au", "ULAW", 2e-2),
        ("a.caf", "PCM_24", 1e-6),
        ("a.w64", "IMA_ADPCM", 0.2),
        ("a.sph", "PCM_16", 1e-4),
    ],
)
def test_every_allowed_codec_is_read(name, subtype, error, save):
    audio = read_audio(save(tone(), name, subtype=subtype), sample_rate=RATE, duration=0.5)
    assert audio.samples.dtype == np.float32
    assert audio.samples.flags.c_contiguous
    assert len(audio.samples) in ([RATE // 2] if "ADPCM" not in subtype else range(RATE // 2, RATE // 2 + 1024))
    assert np.abs(audio.samples[: RATE // 2] - tone()).max() < error


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
@pytest.mark.parametrize("part", [{}, {"offset": 0.2, "duration": 0.1}])
def test_the_content_of_a_file_is_read_as_the_file_is(name, part, save):
    path = save(np.stack([tone(rate=8000), tone(hertz=500, rate=8000)], axis=1), name, rate=8000)
    from_path, from_bytes = (read_audio(s, sample_rate=RATE, **part) for s in (path, Path(path).read_bytes()))
    np.testing.assert_array_equal(from_bytes.samples, from_path.samples)
    assert (from_bytes.source_rate, from_bytes.num_channels) == (8000, 2)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_the_length_of_a_recording_is_known_without_decoding_it(name, save, monkeypatch):
    path = save(tone(0.75, rate=8000), name, rate=8000)
    monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", None)
    assert audio_seconds(path) == audio_seconds(Path(path).read_bytes()) == 0.75


def test_an_mp3_file_may_begin_with_a_tag(save, tmp_path):
    content = Path(save(tone(), "a.mp3")).read_bytes()
    tagged = b"ID3\4\0\0\0\0\0\x10" + bytes(16) + content
    assert len(read_audio(tagged, sample_rate=RATE).samples) == RATE // 2


def test_the_length_of_what_is_no_audio_is_refused():
    with pytest.raises(DataError, match=r"^b\.zip: the audio is not a WAV, FLAC, OGG"):
        audio_seconds(b"<html>", place="b.zip")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the audio is empty (0 bytes)"),
        (b"<html>", "SPHERE file, nor MP4"),
        (wav_bytes(0x40), "the audio has the codec G721_32"),
        (b"fLaC" + bytes(50), "the audio is damaged: a FLAC file that does not begin with its properties"),
    ],
)
def test_content_that_cannot_be_used_is_named_by_its_place(content, problem):
    with pytest.raises(DataError, match=r"^clips\.zip: a\.wav: ") as error:
        read_audio(content, sample_rate=RATE, place="clips.zip: a.wav")
    assert problem in str(error.value)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_sixteen_bits_become_the_floats_of_libsndfile(name, save):
    path = save(np.arange(-32768, 32768).astype(np.int16), name)
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_array_equal(read_audio(path, sample_rate=RATE).samples, expected)


def test_channels_are_averaged_over_the_right_axis(save):
    channels = np.stack([tone(hertz=300), tone(hertz=500), tone(hertz=700)], axis=1)
    audio = read_audio(save(channels, subtype="FLOAT"), sample_rate=RATE)
    np.testing.assert_allclose(audio.samples, channels.mean(axis=1), atol=1e-7)
    assert audio.num_channels == 3


@pytest.mark.parametrize("int_values", [False, True])
@pytest.mark.parametrize("subtype", ["FLOAT", "PCM_16"])
def test_one_channel_is_read_as_it_is(subtype, int_values, save, monkeypatch):
    channels = np.stack([tone(hertz=300), tone(hertz=500), tone(hertz=700)], axis=1)
    path = save(channels, subtype=subtype)
    monkeypatch.setattr("nemo_asr.run.audio.files._PIECE_VALUES", 3000)
    for channel in range(3):
        audio = read_audio(path, sample_rate=RATE, channel=channel, offset=0.1, int_values=int_values)
        np.testing.assert_allclose(audio.samples, channels[1600:, channel], atol=1e-4)
        assert (audio.num_channels, audio.samples.flags["C_CONTIGUOUS"]) == (3, True)


def test_a_channel_that_a_file_does_not_have_is_refused_with_those_that_it_has(save):
    told = refusal(save(tone()), channel=1)
    assert told.endswith("a.wav has no channel 1: wanted channel 0, or mix for the average of all")
    stereo = save(np.stack([tone()] * 2, axis=1))
    assert "has no channel 2: wanted a channel from 0 to 1, or mix" in refusal(stereo, channel=2)
    assert "has no channel -1" in refusal(stereo, channel=-1)


def test_a_channel_is_judged_by_its_own_samples(save):
    channels = np.stack([tone(), np.full_like(tone(), np.nan)], axis=1)
    path = save(channels, subtype="FLOAT")
    for int_values in (False, True):
        read_audio(path, sample_rate=RATE, channel=0, int_values=int_values)
        assert "NaN" in refusal(path, channel=1, int_values=int_values)


def test_all_channels_of_a_piece_are_shown_before_they_are_one(save):
    channels = np.stack([tone(hertz=300), tone(hertz=500)], axis=1)
    seen = []
    with open_part(save(channels, subtype="FLOAT"), channel=0) as part:
        (piece,) = part.pieces(observe=seen.append)
    np.testing.assert_array_equal(seen[0], channels.astype(np.float32))
    np.testing.assert_array_equal(piece, seen[0][:, 0])


def test_many_blocks_of_many_channels_are_joined(save, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.audio.files._PIECE_VALUES", 1000)
    channels = np.stack([tone(), tone(hertz=500)], axis=1)
    path = save(channels, subtype="FLOAT")
    audio = read_audio(path, sample_rate=RATE, offset=0.1, duration=0.3)
    np.testing.assert_allclose(audio.samples, channels.mean(axis=1)[1600:6400], atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_another_rate_is_resampled_and_reported(rate, save):
    audio = read_audio(save(tone(rate=rate), rate=rate), sample_rate=RATE, duration=0.5)
    assert audio.source_rate == rate
    assert abs(len(audio.samples) - RATE // 2) <= 1
    middle = slice(1000, 7000)  # a resampler rings at the ends
    assert np.abs(audio.samples[middle] - tone()[middle]).max() < 2e-3


def test_a_segment_is_cut_at_the_rate_of_the_file(save):
    path = save(tone(rate=8000), rate=8000, subtype="FLOAT")
    audio = read_audio(path, sample_rate=8000, offset=0.125, duration=0.25)
    np.testing.assert_array_equal(audio.samples, tone(rate=8000)[1000:3000])


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
def test_a_segment_of_any_format_is_the_same_part_of_the_whole(name, save):
    path = save(tone(), name)
    whole = read_audio(path, sample_rate=RATE).samples
    part = read_audio(path, sample_rate=RATE, offset=0.2, duration=0.1).samples
    np.testing.assert_allclose(part, whole[3200:4800], atol=1e-5)


def test_an_offset_without_duration_reads_to_the_end(save):
    assert len(read_audio(save(tone()), sample_rate=RATE, offset=0.4).samples) == 1600


def test_int_values_clip_floats_beyond_full_scale_and_leave_the_rest(save):
    path = save(tone(amplitude=2.0), subtype="FLOAT")
    floats = read_audio(path, sample_rate=RATE).samples
    assert floats.max() > 1.9
    np.testing.assert_array_equal(read_audio(path, sample_rate=RATE, int_values=True).samples, floats.clip(-1, 1))
    quiet = save(tone(), "b.wav", subtype="PCM_16")
    both = [read_audio(quiet, sample_rate=RATE, int_values=flag).samples for flag in (False, True)]
    np.testing.assert_array_equal(*both)


@pytest.mark.xdist_group("librosa")
@pytest.mark.long
@pytest.mark.xdist_group("librosa")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_trimming_equals_librosa(seed):
    librosa = pytest.importorskip("librosa")
    rng = np.random.default_rng(seed)
    parts = [np.full(int(rng.integers(0, 9000)), 0.0), tone(), 1e-5 * rng.standard_normal(int(rng.integers(0, 9000)))]
    samples = np.concatenate(parts).astype(np.float32)
    expected, _ = librosa.effects.trim(samples, top_db=60)
    np.testing.assert_array_equal(trimmed(samples), expected)


@pytest.mark.xdist_group("librosa")
@pytest.mark.slow
@pytest.mark.parametrize("samples", [np.zeros(5000, np.float32), np.ones(1, np.float32), tone(0.01)])
def test_trimming_silence_short_and_flat_signals_equals_librosa(samples):
    librosa = pytest.importorskip("librosa")
    np.testing.assert_array_equal(trimmed(samples), librosa.effects.trim(samples, top_db=60)[0])


def test_trim_silence_shortens_what_is_read(save):
    path = save(np.concatenate([np.zeros(8000, np.float32), tone(), np.zeros(8000, np.float32)]))
    audio = read_audio(path, sample_rate=RATE, duration=1.5, trim_silence=True)
    assert 8000 <= len(audio.samples) <= 8000 + 2 * 2048


def refusal(path, **arguments):
    with pytest.raises(DataError) as error:
        read_audio(str(path), sample_rate=RATE, place="train.json:17", **arguments)
    text = str(error.value)
    assert text.startswith("train.json:17: ")
    assert len(text.splitlines()) == 1
    return text


def test_a_missing_file_is_named(tmp_path):
    assert "none.wav cannot be opened (No such file or directory)" in refusal(tmp_path / "none.wav")


def test_a_folder_is_no_audio_file(tmp_path):
    assert f"the audio file {tmp_path} is a folder" in refusal(tmp_path)


def test_a_pipe_is_no_audio_file_and_nothing_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "a.wav")
    assert f"the audio file {tmp_path}/a.wav is a pipe or a device" in refusal(tmp_path / "a.wav")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    assert "a.wav is empty (0 bytes)" in refusal(tmp_path / "a.wav")


def test_a_file_without_samples_is_refused(save):
    assert "holds no samples" in refusal(save(np.zeros(0, np.float32)), duration=1.0)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_a_file_cut_short_is_refused(name, share, tmp_path, save):
    path = save(np.random.default_rng(0).uniform(-0.3, 0.3, RATE).astype(np.float32), name)
    whole = Path(path).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
    assert name in refusal(tmp_path / name, duration=1.0)


def test_flac_with_a_hole_is_refused(tmp_path, save):
    path = save(np.random.default_rng(0).uniform(-0.3, 0.3, RATE).astype(np.float32), "a.flac")
    whole = bytearray(Path(path).read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 2000] = bytes(2000)
    (tmp_path / "a.flac").write_bytes(whole)
    assert "a.flac is damaged" in refusal(tmp_path / "a.flac", duration=1.0)


def test_the_reason_of_the_decoder_names_no_descriptor(tmp_path):
    (tmp_path / "a.mp3").write_bytes(b"ID3" + bytes(50))
    message = refusal(tmp_path / "a.mp3", duration=1.0)
    assert message.endswith("a.mp3 is damaged (Format not recognised)"), message


@pytest.mark.parametrize("content", [wav_bytes(), wav_bytes(order=">"), wav_bytes(0xFFFE, extensible=1)])
def test_hand_made_headers_of_allowed_formats_are_read(content, tmp_path):
    (tmp_path / "a.wav").write_bytes(content)
    assert len(read_audio(str(tmp_path / "a.wav"), sample_rate=RATE).samples) == 100


def test_a_codec_that_only_the_decoder_recognises_is_refused_as_well(save, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.audio.files.SUBTYPES", frozenset())
    assert "a.wav has the codec PCM_16; convert it" in refusal(save(tone()))


def test_a_file_that_ends_before_what_its_header_promises_is_refused(save, monkeypatch):
    path, read = save(tone()), soundfile.SoundFile.buffer_read_into
    monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", lambda *given: read(*given) - 1)
    assert "a.wav is damaged: 8000 samples promised, 7999 could be read" in refusal(path)


def test_a_duration_that_disagrees_with_the_file_is_refused_within_the_stated_tolerance(save):
    path = save(tone(0.5))
    assert "duration 0.65 s disagrees with" in refusal(path, duration=0.65)
    assert "which holds 0.500 s; correct the duration (within 0.1 s), or add an offset" in refusal(path, duration=0.3)
    for duration in (0.41, 0.59):
        assert len(read_audio(path, sample_rate=RATE, duration=duration).samples) == 8000
    assert tolerance(1.0) == 0.1
    assert tolerance(50.0) == 0.5


def test_an_offset_takes_a_part_of_a_longer_file(save):
    path = save(tone(0.5))
    assert len(read_audio(path, sample_rate=RATE, offset=0.0, duration=0.3).samples) == 4800
    assert "offset 0.3 s + duration 0.4 s is beyond the end" in refusal(path, offset=0.3, duration=0.4)
    assert "leaves nothing of" in refusal(path, offset=0.5)


def test_where_data_are_not_strict_at_most_the_duration_is_read_and_the_difference_is_told(save, monkeypatch):
    path = save(tone(0.5))
    for duration, excess, length in (
        (0.495, 0.0, 8000),
        (0.45, 0.0, 7200),
        (0.2, 0.3, 3200),
        (2.00275, -1.50275, 8000),
    ):
        audio = read_audio(path, sample_rate=RATE, duration=duration, strict=False)
        assert len(audio.samples) == length
        assert audio.excess == pytest.approx(excess)
    monkeypatch.setattr("nemo_asr.run.audio.reading.MAX_SECONDS", 0.4)
    told = refusal(path, duration=18000, strict=False)
    assert "holds 0.500 s, and its line says 18000 s: wanted at most 0.4 s; correct the duration" in told


def test_where_data_are_not_strict_a_part_ends_with_its_file(save):
    path = save(tone(0.5))
    assert read_audio(path, sample_rate=RATE, offset=0.1, duration=0.2, strict=False).excess == 0
    audio = read_audio(path, sample_rate=RATE, offset=0.3, duration=60, strict=False)
    np.testing.assert_array_equal(audio.samples, read_audio(path, sample_rate=RATE).samples[4800:])
    assert audio.excess == pytest.approx(-59.8)
    assert "leaves nothing of" in refusal(path, offset=0.5, duration=60, strict=False)


def test_without_a_wanted_rate_the_files_own_stays(save):
    audio = read_audio(save(tone(0.5, 8000), rate=8000), sample_rate=None)
    assert (len(audio.samples), audio.source_rate) == (4000, 8000)


def test_flac_silence_is_judged_by_its_header_before_it_expands(save, monkeypatch):
    path = save(np.zeros(60 * RATE, np.int16), "a.flac")
    monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", None)
    assert "duration 1 s disagrees with" in refusal(path, duration=1.0)
    monkeypatch.setattr("nemo_asr.run.audio.reading.MAX_SECONDS", 10.0)
    assert "claims 60 s of audio: wanted at most 10 s" in refusal(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused(value, save):
    samples = tone()
    samples[77] = value
    assert "has samples that are NaN or infinite" in refusal(save(samples, subtype="FLOAT"))


def test_an_absurd_sample_rate_is_refused(save):
    assert "claims 10 samples a second: wanted 1000 to 768000" in refusal(save(tone(), rate=10))


def test_no_descriptor_stays_open_after_refusals(save, tmp_path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    path = save(tone(), subtype="GSM610")
    for _ in range(5):
        refusal(path)
    assert before == 0 or len(os.listdir("/proc/self/fd")) == before


# Samples in pieces: the same as all at once, in bounded memory, and none that were not read.


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
    monkeypatch.setattr(files, "check_head", lambda *_: "FLAC")
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
    monkeypatch.setattr(files, "_PIECE_VALUES", 1000)
    in_pieces = read_audio(content, sample_rate=RATE, offset=0.001).samples
    assert whole.tobytes() == in_pieces.tobytes()


def test_the_pieces_of_a_part_are_what_a_resampler_gets(monkeypatch):
    monkeypatch.setattr(files, "_PIECE_VALUES", 1000)
    samples = speech_like(20000)[:, 0]
    with open_part(encoded(samples, rate=8000), offset=0.5, duration=1.0) as part:
        assert [len(piece) for piece in part.pieces()] == [1000] * 8
        assert (part.kind, part.seconds, part.num_samples) == ("WAV", 1.0, 8000)
        expected = soxr.resample((samples[4000:12000] / 32768).astype(np.float32), 8000, RATE)
        np.testing.assert_array_equal(part.samples(RATE), expected)


@pytest.mark.slow
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


def test_a_part_of_more_than_an_hour_is_opened_for_its_pieces_and_its_samples_are_refused(monkeypatch):
    monkeypatch.setattr(reading, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(files, "_PIECE_VALUES", 1000)
    samples = speech_like(5000)[:, 0]
    with open_part(encoded(samples)) as part:
        np.testing.assert_array_equal(np.concatenate(list(part.pieces())), (samples / 32768).astype(np.float32))
        with pytest.raises(DataError, match="the audio claims 0 s of audio: wanted at most 0 s"):
            part.samples(RATE)
    with open_part(encoded(samples), duration=5.0, strict=False) as part:
        assert sum(map(len, part.pieces())) == 5000
        with pytest.raises(DataError, match=r"and its line says 5 s: wanted at most 0\.1 s; correct the duration"):
            part.samples(RATE)


def test_a_flac_file_that_does_not_say_its_length_is_read_to_its_end():
    samples = speech_like(8000)[:, 0]
    content = claiming(encoded(samples, "FLAC"), 0)
    floats = (samples / 32768).astype(np.float32)
    np.testing.assert_array_equal(read_audio(content, sample_rate=RATE).samples, floats)
    assert audio_seconds(content) == 0.5
    part = read_audio(content, sample_rate=RATE, offset=0.25, duration=0.125).samples
    np.testing.assert_array_equal(part, floats[4000:6000])
    # Cut off within its last frame, as while it is written: the frames before it are read.
    np.testing.assert_array_equal(read_audio(content[:-100], sample_rate=RATE).samples, floats[:4096])


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


def test_an_ogg_file_without_its_last_page_is_read_and_told_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, subtype in (("a.opus", "OPUS"), ("b.ogg", "VORBIS")):
        samples = np.random.default_rng(0).normal(0, 0.1, 20 * RATE)
        soundfile.write(name, samples, RATE, format="OGG", subtype=subtype)
        assert len(read_audio(name, sample_rate=RATE).samples) == 20 * RATE
        assert capsys.readouterr().err == ""
        content = Path(name).read_bytes()
        Path(f"cut_{name}").write_bytes(content[: len(content) // 2])
        for line in (1, 2):
            assert (
                5 * RATE < len(read_audio(f"cut_{name}", sample_rate=RATE, place=f"a.json:{line}").samples) < 15 * RATE
            )
        told = f"warning: cut_{name} ends without its last page: what is there is read, the rest was cut off"
        assert capsys.readouterr().err.count(told) == 1
    # Cut off between two pages: the last one there is whole, and not the last one of the recording.
    Path("whole_pages.ogg").write_bytes(content[: content.rindex(b"OggS")])
    read_audio("whole_pages.ogg", sample_rate=RATE)
    assert "whole_pages.ogg ends without its last page" in capsys.readouterr().err


def test_the_decoder_of_mp3_does_not_write_on_stderr(tmp_path, capfd):
    soundfile.write(tmp_path / "a.mp3", np.random.default_rng(0).normal(0, 0.1, 5 * RATE), RATE)
    content = bytearray((tmp_path / "a.mp3").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 300] = bytes(300)
    (tmp_path / "hole.mp3").write_bytes(content)
    with soundfile.SoundFile(str(tmp_path / "hole.mp3")) as file:
        file.read()
    assert "Illegal Audio-MPEG-Header" in capfd.readouterr().err  # libmpg123 by itself

    def read(_):
        with pytest.raises(DataError, match=r"hole\.mp3 is damaged: 80000 samples promised, \d+ could be read$"):
            read_audio(str(tmp_path / "hole.mp3"), sample_rate=RATE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(8)))
    assert capfd.readouterr().err == ""
    ctypes.CDLL(None).perror(b"C writes again")
    assert capfd.readouterr().err.startswith("C writes again: ")


def test_what_is_read_is_listed_once_for_help_messages_and_docs():
    with pytest.raises(DataError, match=re.escape(f"a is not a {KINDS} file, nor {CONTAINER_KINDS}; convert it")):
        check_head(lambda size, at: b"no audio"[at : at + size], "a", "")
    help_text = " ".join(TranscribeParser().format_help().split())
    assert f"audio files ({ALL_KINDS})" in help_text
    assert f"| a file | {ALL_KINDS}: any rate" in (DOCS / "transcription.md").read_text("utf-8")
