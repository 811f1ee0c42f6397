"""TarredAudioToTextDataLayer: transcribed speech from tar shards, and its utterances, in the order of the shards."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.augmentation import AudioAugmentor, Perturbations
from nemo_asr.data.dataset import ItemTensors, JoinedRows, Reading, collate
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.data.tar_shards import IN_NO_SHARD, ShardPaths, expanded, match
from nemo_asr.run.arguments import BatchSize, Duration, SampleRate, Unusable, Workers
from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES
from nemo_asr.run.manifest import (
    ByteRange,
    LineReader,
    LineRef,
    Manifest,
    ManifestPaths,
    Mask,
    Utterance,
    Utterances,
    check_limits,
)
from nemo_asr.run.manifest_kinds import Integers
from nemo_asr.run.text.parser import parser_maker
from nemo_lite.backends.pytorch.data.order import Batching, Plan, Shard, WeightedSets, sequential_plans
from nemo_lite.base.errors import DataChangedError, DataError, UsageError
from nemo_lite.base.files import (
    Content,
    digest_of,
)
from nemo_lite.base.ranges import Between

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

    def read(self, span: ByteRange) -> bytes:
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


class TarRef(NamedTuple):
    """Where one utterance is: its line, and its recording's bytes."""

    line: LineRef
    span: ByteRange


class TarredReader:
    """Reads lines of manifests and members of tar shards."""

    def __init__(self, lines: LineReader, shards: FileSpans) -> None:
        self.lines, self.shards = lines, shards

    def place(self, ref: TarRef) -> str:
        """``manifest:line``."""
        return self.lines.place(ref.line)

    def utterance(self, ref: TarRef) -> Utterance:
        """Read one line again, see `LineReader.utterance`; its ``audio_path`` is ``shard:member``."""
        line = self.lines.utterance(ref.line)
        path = f"{self.shards.paths[ref.span.file]}:{os.path.basename(line.audio_path)}"
        return replace(line, audio_path=path, span=ref.span)

    def check_audio(self, utterance: Utterance) -> None:
        """Raise DataError if its member is empty, or too large to be read at once."""
        assert utterance.span is not None, utterance
        size = utterance.span.size
        if not 0 < size <= MAX_CONTENT_BYTES:
            problem = "is empty (0 bytes)" if size == 0 else f"has {size} bytes, more than {MAX_CONTENT_BYTES}"
            remedy = "make the tar shard again, or delete the line"
            raise DataError(f"{utterance.audio_path} {problem}", place=utterance.place, remedy=remedy)

    def audio(self, utterance: Utterance) -> bytes:
        """The member's content."""
        self.check_audio(utterance)
        assert utterance.span is not None, utterance
        return self.shards.read(utterance.span)


@dataclass(frozen=True, kw_only=True)
class TarredUtterances(Utterances[TarRef]):
    """The utterances of some manifests whose recordings are in tar shards, in the order of the shards' members.

    Attributes:
        manifest: the lines.
        rows: (N,) position of each utterance in the manifest.
        shards: (N,) number of the shard of each utterance, ascending.
        firsts: (N,) byte of the shard at which its recording starts.
        sizes: (N,) bytes of its recording.
        num_shards: how many shards there are.
    """

    manifest: Manifest
    rows: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    num_shards: int

    @classmethod
    def open(cls, shards: ShardPaths, manifests: ManifestPaths, *, strict: bool = False) -> TarredUtterances:
        """Read the manifests, and the headers in the shards; log what is only in one of them.

        Args:
            shards: see `expanded`.
            manifests: see `Manifest.open`.
            strict: a line whose recording is in no shard, a recording without a line, and a line without a text or with
                a duration of 0 or less, are errors.

        Raises:
            DataError: a manifest or a shard that cannot be used, a line that two recordings fit, lines of two paths
                that mean one, or no recording that is in both.
        """
        paths = expanded(shards)
        manifest = Manifest.open(
            manifests, strict=True, lenient=not strict
        )  # its paths lead nowhere: do not look for the files
        if manifest.weights:
            problem, remedy = "sets in tar shards have no weights", "leave them out, or train on the files themselves"
            raise UsageError(problem, place=manifest.name, remedy=remedy)
        columns = match(manifest, paths, strict=strict)
        rows = columns["rows"]
        lost = np.ones(len(manifest), bool)
        lost[rows] = False
        return cls(
            paths=manifest.paths,
            reader=TarredReader(LineReader(manifest.sources), FileSpans(paths, "tar shard")),
            durations=manifest.durations[rows],
            dropped=manifest.without(lost, IN_NO_SHARD).dropped,
            manifest=manifest,
            num_shards=len(paths),
            **columns,
        )

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """(shards + 1,) the first utterance of each shard, and the number of all."""
        starts: npt.NDArray[np.int64] = np.searchsorted(self.shards, np.arange(self.num_shards + 1))
        return starts

    def refs(self, rows: Integers | Sequence[int]) -> list[TarRef]:
        """Where the utterances at these rows are."""
        index = np.asarray(rows, np.int64)
        columns = (self.shards[index], self.firsts[index], self.sizes[index])
        spans = (ByteRange(*values) for values in zip(*(column.tolist() for column in columns), strict=True))
        return [TarRef(*both) for both in zip(self.manifest.refs(self.rows[index]), spans, strict=True)]

    def texts(self, rows: range | None = None) -> Iterator[str]:
        """The text of each of these rows, of all by default, as its line has it."""
        return self.manifest.texts_at(self.rows if rows is None else self.rows[rows.start : rows.stop])

    def only(self, keep: Mask) -> TarredUtterances:
        """Those rows where ``keep`` is true."""
        columns = {name: getattr(self, name)[keep] for name in ("durations", "rows", "shards", "firsts", "sizes")}
        return replace(self, **columns)


