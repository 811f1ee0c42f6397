"""Recordings of noises, rooms and voices: the lines of their manifests, and perturbations with them."""

from __future__ import annotations

import os
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from nemo_asr.augmentation.perturbation import Perturbation, amplitude, ordered, rms, with_noise
from nemo_asr.rng import NumbersRng
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.reading import audio_seconds, excess_of, read_audio
from nemo_asr.run.manifest import read_lines
from nemo_lite.base.errors import DataError, listed
from nemo_lite.base.ranges import Between

_CHECKED = 20_000


class ListedRecording(NamedTuple):
    """One line of a manifest of noises or impulse responses: the file, and which seconds of it."""

    place: str
    path: str
    offset: float
    duration: float
    channel: int | None = None

    def read(self, sample_rate: int, first: float, seconds: float) -> Samples:
        """(T,) samples at ``sample_rate``: ``seconds`` from second ``first`` of this part of the file."""
        offset = self.offset + first
        audio = read_audio(
            self.path,
            sample_rate=sample_rate,
            offset=offset,
            duration=seconds,
            channel=self.channel,
            strict=False,
            place=self.place,
        )
        return audio.samples

    def check(self) -> None:
        """Look at the file's header.

        Raises:
            DataError: no audio, or shorter than the line says.
        """
        seconds = audio_seconds(self.path, place=self.place)
        if excess_of(seconds - self.offset, self.duration) < 0:
            raise DataError(
                f"{self.path} is shorter than its line says",
                place=self.place,
                got=f"{seconds:.3f} s",
                wanted=f"{self.offset + self.duration:.3f} s (offset + duration)",
                remedy="correct the line, or delete it",
            )


def read_recordings(manifest_path: str) -> list[ListedRecording]:
    """The recordings of a manifest: lines with a duration; a text is not needed.

    Raises:
        DataError: a manifest that cannot be read, or a line that names no recording.
    """
    source, lines = read_lines(os.path.expanduser(manifest_path), "audio")
    recordings = []
    for place, line in lines:
        if line.duration is None:
            raise DataError("no duration; write the seconds of audio", place=place)
        path, start = source.resolve(line.path), line.start or 0.0
        recordings.append(ListedRecording(place, path, start, line.duration, line.channel_number))
    return recordings


Voices: TypeAlias = Annotated[int, Between(1, 100)]

_MAX_RESPONSE_SECONDS = 60.0  # cathedrals echo for ten; the transform's memory grows with it


