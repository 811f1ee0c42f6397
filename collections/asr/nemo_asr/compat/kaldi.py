"""Features that Kaldi computed: its binary matrices, data folders, and the data layer over one.

``feats.scp`` says where each utterance's features are, ``text`` what it says. The headers of the features are read
when the folder is opened.

The layout of matrices, plain and compressed: kaldi/src/matrix/kaldi-matrix.cc and compressed-matrix.h. Packages that
read it are no help here: kaldiio unpickles what a file says it should, both it and kaldi-native-io run the commands
that a list may hold, and kaldiio takes six times the memory of the values, and four times our time, for compressed
matrices.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nemo_asr.data.dataset import BatchShape, Item, Reading, SpeechDataset, collate
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.data.tarred import FileSpans
from nemo_asr.run.arguments import BatchSize, Duration, Unusable, Workers
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.manifest import ByteRange, Mask, Utterance, Utterances, check_limits
from nemo_asr.run.manifest_kinds import Integers, Problems
from nemo_asr.run.text.parser import parser_maker
from nemo_lite.backends.pytorch.data.loaders import Counts
from nemo_lite.backends.pytorch.data.order import Batching, CostWords
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, decode_text, numbered_lines, open_descriptor
from nemo_lite.core.neural_types import AxisKind, AxisType, LabelsType, LengthsType, NeuralType, SpectrogramType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.utils import logging

Features: TypeAlias = "npt.NDArray[np.float32]"  # (T, D)

HEADER_BYTES = 22  # of the longest header
# 58 minutes of 80 float32 features, one frame each 10 ms, have 112 MB. Compressed ones have up to four times as many
# values to a byte, and each column has its own table.
_MOST_BYTES, _MOST_VALUES, _MOST_COLUMNS = 1 << 27, 1 << 25, 1 << 15
_BINARY = b"\0B"
_COLUMN_HEADER_BYTES = 4 * 2
# By token: bytes of a value, and of what comes before a column's values. Compressed ones have a range for all values.
_PLAIN = {b"FM": 4, b"DM": 8}
_COMPRESSED = {b"CM": 1, b"CM2": 2, b"CM3": 1}
# (4, 256) how much of a column's least value, quartiles and largest value is in the value of each byte.
_SHARES = np.stack([np.interp(np.arange(256), [0, 64, 192, 255], level) for level in np.eye(4)]).astype(np.float32)


class Header(NamedTuple):
    """The kind and the size of a matrix.

    Attributes:
        kind: Kaldi's name: FM and DM are floats and doubles, CM, CM2 and CM3 compressed.
        num_rows, num_columns: frames, and features of each.
        first: byte behind the header.
        size: bytes in all.
        least, span: compressed ones: the smallest value, and how far the largest is from it.
    """

    kind: bytes
    num_rows: int
    num_columns: int
    first: int
    size: int
    least: float = 0.0
    span: float = 0.0


def header_of(content: bytes) -> Header:
    """The header at the start of a matrix; ``HEADER_BYTES`` of it are enough.

    Raises:
        DataError: there is no binary matrix, or one without values or of more than 128 MiB, 2 ** 25
            values or 32,768 features a frame.
    """
    kind, blank, _ = content[2:6].partition(b" ")
    if not content.startswith(_BINARY) or not blank or kind not in {**_PLAIN, **_COMPRESSED}:
        remedy = "write binary matrices (copy-feats ark:IN ark,scp:OUT.ark,OUT.scp)"
        raise DataError("there is no binary Kaldi matrix", got=repr(content[:8])[1:], remedy=remedy)
    first, least, span = 2 + len(kind) + 1, 0.0, 0.0
    try:
        if kind in _PLAIN:
            marks_and_sizes = struct.unpack_from("<bibi", content, first)
            num_rows, num_columns = marks_and_sizes[1], marks_and_sizes[3]
            first += 10
        else:
            least, span, num_rows, num_columns = struct.unpack_from("<ffii", content, first)
            first += 16
    except struct.error:
        raise DataError("the matrix ends within its header", got=f"{len(content)} bytes") from None
    size = first + num_rows * num_columns * (_PLAIN.get(kind) or _COMPRESSED[kind])
    size += num_columns * _COLUMN_HEADER_BYTES if kind == b"CM" else 0
    too_large = num_rows * num_columns > _MOST_VALUES or num_columns > _MOST_COLUMNS or size > _MOST_BYTES
    if num_rows < 1 or num_columns < 1 or too_large:
        got, wanted = f"{num_rows} x {num_columns}", f"at most {_MOST_VALUES} values, {_MOST_BYTES >> 20} MiB"
        raise DataError("the matrix has no usable size", got=got, wanted=wanted)
    return Header(kind, num_rows, num_columns, first, size, least, span)


def matrix_of(content: bytes) -> Features:
    """The values of a matrix (rows, columns).

    Raises:
        DataError: see `header_of`; or the matrix ends early, or has values that are NaN or infinite.
    """
    header = header_of(content)
    if len(content) < header.size:
        raise DataError("the matrix ends early", got=f"{len(content)} bytes", wanted=f"{header.size}")
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        values = _values(header, content)
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise DataError("the matrix has values that are NaN or infinite")
    return values


def _values(header: Header, content: bytes) -> Features:
    shape, count = (header.num_rows, header.num_columns), header.num_rows * header.num_columns
    if header.kind in _PLAIN:
        plain = np.frombuffer(content, f"<f{_PLAIN[header.kind]}", count, header.first)
        return plain.reshape(shape).astype(np.float32)
    if header.kind == b"CM":
        return _by_percentiles(header, content)
    steps = np.frombuffer(content, f"<u{_COMPRESSED[header.kind]}", count, header.first)
    largest = np.float32(np.iinfo(steps.dtype).max)
    values = steps.reshape(shape).astype(np.float32)
    values *= np.float32(header.span) / largest
    values += np.float32(header.least)
    return values


def _by_percentiles(header: Header, content: bytes) -> Features:
    """Each column has its own least value, quartiles and largest value; a byte is a place between two of them."""
    num_rows, num_columns = header.num_rows, header.num_columns
    marks = np.frombuffer(content, "<u2", 4 * num_columns, header.first).reshape(num_columns, 4)
    levels = np.float32(header.least) + marks.astype(np.float32) * np.float32(header.span / 65535.0)
    first = header.first + num_columns * _COLUMN_HEADER_BYTES
    places = np.frombuffer(content, np.uint8, num_rows * num_columns, first).reshape(num_columns, num_rows)
    by_place = levels @ _SHARES
    values = np.empty((num_rows, num_columns), np.float32)
    for column in range(num_columns):  # all at once would take 8 bytes more a value
        values[:, column] = by_place[column][places[column]]
    return values


FRAME_SECONDS = 0.01  # Kaldi's usual frame shift, for a folder without utt2dur
_LIST = FileKind("the file", 1 << 40)  # read line by line
_MOST_ARK_BYTES = 1 << 44
_MOST_SECONDS = 1e7  # four months
_BYTE = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"\[[0-9:,]*\]")


class KaldiRef(NamedTuple):
    """One utterance: all that a worker needs to read it."""

    line: int
    utterance: str
    text: str
    duration: float
    span: ByteRange


class KaldiReader:
    """Reads utterances of a folder by reference."""

    def __init__(self, scp: str, arks: FileSpans) -> None:
        self.scp, self.arks = scp, arks

    def place(self, ref: KaldiRef) -> str:
        """``feats.scp:line``."""
        return f"{self.scp}:{ref.line}"

    def utterance(self, ref: KaldiRef) -> Utterance:
        """The utterance; its ``audio_path`` is ``file:byte``, as in ``feats.scp``."""
        path = f"{self.arks.paths[ref.span.file]}:{ref.span.first}"
        return Utterance(self.place(ref), path, ref.text, ref.duration, span=ref.span)

    def check_audio(self, utterance: Utterance) -> None:
        """Nothing is left to check: the headers were read when the folder was opened."""

    def audio(self, utterance: Utterance) -> bytes:
        """The matrix as the ark file has it."""
        assert utterance.span is not None, utterance
        return self.arks.read(utterance.span)


@dataclass(frozen=True, kw_only=True)
class KaldiUtterances(Utterances[KaldiRef]):
    """The utterances of a Kaldi folder, in the order of ``feats.scp``.

    Attributes:
        entries: of each utterance what a worker needs.
        num_frames: (N,) frames of each.
        num_features: features of a frame, the same for all.
    """

    entries: tuple[KaldiRef, ...]
    num_frames: npt.NDArray[np.int64]
    num_features: int

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, with_durations: bool = False) -> KaldiUtterances:
        """Read ``feats.scp``, ``text``, ``utt2dur`` if it is there, and the headers of the features.

        Paths are taken as they are written; one that leads nowhere starts at the folder. An utterance without a line in
        ``text`` has an empty text. Without ``utt2dur`` a frame is taken for 10 ms.

        Args:
            folder: the Kaldi data folder.
            with_durations: ``utt2dur`` must be there and have all utterances.

        Raises:
            UsageError: it is not there, and ``with_durations`` asks for it.
            DataError: a file is missing or has lines that are not valid; features are missing, damaged or no binary
                matrices, or have different numbers of features; or the list holds commands, which are not run.
        """
        root = Path(folder).expanduser()
        scp, text, durations = (root / name for name in ("feats.scp", "text", "utt2dur"))
        if with_durations and not durations.is_file():
            remedy = "write it (utils/data/get_utt2dur.sh), or give no limit"
            raise UsageError("min_duration and max_duration need the durations", place=str(durations), remedy=remedy)
        texts = {name: words for _, name, words in _lines(text)}
        seconds = _seconds(durations) if durations.is_file() else {}
        entries, sizes, arks = _entries(scp, texts, seconds)
        if missing := [entry.utterance for entry in entries if with_durations and entry.utterance not in seconds]:
            raise DataError(f"{missing[0]} has no duration", place=str(durations), wanted="one for each utterance")
        if unused := len(texts.keys() - {entry.utterance for entry in entries}):
            logging.warning(f"{text}: {unused} of {len(texts)} texts belong to no utterance of {scp}: not used")
        return cls(
            paths=tuple(str(path) for path in (scp, text, durations) if path.is_file()),
            reader=KaldiReader(str(scp), FileSpans(arks, "ark file")),
            durations=np.array([entry.duration for entry in entries], np.float32),
            entries=tuple(entries),
            num_frames=np.array([num_rows for num_rows, _ in sizes], np.int64),
            num_features=sizes[0][1],
        )

    @property
    def name(self) -> str:
        """The list, for messages."""
        return self.paths[0]

    def refs(self, rows: Integers | Sequence[int]) -> list[KaldiRef]:
        """References by which the reader finds the utterances at these rows."""
        return [self.entries[row] for row in rows]

    def only(self, keep: Mask) -> KaldiUtterances:
        """Those rows where ``keep`` is true."""
        entries = tuple(entry for entry, kept in zip(self.entries, keep, strict=True) if kept)
        return replace(self, durations=self.durations[keep], entries=entries, num_frames=self.num_frames[keep])


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Of each line its number, its first word, and what follows it.

    Raises:
        DataError: the file cannot be read, is empty, or a first word comes twice.
    """
    numbers: dict[str, int] = {}
    for place, raw in numbered_lines(path, _LIST):
        number = int(place.rpartition(":")[2])
        name, *rest = decode_text(raw, place, _LIST).split(maxsplit=1) or [""]
        if not name:  # white space that is not ASCII
            continue
        if numbers.setdefault(name, number) != number:
            raise DataError(f"{name} occurs a second time, after line {numbers[name]}", place=place)
        yield number, name, "".join(rest).strip()
    if not numbers:
        raise DataError("the file is empty", place=str(path), remedy="it needs a line for each utterance")