class TarredAudioToTextDataLayer(SpeechDataLayer):
    """Utterances of tar shards: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    A recording in a shard belongs to the manifest line whose audio path, without its ending, is the same, or the end of
    the recording's, or ends with it.
    Recordings without a line, and lines without a recording, are counted, warned of and not used; the others are
    ``len(layer)``. Recordings are read from the shards; nothing is unpacked to disk.

    In training the shards come in another order in each epoch. Laid end to end they are cut into one stretch for each
    rank, of equal numbers of utterances but for one. A rank reads its stretch from front to back, so any number of
    shards suits any number of ranks, and each utterance comes once. The order is a pure function of (shards, seed,
    epoch, rank, world size): the number of workers does not matter. In evaluation the order is that of the shards.

    The arguments that are not explained here are those of `SpeechDataLayer`.

    Args:
        audio_tar_filepaths: the shards: a path, with braces for several (``audio_{0..63}.tar``, in shells that expand
            them ``audio__OP_0..63_CL_.tar``), or a list.
        manifest_filepath: one manifest, several separated by commas, or a list: the lines of all recordings.
        shuffle_n: in training this many neighbours are shuffled among themselves; they are read within this window. 0:
            utterances come in the order of their shard.
        shuffle: in training, another order of the shards in each epoch.
        strict_data: as of `AudioToTextDataLayer`; also a recording without a line, and a line whose recording is in no
            shard, are errors.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a shard that is missing, damaged, compressed or ends early; a manifest that is missing, empty or has
            lines that are not valid; a line that two recordings fit, or lines of two paths that mean one.
        ConfigError: labels that cannot be a vocabulary.
    """

    remedy: ClassVar[str] = "make the tar shards again without the damaged files, or raise max_corrupt"
    join_reach: ClassVar[int | None] = 256  # neighbours: shards are read from front to back

    def __init__(
        self,
        audio_tar_filepaths: ShardPaths,
        manifest_filepath: ManifestPaths,
        labels: Sequence[str],
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        shuffle_n: Annotated[int, Between(0, 1_000_000_000)] = 0,
        num_workers: Workers | None = None,
        augmentor: Perturbations | AudioAugmentor | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        max_corrupt: Unusable | None = None,
        parser: str = "auto",
        language: str | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        # What costs nothing to check comes before the shards are read.
        new_parser = parser_maker(labels, parser, normalize_transcripts, language, strip_marks)
        check_limits(min_duration, max_duration)
        batching = Batching(batch_size, shuffle, drop_last=drop_last)
        utterances = TarredUtterances.open(audio_tar_filepaths, manifest_filepath, strict=strict_data)
        super().__init__(
            utterances.between(min_duration, max_duration),
            new_parser,
            reading=Reading(sample_rate, int_values, trim_silence, True, bos_id, eos_id, pad_id, strict_data),
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )
        self._shuffle_n = shuffle_n

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """Single utterances in the order of the shards, for scripts that make batches with ``collate_fn``.

        Each is audio (T,), its length, label ids (U,) and their number, unperturbed.
        """
        return ItemTensors(self.utterances, self._new_dataset())

    def collate_fn(self, items: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """A batch of items of ``dataset``, in port order."""
        audio, labels = [item[0].numpy() for item in items], [item[2].tolist() for item in items]
        return collate(audio, labels, self._reading.pad_id or 0)

    def _plans(
        self, training: bool, shard: Shard, rows: JoinedRows | None, sets: WeightedSets | None
    ) -> Callable[[int], Plan]:
        if not training:
            return super()._plans(training, shard, rows, sets)
        assert sets is None, "shards are read from front to back"
        assert isinstance(self.utterances, TarredUtterances)
        starts, batching, window = self.utterances.starts, self._batching, self._shuffle_n
        return sequential_plans(starts, batching, shard, window)

    def fingerprint(self) -> Mapping[str, Any]:
        """The manifests' content, the names and sizes of the shards, where the recordings are; no folders."""
        fingerprint = dict(super().fingerprint())
        fingerprint.pop(f"{self.label}.manifest_filepath")  # its content counts
        utterances = self.utterances
        assert isinstance(utterances, TarredUtterances)
        assert isinstance(utterances.reader, TarredReader)
        shards = utterances.reader.shards
        names = [os.path.basename(path) for path in shards.paths]
        used = ~self._textless  # the same before and after training left the others out
        spans = [column[used].tobytes() for column in (utterances.rows, utterances.shards, utterances.firsts)]
        return {**fingerprint, f"tar shards of {self.label}": Content(digest_of([names, shards.sizes, *spans]))}
