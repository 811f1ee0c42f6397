"""From utterances to batches of audio and labels, and whether all machines have the same files."""

from __future__ import annotations

import copy
import hashlib
import os
import time
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from nemo_asr.audio.augmentation import AudioAugmentor, JoinPerturbation
from nemo_asr.run.arguments import BatchSize, SampleRate
from nemo_asr.run.audio.reading import KINDS, Samples, read_audio
from nemo_asr.run.text.parser import CharParser
from nemo_asr.run.utterances import R, Span, Utterance, UtteranceReader, Utterances
from nemo_lite import DataLayerNM
from nemo_lite.backends.pytorch.data.items import Counts, ItemDataset, Request
from nemo_lite.backends.pytorch.data.loaders import PlannedLoader
from nemo_lite.backends.pytorch.nm import Copied
from nemo_lite.base.errors import DataChangedError, DataError, NemoLiteError
from nemo_lite.base.files import digest_of, digest_of_file, digest_of_files
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

# CopiedRecordings: what machines compare of their copies of recordings. No exchange between ranks here.


_ROWS = 256  # at a time
# After each so many rows the thread sleeps this many times as long as they took: it takes turns with the thread that
# trains, and would slow the first steps down to a third.
_PAUSE = 5.0


class CopiedRecordings(Copied):
    """The recordings of some utterances, to be read by another thread, which opens their files anew.

    Args:
        utterances: those of a data layer.
    """

    def __init__(self, utterances: Utterances[Any]) -> None:
        self._utterances = utterances
        self._reader: UtteranceReader[Any] = copy.deepcopy(utterances.reader)  # opens its files anew

    def seed(self) -> str:
        """A digest of the manifests."""
        return digest_of(sorted(digest_of_files(self._utterances.paths).values()))

    def sizes(self) -> npt.NDArray[np.int64]:
        """(N,) bytes of each recording; -1 where it cannot be read."""
        sizes = np.empty(len(self._utterances), np.int64)
        for first in range(0, len(sizes), _ROWS):
            started, rows = time.perf_counter(), range(first, min(first + _ROWS, len(sizes)))
            sizes[first : rows.stop] = [self._size(ref) for ref in self._utterances.refs(rows)]
            if rows.stop < len(sizes):
                time.sleep(_PAUSE * (time.perf_counter() - started))
        return sizes

    def digest(self, item: int) -> str:
        """The sha256 of a recording; "" where it cannot be read."""
        try:
            audio = self._reader.audio(self._reader.utterance(self._utterances.refs([item])[0]))
            return hashlib.sha256(audio).hexdigest() if isinstance(audio, bytes) else digest_of_file(audio)
        except (NemoLiteError, OSError):
            return ""

    def _size(self, ref: Any) -> int:
        span = getattr(ref, "span", None)
        if span is not None:  # of an archive, whose head was read
            return int(span.size)
        try:
            return os.stat(self._reader.utterance(ref).audio_path).st_size
        except (NemoLiteError, OSError):
            return -1