def _seconds(path: Path) -> dict[str, float]:
    seconds = {}
    for number, name, value in _lines(path):
        try:
            seconds[name] = float(value)
            if not 0.0 < seconds[name] <= _MOST_SECONDS:
                raise ValueError
        except ValueError:
            problem = f"the duration of {name} is no number of seconds"
            raise DataError(problem, place=f"{path}:{number}", got=value, wanted="seconds") from None
    return seconds


def _entries(
    scp: Path, texts: Mapping[str, str], seconds: Mapping[str, float]
) -> tuple[list[KaldiRef], list[tuple[int, int]], list[str]]:
    """The utterances of all lines, the frames of each and the features of a frame, and the ark files.

    Raises:
        DataError: the first few whose features cannot be read, or frames that differ in size.
    """
    entries: list[KaldiRef] = []
    sizes: list[tuple[int, int]] = []
    arks: dict[str, str] = {}  # by the path that is written
    numbers: dict[str, int] = {}  # of the ark files
    problems = Problems()
    with ExitStack() as stack:  # the file that was read last stays open: neighbours mostly share one
        open_ark, descriptor = "", -1
        for line, name, written in _lines(scp):
            place = f"{scp}:{line}"
            try:
                path, first = _parsed(written)
                if path not in arks:
                    home = os.path.expanduser(path)
                    beside = os.path.join(scp.parent, home)
                    arks[path] = beside if not os.path.exists(home) and os.path.exists(beside) else home
                ark = arks[path]
                if ark != open_ark:
                    open_ark = ""
                    stack.close()
                    descriptor = open_descriptor(ark, FileKind(f"the ark file {ark}", _MOST_ARK_BYTES))
                    stack.callback(os.close, descriptor)
                    open_ark = ark
                header = _header_at(descriptor, first, ark)
            except DataError as error:
                details = {"got": error.got, "wanted": error.wanted, "remedy": error.remedy}
                problems.add(str(DataError(error.problem, place=place, **details)))
                continue
            span = ByteRange(numbers.setdefault(ark, len(numbers)), first, header.size)
            duration = seconds.get(name, header.num_rows * FRAME_SECONDS)
            entries.append(KaldiRef(line, name, texts.get(name, ""), duration, span))
            sizes.append((header.num_rows, header.num_columns))
    if problems.count:
        raise DataError(str(problems))
    _, wanted = sizes[0]
    for entry, (_, num_columns) in zip(entries, sizes, strict=True):
        if num_columns != wanted:
            place, got = f"{scp}:{entry.line}", f"{num_columns} features a frame"
            raise DataError("frames differ in size", place=place, got=got, wanted=f"{wanted}, as before")
    return entries, sizes, list(numbers)


