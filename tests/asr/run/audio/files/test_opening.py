"""What is refused by its head or by the sizes in it."""

import os
import resource
import struct
import time

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import RATE, chunk, encoded, format_chunk, rf64, speech_like
from toys.hostile_audio import wav as wav_of

from nemo_asr.run.audio.files import check_head
from nemo_asr.run.audio.reading import read_audio
from nemo_lite.base.errors import DataError

IMA = 0x11


def format_of(tag, *, channels=1, block=256, bits=4, samples=505):
    return struct.pack("<IHHIIHHHH", 20, tag, channels, RATE, RATE, block, bits, 2, samples)


def wav(*formats, before=b""):
    content = (
        b"WAVE" + before + b"".join(b"fmt " + each for each in formats) + b"data" + struct.pack("<I", 4) + bytes(4)
    )
    return b"RIFF" + struct.pack("<I", len(content)) + content


def head_refusal(content):
    """The text of the head_refusal; "" where there is none."""
    try:
        check_head(lambda size, start: content[start : start + size], "a.wav", "train.json:7")
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("content", [b"\xff\xfdmp2", b"<html>", b"RIFF\0\0\0\0AVI ", b"RI", b"FORM\0\0\0\0ILBM"])
def test_other_kinds_of_files_never_reach_the_decoder(content):
    text = head_refusal(content)
    assert text.startswith("train.json:7: a.wav is not a WAV, FLAC, OGG, MP3, AIFF, AU, CAF, W64 or SPHERE file")
    assert text.endswith("convert it to 16-bit WAV or FLAC")


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("WAV", "GSM610"), ("WAV", "G721_32"), ("AIFF", "IMA_ADPCM"), ("AU", "G721_32")],
)
def test_codecs_that_no_corpus_uses_are_refused(kind, codec):
    content = encoded(speech_like(3000)[:, 0], kind, codec, 8000)
    with pytest.raises(
        DataError, match=f"^train.json:7: a.wav has the codec {codec}; convert it to 16-bit WAV or FLAC"
    ):
        read_audio(content, sample_rate=RATE, place="train.json:7", name="a.wav")


@pytest.mark.parametrize(
    "changes",
    [{"samples": 506}, {"samples": 65535}, {"block": 4}, {"channels": 3}, {"channels": 0}, {"bits": 16}, {"block": 0}],
)
def test_an_adpcm_header_that_contradicts_itself_never_reaches_the_decoder(changes):
    assert head_refusal(wav(format_of(IMA))) == ""
    wanted = "its ADPCM header contradicts itself"
    assert wanted in head_refusal(wav(format_of(IMA, **changes)))
    assert wanted in head_refusal(wav(format_of(IMA), format_of(IMA, **changes)))


@pytest.mark.parametrize("codec", ["IMA_ADPCM", "MS_ADPCM"])
@pytest.mark.parametrize(("kind", "channels"), [("WAV", 1), ("WAV", 2), ("W64", 1)])
def test_the_adpcm_headers_of_libsndfile_are_sound(kind, channels, codec, tmp_path):
    soundfile.write(tmp_path / "a", [[0.1] * channels] * 5000, RATE, codec, format=kind)
    assert head_refusal((tmp_path / "a").read_bytes()) == ""
    content = bytearray((tmp_path / "a").read_bytes())
    content[content.index(b"fmt ") + (26 if kind == "WAV" else 42)] ^= 1  # of the samples in a block
    assert "contradicts itself" in head_refusal(bytes(content))


@pytest.mark.parametrize("content", [b"RIFF\x24\0\0\0WAVEdata\0\0\0\0", b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 1000])
def test_a_wav_file_without_a_format_and_endless_chunks_are_refused(content):
    assert "a.wav is damaged: a WAV file without a format" in head_refusal(content)


SAMPLES = speech_like(1000)[:, 0]
DATA = SAMPLES.tobytes()
FLOATS = (SAMPLES / np.float32(32768)).astype(np.float32)


def cut(kind, subtype="PCM_16"):
    content = encoded(SAMPLES, kind, subtype)
    return content[: len(content) - 500]


