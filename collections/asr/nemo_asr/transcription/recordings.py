"""RecordingsDataLayer: recordings of any kind in batches of similar length. A bad one does not end the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_asr.arguments import BatchSeconds, BatchSize, SampleRate, Workers
from nemo_asr.audio.reading import Audio
from nemo_asr.transcription.recording import Recording as Recording
from nemo_asr.transcription.recording import batches_by_length, named
from nemo_lite.backends.pytorch.data import Counts, ItemDataset, Plan, PlannedLoader, Request, Shard, UnusableItems
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.core.neural_types import AudioSignal, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol
from nemo_lite.errors import DataError, UsageError


def recording_of(audio: Any, sample_rate: int | None, number: int) -> Recording:
    """A recording of a path, or of an array of samples.

    Args:
        audio: a path; or (T,), (channels, T) or (T, channels) samples, floats of full scale 1 or whole numbers of 16 or
            32 bits. Of two axes the shorter one is that of the channels, which are averaged.
        sample_rate: of an array, in Hz.
        number: its position among those given, by which messages name an array.

    Raises:
        UsageError: an array without a sample rate, of another shape or kind, empty, or with values that are not finite.
    """
    if isinstance(audio, (bytes, Recording)):
        return audio if isinstance(audio, Recording) else Recording(f"audio[{number}]", audio)
    if not isinstance(audio, (np.ndarray, Tensor)):
        return Recording(str(audio), str(audio))
    samples, place = np.asarray(audio.detach().cpu() if isinstance(audio, Tensor) else audio), f"audio[{number}]"
    if sample_rate is None or sample_rate < 1:
        raise UsageError("an array has no sample rate", place=place, remedy="give sample_rate=16000, or what it is")
    if samples.ndim not in (1, 2) or samples.size == 0 or samples.dtype.kind not in "if":
        wanted = "(T,), (channels, T) or (T, channels) floats or whole numbers"
        raise UsageError("this is no audio", place=place, got=f"{samples.shape} {samples.dtype}", wanted=wanted)
    scale = 2.0 ** (1 - 8 * samples.dtype.itemsize) if samples.dtype.kind == "i" else 1.0
    channels = np.atleast_2d(samples)
    channels = channels.T if channels.shape[0] > channels.shape[1] else channels
    floats = channels.astype(np.float32).mean(axis=0) * np.float32(scale)
    if not np.isfinite(floats).all():
        raise UsageError("samples are NaN or infinite", place=place)
    return Recording(place, floats, sample_rate)


class RecordingsDataLayer(DataLayerNM):
    """Recordings to be transcribed: audio (B, T) at ``sample_rate`` and its lengths (B,), the longest first.

    ``start`` (B,) says how many quiet samples were left out before the first. Over several ranks each recording comes
    once.

    Args:
        recordings: what to read.
        sample_rate: samples a second; other rates are resampled, channels are averaged.
        batch_size: most recordings of a batch.
        batch_seconds: no batch of several recordings is longer, padding included.
        num_workers: processes that read; with 0 this one does.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        int_values: read files through 32-bit integers: floats beyond full scale are clipped.
        name: the module's name.

    Attributes:
        faults: why recordings could not be read, by position. Complete, on all ranks, when an inference has ended.

    Raises:
        UsageError: numbers out of range.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        sample_rate: SampleRate,
        batch_size: BatchSize = 16,
        batch_seconds: BatchSeconds = 240.0,
        num_workers: Workers = 0,
        trim_silence: bool = False,
        int_values: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.recordings = list(recordings)
        self.faults: dict[int, str] = {}
        self.batch_size, self._batch_seconds, self.num_workers = batch_size, batch_seconds, num_workers
        self._sample_rate = sample_rate
        self._reading = _Reading(sample_rate, trim_silence, int_values)
        for position, recording in enumerate(self.recordings):
            try:
                self.recordings[position] = recording.measured()
            except DataError as error:
                self.faults[position] = named(recording, error)

    @property
    def output_ports(self) -> Ports:
        """Audio, its lengths, and where it starts."""
        return {
            "audio_signal": NeuralType("B T", AudioSignal(freq=self._sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "start": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples are the only free size."""
        batch = (symbol("B"),)
        return {"audio_signal": (*batch, symbol("samples")), "a_sig_length": batch, "start": batch}

    def __len__(self) -> int:
        return len(self.recordings)

    def place_of(self, item: int) -> str:
        """The recording's name."""
        return self.recordings[item].source

    def loader(self, *, training: bool, shard: Shard) -> PlannedLoader:
        """The batches of one rank."""
        plan = self.plan(shard)
        return PlannedLoader(
            self._reading,
            lambda _: plan,
            list(self.output_ports),
            shard,
            refs_of=lambda rows: [self.recordings[row] for row in rows],
            account=_Faults(self),
            num_workers=self.setting("num_workers", None),
            worker_timeout=self.setting("worker_timeout", None),
            multiprocessing_context=self.setting("multiprocessing_context", None),
        )

    def plan(self, shard: Shard) -> Plan:
        """Batches of recordings of similar length, for each rank every ``world_size``-th one."""
        good = [position for position in range(len(self)) if position not in self.faults]
        # Few recordings do not all go to the first rank.
        most = min(self.batch_size, max(1, -(-len(good) // shard.world_size)))
        seconds = {position: self.recordings[position].seconds for position in good}
        batches = batches_by_length(seconds, most, self._batch_seconds)
        numbers = range(shard.rank, len(batches), shard.world_size)
        rows = [np.array(batches[number], np.int64) for number in numbers]
        return Plan(rows, -(-len(batches) // shard.world_size), numbers=numbers)

    def note(self, faults: Mapping[int, str]) -> None:
        """Enter recordings that could not be read."""
        self.faults.update({position: named(self.recordings[position], reason) for position, reason in faults.items()})


class _Reading(ItemDataset[Recording, Audio]):
    def __init__(self, sample_rate: int, trim_silence: bool, int_values: bool) -> None:
        self._sample_rate, self._trim_silence, self._int_values = sample_rate, trim_silence, int_values

    def read(self, position: int, ref: Recording, request: Request[Recording], counts: Counts) -> Audio:
        return ref.read(self._sample_rate, trim_silence=self._trim_silence, int_values=self._int_values)

    def collate(self, items: Sequence[Audio]) -> tuple[Any, ...]:
        lengths, starts = ([len(audio.samples) for audio in items], [audio.start for audio in items])
        if len(items) == 1:  # an hour of samples need not be copied
            return torch.from_numpy(items[0].samples[None]), torch.tensor(lengths), torch.tensor(starts)
        signal = np.zeros((len(items), max(lengths)), np.float32)
        for row, audio in zip(signal, items, strict=True):
            row[: len(audio.samples)] = audio.samples
        return torch.from_numpy(signal), torch.tensor(lengths), torch.tensor(starts)


class _Faults(UnusableItems):
    """Allows any number of bad recordings, and hands them to the data layer instead of logging them."""

    def __init__(self, layer: RecordingsDataLayer) -> None:
        super().__init__(layer.label, len(layer), layer.place_of, noun="recording")
        self._layer = layer

    def report(self) -> None:
        self._layer.note(self.faults)
