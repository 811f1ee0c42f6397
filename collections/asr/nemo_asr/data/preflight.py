"""What can be known of a training set before audio is decoded: missing files, unusable texts, CTC feasibility."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.audio.augmentor import AudioAugmentor
from nemo_asr.data.dataset import SpeechDataset
from nemo_asr.data.utterances import Mask, R, Utterance, Utterances
from nemo_asr.text.parser import CharParser
from nemo_lite.backends.pytorch.data import DataChangedError, listed
from nemo_lite.errors import DataError
from nemo_lite.utils import logging

CHECKED_LINES = 20_000
_BLOCK_LINES = 1 << 16
_SHOWN_CHARACTERS = 80
_TRIMMED_SHARE = 0.25
_TRIMMED_LEAST = 0.99  # durations are rounded
_TRIMMED, _FASTEST = " without the silence at both ends", " at the fastest speed"
_MOST_SECONDS = 1e6  # a larger duration is a mistake, found when the audio is read; here its samples must fit an int64


class Infeasible(NamedTuple):
    """An utterance whose text does not fit its frames.

    Attributes:
        row: its position.
        place: where it comes from.
        frames: frames that the encoder gives for it.
        needed: frames that its text needs: one for each label, and one more between equal neighbours.
        text: its text as written.
        when: what made the frames so few: nothing, silence that is left out, perturbations.
        is_always: not only when perturbations happen to make it short.
    """

    row: int
    place: str
    frames: int
    needed: int
    text: str
    when: str = ""
    is_always: bool = True

    def __str__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return f'{self.place}: {self.frames} frames{self.when} cannot hold "{text}", which needs {self.needed}'


def unwritable(
    utterances: Utterances[Any],
    parser: CharParser,
    *,
    files_too: bool = True,
    strict: bool = False,
    limit: int = CHECKED_LINES,
) -> tuple[Mask, bool]:
    """Look at each utterance (at ``limit`` of them, evenly spread, in a larger set) for its text and its audio.

    The rest is looked at when it is read. Characters outside the vocabulary are counted in the parser.

    Args:
        files_too: whether the audio has to be there.
        strict: whether letters that the labels lack are an error.

    Returns:
        (N,) true where the vocabulary cannot write the text or there is none, and whether all were looked at.

    Raises:
        DataError: audio or text files are missing or empty, or letters are missing: the first few, and how many.
    """
    total, reader = len(utterances), utterances.reader
    rows = np.unique(np.linspace(0, total - 1, min(limit, total)).astype(np.int64))
    refused = np.zeros(total, bool)
    problems: list[str] = []
    notes = Counter[str]()
    for row, ref in zip(rows, utterances.refs(rows), strict=True):
        try:
            utterance = reader.utterance(ref)
            notes.update(filter(None, [utterance.note]))
            if files_too:
                reader.check_audio(utterance)
            if strict:
                parser.check_letters(utterance.text, utterance.place)
        except DataChangedError:
            raise
        except DataError as error:
            problems.append(str(error))
            continue
        refused[row] = parser(utterance.text) is None
    if problems:
        raise DataError(listed(problems, len(problems)))
    for note, count in notes.items():
        logging.info(f"{utterances.name}: {count} of {len(rows)} utterances {note}")
    return refused, len(rows) == total


def require_texts(utterances: Utterances[Any], rows: Sequence[int]) -> None:
    """Raise DataError if an utterance at one of these rows has no text: with the first few, and how many."""
    missing = [row for row in rows if not utterances.utterance(row).text.strip()]
    if missing:
        problem = "text is missing or empty; write the words, or delete the line"
        raise DataError(listed([f"{utterances.place(row)}: {problem}" for row in missing], len(missing)))


def infeasible(
    utterances: Utterances[Any],
    dataset: SpeechDataset[Any],
    frames_of: Callable[[int], int],
    lengths: npt.NDArray[np.int64] | None = None,
    augmentor: AudioAugmentor | None = None,
) -> list[Infeasible]:
    """The utterances that have no CTC alignment: labels + equal neighbours > frames. Their loss would be infinite.

    Frames follow from the known duration. Where silence at both ends is left out, the audio is read of those whose
    text would need a quarter of their frames or more: of the 20,000 with the longest texts for their frames.

    Args:
        frames_of: frames out of the encoder for a number of samples at the data set's rate.
        lengths: (N,) how long each is; None: samples, by its known duration.
        augmentor: perturbations that may shorten audio; those whose text then does not fit are told too.
    """
    num_samples = lengths_in_samples(utterances, dataset.reading.sample_rate) if lengths is None else lengths
    frames_of = functools.cache(frames_of)
    trims = dataset.reading.trim_silence and dataset.reading.load_audio
    found, tight = [], list[_Tight]()
    for (row, ref), count in zip(_all_refs(utterances), num_samples.tolist(), strict=True):
        utterance = utterances.reader.utterance(ref)
        try:
            ids = dataset.label_ids(utterance)
        except DataError:
            continue  # it will be left out for its text
        least = frames_of(count if augmentor is None else int(augmentor.min_augmentation_length(count)))
        if 2 * len(ids) <= least * (_TRIMMED_SHARE if trims else 1):
            continue  # fits even if all neighbours were equal; counting them takes longer than all the rest
        needed = len(ids) + sum(left == right for left, right in itertools.pairwise(ids))
        if one := _misfit(row, utterance, needed, count, frames_of, augmentor):
            found.append(one)
        if trims and needed > least * _TRIMMED_SHARE and not (one and one.is_always):
            tight.append(_Tight(needed / max(least, 1), needed, row, utterance))
    if not tight:
        return found
    tight = sorted(tight, key=lambda each: -each.share)[:CHECKED_LINES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        trimmed = list(pool.map(lambda each: _samples_left(dataset, each.utterance), tight))
    by_row = {one.row: one for one in found}
    for each, count in zip(tight, trimmed, strict=True):
        text = _TRIMMED if count < _TRIMMED_LEAST * num_samples[each.row] else ""
        if one := _misfit(each.row, each.utterance, each.needed, count, frames_of, augmentor, text):
            by_row[each.row] = one
    return [by_row[row] for row in sorted(by_row)]


class _Tight(NamedTuple):
    """An utterance whose text might not fit when silence is left out: the part of the frames that the text needs."""

    share: float
    needed: int
    row: int
    utterance: Utterance


def _misfit(
    row: int,
    utterance: Utterance,
    needed: int,
    count: int,
    frames_of: Callable[[int], int],
    augmentor: AudioAugmentor | None,
    when: str = "",
) -> Infeasible | None:
    """The utterance, if its text does not fit: in ``count`` samples, or in as few as perturbations may leave."""
    frames = frames_of(count)
    if needed > frames:
        return Infeasible(row, utterance.place, frames, needed, utterance.text, when)
    if augmentor is None:
        return None
    frames = frames_of(int(augmentor.min_augmentation_length(count)))
    if needed <= frames:
        return None
    return Infeasible(row, utterance.place, frames, needed, utterance.text, f"{when}{_FASTEST}", False)


def _samples_left(dataset: SpeechDataset[Any], utterance: Utterance) -> int:
    """Samples without the silence at both ends. What cannot be read is found when it is read for training."""
    try:
        return len(dataset.samples(utterance, defaultdict(Counter)))
    except DataError:
        return sys.maxsize


def _all_refs(utterances: Utterances[R]) -> Iterator[tuple[int, R]]:
    """Each row and its reference; the references of a few rows are held at a time."""
    for first in range(0, len(utterances), _BLOCK_LINES):
        rows = range(first, min(first + _BLOCK_LINES, len(utterances)))
        yield from zip(rows, utterances.refs(rows), strict=True)


def lengths_in_samples(utterances: Utterances[Any], sample_rate: int) -> npt.NDArray[np.int64]:
    """(N,) samples of each utterance, by its known duration."""
    seconds = np.minimum(utterances.durations.astype(np.float64), _MOST_SECONDS)
    num_samples: npt.NDArray[np.int64] = np.rint(seconds * sample_rate).astype(np.int64)
    return num_samples
