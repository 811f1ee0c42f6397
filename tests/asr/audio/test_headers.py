"""What is refused by its head, before a decoder sees it."""

import struct

import pytest
import soundfile

from nemo_asr.audio.headers import check_header
from nemo_lite.errors import DataError

RATE = 16000
IMA, GSM = 0x11, 0x31


def format_of(tag, *, channels=1, block=256, bits=4, samples=505):
    return struct.pack("<IHHIIHHHH", 20, tag, channels, RATE, RATE, block, bits, 2, samples)


def wav(*formats, before=b""):
    content = (
        b"WAVE" + before + b"".join(b"fmt " + each for each in formats) + b"data" + struct.pack("<I", 4) + bytes(4)
    )
    return b"RIFF" + struct.pack("<I", len(content)) + content


def refusal(content):
    """The text of the refusal; "" where there is none."""
    try:
        check_header(lambda size, start: content[start : start + size], len(content), "a.wav", "train.json:7")
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "content",
    [
        *(b"\xff\xfdmp2", b"<html>", b"RIFF\0\0\0\0AVI ", b"RI", b"FORM\0\0\0\0AIFC", b"FORM\0\0\0\0ILBM"),
        b"FORM\0\0\0\0AIFCCOMM\0\0\0\x16" + bytes(18) + b"ima4",
        b".snd" + struct.pack(">III", 24, 0, 23) + bytes(8),
        b"caff\0\1\0\0desc" + bytes(16) + b"alac",
    ],
)
def test_other_kinds_of_files_and_unusual_codecs_are_refused(content):
    told = refusal(content)
    assert told.startswith("train.json:7: a.wav is not a WAV, FLAC, OGG, MP3, AIFF, AU, CAF, W64 or SPHERE file")
    assert told.endswith("convert it to 16-bit WAV or FLAC")


@pytest.mark.parametrize(
    "content",
    [
        wav(format_of(GSM)),
        wav(format_of(GSM), format_of(1, bits=16)),
        wav(format_of(1, bits=16), format_of(GSM)),
        wav(format_of(GSM), before=b"LIST" + struct.pack("<I", 3) + b"abc\0"),
        wav(struct.pack("<IHHIIHHHHI", 40, 0xFFFE, 1, RATE, RATE, 256, 4, 22, 4, 4) + bytes([GSM, 0]) + bytes(14)),
    ],
    ids=["alone", "first of two formats", "second of two formats", "after an odd chunk", "extensible"],
)
def test_a_codec_that_is_not_allowed_is_found_wherever_it_stands(content):
    assert "train.json:7: a.wav has the WAV codec GSM 6.10: wanted PCM, float, G.711 or ADPCM" in refusal(content)


@pytest.mark.parametrize(
    "changes",
    [{"samples": 506}, {"samples": 65535}, {"block": 4}, {"channels": 3}, {"channels": 0}, {"bits": 16}, {"block": 0}],
)
def test_an_adpcm_header_that_contradicts_itself_never_reaches_the_decoder(changes):
    assert refusal(wav(format_of(IMA))) == ""
    wanted = "its ADPCM header contradicts itself"
    assert wanted in refusal(wav(format_of(IMA, **changes)))
    assert wanted in refusal(wav(format_of(IMA), format_of(IMA, **changes)))


@pytest.mark.parametrize("codec", ["IMA_ADPCM", "MS_ADPCM"])
@pytest.mark.parametrize(("kind", "channels"), [("WAV", 1), ("WAV", 2), ("W64", 1)])
def test_the_adpcm_headers_of_libsndfile_are_sound(kind, channels, codec, tmp_path):
    soundfile.write(tmp_path / "a", [[0.1] * channels] * 5000, RATE, codec, format=kind)
    assert refusal((tmp_path / "a").read_bytes()) == ""
    content = bytearray((tmp_path / "a").read_bytes())
    content[content.index(b"fmt ") + (26 if kind == "WAV" else 42)] ^= 1  # of the samples in a block
    assert "contradicts itself" in refusal(bytes(content))


@pytest.mark.parametrize("content", [b"RIFF\x24\0\0\0WAVEdata\0\0\0\0", b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 1000])
def test_a_wav_file_without_a_format_and_endless_chunks_are_refused(content):
    assert "a.wav is damaged: a WAV file without a format" in refusal(content)
