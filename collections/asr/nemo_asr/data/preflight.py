"""What can be known of a training set before audio is decoded: missing files, unusable texts, CTC feasibility."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.data.dataset import AudioTextDataset
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.manifest_lines import LineRef, ManifestChangedError, Utterance, listed
from nemo_asr.text.parser import CharParser
from nemo_lite.errors import DataError

CHECKED_LINES = 20_000
_BLOCK_LINES = 1 << 16
_SHOWN_CHARACTERS = 80
_MOST_SECONDS = 1e6  # a larger duration is a mistake, found when the audio is read; here its samples must fit an int64


Integers: TypeAlias = "npt.NDArray[np.int64]"


class Infeasible(NamedTuple):
    """An utterance whose text does not fit its frames.

    Attributes:
        row: its position in the manifest as filtered.
        place: ``manifest:line``.
        frames: frames that the encoder gives for it.
        needed: frames that its text needs: one for each label, and one more between equal neighbours.
        text: its text as written.
    """

    row: int
    place: str
    frames: int
    needed: int
    text: str

    def __str__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return f'{self.place}: {self.frames} frames cannot hold "{text}", which needs {self.needed}'


def checked(
    manifest: Manifest, parser: CharParser, *, files_too: bool = True, limit: int = CHECKED_LINES
) -> tuple[Manifest, bool]:
    """Look at every line (at ``limit`` of them, evenly spread, in a larger set) for its text and its audio file.

    The rest is looked at when it is read. Characters outside the vocabulary are counted in the parser.

    Args:
        files_too: whether the audio files have to be there.

    Returns:
        The manifest without the utterances whose text the vocabulary cannot write, and whether every line was seen.

    Raises:
        DataError: audio or text files are missing or empty: the first few, and how many.
    """
    rows = np.unique(np.linspace(0, len(manifest) - 1, min(limit, len(manifest))).astype(np.int64))
    refused = np.zeros(len(manifest), bool)
    problems: list[str] = []
    for ref in manifest.refs(rows):
        try:
            utterance = manifest.reader.utterance(ref)
            if files_too:
                _check_file(utterance)
        except ManifestChangedError:
            raise
        except DataError as error:
            problems.append(str(error))
            continue
        refused[ref.row] = parser(utterance.text) is None
    if problems:
        raise DataError(listed(problems, len(problems)))
    return manifest.without(refused, "with a text that the vocabulary cannot write"), len(rows) == len(refused)


def _check_file(utterance: Utterance) -> None:
    try:
        status = os.stat(utterance.audio_path)
    except OSError as error:
        problem = f"the audio file {utterance.audio_path} cannot be opened ({error.strerror})"
        raise DataError(problem, place=utterance.place, remedy="mend the path, or delete the line") from None
    if stat.S_ISDIR(status.st_mode):
        problem = f"the audio file {utterance.audio_path} is a folder"
        raise DataError(problem, place=utterance.place, remedy="mend the path, or delete the line")
    if status.st_size == 0:
        problem = f"the audio file {utterance.audio_path} is empty (0 bytes)"
        raise DataError(problem, place=utterance.place, remedy="make it again, or delete the line")


def infeasible(manifest: Manifest, dataset: AudioTextDataset, frames_of: Callable[[int], int]) -> list[Infeasible]:
    """The utterances that have no CTC alignment: labels + equal neighbours > frames. Their loss would be infinite.

    Frames follow from the duration in the manifest; trimming silence and changing the speed are not foreseen.

    Args:
        frames_of: frames out of the encoder for a number of samples at the data set's rate.
    """
    num_samples = lengths_in_samples(manifest, dataset.reading.sample_rate)
    frames = {int(count): frames_of(int(count)) for count in np.unique(num_samples)}
    found = []
    for ref, count in zip(_all_refs(manifest), num_samples.tolist(), strict=True):
        utterance = manifest.reader.utterance(ref)
        try:
            ids = dataset.label_ids(utterance)
        except DataError:
            continue  # it will be left out for its text
        if 2 * len(ids) <= frames[count]:
            continue  # fits even if all neighbours were equal; counting them takes longer than all the rest
        needed = len(ids) + sum(left == right for left, right in itertools.pairwise(ids))
        if needed > frames[count]:
            found.append(Infeasible(ref.row, utterance.place, frames[count], needed, utterance.text))
    return found


def _all_refs(manifest: Manifest) -> Iterator[LineRef]:
    """Every utterance in turn; those of a few lines are held at a time."""
    for first in range(0, len(manifest), _BLOCK_LINES):
        yield from manifest.refs(np.arange(first, min(first + _BLOCK_LINES, len(manifest))))


def lengths_in_samples(manifest: Manifest, sample_rate: int) -> Integers:
    """(N,) samples of each utterance, by its duration in the manifest."""
    seconds = np.minimum(manifest.durations.astype(np.float64), _MOST_SECONDS)
    num_samples: Integers = np.rint(seconds * sample_rate).astype(np.int64)
    return num_samples