def _header_at(descriptor: int, first: int, ark: str) -> Header:
    """The header of the matrix at a byte. DataError if there is no whole matrix."""
    try:
        header = header_of(os.pread(descriptor, HEADER_BYTES, first))
        held = os.fstat(descriptor).st_size - first
    except OSError as error:
        raise DataError(f"the ark file {ark} cannot be read ({error.strerror})") from None
    if held < header.size:
        got, wanted = f"{held} bytes from byte {first}", str(header.size)
        raise DataError(f"the ark file {ark} ends early", got=got, wanted=wanted)
    return header


def _parsed(written: str) -> tuple[str, int]:
    """The file that an entry of ``feats.scp`` names, and the byte at which the matrix starts."""
    if written.endswith("|") or written.startswith("|"):
        remedy = "write the features to an ark file (copy-feats)"
        raise DataError("the features are a command's output, and no command is run", got=written, remedy=remedy)
    if _RANGE.search(written):
        raise DataError("parts of matrices are not read", got=written, remedy="write them to an ark file (copy-feats)")
    path, _, first = written.rpartition(":")
    if not path or not _BYTE.fullmatch(first):
        path, first = written, "0"
    if not path:
        raise DataError("no file is named", wanted="NAME FILE:BYTE")
    return path, int(first)