class _RecordingPerturbation(Perturbation):
    """Base of those that take recordings from a manifest."""

    def __init__(self, manifest_path: str, rng: NumbersRng | None) -> None:
        super().__init__(rng)
        self._recordings = read_recordings(manifest_path)

    def stretch(self, num_samples: int, sample_rate: int, rng: np.random.Generator) -> Samples:
        """(num_samples,) of a random place of a random recording; zeros around a shorter one."""
        recording = self._recordings[rng.integers(len(self._recordings))]
        seconds = num_samples / sample_rate
        first = rng.uniform(0.0, max(0.0, recording.duration - seconds))
        found = recording.read(sample_rate, first, min(seconds, recording.duration))[:num_samples]
        before = int(rng.integers(num_samples - len(found) + 1))
        return np.pad(found, (before, num_samples - len(found) - before))

    def check_files(self) -> None:
        """See that each recording is there, can be read, and holds the seconds that its line says.

        Of more than 20,000 recordings so many are looked at, evenly spread.

        Raises:
            DataError: some cannot be used: the first few, and how many.
        """
        problems = []
        step = -(-len(self._recordings) // _CHECKED)
        for recording in self._recordings[::step]:
            try:
                recording.check()
            except DataError as error:
                problems.append(str(error))
        if problems:
            raise DataError(listed(problems, len(problems)))


class NoisePerturbation(_RecordingPerturbation):
    """Add a random stretch of a random recording of a manifest, at a signal-to-noise ratio drawn evenly.

    A recording longer than the audio is cut at a random position, a shorter one is put at a random position. The ratio
    is that of the mean powers of the audio and of the stretch. If either is silent, nothing is added.

    Args:
        manifest_path: JSON lines with audio_filepath and duration, optionally offset; text is not needed.
        min_snr_db: lowest ratio in dB.
        max_snr_db: highest ratio in dB.
        max_gain_db: no recording is raised by more.

    Raises:
        DataError: a manifest or a recording that cannot be read.
    """

    def __init__(
        self,
        manifest_path: str,
        min_snr_db: float = 40.0,
        max_snr_db: float = 50.0,
        max_gain_db: float = 300.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(manifest_path, rng)
        self._limits = ordered("noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._max_gain_db = max_gain_db

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        snr_db, seconds = rng.uniform(*self._limits), len(samples) / sample_rate
        recording = self._recordings[rng.integers(len(self._recordings))]
        first = rng.uniform(0.0, max(0.0, recording.duration - seconds))
        noise = recording.read(sample_rate, first, min(seconds, recording.duration))[: len(samples)]
        level, noise_level = rms(samples), rms(noise)
        if level == 0.0 or noise_level == 0.0:
            return samples
        gain = min(level / noise_level * amplitude(-snr_db), amplitude(self._max_gain_db))
        start = rng.integers(len(samples) - len(noise) + 1)
        noisy = samples.copy()
        noisy[start : start + len(noise)] += np.float32(gain) * noise
        return noisy


class ImpulsePerturbation(_RecordingPerturbation):
    """Play in the room of a random impulse response of a manifest.

    The response's peak is the direct sound: nothing is delayed, nothing is lengthened, and the mean power stays.

    Args:
        manifest_path: JSON lines with audio_filepath and duration (at most a minute), optionally offset; text is not
            needed.

    Raises:
        DataError: a manifest or a recording that cannot be read, or a response of more than a minute.
    """

    def __init__(self, manifest_path: str, rng: NumbersRng | None = None) -> None:
        super().__init__(manifest_path, rng)
        for recording in self._recordings:
            if recording.duration > _MAX_RESPONSE_SECONDS:
                got, wanted = f"{recording.duration:g} s", f"at most {_MAX_RESPONSE_SECONDS:g} s"
                raise DataError("the impulse response is too long", place=recording.place, got=got, wanted=wanted)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        recording = self._recordings[rng.integers(len(self._recordings))]
        return _in_room(samples, recording.read(sample_rate, 0.0, recording.duration))


class RirNoisePerturbation(Perturbation):
    """Speech and noise in one room: each is played through a random impulse response, and the noise is added.

    Args:
        rir_manifest_path: impulse responses, as of `impulse`.
        noise_manifest_path: noises, as of `noise`.
        min_snr_db: lowest ratio in dB.
        max_snr_db: highest ratio in dB.

    Raises:
        DataError: a manifest or a recording that cannot be read, or a response of more than a minute.
    """

    def __init__(
        self,
        rir_manifest_path: str,
        noise_manifest_path: str,
        min_snr_db: float = 5.0,
        max_snr_db: float = 30.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(rng)
        self._limits = ordered("rir_noise", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._room = ImpulsePerturbation(rir_manifest_path)
        self._noise = NoisePerturbation(noise_manifest_path)

    def check_files(self) -> None:
        """See that the responses and the noises can be used.

        Raises:
            DataError: some cannot be used.
        """
        self._room.check_files()
        self._noise.check_files()

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        noise = self._noise.stretch(len(samples), sample_rate, rng)
        snr_db = rng.uniform(*self._limits)
        heard, noise = (self._room.perturbed(one, sample_rate, rng) for one in (samples, noise))
        return with_noise(heard, noise, snr_db)


class BabblePerturbation(_RecordingPerturbation):
    """Other people speak in the background: random recordings of a manifest, of equal loudness, at a drawn ratio.

    Args:
        manifest_path: JSON lines with audio_filepath and duration, optionally offset; the training set's will do.
        min_voices: fewest recordings at a time.
        max_voices: most recordings at a time.
        min_snr_db: lowest ratio of the speech to all of them in dB.
        max_snr_db: highest ratio in dB.

    Raises:
        DataError: a manifest or a recording that cannot be read.
    """

    def __init__(
        self,
        manifest_path: str,
        min_voices: Voices = 3,
        max_voices: Voices = 8,
        min_snr_db: float = 10.0,
        max_snr_db: float = 30.0,
        rng: NumbersRng | None = None,
    ) -> None:
        super().__init__(manifest_path, rng)
        self._limits = ordered("babble", min_snr_db=min_snr_db, max_snr_db=max_snr_db)
        self._voices = ordered("babble", min_voices=min_voices, max_voices=max_voices)

    def perturbed(self, samples: Samples, sample_rate: int, rng: np.random.Generator) -> Samples:
        least, most = self._voices
        snr_db, babble = rng.uniform(*self._limits), np.zeros_like(samples)
        for _ in range(int(rng.integers(int(least), int(most) + 1))):
            voice = self.stretch(len(samples), sample_rate, rng)
            if level := rms(voice):
                babble += voice / np.float32(level)
        return with_noise(samples, babble, snr_db)


def _in_room(samples: Samples, response: Samples) -> Samples:
    """The samples convolved with the response, its peak as the direct sound, at their mean power."""
    n_fft = 1 << (len(samples) + len(response) - 1).bit_length()
    convolved = np.fft.irfft(np.fft.rfft(samples, n_fft) * np.fft.rfft(response, n_fft), n_fft)
    peak = int(np.argmax(np.abs(response)))
    heard = convolved[peak : peak + len(samples)].astype(np.float32)
    level = rms(heard)
    return heard * np.float32(rms(samples) / level) if level else samples
