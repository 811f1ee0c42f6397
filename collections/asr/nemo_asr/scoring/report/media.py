"""A recording as a player and a picture inside a page: data URLs of FLAC and PNG. No HTML in here.

The picture is made with zlib alone, so that a report needs no library for drawing.
"""

from __future__ import annotations

import base64
import io
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import torch

from nemo_asr.features.spectra import (
    centred,
    extended_signal,
    frame_count,
    mel_filterbank,
    own_samples,
    power_spectra,
    window_function,
)
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.reading import read_audio

SAMPLE_RATE = 16000  # of the players; what speech recognition hears
MAX_SECONDS = 15.0  # of a recording; the rest is left out
NUM_MELS, N_FFT, WINDOW, HOP = 80, 512, 400, 160  # window and hop in samples: 25 and 10 ms
MAX_COLUMNS = 700  # of a picture; longer recordings get a longer hop
_RANGE_DB = 80.0  # below the loudest point; what is quieter is drawn as silence
_SHADES = 64
# Perceptually rising, readable by the colour-blind; between them it is mixed.
_COLOURS = ((13, 8, 35), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))


@dataclass(frozen=True)
class Clip:
    """A recording, ready for a page.

    Attributes:
        audio: data URL of a FLAC file, mono, 16 kHz.
        picture: data URL of a PNG: time from left to right, mel bands from low (below) to high.
        seconds: how much of it is there.
        is_cut: whether the recording goes on.
    """

    audio: str
    picture: str
    seconds: float
    is_cut: bool

    @property
    def num_bytes(self) -> int:
        """What it adds to a page."""
        return len(self.audio) + len(self.picture)


def make_clip(
    path: str | Path, offset: float | None = None, duration: float | None = None, channel: int | None = None
) -> Clip:
    """Read an utterance, at most its first 15 seconds.

    Args:
        path: WAV, FLAC or OGG.
        offset: seconds where it begins; None: the whole recording.
        duration: seconds; None: to the end.
        channel: which one, from 0; None: the average of all.

    Raises:
        DataError: the recording cannot be read.
    """
    is_long = duration is not None and duration > MAX_SECONDS
    # Of a recording without a duration a little more, to see whether it goes on; it may last an hour.
    seconds = MAX_SECONDS if is_long else MAX_SECONDS + 1.0 if duration is None else duration
    samples = read_audio(
        str(path), sample_rate=SAMPLE_RATE, offset=offset, duration=seconds, channel=channel, strict=False
    ).samples
    most = round(MAX_SECONDS * SAMPLE_RATE)
    is_cut = is_long or len(samples) > most
    samples = samples[:most]
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    picture = png(spectrogram(samples))
    seconds = len(samples) / SAMPLE_RATE
    return Clip(data_url("audio/flac", file.getvalue()), data_url("image/png", picture), seconds, is_cut)


def data_url(kind: str, content: bytes) -> str:
    """The content as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def spectrogram(samples: Samples) -> npt.NDArray[np.uint8]:
    """Log-mel energies as shades, 0 (quiet) to 63: (80 bands from high to low, columns)."""
    hop = max(HOP, math.ceil(len(samples) / MAX_COLUMNS))
    signal, length = torch.from_numpy(samples)[None], torch.tensor([len(samples)])
    extended = extended_signal(own_samples(signal, length), N_FFT)
    window = centred(window_function("hann", WINDOW, periodic=False), N_FFT)
    blocks = power_spectra(extended, window, hop, frame_count(len(samples), hop))
    power = torch.cat([block[0] for _, block in blocks]).numpy()  # (T, n_fft // 2 + 1)
    mel = mel_filterbank(SAMPLE_RATE, N_FFT, NUM_MELS, 0.0, SAMPLE_RATE / 2).numpy() @ power.T
    decibel = 10.0 * np.log10(np.maximum(mel, 1e-10))
    level = np.clip((decibel - decibel.max()) / _RANGE_DB + 1.0, 0.0, 1.0)
    shades: npt.NDArray[np.uint8] = np.rint(level[::-1] * (_SHADES - 1)).astype(np.uint8)
    return shades


def png(shades: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file with a palette of 64 colours; one row of (rows, columns) after the other, from above.

    Source: W3C, "Portable Network Graphics (PNG) Specification", third edition, 2025.
    """
    rows, columns = shades.shape
    at = np.linspace(0, len(_COLOURS) - 1, _SHADES)
    mixed = [np.interp(at, range(len(_COLOURS)), part) for part in zip(*_COLOURS, strict=True)]
    palette = np.rint(np.stack(mixed, axis=1)).astype(np.uint8)  # (64, 3) red, green and blue
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), shades], axis=1)  # each row begins with its filter: 0
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),  # 8 bits a pixel, colours from a palette
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
