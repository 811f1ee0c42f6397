"""Recordings of spoken digits, where they lie beside the checkout, as manifests of digits, of speakers, of silence."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).resolve().parents[2]
# Beside the checkout, or beside one of the folders around it.
FOLDER = next((found for folder in ROOT.parents if (found := folder / "shared/data/fsdd").is_dir()), Path("nowhere"))
needs_digits = pytest.mark.skipif(not FOLDER.is_dir(), reason="the spoken digits are not beside this checkout")
RATE = 8000
SETS = ("train", "test")


def recordings(of_set):
    """The lines of a set, with whole paths."""
    for line in (FOLDER / f"{of_set}.json").read_text().splitlines():
        read = json.loads(line)
        yield {**read, "audio_filepath": str(FOLDER / read["audio_filepath"])}


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def digit_sets(folder):
    """Which digit: two manifests; the takes of the second are in the first not."""
    for of_set in SETS:
        lines = [
            {"audio_filepath": line["audio_filepath"], "duration": line["duration"], "command": line["text"]}
            for line in recordings(of_set)
        ]
        yield written(folder / f"digits_{of_set}.json", lines)


def speaker_sets(folder):
    """Which speaker."""
    for of_set in SETS:
        lines = [
            {"audio_filepath": line["audio_filepath"], "duration": line["duration"], "label": line["speaker"]}
            for line in recordings(of_set)
        ]
        yield written(folder / f"speakers_{of_set}.json", lines)


PIECE = 0.63  # seconds, as in the field's sets of speech and background


def room_noise(samples, num_samples, rng):
    """Noise with the spectrum of the quietest tenth of a recording: what its room and its microphone sound like."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, 256)[::64]
    energies = (frames**2).sum(axis=1)
    quiet = frames[energies <= np.quantile(energies, 0.1)] * np.hanning(256)
    spectrum = np.abs(np.fft.rfft(quiet, axis=1)).mean(axis=0) / np.sqrt((np.hanning(256) ** 2).sum())
    white = np.fft.rfft(rng.standard_normal(num_samples))
    return np.fft.irfft(white * np.interp(np.linspace(0, 1, len(white)), np.linspace(0, 1, 129), spectrum), num_samples)


def activity_sets(folder, num_train=600):
    """Speech or background: of each recording a piece with it and a piece of its room's noise, at any loudness.

    All pieces of a set are in one file, one behind the other, and a manifest line has the offset of its piece.
    """
    size = round(PIECE * RATE)
    for of_set in SETS:
        rng = np.random.default_rng(len(of_set))
        pieces, lines = [], []
        takes = list(recordings(of_set))
        for line in takes[:: max(len(takes) // num_train, 1)]:
            samples, _ = soundfile.read(line["audio_filepath"])
            start = rng.integers(max(size - len(samples), 0) + 1)
            speech = room_noise(samples, size, rng)
            said = samples[: size - start]
            speech[start : start + len(said)] += said
            for label, piece in (("speech", speech), ("background", room_noise(samples, size, rng))):
                loudness = 0.5 * 10 ** rng.uniform(-1.5, 0)  # from 36 dB to 6 dB below full scale
                where = {"offset": len(pieces) * size / RATE, "duration": PIECE}
                lines.append({"audio_filepath": f"activity_{of_set}.wav", **where, "text": "_", "label": label})
                pieces.append(piece * loudness / np.abs(piece).max())
        soundfile.write(folder / f"activity_{of_set}.wav", np.concatenate(pieces), RATE)
        yield written(folder / f"activity_{of_set}.json", lines)
