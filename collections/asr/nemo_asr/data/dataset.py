"""From manifest lines to one padded batch: what a worker process does. No order of data, no budget for faults in here.

A worker gets requests that say where the lines are written, so it needs no index of the manifest: a set of a million
utterances costs it nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.audio.augmentor import AudioAugmentor
from nemo_asr.audio.reading import Samples, read_audio
from nemo_asr.data.manifest_lines import LineRef, ManifestChangedError, Reader, Utterance
from nemo_asr.text.parser import CharParser
from nemo_lite.errors import DataError, NemoLiteError


class Request(NamedTuple):
    """One batch to load.

    Attributes:
        epoch: part of the seed of every random draw.
        refs: the utterances.
        spares: utterances to try, one after the other, when none of the others can be used.
        augment: whether to perturb the audio.
    """

    epoch: int
    refs: Sequence[LineRef]
    spares: Sequence[LineRef] = ()
    augment: bool = False


@dataclass(frozen=True)
class Reading:
    """How an utterance becomes numbers; see `AudioToTextDataLayer`."""

    sample_rate: int = 16000
    int_values: bool = False
    trim_silence: bool = False
    load_audio: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None


@dataclass
class Loaded:
    """One batch, and what was noticed on the way.

    Attributes:
        values: audio (B, T) float32, its lengths (B,), label ids (B, U) and their lengths (B,), all padded at the end.
        rows: which utterances these are.
        num_samples: samples in all, without padding.
        faults: rows that could not be used, each with the reason.
        resampled: how many files had which other rate.
        num_mixed_down: how many files had more than one channel.
        unknown: characters outside the vocabulary.
        fatal: a reason to end the run, or nothing.
    """

    values: tuple[Tensor, ...] = ()
    rows: list[int] = field(default_factory=list)
    num_samples: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)
    resampled: Counter[int] = field(default_factory=Counter)
    num_mixed_down: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    fatal: str = ""

    def pin_memory(self) -> Loaded:
        """The same with page-locked tensors; torch's DataLoader looks for this name."""
        self.values = tuple(value.pin_memory() for value in self.values)
        return self


class AudioTextDataset(Dataset[Loaded]):
    """Loads the batch that a request describes; equal requests give equal batches, in any process.

    Args:
        reader: reads manifest lines.
        parser: turns text into label ids.
        reading: how audio is read and what surrounds the label ids.
        augmentor: perturbs audio where the request says so; its draws follow from (seed, epoch, row), so any number of
            ranks and workers perturbs an utterance alike.
        seed: base of the draws.
    """

    def __init__(
        self,
        reader: Reader,
        parser: CharParser,
        reading: Reading,
        augmentor: AudioAugmentor | None = None,
        seed: int = 0,
    ) -> None:
        self.reader, self.parser, self.reading, self.augmentor, self.seed = reader, parser, reading, augmentor, seed

    def __getitem__(self, request: Request) -> Loaded:
        loaded, audio, labels = Loaded(), list[Samples](), list[list[int]]()
        self.parser.unknown.clear()
        try:
            for ref in request.refs:
                self._load(ref, request, loaded, audio, labels)
            for ref in request.spares:
                if not loaded.rows:
                    self._load(ref, request, loaded, audio, labels)
        except NemoLiteError as error:
            return Loaded(fatal=str(error))  # as data: raised in a worker it would arrive with a traceback in its text
        if loaded.rows:
            loaded.values = collate(audio, labels, self.reading.pad_id or 0)
            loaded.num_samples = sum(map(len, audio))
        loaded.unknown = Counter(self.parser.unknown)
        return loaded

    def _load(
        self, ref: LineRef, request: Request, loaded: Loaded, audio: list[Samples], labels: list[list[int]]
    ) -> None:
        """Add one utterance to the batch, or its fault to the faults."""
        try:
            utterance = self.reader.utterance(ref)
            ids = self.label_ids(utterance)
            samples = self._samples(utterance, ref.row, request, loaded)
        except ManifestChangedError:
            raise
        except DataError as error:
            loaded.faults.append((ref.row, str(error)))
            return
        loaded.rows.append(ref.row)
        audio.append(samples)
        labels.append(ids)

    def label_ids(self, utterance: Utterance) -> list[int]:
        """The ids of its text between ``bos_id`` and ``eos_id``.

        Raises:
            DataError: the vocabulary cannot write the text.
        """
        try:
            ids = self.parser.encode(utterance.text)
        except DataError as error:
            raise DataError(error.problem, place=utterance.place, got=error.got) from None
        before = [] if self.reading.bos_id is None else [self.reading.bos_id]
        after = [] if self.reading.eos_id is None else [self.reading.eos_id]
        return [*before, *ids, *after]

    def _samples(self, utterance: Utterance, row: int, request: Request, loaded: Loaded) -> Samples:
        if not self.reading.load_audio:
            return np.zeros(0, np.float32)
        audio = read_audio(
            utterance.audio_path,
            sample_rate=self.reading.sample_rate,
            offset=utterance.offset,
            duration=utterance.duration,
            int_values=self.reading.int_values,
            trim_silence=self.reading.trim_silence,
            place=utterance.place,
        )
        if audio.source_rate != self.reading.sample_rate:
            loaded.resampled[audio.source_rate] += 1
        loaded.num_mixed_down += audio.num_channels > 1
        if self.augmentor is None or not request.augment:
            return audio.samples
        rng = np.random.default_rng([self.seed, request.epoch, row])
        perturbed: Samples = self.augmentor.perturb(audio.samples, self.reading.sample_rate, rng)
        return perturbed


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