_WORDS = CostWords("max_batch_seconds", "utterance", " s", "raise it, or lower max_duration")


class FeatureDataset(SpeechDataset[KaldiRef]):
    """Features and label ids; a batch is features (B, D, T), lengths (B,), ids (B, U), their lengths (B,)."""

    def samples(self, utterance: Utterance, counts: Counts) -> Samples:
        """Features (T, D)."""
        content = self.reader.audio(utterance)
        assert isinstance(content, bytes)
        try:
            return matrix_of(content)
        except DataError as error:
            problem = f"{utterance.audio_path}: {error.problem}"
            raise DataError(problem, place=utterance.place, got=error.got, wanted=error.wanted) from None

    def made_up(self, shape: BatchShape) -> None:
        """None: how many features a frame has is known when a matrix is read."""

    def collate(self, items: Sequence[Item]) -> tuple[Tensor, ...]:
        """Features padded with zeros, labels with ``pad_id``."""
        features, labels = zip(*items, strict=True)
        lengths = np.array([len(frames) for frames in features], np.int64)
        padded = np.zeros((len(features), features[0].shape[1], lengths.max()), np.float32)
        for row, frames in zip(padded, features, strict=True):
            row[:, : len(frames)] = frames.T
        nothing = [np.zeros(0, np.float32)] * len(labels)
        _, _, *texts = collate(nothing, labels, self.reading.pad_id or 0)
        return torch.from_numpy(padded), torch.from_numpy(lengths), *texts

    def amount(self, items: Sequence[Item]) -> float:
        """Frames, without padding."""
        return float(sum(len(features) for features, _ in items))


