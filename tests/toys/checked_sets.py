"""Small sets of recordings for tests of what checks them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile


def sound(number: int, seconds: float = 0.5, rate: int = 16000) -> np.ndarray:
    """Noise of 16 bits, the same for the same number. (Written from floats, WAV and FLAC files differ by a bit.)"""
    return np.random.default_rng(number).integers(-(1 << 14), 1 << 14, round(seconds * rate), np.int16)


def add(folder: Path, name: str, samples: np.ndarray, rate: int = 16000, text: str = "one two", **changes: Any) -> dict:
    """Write a recording as 16-bit samples; its manifest line."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / name, samples, rate, subtype="PCM_16")
    return {"audio_filepath": name, "duration": len(samples) / rate, "text": text, **changes}


def write_set(folder: Path, name: str, *lines: dict | str) -> str:
    """A manifest of these lines; a text is written as it is. Its path, from the working directory."""
    path = folder / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return name if folder == Path.cwd() else str(path)
