"""From utterances to padded batches of audio and labels: what a worker process does. No order, no fault budget."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.augmentation import AudioAugmentor, JoinPerturbation
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.reading import read_audio
from nemo_asr.run.manifest import R, Utterance, UtteranceReader, Utterances
from nemo_asr.run.text.parser import CharParser
from nemo_lite.backends.pytorch.data.loaders import Counts, ItemDataset, PlannedLoader, Request
from nemo_lite.base.errors import DataChangedError, DataError

Item = tuple[Samples, list[int]]
_STREAM_OF_ROWS = 1 << 62  # draws of their own: no utterance has this position
# Kinds of findings that are no faults: files by their other rate, by their several channels, by the seconds (rounded to
# a tenth) that they hold beyond their stated duration; characters.
RESAMPLED, MIXED_DOWN, OTHER_DURATION, UNKNOWN = "resampled", "mixed_down", "other_duration", "unknown"


@dataclass(frozen=True)
class Reading:
    """How an utterance becomes numbers; see `AudioToTextDataLayer`.

    Args:
        durations_told: do not count files that are longer or shorter than stated: they have been told of.
    """

    sample_rate: int = 16000
    int_values: bool = False
    trim_silence: bool = False
    load_audio: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    strict_data: bool = False
    durations_told: bool = False


class JoinedRef(NamedTuple):
    """Where an utterance is, and where those are that stand behind it in a row: see `JoinPerturbation`."""

    first: Any
    others: tuple[Any, ...]


class RepeatedRef(NamedTuple):
    """Where an utterance is that has come ``turn`` times in the epoch before; its draws are others each time."""

    ref: Any
    turn: int


class Rows(NamedTuple):
    """Which utterances an epoch joins.

    Attributes:
        others: (most, N) positions of those behind each utterance; -1: no more.
        durations: (N,) seconds, of a row with its longest pauses.
    """

    others: npt.NDArray[np.int64]
    durations: npt.NDArray[np.float32]


class JoinedRows:
    """Draws the utterances behind each one, for an epoch at a time: a function of (seed, epoch, position, durations).

    Args:
        probability: of a row.
        join: how long rows are.
        durations: (N,) seconds of each utterance.
        seed: base of the draws.
        reach: so many behind an utterance can follow it, in a circle. None: all.
        max_duration: seconds that no row exceeds; None: as ``join`` says.
    """

    def __init__(
        self,
        probability: float,
        join: JoinPerturbation,
        durations: npt.NDArray[np.float32],
        seed: int,
        reach: int | None = None,
        max_duration: float | None = None,
    ) -> None:
        self._probability, self._join, self._durations, self._seed = probability, join, durations, seed
        self._reach = min(reach or len(durations), len(durations) - 1)
        self._limit = join.max_duration if max_duration is None else min(join.max_duration, max_duration)
        self._of_epoch: tuple[int, Rows] | None = None

    def __call__(self, epoch: int) -> Rows:
        """The rows of an epoch. Those of the newest one are kept."""
        if self._of_epoch is None or self._of_epoch[0] != epoch:
            self._of_epoch = epoch, self._drawn(epoch)
        return self._of_epoch[1]

    def refs(self, epoch: int, rows: Sequence[int], refs_of: Callable[[Sequence[int]], Sequence[R]]) -> list[Any]:
        """References of the utterances at some positions: `JoinedRef` where others stand behind one."""
        others = self(epoch).others[:, rows].T
        behind = iter(refs_of(others[others >= 0].tolist()))
        found = [tuple(next(behind) for _ in range(int((row >= 0).sum()))) for row in others]
        return [JoinedRef(ref, some) if some else ref for ref, some in zip(refs_of(rows), found, strict=True)]

    def _drawn(self, epoch: int) -> Rows:
        num_items, most = len(self._durations), self._join.max_utterances - 1
        rng = np.random.default_rng([self._seed, epoch, _STREAM_OF_ROWS])
        drawn = rng.random(num_items) < self._probability
        wanted = np.where(drawn & (self._reach > 0), rng.integers(1, most + 1, num_items), 0)
        others = np.full((most, num_items), -1, np.int64)
        durations = self._durations.astype(np.float64)
        goes_on = np.ones(num_items, bool)
        for number in range(most):
            behind = rng.integers(1, max(self._reach, 1) + 1, num_items)
            position = (np.arange(num_items) + behind) % num_items
            longer = durations + self._join.max_gap + self._durations[position]
            goes_on &= (wanted > number) & (longer <= self._limit)
            others[number, goes_on] = position[goes_on]
            durations = np.where(goes_on, longer, durations)
        return Rows(others, durations.astype(np.float32))


class BatchShape(NamedTuple):
    """How large a batch is.

    Attributes:
        items: utterances.
        seconds: of the longest one.
        labels: of the longest text.
    """

    items: int
    seconds: float
    labels: int


class SpeechDataset(ItemDataset[R, Item]):
    """Samples and label ids of utterances; a batch is audio (B, T), its lengths (B,), ids (B, U), their lengths (B,).

    Args:
        reader: finds utterances.
        parser: turns text into label ids.
        reading: how audio is read and what surrounds the label ids.
        augmentor: perturbs audio in training; its draws follow from (seed, epoch, position), so any number of ranks and
            workers perturbs an utterance alike.
        seed: base of the draws.
    """

    def __init__(
        self,
        reader: UtteranceReader[R],
        parser: CharParser,
        reading: Reading,
        augmentor: AudioAugmentor | None = None,
        seed: int = 0,
    ) -> None:
        self.reader, self.parser, self.reading, self.augmentor, self.seed = reader, parser, reading, augmentor, seed

    def read(self, position: int, ref: R, request: Request[R], counts: Counts) -> Item:
        """Samples (T,) and label ids of one utterance, or of several in a row."""
        once, *turn = ref if isinstance(ref, RepeatedRef) else (ref,)
        first, others = once if isinstance(once, JoinedRef) else (once, ())
        parts, texts = [], []
        for number, one in enumerate((first, *others)):
            is_again = turn or number > 0  # each utterance is counted in its own turn
            noted: Counts = defaultdict(Counter) if is_again else counts
            try:
                samples, ids = self._read_one(one, noted, may_be_empty=not request.training)
            except DataChangedError:
                raise
            except DataError:
                if number == 0:
                    raise
                continue  # it is told in its own turn
            parts.append(samples)
            texts.append(ids)
        ids = self._surrounded(texts[0] if len(texts) == 1 else self.parser.joined(texts))
        samples = parts[0]
        if self.augmentor is not None and request.training and self.reading.load_audio:
            rng = np.random.default_rng([self.seed, request.epoch, position, *turn])
            if len(parts) > 1 and self.augmentor.join is not None:
                samples = self.augmentor.join[1].joined(parts, self.reading.sample_rate, rng)
            samples = self.augmentor.perturbed(samples, self.reading.sample_rate, rng)
        return samples, ids

    def _read_one(self, ref: R, counts: Counts, *, may_be_empty: bool) -> Item:
        """Samples (T,) and the ids of its text alone."""
        utterance = self.reader.utterance(ref)
        self.parser.unknown.clear()
        try:
            ids = self._text_ids(utterance.text, utterance.place, may_be_empty=may_be_empty)
        finally:
            counts[UNKNOWN].update(self.parser.unknown)
        if not self.reading.load_audio:
            return np.zeros(0, np.float32), ids
        return self.samples(utterance, counts), ids

    def collate(self, items: Sequence[Item]) -> tuple[Tensor, ...]:
        """See :func:`collate`."""
        audio, labels = zip(*items, strict=True)
        return collate(audio, labels, self.reading.pad_id or 0)

    def made_up(self, shape: BatchShape) -> tuple[Tensor, ...] | None:
        """A batch of noise of this shape, as :meth:`collate` gives it; None where noise is no item. Draws nothing."""
        num_samples = self._made_up_length(shape.seconds)
        noise = 0.1 * np.random.default_rng(0).standard_normal(num_samples, np.float32)
        ids = [number % 2 for number in range(shape.labels)]  # neighbours differ, so that few frames hold them
        return self.collate([(noise, ids)] * shape.items)

    def _made_up_length(self, seconds: float) -> int:
        return math.ceil(seconds * self.reading.sample_rate - 0.01)  # durations are rounded to float32

    def amount(self, items: Sequence[Item]) -> float:
        """Seconds of audio, without padding."""
        return sum(len(samples) for samples, _ in items) / self.reading.sample_rate

    def label_ids(self, text: str) -> list[int] | None:
        """The ids of a text between ``bos_id`` and ``eos_id``; None: the vocabulary cannot write it.

        With ``strict_data`` also None: it cannot write one of its letters.
        """
        try:
            return self._surrounded(self._text_ids(text, "", may_be_empty=False))
        except DataError:
            return None

    def num_ids_at_most(self, text: str) -> int | None:
        """How many ids :meth:`label_ids` gives at most, without reading the text; None where that takes reading it."""
        most = self.parser.most_ids(text)
        return None if most is None else most + len(self._surrounded(()))

    def _text_ids(self, text: str, place: str, *, may_be_empty: bool) -> list[int]:
        if self.reading.strict_data:
            self.parser.check_letters(text, place)
        try:
            ids = self.parser.encode(text)
        except DataError as error:
            if not may_be_empty:
                raise DataError(error.problem, place=place, got=error.got) from None
            ids = []
        return ids

    def _surrounded(self, ids: Sequence[int]) -> list[int]:
        before = [] if self.reading.bos_id is None else [self.reading.bos_id]
        after = [] if self.reading.eos_id is None else [self.reading.eos_id]
        return [*before, *ids, *after]

    def samples(self, utterance: Utterance, counts: Counts) -> Samples:
        """The audio (T,) of an utterance, unperturbed."""
        audio = read_audio(
            self.reader.audio(utterance),
            sample_rate=self.reading.sample_rate,
            offset=utterance.offset,
            duration=utterance.duration,
            channel=utterance.channel,
            int_values=self.reading.int_values,
            trim_silence=self.reading.trim_silence,
            strict=self.reading.strict_data,
            name=utterance.audio_path,
            place=utterance.place,
        )
        if audio.excess and not self.reading.durations_told:
            counts[OTHER_DURATION][round(audio.excess, 1)] += 1
        if audio.source_rate != self.reading.sample_rate:
            counts[RESAMPLED][audio.source_rate] += 1
        if audio.num_channels > 1 and utterance.channel is None:
            counts[MIXED_DOWN][audio.num_channels] += 1
        return audio.samples


def collate(audio: Sequence[Samples], labels: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, ...]:
    """Audio (B, T) padded with zeros, its lengths (B,), labels (B, U) padded with ``pad_id``, their lengths (B,)."""
    audio_lens = np.array([len(samples) for samples in audio], np.int64)
    label_lens = np.array([len(ids) for ids in labels], np.int64)
    signal = np.zeros((len(audio), audio_lens.max()), np.float32)
    for row, samples in zip(signal, audio, strict=True):
        row[: len(samples)] = samples
    ids = np.full((len(labels), label_lens.max()), pad_id, np.int64)
    # All ids in one go: the mask of valid places, read row by row, is the order of the concatenated labels.
    ids[np.arange(ids.shape[1]) < label_lens[:, None]] = np.concatenate([np.asarray(row, np.int64) for row in labels])
    return tuple(torch.from_numpy(array) for array in (signal, audio_lens, ids, label_lens))


class BatchLists:
    """The batches of a loader, each a list of tensors in port order; every reading is another epoch.

    ``most``: no more than so many first ones; None: all.
    """

    def __init__(self, loader: PlannedLoader, most: int | None = None) -> None:
        self._loader, self._most, self._epoch = loader, most, 0

    def __len__(self) -> int:
        num_batches = self._loader.num_rounds
        return num_batches if self._most is None else min(num_batches, self._most)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return (list(batch.values) for batch in islice(self._loader.epoch(epoch), self._most))


class ItemTensors(Dataset[tuple[Tensor, ...]]):
    """Audio (T,), its length (), ids (U,) and their number () of each utterance, unperturbed."""

    def __init__(self, utterances: Utterances[Any], dataset: SpeechDataset[Any]) -> None:
        self._utterances, self._items = utterances, dataset

    def __len__(self) -> int:
        return len(self._utterances)

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        (ref,) = self._utterances.refs([position])
        request: Request[Any] = Request(epoch=0, items=[(position, ref)])
        samples, ids = self._items.read(position, ref, request, defaultdict(Counter))
        audio, labels = torch.from_numpy(samples), torch.tensor(ids, dtype=torch.long)
        return audio, torch.tensor(len(audio)), labels, torch.tensor(len(labels))
