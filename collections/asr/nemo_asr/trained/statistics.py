"""measured_features: mean and deviation of each feature over recordings, for a preprocessor to normalise by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tqdm import tqdm

from nemo_asr.run.transcribe.inputs import Recording, named, rows_of
from nemo_asr.tasks.recipe import Recipe
from nemo_lite.base.errors import DataError

_LEAST_VARIANCE = 1e-10  # a feature that never changes would be divided by 0
_DIGITS = 6


class MeasuredFeatures(NamedTuple):
    """Statistics over all frames of some recordings.

    Attributes:
        mean: of each feature.
        deviation: of each feature: the root of the mean squared difference to its mean; at least the preprocessor's
            ``std_floor``.
        num_frames, num_recordings: how many there were.
    """

    mean: list[float]
    deviation: list[float]
    num_frames: int
    num_recordings: int


def measured_features(recipe: Recipe, recordings: Sequence[Recording], hours: float) -> MeasuredFeatures:
    """Mean and deviation of each feature.

    Args:
        recipe: whose preprocessor computes the features, without normalising them.
        recordings: of which as many are read, evenly from the whole list, as fill ``hours``.
        hours: of audio, at most.

    Raises:
        DataError: there is no recording, one cannot be read, or all are shorter than a frame.
    """
    measured, faults = rows_of(recordings)
    if faults:
        raise DataError(next(iter(faults.values())))
    share = min(1.0, 3600 * hours / max(sum(recording.seconds for recording in measured), 1e-9))
    # The recording at which the share of the list that was read falls behind is the next one.
    sample = [row for i, row in enumerate(measured) if int((i + 1) * share) > int(i * share)] or measured[:1]
    preprocessor, reading = recipe.preprocessor().eval(), recipe.reading
    sums, num_frames = torch.zeros(2, preprocessor.num_features, dtype=torch.float64), 0
    for recording in tqdm(sample, unit="recording", disable=None, leave=False):
        try:
            audio = recording.read(
                reading.sample_rate, trim_silence=reading.trim_silence, int_values=reading.int_values
            )
        except DataError as error:
            raise DataError(named(recording, error)) from None
        samples = torch.from_numpy(audio.samples)[None]
        features, frames = preprocessor(input_signal=samples, length=torch.tensor([samples.shape[1]]))
        valid = features[0, :, : int(frames)].double()
        sums += torch.stack([valid.sum(1), valid.square().sum(1)])
        num_frames += valid.shape[1]
    if not num_frames:
        raise DataError("there is no frame to measure", got=f"{len(sample)} recordings")
    mean, square = sums / num_frames
    # A band without signal, as above 4 kHz in telephone speech, must not become louder than speech is elsewhere.
    least = max(_LEAST_VARIANCE, float(getattr(preprocessor, "std_floor", 0.0)) ** 2)
    deviation = (square - mean.square()).clamp(min=least).sqrt()
    rounded = [[round(value, _DIGITS) for value in values.tolist()] for values in (mean, deviation)]
    return MeasuredFeatures(rounded[0], rounded[1], num_frames, len(sample))
