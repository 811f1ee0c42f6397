"""Recordings as people have them, with and without a cut into segments: word error rates of one model.

    python benchmarks/segments.py MODEL MANIFEST [--utterances 100] [--padding 0.15]

Recordings are made of the first utterances of MANIFEST (16 kHz): with silence or noise before and behind, five in a row
with pauses, noise under all of it, a loud and a soft speaker. A level is white noise in dB of full scale; speakers may
be as soft as that, so noise is also put so many dB below each utterance. The random numbers are the same in each run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import nemo_asr
from nemo_asr.run.audio.reading import read_audio
from nemo_asr.run.audio.segments import Cutting
from nemo_asr.run.manifest import read_lines

Samples: TypeAlias = "npt.NDArray[np.float32]"
RATE, IN_A_ROW = 16000, 5


class Recordings:
    """Recordings made of utterances (samples and text)."""

    def __init__(self, utterances: list[tuple[Samples, str]]) -> None:
        self._utterances = utterances
        self._random = np.random.default_rng(0)

    def noise(self, seconds: float, level: float | None) -> Samples:
        """White noise; None: digital silence."""
        size = round(seconds * RATE)
        if level is None:
            return np.zeros(size, np.float32)
        return self._random.normal(0.0, 10.0 ** (level / 20.0), size).astype(np.float32)

    def padded(self, seconds: float, level: float | None) -> Iterator[tuple[Samples, str]]:
        """Each utterance between two pauses."""
        for samples, text in self._utterances:
            yield np.concatenate([self.noise(seconds, level), samples, self.noise(seconds, level)]), text

    def in_a_row(
        self, seconds: float, level: float | None, under: float | None = None, soft: float = 0.0
    ) -> Iterator[tuple[Samples, str]]:
        """Five utterances with pauses; ``under`` all of it noise; every second one softer by ``soft`` dB."""
        for first in range(0, len(self._utterances), IN_A_ROW):
            group = self._utterances[first : first + IN_A_ROW]
            parts = []
            for number, (samples, _) in enumerate(group):
                scale = np.float32(10.0 ** (-soft / 20.0) if number % 2 else 1.0)
                parts += [samples * scale, self.noise(seconds, level)]
            whole = np.concatenate(parts)
            yield whole + self.noise(len(whole) / RATE, under), " ".join(text for _, text in group)

    def noisy(self, ratio: float) -> Iterator[tuple[Samples, str]]:
        """Each utterance with white noise ``ratio`` dB below it."""
        for samples, text in self._utterances:
            level = 10.0 * np.log10(np.mean(np.square(samples, dtype=np.float64)))
            yield samples + self.noise(len(samples) / RATE, level - ratio), text

    def kinds(self) -> dict[str, Callable[[], Iterator[tuple[Samples, str]]]]:
        """The kinds of recordings by name."""
        return {
            "alone": lambda: iter(self._utterances),
            "1 s of silence around": lambda: self.padded(1.0, None),
            "1 s of -60 dB around": lambda: self.padded(1.0, -60.0),
            "1 s of -45 dB around": lambda: self.padded(1.0, -45.0),
            "5, pauses 0.6 s, silence": lambda: self.in_a_row(0.6, None),
            "5, pauses 0.6 s, -60 dB": lambda: self.in_a_row(0.6, -60.0),
            "5, pauses 3 s, -60 dB": lambda: self.in_a_row(3.0, -60.0),
            "5, -60 dB under all": lambda: self.in_a_row(1.0, None, -60.0),
            "5, -50 dB under all": lambda: self.in_a_row(1.0, None, -50.0),
            "5, -40 dB under all": lambda: self.in_a_row(1.0, None, -40.0),
            "5, every second 20 dB softer": lambda: self.in_a_row(0.8, -70.0, None, 20.0),
            "noise 20 dB below each": lambda: self.noisy(20.0),
            "noise 10 dB below each": lambda: self.noisy(10.0),
            "noise as loud as each": lambda: self.noisy(0.0),
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("manifest")
    parser.add_argument("--utterances", type=int, default=100)
    parser.add_argument("--padding", type=float, default=Cutting().padding)
    args = parser.parse_args()
    model = nemo_asr.load_model(args.model)
    source, lines = read_lines(args.manifest, "audio")
    utterances: list[tuple[Samples, str]] = []
    for _, line in lines:
        if len(utterances) < args.utterances:
            audio = read_audio(source.resolve(line.path), sample_rate=RATE, offset=line.start, duration=line.duration)
            utterances.append((audio.samples, line.text or ""))
    print(f"{'recordings':30} {'as they are':>12} {'in segments':>12}   segments   time")
    for name, recordings in Recordings(utterances).kinds().items():
        sounds, texts = zip(*recordings(), strict=True)
        rates, times, number = [], [], 0
        for cutting in (None, Cutting(padding=args.padding)):
            start = time.perf_counter()
            transcripts = model.transcribe(list(sounds), sample_rate=RATE, cutting=cutting)
            times.append(time.perf_counter() - start)
            number = sum(len(transcript.segments) for transcript in transcripts)
            rates.append(100.0 * _rate([transcript.text for transcript in transcripts], list(texts)))
        print(f"{name:30} {rates[0]:10.2f} % {rates[1]:10.2f} %   {number:8d}   {times[1] / times[0]:.2f}", flush=True)


def _rate(hypotheses: list[str], references: list[str]) -> Any:
    return nemo_asr.word_error_rate(hypotheses, references)


if __name__ == "__main__":
    main()