class CopiedFiles(Copied):
    """Files, one for each item.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def seed(self) -> str:
        """The number of files."""
        return str(len(self._paths))

    def sizes(self) -> npt.NDArray[np.int64]:
        """(N,) bytes of each."""
        return np.array([_size_of(path) for path in self._paths], np.int64)

    def digest(self, item: int) -> str:
        """The sha256 of one; "" where it cannot be read."""
        try:
            return digest_of_file(self._paths[item])
        except NemoLiteError:
            return ""


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


# AudioFilesDataLayer: recordings without transcripts, straight from their files. Manifests are read elsewhere.


def audio_ports(sample_rate: int) -> Ports:
    """The output ports of data layers of recordings without texts."""
    return {
        "audio_signal": NeuralType("B T", AudioSignal(freq=sample_rate)),
        "a_sig_length": NeuralType("B", LengthsType()),
    }


class AudioFilesDataLayer(DataLayerNM):
    """Audio files, to be recognised: audio (B, T) at ``sample_rate`` and its lengths (B,), in the order given.

    Over several ranks each file comes once.

    Args:
        paths: audio files of any kind, rate and number of channels.
        batch_size: files in a batch.
        sample_rate: samples a second; files of another rate are resampled.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends: ``Recipe.reading`` says
            whether the model was evaluated so.
        int_values: read through 32-bit integers: floats beyond full scale are clipped.
        name: the module's name.

    Raises:
        DataError: no file is given, or one is not there; while reading, also one that is damaged.
    """

    def __init__(
        self,
        paths: Sequence[str],
        batch_size: BatchSize = 1,
        sample_rate: SampleRate = 16000,
        trim_silence: bool = False,
        int_values: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not paths:
            raise DataError("no audio file is given")
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            remedy = f"give {KINDS} files"
            raise DataError("there is no such audio file", place=", ".join(missing), remedy=remedy)
        self.batch_size, self._sample_rate = batch_size, sample_rate
        self._files = _Files(paths, sample_rate, trim_silence, int_values)
        self.collate_fn = _padded

    @property
    def output_ports(self) -> Ports:
        """Audio and its lengths."""
        return audio_ports(self._sample_rate)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples are the only free size."""
        return {"audio_signal": (symbol("B"), symbol("samples")), "a_sig_length": (symbol("B"),)}

    def __len__(self) -> int:
        return len(self._files)

    def place_of(self, item: int) -> str:
        """The file's path."""
        return self._files.paths[item]

    def copied(self) -> Copied:
        """The files."""
        return CopiedFiles(self._files.paths)

    @property
    def dataset(self) -> Dataset[Tensor]:
        """The recordings."""
        return self._files


class _Files(Dataset[Tensor]):
    def __init__(self, paths: Sequence[str], sample_rate: int, trim_silence: bool, int_values: bool) -> None:
        self.paths = list(paths)
        self._read = partial(read_audio, sample_rate=sample_rate, trim_silence=trim_silence, int_values=int_values)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, item: int) -> Tensor:
        return torch.from_numpy(self._read(self.paths[item]).samples)


def _padded(recordings: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(recording) for recording in recordings])
    return pad_sequence(list(recordings), batch_first=True), lengths


# FileSpans: bytes from their places in large files, such as tar shards. It does not know what the bytes are.


_MOST_OPEN = 8  # files at a time in one process


class FileSpans:
    """Reads stretches of some files. Can be sent to another process, which opens the files anew.

    A few files stay open, so that one that is read from front to back is opened once.

    Args:
        paths: of the files, which are what they are now until the run ends.
        kind: what messages call one of them.
    """

    def __init__(self, paths: Sequence[str], kind: str) -> None:
        self.paths, self._kind = tuple(paths), kind
        self._identities = [_identity(os.stat(path)) for path in self.paths]
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    @property
    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [size for size, _ in self._identities]

    def read(self, span: Span) -> bytes:
        """The bytes of a stretch.

        Raises:
            DataChangedError: the file cannot be opened any more, or its size or time of change is another one.
            DataError: it cannot be read.
        """
        descriptor = self._descriptor(span.file)
        try:
            content = os.pread(descriptor.number, span.size, span.first)
        except OSError as error:
            problem = f"the {self._kind} cannot be read ({error.strerror})"
            raise DataError(problem, place=self.paths[span.file]) from None
        if len(content) < span.size:
            self._refuse_changed(span.file)
        return content

    def _descriptor(self, file: int) -> _Descriptor:
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        try:
            opened = _Descriptor(self.paths[file])
        except OSError as error:
            problem = f"the {self._kind} cannot be opened any more ({error.strerror})"
            raise DataChangedError(problem, place=self.paths[file]) from None
        if _identity(os.fstat(opened.number)) != self._identities[file]:
            self._refuse_changed(file)
        while len(self._open) >= _MOST_OPEN:
            self._open.popitem(last=False)
        self._open[file] = opened
        return opened

    def _refuse_changed(self, file: int) -> None:
        problem, remedy = f"the {self._kind} changed while it was in use", "start the run again"
        raise DataChangedError(problem, place=self.paths[file], remedy=remedy)


class _Descriptor:
    """An open file, closed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that took the file's place must not block
        weakref.finalize(self, os.close, self.number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the system reads further ahead


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


# From references to one padded batch of audio and labels: what a worker process does. No order, no fault budget.


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


# A data layer as scripts read it: batches as lists of tensors, items by position. Training has loaders of its own.


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
