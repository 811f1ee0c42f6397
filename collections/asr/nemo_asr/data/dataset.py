"""From references to one padded batch of audio and labels: what a worker process does. No order, no fault budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nemo_asr.arguments import check_least
from nemo_asr.audio.augmentor import AudioAugmentor
from nemo_asr.audio.reading import Samples, read_audio
from nemo_asr.data.utterances import R, Utterance, UtteranceReader
from nemo_asr.text.parser import CharParser
from nemo_lite.backends.pytorch.data import Counts, ItemDataset, Request
from nemo_lite.errors import DataError

Item = tuple[Samples, list[int]]
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

    def __post_init__(self) -> None:
        check_least(sample_rate=(self.sample_rate, 1))


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
        """Samples (T,) and label ids of one utterance."""
        utterance = self.reader.utterance(ref)
        self.parser.unknown.clear()
        try:
            ids = self.label_ids(utterance, may_be_empty=not request.training)
        finally:
            counts[UNKNOWN].update(self.parser.unknown)
        if not self.reading.load_audio:
            return np.zeros(0, np.float32), ids
        samples = self.samples(utterance, counts)
        if self.augmentor is not None and request.training:
            rng = np.random.default_rng([self.seed, request.epoch, position])
            samples = self.augmentor.perturbed(samples, self.reading.sample_rate, rng)
        return samples, ids

    def collate(self, items: Sequence[Item]) -> tuple[Tensor, ...]:
        """See :func:`collate`."""
        audio, labels = zip(*items, strict=True)
        return collate(audio, labels, self.reading.pad_id or 0)

    def amount(self, items: Sequence[Item]) -> float:
        """Seconds of audio, without padding."""
        return sum(len(samples) for samples, _ in items) / self.reading.sample_rate

    def label_ids(self, utterance: Utterance, *, may_be_empty: bool = False) -> list[int]:
        """The ids of its text between ``bos_id`` and ``eos_id``.

        Args:
            utterance: without its audio.
            may_be_empty: a text that the vocabulary cannot write has no ids, instead of being an error.

        Raises:
            DataError: the vocabulary cannot write the text; with ``strict_data``, one of its letters.
        """
        if self.reading.strict_data:
            self.parser.check_letters(utterance.text, utterance.place)
        try:
            ids = self.parser.encode(utterance.text)
        except DataError as error:
            if not may_be_empty:
                raise DataError(error.problem, place=utterance.place, got=error.got) from None
            ids = []
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
        if audio.num_channels > 1:
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
