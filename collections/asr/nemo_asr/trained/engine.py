"""TorchEngine: recordings to what is said in them by the modules of a model, in batches by length; voice activity."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from nemo_asr.decoding.moments import FrameMoments
from nemo_asr.decoding.times import frame_labels, labels_of_frames, says_times, timed_labels
from nemo_asr.features.audio_preprocessor import audio_ports
from nemo_asr.run.arguments import BatchSeconds, BatchSize, SampleRate, Workers
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.reading import Audio
from nemo_asr.run.audio.segments import Decisions, in_chunks
from nemo_asr.run.engines import ComputeRows, Row, TranscriptionSettings
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.ctc import LOG_PROBS, PathAligner
from nemo_asr.run.search.search import Aligner, Hypotheses, States, TimedLabels, refuse_no_probabilities
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.driver import in_batches
from nemo_asr.run.transcribe.inputs import Recording, batches_of, named, padded, read_rows, rows_of
from nemo_asr.tasks.families import connect_classifier
from nemo_asr.tasks.family import (
    Model,
    Signal,
    StandIn,
    Wires,
    connect,
    connect_features,
    is_lengths,
    search_of,
    signals_of,
    with_nbest,
)
from nemo_asr.trained.windows import (
    GUESSED_CONTEXT_SECONDS,
    Behind,
    WindowPlan,
    context_frames,
    plan_windows,
    stride_of,
)
from nemo_lite import Dag, DataLayerNM, DeviceType, NeuralModule, NeuralModuleFactory, NmTensor
from nemo_lite.backends.pytorch.data.loaders import Counts, ItemDataset, PlannedLoader, Request, UnusableItems
from nemo_lite.backends.pytorch.data.order import Plan, Shard
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import (
    AudioSignal,
    Index,
    LabelsType,
    LengthsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol

T = TypeVar("T")


class RecordingsDataLayer(DataLayerNM):
    """Recordings to be transcribed: audio (B, T) at ``sample_rate`` and its lengths (B,), the longest first.

    They are of any kind, in batches of similar length; a bad one does not end the others.
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
        self.recordings, self.faults = rows_of(recordings)
        self.batch_size, self._batch_seconds, self.num_workers = batch_size, batch_seconds, num_workers
        self._sample_rate = sample_rate
        self._reading = _RowReading(sample_rate, trim_silence, int_values)

    @property
    def output_ports(self) -> Ports:
        """Audio, its lengths, where it starts, and which recordings these are."""
        return {
            "audio_signal": NeuralType("B T", AudioSignal(freq=self._sample_rate)),
            "a_sig_length": NeuralType("B", LengthsType()),
            "start": NeuralType("B", LengthsType()),
            "position": NeuralType("B", Index()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples are the only free size."""
        batch = (symbol("B"),)
        of_batch = dict.fromkeys(("a_sig_length", "start", "position"), batch)
        return {"audio_signal": (*batch, symbol("samples")), **of_batch}

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
            refs_of=lambda epoch, rows: [self.recordings[row] for row in rows],
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
        batches = batches_of({position: self.recordings[position] for position in good}, most, self._batch_seconds)
        numbers = range(shard.rank, len(batches), shard.world_size)
        rows = [np.array(batches[number], np.int64) for number in numbers]
        return Plan(rows, -(-len(batches) // shard.world_size), numbers=numbers)

    def note(self, faults: Mapping[int, str]) -> None:
        """Enter recordings that could not be read."""
        self.faults.update({position: named(self.recordings[position], reason) for position, reason in faults.items()})


class _RowReading(ItemDataset[Recording, tuple[int, Audio]]):
    def __init__(self, sample_rate: int, trim_silence: bool, int_values: bool) -> None:
        self._sample_rate, self._trim_silence, self._int_values = sample_rate, trim_silence, int_values

    def read(self, position: int, ref: Recording, request: Request[Recording], counts: Counts) -> tuple[int, Audio]:
        audio = ref.read(self._sample_rate, trim_silence=self._trim_silence, int_values=self._int_values)
        return position, audio

    def collate(self, items: Sequence[tuple[int, Audio]]) -> tuple[Any, ...]:
        signals, lengths = padded([audio.samples for _, audio in items])
        starts, positions = [audio.start for _, audio in items], [position for position, _ in items]
        return torch.from_numpy(signals), torch.from_numpy(lengths), torch.tensor(starts), torch.tensor(positions)


class _Faults(UnusableItems):
    """Allows any number of bad recordings, and hands them to the data layer instead of logging them."""

    def __init__(self, layer: RecordingsDataLayer) -> None:
        super().__init__(layer.label, len(layer), layer.place_of, noun="recording")
        self._layer = layer

    def report(self) -> None:
        self._layer.note(self.faults)


@dataclass(frozen=True)
class _Task(Generic[T]):
    """What is computed of rows.

    Attributes:
        model: with the search that looks.
        wires: gives wires by name; ``num_frames`` (B,) is among them.
        value: makes the value of a row of theirs.
    """

    model: Model
    wires: Callable[[Behind, NeuralModuleFactory], dict[str, NmTensor]]
    value: Callable[[Mapping[str, Any]], T]


class TorchEngine:
    """The modules of a model as an engine, see `Engine`, on one rank or several.

    Args:
        model: the modules, see ``Recipe.model``.
        labels: the vocabulary, without the blank.
        sample_rate: samples a second that the model takes.
        factory: where and in which precision to run; by default the one made last, or a new one, in float32.
        trim_silence: leave out quiet ends of rows, as the data layer does with which the model was evaluated: see
            ``Recipe.reading``. Times count from the beginning of the recording all the same.
        int_values: read files through 32-bit integers, likewise.
    """

    def __init__(
        self,
        model: Model,
        labels: Sequence[str],
        sample_rate: int,
        factory: NeuralModuleFactory | None = None,
        *,
        trim_silence: bool = False,
        int_values: bool = False,
    ) -> None:
        self._model, self.labels, self.sample_rate = model, labels, sample_rate
        limits = (getattr(part, "longest_seconds", None) for part in model.modules.values())
        self.longest_seconds: float | None = min((limit for limit in limits if limit is not None), default=None)
        self._factory = factory or NeuralModuleFactory.get_default_factory()
        self._trim_silence, self._int_values = trim_silence, int_values
        self.domain: Domain | None = None
        self.may_invent: bool = getattr(model.search, "may_invent", False)

    @property
    def factory(self) -> NeuralModuleFactory:
        """Where it runs."""
        self._factory = self._factory or NeuralModuleFactory()
        return self._factory

    def new_search(self, options: SearchOptions | None = None) -> NeuralModule:
        """See `Engine`."""
        return search_of(self._model, self.labels, options)

    def hypotheses(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[Hypotheses]]:
        """See `Engine`."""
        return self._rows(self._searching(settings), rows, faults, settings)

    def of_one_batch(self, settings: TranscriptionSettings) -> ComputeRows:
        """See `Engine`. The modules are set to evaluation mode."""
        task = self._searching(settings)
        # For good: a call that put them back would do so to a stream of the same model in another thread.
        set_to_evaluation(task.model)
        return self._lowered(task, settings)

    def aligner(self) -> Aligner:
        """See `Engine`: of the search, where it has one; else over log-probabilities of frames."""
        own: Callable[[], Aligner] | None = getattr(self._model.search, "aligner", None)
        return PathAligner(len(self.labels)) if own is None else own()

    def states_of(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[States]]:
        """See `Engine`.

        Raises:
            UsageError: the search aligns no texts, and there are no log-probabilities of frames.
        """
        search = self._model.search
        names = [LOG_PROBS]
        if search is not None and hasattr(search, "aligner"):
            names = [port for port, ntype in search.input_ports.items() if not is_lengths(ntype)]
        task = _Task(self._model, partial(_state_wires, self._model.family, names), partial(_states_of_row, names))
        return self._rows(task, rows, faults, settings)

    def on_first(self, function: Callable[[], object]) -> object:
        """See `Engine`."""
        return self.factory.on_first(function)

    def from_first(self, function: Callable[[], T]) -> T:
        """See `Engine`."""
        return self.factory.from_first(function)

    def _searching(self, settings: TranscriptionSettings) -> _Task[Hypotheses]:
        search = settings.search or self._model.search
        if not isinstance(search, NeuralModule | None):
            wanted = "a module, such as nemo_asr.BeamSearchCTCDecoder(labels)"
            raise UsageError("this is no search of a model in torch", got=type(search).__name__, wanted=wanted)
        if settings.nbest > 1 and search is not None:
            search = with_nbest(search, settings.nbest)
        # Rows that are not cut have pauses too, which are not what a domain knows.
        is_measured = self.domain is not None and settings.cutting is not None
        wires = partial(_search_wires, self.labels, is_measured)
        return _Task(replace(self._model, search=search), wires, hypotheses_of)

    def _rows(
        self, task: _Task[T], rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[T]]:
        if not rows:  # nothing to run, on any rank
            return
        batches = batches_of(dict(enumerate(rows)), settings.batch_size, settings.batch_seconds)
        if len(batches) == 1 and not settings.num_workers and self.factory.world_size == 1:
            # Nothing else is read meanwhile, so it needs no loader.
            yield from in_batches(rows, faults, settings, self._lowered(task, settings))
            return
        sizes, reading = (settings.batch_size, settings.batch_seconds), (self._trim_silence, self._int_values)
        layer = RecordingsDataLayer(rows, self.sample_rate, *sizes, settings.num_workers, *reading)
        layer.worker_timeout = settings.worker_timeout
        wires = connect(task.model, layer)
        data, frame_samples = Dag([wires.frames]).data_node.outputs, stride_of(wires.frames)
        by_name = {"num_samples": data["a_sig_length"], "start": data["start"], "position": data["position"]}
        by_name |= task.wires(self._behind(task.model, wires, settings), self.factory)
        for batch in self.factory.infer_batches(list(by_name.values()), verbose=settings.verbose):
            for values in zip(*batch, strict=True):
                yield self._row(task, dict(zip(by_name, values, strict=True)), frame_samples)
        faults.update(layer.faults)

    def _lowered(
        self, task: _Task[T], settings: TranscriptionSettings
    ) -> Callable[[Sequence[Recording], dict[int, str]], Iterator[Row[T]]]:
        """Computes one batch at each call, in this process. The DAG is lowered here."""
        wires = connect(task.model, StandIn(audio_ports(self.sample_rate)))
        by_name = task.wires(self._behind(task.model, wires, settings), self.factory)
        frame_samples = stride_of(wires.frames)
        compute = self.factory.runner(list(by_name.values()))

        def of_batch(rows: Sequence[Recording], faults: dict[int, str]) -> Iterator[Row[T]]:
            reading = {"trim_silence": self._trim_silence, "int_values": self._int_values}
            audios, unreadable = read_rows(rows, self.sample_rate, **reading)
            faults.update(unreadable)
            if not audios:
                return
            signals, lengths = padded([audio.samples for audio in audios.values()])
            values = compute([torch.from_numpy(signals), torch.from_numpy(lengths)])
            for (number, audio), values_of_row in zip(audios.items(), zip(*values, strict=True), strict=True):
                row = dict(zip(by_name, values_of_row, strict=True))
                row |= {"num_samples": len(audio.samples), "start": audio.start, "position": number}
                yield self._row(task, row, frame_samples)

        return of_batch

    def window_plan(self, settings: TranscriptionSettings) -> WindowPlan | None:
        """How long recordings are cut into windows; None where the model does not say how its frames lie in time."""
        return self._behind(self._model, connect(self._model, StandIn(audio_ports(self.sample_rate))), settings).plan

    def _behind(self, model: Model, wires: Wires, settings: TranscriptionSettings) -> Behind:
        assert wires.features is not None
        features = Signal(wires.features, wires.feature_lengths)
        assert features.lengths is not None
        source = signals_of(StandIn({"features": features.values.ntype, "length": features.lengths.ntype})())[0]
        behind, plan = connect_features(model, source), None
        if (stride := stride_of(behind.frames)) is not None:
            a_second = self.sample_rate / (stride_of(features.values) or 1)
            longest, guess = (int(seconds * a_second) for seconds in (settings.batch_seconds, GUESSED_CONTEXT_SECONDS))
            plan = plan_windows(stride, context_frames(Dag([behind.frames]).modules.values()), longest, guess)
        return Behind(behind, features, plan)

    def _row(self, task: _Task[T], values: Mapping[str, Any], frame_samples: int | None) -> Row[T]:
        # A model that does not say how its frames lie in time: evenly.
        samples = frame_samples or int(values["num_samples"]) / max(int(values["num_frames"]), 1)
        start, seconds = int(values["start"]) / self.sample_rate, samples / self.sample_rate
        moments = values["moments"].double().numpy() if "moments" in values else None
        return Row(int(values["position"]), task.value(values), start, seconds, moments)


def set_to_evaluation(model: Model) -> None:
    """Set the modules to evaluation mode; those without weights need not be torch's and have none."""
    for module in model.modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()


def hypotheses_of(row: Mapping[str, Any]) -> Hypotheses:
    """What was found in one recording, from the values of :func:`_search_wires`."""
    num_labels = int((row["ids"][0] >= 0).sum())
    best = TimedLabels(*(row[name][0, :num_labels].tolist() for name in TimedLabels._fields))
    refuse_no_probabilities(max([0.0, *best.log_probs]))
    if len(row.get("several", ())) < 2:
        return Hypotheses(best)
    texts = ([label for label in ids if label >= 0] for ids in row["several"].tolist())
    return Hypotheses(best, list(zip(texts, row["totals"].tolist(), strict=True)))


def _state_wires(
    family: str, names: Sequence[str], behind: Behind, factory: NeuralModuleFactory
) -> dict[str, NmTensor]:
    """The wires that an aligner reads, over frames that were computed in windows, and ``num_frames``.

    Raises:
        UsageError: the model has none.
    """
    search, log_probs, lengths = behind.wires.predictions.call, behind.wires.log_probs, behind.wires.log_probs_lengths
    if list(names) != [LOG_PROBS]:
        wires = [search.inputs[name] for name in names]
        lengths = next(wire for wire in search.inputs.values() if is_lengths(wire))
    elif log_probs is None or lengths is None:
        raise UsageError(f"family {family} gives no log-probabilities of frames, so texts cannot be aligned")
    else:
        wires = [log_probs]
    return dict(zip([*names, "num_frames"], behind.windowed(wires, lengths, factory), strict=True))


def _states_of_row(names: Sequence[str], row: Mapping[str, Any]) -> States:
    return {name: row[name][: int(row["num_frames"])].float().numpy() for name in names}


def _search_wires(
    labels: Sequence[str], is_measured: bool, behind: Behind, factory: NeuralModuleFactory
) -> dict[str, NmTensor]:
    """What the search of a model gives, over frames that were computed in windows.

    Args:
        labels: the vocabulary.
        is_measured: give the ``moments`` (B, K + 1, K + 1) of what the search reads, too.
        behind: what is behind the features.
        factory: runs the windows.

    Returns:
        ``num_frames`` (B,), and the labels of the best text: ``ids``, ``starts``, ``ends`` and ``log_probs``, all
        (B, N, U). Of several hypotheses also these, ``several`` (B, N, U), and their ``totals`` (B, N).

    Raises:
        UsageError: the search says no times, and there are no log-probabilities to find them with.
    """
    own = behind.wires
    search = own.predictions.call
    lengths = next((wire for wire in search.inputs.values() if is_lengths(wire)), own.log_probs_lengths)
    if lengths is None:
        raise UsageError("the search takes no lengths of frames", place=search.module.label)
    if of_frames := frame_labels(search, own.log_probs, lengths):
        measured = [own.log_probs] if is_measured and own.log_probs is not None else []
        path, scores, *read, num_frames = behind.windowed([*of_frames, *measured], lengths, factory)
        found = labels_of_frames(path, scores, num_frames, labels)
        return {"num_frames": num_frames, **found, **_moments(read, num_frames)}
    inputs = [wire for wire in search.inputs.values() if not is_lengths(wire)]
    aligned = [own.log_probs] if own.log_probs is not None and not says_times(search) else []
    kept = list(dict.fromkeys([*inputs, *aligned]))
    *windowed, num_frames = behind.windowed(kept, lengths, factory)
    whole: dict[NmTensor, NmTensor] = dict(zip(kept, windowed, strict=True))
    over_whole = search.module.called_on(
        {port: num_frames if is_lengths(wire) else whole[wire] for port, wire in search.inputs.items()}
    )
    (port,) = (port for port, wire in search.outputs.items() if wire is own.predictions)
    timed = timed_labels(over_whole, port, whole[aligned[0]] if aligned else None, num_frames, labels)
    if "log_probs" not in timed:
        problem = "the search says no times of labels, and the model has no log-probabilities of frames to find them"
        remedy = "give the search the outputs starts, ends and log_probs"
        raise UsageError(problem, place=search.module.label, got=", ".join(search.outputs), remedy=remedy)
    return {"num_frames": num_frames, **timed, **_moments(windowed[:1] if is_measured else [], num_frames)}


def _moments(read: Sequence[NmTensor], num_frames: NmTensor) -> dict[str, NmTensor]:
    """Of the first of some wires, if it has frames of numbers."""
    if not read or len(read[0].axes or ()) != 3:
        return {}
    return {"moments": FrameMoments(read[0].ntype).connect(frames=read[0], length=num_frames)}


SPEECH = "speech"
"""The class that is speech."""
_WINDOW_SECONDS, _HOP_SECONDS, _WINDOWS = 0.63, 0.1, 256  # of a window, as in voice_activity.yaml; at a time
_SPEECH_PROBABILITY = 0.5  # above is speech


class SpeechDetector:
    """Where somebody speaks, by a classifier of short pieces such as that of voice_activity.yaml; see `Detector`.

    It stands in the place of levels of sound.

    Args:
        model: the modules of the classifier, which are set to evaluation mode.
        labels: its classes.
        sample_rate: samples a second that it takes.
        place: where it was loaded from, for messages.

    Raises:
        UsageError: no class is ``speech``.
    """

    def __init__(self, model: Model, labels: Sequence[str], sample_rate: int, place: str) -> None:
        if SPEECH not in labels:
            problem, remedy = f"no label of this model is {SPEECH}", "train one with voice_activity.yaml"
            raise UsageError(problem, place=place, got=", ".join(labels[:8]), remedy=remedy)
        self._speech, self._rate = list(labels).index(SPEECH), sample_rate
        audio = StandIn(
            {
                "audio_signal": NeuralType("B T", AudioSignal(freq=self._rate)),
                "a_sig_length": NeuralType("B", LengthsType()),
                "label": NeuralType("B", LabelsType()),
                "label_length": NeuralType("B", LengthsType()),
            }
        )
        set_to_evaluation(model)
        factory = NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)
        self._logits = factory.lower([connect_classifier(model, audio).logits])

    def __call__(self, pieces: Iterable[Samples], sample_rate: int) -> tuple[Decisions, float]:
        """The decision of a frame of 0.1 s is that of the window of 0.63 s around it."""
        hop, size = round(_HOP_SECONDS * self._rate), round(_WINDOW_SECONDS * self._rate)
        before = (size - hop) // 2
        buffer, speech = np.zeros(before, np.float32), list[Decisions]()
        end = [np.zeros(size - hop - before, np.float32)]
        for chunk in itertools.chain(in_chunks(pieces, sample_rate, self._rate, hop * _WINDOWS, whole=False), end):
            buffer = np.concatenate([buffer, chunk])
            if len(buffer) < size:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(buffer, size)[::hop]
            lengths, zeros = torch.full((len(windows),), size), torch.zeros(len(windows), dtype=torch.int64)
            with torch.inference_mode():
                (logits,) = self._logits(torch.from_numpy(windows.copy()), lengths, zeros, zeros)
            speech.append((logits.softmax(1)[:, self._speech] > _SPEECH_PROBABILITY).numpy())
            buffer = buffer[len(windows) * hop :]
        return np.concatenate([*speech, np.zeros(0, bool)]), _HOP_SECONDS