LYING = {
    "more samples than there are": (
        wav_of(format_chunk(), chunk(b"data", DATA, 2300)),
        "is damaged: 2300 bytes of samples promised, 2000 are there",
    ),
    "cut": (cut("WAV"), "is damaged: 2000 bytes of samples promised, 1500 are there"),
    "W64, cut": (cut("W64"), "is damaged: 1000 samples promised, 750 are there"),
    "AIFF, cut": (cut("AIFF"), "is damaged: 2008 bytes of samples promised, 1508 are there"),
    "AU, cut": (cut("AU"), "is damaged: 2000 bytes of samples promised, 1500 are there"),
    "SPHERE, cut": (cut("NIST"), "is damaged: 1000 samples promised, 750 are there"),
    "CAF, cut": (cut("CAF"), "is damaged: 2004 bytes of samples promised, 1492 are there"),
    "MP3, cut": (cut("MP3", "MPEG_LAYER_III"), r"is damaged: 1000 samples promised, \d+ could be read|is damaged"),
    "IMA ADPCM, cut": (cut("WAV", "IMA_ADPCM"), "is damaged: 512 bytes of samples promised, 12 are there"),
    "RF64 with 4 GB more": (rf64(DATA, 2**32 + 2000), "is damaged: 4294969296 bytes of samples promised"),
    "two formats": (
        wav_of(format_chunk(), format_chunk(), chunk(b"data", DATA)),
        r"is damaged \(Error in WAV file. No 'data' chunk marker\)",
    ),
    "twice samples": (wav_of(format_chunk(), chunk(b"data", DATA), chunk(b"data", DATA)), "is damaged"),
    "block align 0": (
        wav_of(format_chunk(block=0), chunk(b"data", DATA)),
        r"its samples have another size \(block align\): got 0 bytes, wanted 2, as PCM_16 has",
    ),
    "block align 4": (
        wav_of(format_chunk(block=4), chunk(b"data", DATA)),
        r"its samples have another size \(block align\): got 4 bytes, wanted 2, as PCM_16 has",
    ),
    "no channels": (
        wav_of(format_chunk(channels=0, block=2), chunk(b"data", DATA)),
        r"is damaged \(Channel count is zero\)",
    ),
    "65535 channels": (
        wav_of(format_chunk(channels=65535, block=65534), chunk(b"data", DATA)),
        r"is damaged \(Too many channels specified\)",
    ),
    **{
        f"{rate} Hz": (
            wav_of(format_chunk(rate=rate), chunk(b"data", DATA)),
            f"claims {rate} samples a second: wanted 1000 to 768000",
        )
        for rate in (1, 768001)
    },
    "0 Hz": (wav_of(format_chunk(rate=0), chunk(b"data", DATA)), "is damaged"),
    "4 GHz": (wav_of(format_chunk(rate=2**32 - 1), chunk(b"data", DATA)), "is damaged"),
    "0 bits": (wav_of(format_chunk(bits=0, block=2), chunk(b"data", DATA)), "is damaged"),
    "80 bits": (wav_of(format_chunk(tag=3, bits=80), chunk(b"data", DATA)), "is damaged"),
    "a chunk of 4 GB before the samples": (wav_of(format_chunk(), chunk(b"LIST", DATA, 2**32 - 1)), "is damaged"),
    "a peak of 2 GB": (
        wav_of(format_chunk(), chunk(b"PEAK", bytes(100), 2**31 - 1), chunk(b"data", DATA)),
        "is damaged",
    ),
    "an ID3 tag of 256 MB": (b"ID3\4\0\0\x7f\x7f\x7f\x7f" + encoded(SAMPLES, "MP3", "MPEG_LAYER_III"), "is damaged"),
    "an MP3 head, then zeros": (b"\xff\xfb\x90\0" + bytes(1_000_000), r"is damaged \(no samples can be found in it\)"),
    "two formats of AIFF": (
        b"FORM\0\0\0\0AIFF" + 2 * (b"COMM\0\0\0\x12" + bytes(18)),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", LYING)
def test_a_head_that_lies_is_refused_at_once_in_little_memory(name):
    content, text = LYING[name]
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DataError, match=text) as error:
        read_audio(content, sample_rate=RATE, place="train.json:7", name="a.wav")
    assert str(error.value).startswith("train.json:7: a.wav ")
    assert len(str(error.value).splitlines()) == 1
    assert time.process_time() - started < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@pytest.mark.parametrize(
    "content",
    [
        wav_of(format_chunk(), chunk(b"data", DATA, 0xFFFFFFFF)),  # ffmpeg, into a pipe
        wav_of(format_chunk(), chunk(b"data", DATA, 0x7FFFF000)),  # sox
        wav_of(format_chunk(), chunk(b"data", DATA, 0x80000000)),  # arecord
        rf64(DATA, len(DATA)),
        wav_of(format_chunk(), chunk(b"data", DATA), chunk(b"LIST", b"INFO")),
        wav_of(format_chunk(), chunk(b"data", DATA), b"what is no chunk"),
        wav_of(format_chunk(), chunk(b"fact", bytes(4)), chunk(b"data", DATA)),
        encoded(SAMPLES, "W64") + bytes(100),
        encoded(SAMPLES, "NIST") + bytes(100),
        encoded(SAMPLES, "AIFF") + bytes(100),
        encoded(SAMPLES, "AU") + bytes(100),
        encoded(SAMPLES, "CAF") + bytes(100),
        encoded(SAMPLES, "FLAC") + bytes(100),
    ],
    ids=["ffmpeg", "sox", "arecord", "RF64", "a chunk behind", "rubbish behind", "fact"]
    + [f"{kind}, rubbish behind" for kind in ("W64", "SPHERE", "AIFF", "AU", "CAF", "FLAC")],
)
def test_sizes_that_are_not_known_yet_and_what_stands_behind_the_samples_are_no_matter(content):
    np.testing.assert_array_equal(read_audio(content, sample_rate=RATE).samples, FLOATS)


def test_the_samples_of_a_block_that_is_not_whole_are_left_out():
    whole = encoded(speech_like(3000)[:, 0], "WAV", "IMA_ADPCM")
    expected = read_audio(whole, sample_rate=RATE).samples
    at = whole.index(b"data") + 4
    short = whole[:at] + struct.pack("<I", 2 * 512 + 100) + whole[at + 4 : at + 4 + 2 * 512 + 100]
    np.testing.assert_array_equal(read_audio(short, sample_rate=RATE).samples, expected[: 2 * 1017])


def test_a_sparse_file_of_gigabytes_is_refused_or_read_by_its_head(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(encoded(SAMPLES))
    os.truncate(path, 8 << 30)
    np.testing.assert_array_equal(read_audio(str(path), sample_rate=RATE).samples, FLOATS)
    path.write_bytes(wav_of(format_chunk(), chunk(b"data", b"", 2**31 - 2**20)))
    os.truncate(path, 8 << 30)
    started = time.process_time()
    with pytest.raises(DataError, match="claims 67076 s of audio: wanted at most 3600 s"):
        read_audio(str(path), sample_rate=RATE)
    for head in (b"", b"fLaC", b"ID3\4\0\0\0\0\0\x10", b"OggS"):
        path.write_bytes(head)
        os.truncate(path, 2 << 30)
        with pytest.raises(DataError):
            read_audio(str(path), sample_rate=RATE)
    assert time.process_time() - started < 2.0