class KaldiFeatureDataLayer(SpeechDataLayer):
    """Utterances of a Kaldi data folder: features (B, D, T), label ids (B, U), and their lengths (B,).

    The folder has ``feats.scp`` (``NAME FILE:BYTE``), ``text`` (``NAME WORDS``) and perhaps ``utt2dur`` (``NAME
    SECONDS``). Features are binary matrices, plain or compressed (FM, DM, CM, CM2, CM3); each is read when a batch
    needs it. Paths are taken as they are written, from the working directory; one that leads nowhere starts at
    the folder. Commands in ``feats.scp`` are refused.

    The order, texts that are missing, and damaged features are as in `AudioToTextDataLayer`.

    The arguments that are not explained here are those of `SpeechDataLayer`.

    Args:
        kaldi_dir: the folder.
        min_duration: seconds; shorter utterances are left out and counted. Needs ``utt2dur``.
        max_duration: seconds; longer utterances are left out and counted. Needs ``utt2dur``.

    Raises:
        UsageError: a limit without ``utt2dur``, or arguments that contradict each other.
        DataError: a file is missing or has lines that are not valid; features that are missing, damaged, in text form,
            or differ in the number of features.
        ConfigError: labels that cannot be a vocabulary.
    """

    amount_unit: ClassVar[str] = "frames"
    remedy: ClassVar[str] = "make the features again, delete their lines, or raise max_corrupt"

    def __init__(
        self,
        kaldi_dir: str | os.PathLike[str],
        labels: Sequence[str],
        batch_size: BatchSize,
        min_duration: Duration | None = None,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: Workers | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        bucketing: bool = False,
        max_corrupt: Unusable | None = None,
        parser: str = "auto",
        language: str | None = None,
        pin_memory: bool | None = None,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        new_parser = parser_maker(labels, parser, normalize_transcripts, language, strip_marks)
        check_limits(min_duration, max_duration)
        has_limits = bool(min_duration) or max_duration is not None
        utterances = KaldiUtterances.open(kaldi_dir, with_durations=has_limits)
        self._num_features = utterances.num_features
        super().__init__(
            utterances.between(min_duration, max_duration),
            new_parser,
            reading=Reading(bos_id=bos_id, eos_id=eos_id, pad_id=pad_id),
            batching=Batching(batch_size, shuffle, bucketing, drop_last, words=_WORDS),
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )

    @property
    def output_ports(self) -> Ports:
        """Features and text of a batch, each with its lengths."""
        features = AxisType(AxisKind.Dimension, self._num_features)
        axes = (AxisType(AxisKind.Batch), features, AxisType(AxisKind.Time))
        return {
            "processed_signal": NeuralType(axes, SpectrogramType()),
            "processed_length": NeuralType("B", LengthsType()),
            "transcripts": NeuralType("B T", LabelsType()),
            "transcript_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Frames and labels, each with a name of its own."""
        batch = (symbol("B"),)
        features, text = (*batch, self._num_features, symbol("frames")), (*batch, symbol("U"))
        return dict(zip(self.output_ports, (features, batch, text, batch), strict=True))

    def lengths_in_samples(self) -> npt.NDArray[np.int64]:
        """(N,) frames of each utterance: this layer gives no samples."""
        assert isinstance(self.utterances, KaldiUtterances)
        return self.utterances.num_frames

    def _new_dataset(self, seed: int = 0) -> SpeechDataset[Any]:
        return FeatureDataset(self.utterances.reader, self.new_parser(), self._reading, seed=seed)
