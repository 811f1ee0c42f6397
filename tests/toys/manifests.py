"""Manifest lines; a small manifest with its audio files, and data layers over it."""

import json

import numpy as np
import pytest
import soundfile

from nemo_asr import AudioToTextDataLayer
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import DataError

LABELS = [" ", "a", "b", "c"]


def make_set(folder, num_items=12, name="train.json", **changes):
    """Utterance number n (from 1) lasts n hundredths of a second above 0.2 s and says "a" or "ab" in turn."""
    lines = []
    for number in range(1, num_items + 1):
        samples = np.random.default_rng(number).uniform(-0.5, 0.5, 3200 + 160 * number)
        soundfile.write(folder / f"{number}.wav", samples, 16000)
        line = {
            "audio_filepath": f"{number}.wav",
            "duration": len(samples) / 16000,
            "text": "a" if number % 2 else "ab",
        }
        lines.append({**line, **changes})
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def layer_of(manifest="train.json", batch_size=4, **arguments):
    return AudioToTextDataLayer(manifest_filepath=manifest, labels=LABELS, batch_size=batch_size, **arguments)


def damage(folder, *numbers):
    for number in numbers:
        (folder / f"{number}.wav").write_bytes(b"RIFF damaged")


def entry(**changes):
    """One manifest line; None leaves a key out."""
    line = {"audio_filepath": "wav/a.wav", "duration": 1.5, "text": "one two", **changes}
    return {key: value for key, value in line.items() if value is not None}


def write(path, *lines):
    """A manifest of these lines; bytes are written as they are."""
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return str(path)


def refusal(*lines, folder):
    """The text of the error that these lines are refused with."""
    write(folder / "train.json", *lines)
    with pytest.raises(DataError) as error:
        Manifest.open("train.json")
    return str(error.value)
