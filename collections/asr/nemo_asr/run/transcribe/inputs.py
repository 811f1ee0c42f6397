"""Recordings to be transcribed: which ones a command line names, their lengths, their samples. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import soxr

from nemo_asr.run.audio import decoded
from nemo_asr.run.audio.decoded import REMEDY, Watch
from nemo_asr.run.audio.files import Samples, check_channel
from nemo_asr.run.audio.kinds import ALL_SUFFIXES, audio_suffixes
from nemo_asr.run.audio.reading import MAX_CONTENT_BYTES, Audio, AudioPart, loud_part, open_part, read_audio
from nemo_asr.run.audio.segments import ChannelEnergies, Span
from nemo_asr.run.manifest import Utterance, UtteranceReader, read_lines
from nemo_asr.run.manifest_kinds import MIX, kind_of
from nemo_lite.base.errors import MAX_LISTED, DataError, UsageError, counted
from nemo_lite.base.files import is_address
from nemo_lite.base.nemo_logging import logging


@dataclass(frozen=True)
class Recording:
    """Audio to be transcribed.

    Attributes:
        source: what it is called in transcripts and messages.
        audio: the path or the content of an audio file, or samples (T,) or (T, channels) with full scale 1.
        sample_rate: of samples, in Hz.
        offset: seconds into the audio where it begins; None: at the beginning. Samples are those of the part alone.
        duration: seconds; None: to the end of the audio.
        seconds: its length; 0 until `rows_of` has looked at it.
        channel: of the audio, from 0; None: the average of all.
        decoded_bytes: of the temporary file from which its parts are read, see `AudioFile`; 0 until it is measured.
        strict: it cannot be measured where its duration is not that of the file; see `read_audio`.
        watch: may end its reading and decoding; None: nothing does.
    """

    source: str
    audio: str | bytes | Samples
    sample_rate: int | None = None
    offset: float | None = None
    duration: float | None = None
    seconds: float = 0.0
    channel: int | None = None
    decoded_bytes: int = 0
    strict: bool = False
    watch: Watch | None = field(default=None, compare=False, repr=False)

    def measured(self) -> Recording:
        """The same with its length, which the head of the file says; itself where it is known.

        Raises:
            DataError: it cannot be read.
        """
        if self.seconds:
            return self
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            check_channel(self.channel, 1 if self.audio.ndim == 1 else self.audio.shape[1], self.source)
            return replace(self, seconds=len(self.audio) / self.sample_rate)
        with self.pieces() as (measured, _, _):
            return measured

    @contextmanager
    def pieces(
        self, observe: Callable[[Samples], None] | None = None
    ) -> Iterator[tuple[Recording, Iterable[Samples], int]]:
        """Itself with its length; its mono samples a piece at a time; and their rate: that of the file.

        Args:
            observe: gets the samples (T, channels) of each piece of a file whose channels are averaged.

        Raises:
            DataError: it cannot be read; also inside the block.
        """
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            yield self.measured(), [_mono(self.audio, self.channel)], self.sample_rate
            return
        with self.opened() as part:
            is_averaged = self.channel is None and part.num_channels > 1
            yield self._measured_by(part), part.pieces(observe=observe if is_averaged else None), part.source_rate

    def in_memory(self, most_values: int) -> Recording:
        """The same with its length and, if it is short, with its samples in the place of its file: that is opened once.

        Only samples of 16 bits are taken: of them parts and the whole are the same in each way of reading.

        Args:
            most_values: samples of all channels that are taken into memory.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.audio, np.ndarray):
            return self.measured()
        with self.opened() as part:
            measured = self._measured_by(part)
            if not part.has_16_bits or part.num_samples * part.num_channels > most_values:
                return measured
            channels = ChannelEnergies()
            is_averaged = self.channel is None and part.num_channels > 1
            samples = part.samples(None, observe=channels.add if is_averaged else None)
            warn_if_cancelled(self.source, channels)
            return replace(measured, audio=samples, sample_rate=part.source_rate)

    def _measured_by(self, part: AudioPart) -> Recording:
        if self.watch is not None:  # before anything is decoded, where the head says how much there is
            self.watch(part.num_samples * part.num_channels)
        return self if self.seconds else replace(self, seconds=part.seconds, decoded_bytes=part.decoded_bytes)

    @contextmanager
    def opened(self) -> Iterator[AudioPart]:
        """The part of its file; that of samples cannot be opened. Errors as of `open_part`."""
        assert not isinstance(self.audio, np.ndarray)
        open_it = partial(
            open_part,
            self.audio,
            offset=self.offset,
            duration=self.duration,
            channel=self.channel,
            exact=True,
            watch=self.watch,
        )
        if self.strict and not self.seconds:
            with open_it(strict=True):
                pass
        with open_it(strict=False) as part:
            yield part

    def part(self, span: Span) -> Recording:
        """A part of it as a recording, whose ``offset`` counts from the beginning of the audio."""
        offset = (self.offset or 0.0) + span.start
        seconds = span.end - span.start
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            first, end = (round(moment * self.sample_rate) for moment in span)
            return replace(self, audio=self.audio[first:end], offset=offset, seconds=seconds)
        return replace(self, offset=offset, duration=seconds, seconds=seconds)

    def read(self, sample_rate: int, *, trim_silence: bool = False, int_values: bool = False) -> Audio:
        """Mono samples at a rate, one at least, read as a data layer reads an utterance of this offset and duration.

        Args:
            sample_rate: samples a second.
            trim_silence: leave out quiet ends; see `read_audio`.
            int_values: read a file through 32-bit integers; see `read_audio`.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.audio, np.ndarray):
            assert self.sample_rate is not None
            samples = _mono(self.audio, self.channel)
            if self.sample_rate != sample_rate:
                samples = soxr.resample(samples, self.sample_rate, sample_rate)
            loud = loud_part(samples) if trim_silence else slice(0, len(samples))
            audio = Audio(samples[loud], self.sample_rate, 1, start=loud.start)
        else:
            audio = read_audio(
                self.audio,
                sample_rate=sample_rate,
                offset=self.offset,
                duration=self.duration,
                channel=self.channel,
                int_values=int_values,
                trim_silence=trim_silence,
                strict=False,
                exact=True,
                watch=self.watch,
            )
        # Few samples of a high rate are none at a low one, and models take one at least.
        return audio if len(audio.samples) else replace(audio, samples=np.zeros(1, np.float32))


def recording_of_utterance(
    utterance: Utterance, reader: UtteranceReader[Any], *, source: str = "", strict: bool = False
) -> Recording:
    """An utterance of a manifest as a recording: the one that ``transcribe`` makes of its line.

    Args:
        utterance: without its audio.
        reader: gives the audio; the content of one in an archive is read here.
        source: what it is called; "": its place.
        strict: a file that is not as long as its line says cannot be read.
    """
    return Recording(
        source or utterance.place,
        reader.audio(utterance),
        offset=utterance.offset,
        duration=utterance.duration,
        channel=utterance.channel,
        strict=strict,
    )


def warn_if_cancelled(source: str, channels: ChannelEnergies) -> None:
    """Say that the channels of a recording cancel each other, where they do."""
    if channels.lost_db:
        problem = "its channels cancel each other when they are averaged (opposite phases)"
        logging.warning(f'{source}: {problem}; take one: --channel 0, or "channel": 0 in a manifest')


def _mono(samples: Samples, channel: int | None) -> Samples:
    """(T,) samples of a channel, or the average of all."""
    if samples.ndim == 1:
        return samples
    one: Samples = samples.mean(axis=1) if channel is None else np.ascontiguousarray(samples[:, channel])
    return one


def rows_of(recordings: Sequence[Recording]) -> tuple[list[Recording], dict[int, str]]:
    """The rows that an engine computes: each recording as a whole, with its length.

    Engines go over rows only. What becomes of their transcripts is said by ``transcript.transcribed``.

    Returns:
        the rows, and why some of them cannot be read, by their position.
    """
    rows, faults = list(recordings), dict[int, str]()
    for position, recording in enumerate(recordings):
        try:
            rows[position] = recording.measured()
        except DataError as error:
            faults[position] = named(recording, error)
    return rows, faults


def read_rows(
    rows: Sequence[Recording], sample_rate: int, *, trim_silence: bool, int_values: bool
) -> tuple[dict[int, Audio], dict[int, str]]:
    """The samples of rows that can be read, see `Recording.read`, and why others cannot, by their position."""
    audios: dict[int, Audio] = {}
    faults: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            audios[number] = row.read(sample_rate, trim_silence=trim_silence, int_values=int_values)
        except DataError as error:
            faults[number] = named(row, error)
    return audios, faults


def padded(signals: Sequence[Samples]) -> tuple[Samples, npt.NDArray[np.int64]]:
    """Signals (T,) as one batch (B, T), and their lengths (B,)."""
    lengths = np.array([len(signal) for signal in signals], np.int64)
    if len(signals) == 1:  # an hour of samples need not be copied
        return signals[0][None], lengths
    batch = np.zeros((len(signals), int(lengths.max())), np.float32)
    for row, signal in zip(batch, signals, strict=True):
        row[: len(signal)] = signal
    return batch, lengths


def named(recording: Recording, error: Exception | str) -> str:
    """Why a recording cannot be used, with its name before it unless it says it."""
    reason = str(error).removeprefix(f"{recording.source}: ")
    return reason if recording.source in reason else f"{recording.source}: {reason}"


def batches_by_length(seconds: Mapping[int, float], batch_size: int, batch_seconds: float) -> list[list[int]]:
    """Positions in batches of similar length, the longest first.

    Args:
        seconds: length of each recording by its position.
        batch_size: most recordings of a batch.
        batch_seconds: no batch of several recordings is longer, padding included.
    """
    batches: list[list[int]] = []
    for position in sorted(seconds, key=lambda position: -seconds[position]):
        longest = seconds[batches[-1][0]] if batches else 0.0
        if not batches or len(batches[-1]) == batch_size or (len(batches[-1]) + 1) * longest > batch_seconds:
            batches.append([])
        batches[-1].append(position)
    return batches


def batches_of(recordings: Mapping[int, Recording], batch_size: int, batch_seconds: float) -> list[list[int]]:
    """Positions in batches as of `batches_by_length`, of a few files after the others.

    Files that are decoded as a whole are taken in groups that can be kept until their last part is read, so each is
    decoded once. All others are one group.
    """
    by_file: dict[str | bytes | None, list[int]] = {}
    for position, recording in recordings.items():
        audio = None if isinstance(recording.audio, np.ndarray) or not recording.decoded_bytes else recording.audio
        by_file.setdefault(audio, []).append(position)
    groups: list[dict[int, float]] = [{}]
    num_bytes = num_files = 0
    for positions in by_file.values():
        size = max(recordings[position].decoded_bytes for position in positions)
        if num_files and size and (num_bytes + size > decoded.KEPT_BYTES or num_files == decoded.KEPT_FILES):
            groups.append({})
            num_bytes = num_files = 0
        num_bytes, num_files = num_bytes + size, num_files + bool(size)
        groups[-1].update({position: recordings[position].seconds for position in positions})
    return [batch for group in groups for batch in batches_by_length(group, batch_size, batch_seconds)]


EACH = "each"  # channel of a recording, one after the other
_MOST_CHANNEL = 9999


def channel_choice(channel: object) -> int | str | None:
    """A channel from 0, `MIX`, `EACH` or None. UsageError for all else."""
    if channel is None or channel in (MIX, EACH):
        return None if channel is None else str(channel)
    if isinstance(channel, Integral) and not isinstance(channel, bool) and 0 <= int(channel) <= _MOST_CHANNEL:
        return int(channel)
    raise UsageError(f"{channel!r} is no channel: give 0 for the first, 1 for the second, {MIX} or {EACH}")


def one_channel(channel: object) -> int | str | None:
    """A channel of a text. UsageError for `EACH`, and for what can be no channel."""
    if channel == EACH:
        remedy = f"give {MIX}, or 0 or 1 for the channel that the text is of"
        raise UsageError("a text is of one channel", got=f"channel {EACH!r}", remedy=remedy)
    return channel_choice(channel)


def with_channels(recordings: Sequence[Recording], channel: int | str | None) -> list[Recording]:
    """Recordings with their channel, in their order.

    Args:
        recordings: those that have a channel keep it.
        channel: one from 0; None or `MIX` for the average; `EACH`: a recording for each channel that there is,
            and one of the first where all are the same, which a warning says.

    Raises:
        UsageError: this can be no channel. One that is not there is told when the recording is measured.
    """
    channel = channel_choice(channel)
    if channel in (None, MIX):
        return list(recordings)
    return [chosen for recording in recordings for chosen in _with_channels(recording, channel)]


def _with_channels(recording: Recording, channel: int | str | None) -> Iterator[Recording]:
    if recording.channel is not None:
        yield recording
    elif isinstance(channel, int):
        yield replace(recording, channel=channel)
    else:
        count = _num_channels(recording)
        if count > 1 and _has_equal_channels(recording):
            logging.warning(f"{recording.source}: its {count} channels are the same; channel 0 is taken for all")
            count = 1
        yield from (replace(recording, channel=number) for number in range(count))


def _has_equal_channels(recording: Recording) -> bool:
    """Whether all samples are the same in all channels; it reads up to the first difference."""
    if isinstance(recording.audio, np.ndarray):
        return bool((recording.audio == recording.audio[:, :1]).all())
    differs = False

    def compare(samples: Samples) -> None:
        nonlocal differs
        differs = differs or bool((samples != samples[:, :1]).any())

    try:
        with recording.opened() as part:
            return not any(differs for _ in part.pieces(observe=compare))
    except DataError:  # told when it is measured
        return False


def _num_channels(recording: Recording) -> int:
    if isinstance(recording.audio, np.ndarray):
        return 1 if recording.audio.ndim == 1 else int(recording.audio.shape[1])
    try:
        with open_part(recording.audio) as part:
            return int(part.num_channels)
    except DataError:  # told when it is measured
        return 1


def recordings_in(audio: Sequence[Any], sample_rate: int | None, channel: int | str | None = None) -> list[Recording]:
    """What Python hands over, as recordings in their order.

    Args:
        audio: paths; content of audio files; `Recording` objects; or arrays, also torch's, of (T,), (channels, T) or
            (T, channels) samples: floats of full scale 1, or whole numbers of 8, 16 or 32 bits, without sign around the
            middle of their range. Those of 64 bits, numpy's default, have the values of 16 bits, or else of 32. Of two
            axes the shorter one is that of the channels.
        sample_rate: of arrays, in Hz.
        channel: as of `with_channels`.

    Raises:
        UsageError: this can be no channel; or an array without a sample rate, of another shape or kind, empty, or with
            values that are not finite, or beyond 32 bits.
    """
    is_mixed = channel_choice(channel) in (None, MIX)
    recordings = [_recording_of(item, sample_rate, number, is_mixed) for number, item in enumerate(audio)]
    return with_channels(recordings, channel)


def _recording_of(audio: Any, sample_rate: int | None, number: int, is_mixed: bool) -> Recording:
    if isinstance(audio, Recording):
        return audio
    place = f"audio[{number}]"  # by which messages name an array
    if isinstance(audio, bytes):
        return Recording(place, audio)
    if hasattr(audio, "detach"):  # torch's, which is not imported here
        audio = audio.detach().cpu().numpy()
    if not isinstance(audio, np.ndarray):
        return Recording(str(audio), str(audio))
    if sample_rate is None or sample_rate < 1:
        raise UsageError("an array has no sample rate", place=place, remedy="give sample_rate=16000, or what it is")
    if audio.ndim not in (1, 2) or audio.size == 0 or audio.dtype.kind not in "iuf":
        wanted = "(T,), (channels, T) or (T, channels) floats or whole numbers"
        raise UsageError("this is no audio", place=place, got=f"{audio.shape} {audio.dtype}", wanted=wanted)
    samples = _of_full_scale(audio, place)
    if samples.ndim == 2 and samples.shape[0] <= samples.shape[1]:
        samples = samples.T
    if not np.isfinite(samples).all():
        raise UsageError("samples are NaN or infinite", place=place)
    return Recording(place, _mono(samples, None) if is_mixed else samples, sample_rate)


def _of_full_scale(audio: npt.NDArray[Any], place: str) -> Samples:
    """Samples of any kind of number as floats of full scale 1."""
    if audio.dtype.kind == "f":
        floats: Samples = audio.astype(np.float32)
        return floats
    bits, middle = 8 * audio.dtype.itemsize, 0.0
    if bits > 32:
        least, most = int(audio.min()), int(audio.max())
        bits = 16 if least >= -(2**15) and most < 2**15 else 32
        if least < -(2**31) or most >= 2**31:
            wanted = "floats of full scale 1, or whole numbers of 16 or 32 bits"
            raise UsageError("samples are too large", place=place, got=f"{least} to {most}", wanted=wanted)
    elif audio.dtype.kind == "u":
        middle = 2.0 ** (bits - 1)
    # In float64: a whole number of 32 bits loses its last bits only once it is a small float.
    floats = ((audio.astype(np.float64) - middle) * 2.0 ** (1 - bits)).astype(np.float32)
    return floats


STDIN, MICROPHONE = "-", "microphone"
_NOT_DECODED = "the recordings in this folder can be decoded by PyAV only"


def recordings_of(names: Sequence[str], channel: int | str | None = None) -> list[Recording]:
    """The recordings that some names stand for, in their order.

    Args:
        names: audio files; folders, of which all audio files are taken, also those in folders inside; manifests
            (``.json``, ``.jsonl``, and registered kinds); ``-`` for an audio file on stdin.
        channel: of recordings whose line names none: one from 0; None or `MIX` for the average; `EACH`: a recording for
            each channel that the file has.

    Raises:
        UsageError: a folder without audio, stdin without audio, or stdin twice.
        DataError: a manifest that cannot be read.
    """
    if names.count(STDIN) > 1:
        raise UsageError("stdin holds one recording", place=STDIN, got=f"{STDIN} {names.count(STDIN)} times")
    return with_channels([recording for name in names for recording in _named(name)], channel)


def _named(name: str) -> Iterator[Recording]:
    path = Path(name).expanduser()
    if name == STDIN:
        yield Recording("stdin", _stdin())
    elif kind_of(str(path)) is not None:
        source, lines = read_lines(str(path), "audio")
        for _, line in lines:
            audio = source.resolve(line.path)
            yield Recording(audio, audio, offset=line.start, duration=line.duration, channel=line.channel_number)
    elif path.is_dir():
        every = sorted(file for file in path.rglob("*") if file.suffix.lower() in ALL_SUFFIXES and file.is_file())
        suffixes = audio_suffixes()
        files = [file for file in every if file.suffix.lower() in suffixes]
        if not files and every:
            raise UsageError(_NOT_DECODED, place=str(path), got=every[0].name, remedy=REMEDY)
        if not files:
            wanted = f"files ending in {', '.join(sorted(suffixes))}"
            raise UsageError("there is no audio in this folder", place=str(path), wanted=wanted)
        if len(files) < len(every):
            left_out = [file.name for file in every if file.suffix.lower() not in suffixes]
            some = ", ".join(left_out[:MAX_LISTED]) + (", ..." if len(left_out) > MAX_LISTED else "")
            logging.warning(f"{path}: {counted(len(left_out), 'file')} left out ({some}): {REMEDY}")
        yield from (Recording(str(file), str(file)) for file in files)
    else:
        yield Recording(name, name if is_address(name) else str(path))


def stdin_of_audio(remedy: str) -> BinaryIO:
    """Stdin, where it is no terminal.

    Raises:
        UsageError: it is one, or closed; ``remedy`` says what to pipe.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("stdin is a terminal, not audio", place=STDIN, remedy=remedy)
    return sys.stdin.buffer


def _stdin() -> bytes:
    remedy = "pipe the content of an audio file into the command, or name a file"
    content = stdin_of_audio(remedy).read(MAX_CONTENT_BYTES + 1)
    if len(content) > MAX_CONTENT_BYTES:
        problem, wanted = "there is too much on stdin", f"at most {MAX_CONTENT_BYTES} bytes"
        raise UsageError(problem, place=STDIN, wanted=wanted, remedy="name a file instead")
    if not content:
        raise UsageError("there is no audio on stdin", place=STDIN, got="0 bytes", remedy=remedy)
    return content
