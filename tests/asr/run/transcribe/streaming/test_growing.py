"""Audio files that are still being written: samples as they come, headers that do not know the length, refusals."""

from __future__ import annotations

import struct
import threading
import time

import numpy as np
import pytest
import soundfile

from nemo_asr.run.transcribe.streaming import growing_audio
from nemo_lite.base.errors import DataError

RATE = 8000
SAMPLES = np.random.default_rng(0).integers(-20000, 20000, 3000).astype(np.int16)


def wav(size, codec=(1, 1, 16), extra=b""):
    """The head of a WAV file of so many bytes of samples, which may be wrong."""
    tag, channels, bits = codec
    block = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, RATE, RATE * block, block, bits)
    riff = b"RIFF" + struct.pack("<I", size) + b"WAVE"
    return riff + extra + b"fmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", size)


def heard(path, patience=0.05, channel=None, size=700):
    with growing_audio(str(path), 16000, patience, size, channel) as (rate, chunks):
        return rate, np.concatenate([np.zeros(0, np.float32), *chunks])


@pytest.mark.parametrize("size", [0, 6000, 0x7FFFF000, 0xFFFFFFFF])
def test_a_length_that_the_header_does_not_know_is_not_looked_at(tmp_path, size):
    (tmp_path / "a.wav").write_bytes(wav(size, extra=b"LIST\x03\0\0\0abc\0") + SAMPLES.tobytes() + b"x")
    rate, samples = heard(tmp_path / "a.wav")
    assert rate == RATE
    assert samples.tolist() == (SAMPLES / np.float32(32768)).tolist()


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "ULAW", "ALAW"])
def test_samples_are_those_of_the_finished_file(tmp_path, subtype):
    both = np.stack([SAMPLES, SAMPLES[::-1]], axis=1)
    soundfile.write(tmp_path / "a.wav", both, RATE, subtype=subtype)
    expected, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    for channel in (0, 1, None):
        wanted = expected.mean(axis=1) if channel is None else expected[:, channel]
        _, samples = heard(tmp_path / "a.wav", channel=channel, size=7)
        assert samples[: len(wanted)].tolist() == wanted.tolist()
        assert len(samples) - len(wanted) <= 10  # chunks behind the samples


def test_without_a_header_samples_have_16_bits(tmp_path):
    for name in ("a.pcm", "a"):
        (tmp_path / name).write_bytes(SAMPLES.tobytes())
        rate, samples = heard(tmp_path / name)
        assert rate == 16000
        assert samples.tolist() == (SAMPLES / np.float32(32768)).tolist()


@pytest.mark.slow
def test_what_is_written_later_is_heard_and_the_end_is_waited_for(tmp_path):
    content = wav(0) + SAMPLES.tobytes()

    def write():
        with open(tmp_path / "a.wav", "ab", buffering=0) as file:
            for first in range(0, len(content), 501):  # within the header and within a sample
                file.write(content[first : first + 501])
                time.sleep(0.03)

    (tmp_path / "a.wav").write_bytes(b"")
    writer = threading.Thread(target=write)
    writer.start()
    start = time.monotonic()
    _, samples = heard(tmp_path / "a.wav", patience=1.0)
    writer.join()
    assert samples.tolist() == (SAMPLES / np.float32(32768)).tolist()
    assert time.monotonic() - start > 1.3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.flac", b"fLaC" + bytes(90), r"a\.flac cannot be read while it is being written: got \.flac"),
        ("a.wav", b"RF64" + bytes(90), r"got \.wav, which does not begin as WAV does"),
        ("a", b"\x1a\x45\xdf\xa3" + bytes(90), "cannot be read while it is being written: got WebM, wanted WAV, or"),
        ("a", b"OggS" + bytes(90), "got OGG, wanted WAV, or samples without a header"),
        ("a.wav", wav(0, (3, 1, 32)), "got WAV of format 3, 32 bits, 1 channels, wanted WAV of whole numbers; record"),
        ("a.wav", wav(0, (1, 0, 16)), "16 bits, 0 channels"),
        ("a.wav", wav(0)[:20], "a WAV file without a format"),
        ("a.wav", wav(0)[:12] + b"data\0\0\0\0", "a WAV file without a format"),
    ],
)
def test_other_kinds_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        heard(tmp_path / name)


def test_a_missing_file_and_a_missing_channel_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be opened"):
        heard(tmp_path / "none.wav")
    (tmp_path / "a.pcm").write_bytes(bytes(100))
    with pytest.raises(DataError, match="has no channel 1"):
        heard(tmp_path / "a.pcm", channel=1)
