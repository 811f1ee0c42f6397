"""Audio files in memory: sound ones, ones whose heads lie, and ones that were damaged."""

import io
import struct

import numpy as np
import soundfile

RATE = 16000


def encoded(samples, kind="WAV", subtype="PCM_16", rate=RATE):
    """The content of a file; samples are (T,) or (T, channels)."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def speech_like(num_frames, num_channels=1, seed=0):
    """16-bit samples that are nowhere 0 for long, and differ between channels."""
    rng = np.random.default_rng(seed)
    time = np.arange(num_frames)[:, None] / RATE
    tones = 8000 * np.sin(2 * np.pi * time * np.array([300, 500, 700, 900])[:num_channels])
    return (tones + rng.normal(0, 300, (num_frames, num_channels))).astype(np.int16)


def chunk(name, content, size=None):
    return name + struct.pack("<I", len(content) if size is None else size) + content + bytes(len(content) % 2)


def format_chunk(tag=1, channels=1, rate=RATE, bits=16, block=None):
    block = channels * bits // 8 if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block % 2**32, block, bits))


def wav(*chunks, magic=b"RIFF"):
    content = b"WAVE" + b"".join(chunks)
    return magic + struct.pack("<I", len(content)) + content


def rf64(data, data_bytes):
    """With the true size of the samples, or another one."""
    sizes = chunk(b"ds64", struct.pack("<QQQI", 100, data_bytes, data_bytes // 2, 0))
    return wav(sizes, format_chunk(), chunk(b"data", data, 0xFFFFFFFF), magic=b"RF64")


def mutated(content, rng):
    """A damaged copy: bytes flipped, lost, added, zeroed or doubled, the end cut off, or a number at its limit."""
    content = bytearray(content)
    # As often in the first bytes, where the promises stand, as anywhere.
    start = int(rng.integers(min(64, len(content)) if rng.random() < 0.5 else len(content)))
    length = int(rng.integers(1, 64))
    way = int(rng.integers(7))
    if way == 0:
        for place in rng.integers(start, len(content), rng.integers(1, 9)):
            content[place] ^= int(rng.integers(1, 256))
    elif way == 1:
        del content[start : start + length % 8 + 1]
    elif way == 2:
        content[start:start] = rng.bytes(length)
    elif way == 3:
        content[start : start + length] = bytes(min(length, len(content) - start))
    elif way == 4:
        content[start:start] = content[start : start + length]
    elif way == 5:
        del content[start:]
    else:
        limit = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0"][rng.integers(5)]
        content[start : start + 4] = limit
    return bytes(content)
