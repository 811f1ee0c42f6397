"""Pauses: at the ends of an utterance and inside it, and between utterances that are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.augmentation.perturbation import Perturbation, amplitude, coloured_noise, ordered
from nemo_asr.rng import NumbersRng
from nemo_asr.run.arguments import Duration
from nemo_asr.run.audio.files import Samples
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between, Share

PauseSeconds: TypeAlias = Annotated[float, Between(0, 60)]

# Where a pause may be put: at least 8 frames of 10 ms in a row that are 35 dB below the loudest. Closures of plosives
# inside words are mostly shorter.
_LEVEL_SECONDS, _QUIET_DB, _QUIET_FRAMES = 0.01, 35.0, 8


class _PausePerturbation(Perturbation):
    """Base of those that make pauses: digital silence, or noise of a random level and colour."""

    def __init__(self, place: str, min_level: float, max_level: float, digital: float, rng: NumbersRng | None) -> None:
        super().__init__(rng)
        self._limits = ordered(place, min_level=min_level, max_level=max_level)
        self._digital = digital

    def _paused(self, parts: Sequence[Samples], gaps: Sequence[int], rng: np.random.Generator) -> Samples:
        """The parts with gaps of so many samples before, between and behind them: there is one gap more."""
        silences = [np.zeros(gap, np.float32) for gap in gaps]
        alternating = [piece for pair in zip(silences, parts, strict=False) for piece in pair]
        paused = np.concatenate([*alternating, silences[-1]])
        if rng.random() < self._digital:
            return paused
        noise = coloured_noise(len(paused), amplitude(rng.uniform(*self._limits)), rng)
        if rng.random() < 0.5:
            first = 0
            for gap, part in zip(gaps, parts, strict=False):
                noise[first + gap : first + gap + len(part)] = 0.0
                first += gap + len(part)
        return paused + noise


class SilencePerturbation(_PausePerturbation):
    """Pauses before and after the speech, and inside it at its quiet stretches: digital silence, or noise.

    Recordings of users begin and end in silence, and have pauses; recordings of corpora are cut at the speech. The
    noise of a recording has one level and one colour, drawn anew; half of the time it also lies below the speech.

    Args:
        max_seconds: longest pause at either end; its length is drawn evenly from 0.
        max_inside_seconds: longest pause that is put into a quiet stretch inside; 0: none.
        max_inside: most pauses that are put inside.
        min_level: lowest level of the noise in dB of full scale.
        max_level: highest level of the noise in dB of full scale.
        digital: how often pauses are digital silence in the place of noise.
    """

    def __init__(
        self,
        max_seconds: PauseSeconds = 1.0,
        max_inside_seconds: PauseSeconds = 0.5,
        max_inside: Annotated[int, Between(0, 100)] = 1,
        min_level: float = -80.0,
        max_level: float = -40.0,
        digital: Share = 0.3,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__("silence", min_level, max_level, digital, rng)
        self._max_seconds, self._max_inside_seconds = max_seconds, max_inside_seconds
        self._max_inside = max_inside

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        num_inside = int(rng.integers(self._max_inside + 1)) if self._max_inside_seconds else 0
        starts = _pause_places(samples, sample_rate)
        starts = np.sort(rng.choice(starts, min(num_inside, len(starts)), replace=False))
        before, after = rng.uniform(0.0, self._max_seconds, 2)
        seconds = [before, *rng.uniform(0.0, self._max_inside_seconds, len(starts)), after]
        return self._paused(np.split(samples, starts), [round(length * sample_rate) for length in seconds], rng)

    def max_augmentation_length(self, length: float) -> float:
        """Of seconds: pauses are in seconds, whatever the audio's length is."""
        return length + 2 * self._max_seconds + self._max_inside * self._max_inside_seconds


class JoinPerturbation(_PausePerturbation):
    """Utterances of the training set in a row, with pauses between them, and their texts joined.

    A data layer of transcribed speech does it, before all other perturbations and whatever its place among them. The
    first utterance is the epoch's next one; those behind it are drawn from the whole set (in tar shards, from the
    256 behind it). So an epoch has its number of steps, each utterance in its turn, and more audio than the set.

    Args:
        max_utterances: most utterances in a row; their number is drawn evenly from 2.
        max_duration: seconds that no row exceeds, pauses included; utterances that would are not joined.
        min_gap: shortest pause between two, in seconds.
        max_gap: longest pause between two, in seconds.
        min_level: lowest level of the noise in pauses in dB of full scale.
        max_level: highest level of the noise in pauses in dB of full scale.
        digital: how often pauses are digital silence in the place of noise.
    """

    def __init__(
        self,
        max_utterances: Annotated[int, Between(2, 100)] = 3,
        max_duration: Duration = 16.7,
        min_gap: PauseSeconds = 0.2,
        max_gap: PauseSeconds = 1.0,
        min_level: float = -80.0,
        max_level: float = -40.0,
        digital: Share = 0.3,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__("join", min_level, max_level, digital, rng)
        self._gaps = ordered("join", min_gap=min_gap, max_gap=max_gap)
        self.max_utterances, self.max_duration, self.max_gap = max_utterances, float(max_duration), float(max_gap)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        """One waveform has no others to be joined with.

        Raises:
            UsageError: always.
        """
        problem, wanted = "join needs other utterances and texts", "a data layer of transcribed speech"
        raise UsageError(problem, place="augmentor.join", got="one waveform", wanted=wanted)

    def joined(self, parts: Sequence[Samples], sample_rate: int, rng: np.random.Generator) -> Samples:
        """(T,) float32: the utterances in a row, with pauses between them."""
        seconds = rng.uniform(*self._gaps, len(parts) - 1)
        return self._paused(parts, [0, *(round(gap * sample_rate) for gap in seconds), 0], rng)


def _pause_places(samples: Samples, sample_rate: int) -> npt.NDArray[np.int64]:
    """The middles of the stretches inside that are quiet for long enough to lie between words."""
    size = max(round(_LEVEL_SECONDS * sample_rate), 1)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    powers = np.square(frames, dtype=np.float64).mean(axis=1)
    loud = np.flatnonzero(powers > powers.max(initial=0.0) * 10.0 ** (-_QUIET_DB / 10))
    lengths = np.diff(loud) - 1
    wide = lengths >= _QUIET_FRAMES
    middles: npt.NDArray[np.int64] = (loud[:-1][wide] + 1 + lengths[wide] // 2) * size
    return middles
