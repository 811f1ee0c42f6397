"""Models that run in chunks as ONNX files whose states are inputs and outputs. Running ours: `onnx_stream`.

All sizes but the batch are fixed: a file takes chunk after chunk, each with the states that the one before gave.
What sherpa-onnx reads: `sherpa_export`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_asr.export.onnx_export import (
    TOLERANCE,
    OutputComparison,
    example_signals,
    exported_files,
    log_probs_of_frames,
    metadata_of,
    parts_beside,
)
from nemo_asr.features.audio_preprocessor import AudioPreprocessor
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.onnx.onnx_model import STREAM_FORMAT, part_place
from nemo_asr.run.onnx.onnx_stream import BEFORE, CHUNK, LATE, NEXT, OnnxStreamedModel
from nemo_asr.run.search.ctc import LOG_PROBS
from nemo_asr.run.search.known_searches import is_known
from nemo_asr.tasks.family import Exported, Wires
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.export import Argument, OnnxRun, evaluated_part, write_onnx
from nemo_lite.backends.pytorch.streaming import (
    State,
    StreamedDag,
    StreamsInGraph,
    keyed,
    lower_to_stream,
    prefixed,
)
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import refuse_existing
from nemo_lite.core.dag import slice_between

# Any: wires that a family may not have.

FEATURES = "features"  # in names of states; nodes have the names of their classes


@dataclass(frozen=True)
class StreamedParts:
    """What a chunk goes through.

    Attributes:
        model: the trained model.
        wires: its wires.
        files: what is written of them, by name.
        preprocessor: samples to features.
        encoder: keeps the state, ``name`` of :attr:`dag`.
        dag: features to log-probabilities, or what else the search reads, and to the frames up to the end of the
            recording.
        name: the encoder's, in the names of states.
        chunk: frames of features in a chunk.
        frames: frames of the outputs in a chunk.
        late: frames of the outputs before the first one of the recording.
    """

    model: TrainedModel
    wires: Wires
    files: Mapping[str, Exported]
    preprocessor: AudioPreprocessor
    encoder: StreamsInGraph
    dag: StreamedDag
    name: str
    chunk: int
    frames: int
    late: int

    @classmethod
    def of(cls, model: TrainedModel) -> StreamedParts:
        """The parts of a model.

        Raises:
            UsageError: it does not run in chunks, or not in chunks of equal sizes.
        """
        encoder, preprocessor = model.modules.encoder, model.modules.preprocessor
        wires, files = exported_files(model)
        file = next(iter(files.values()))
        if not is_known(file.search):
            log_probs_of_frames(model, "a file with states")
        of_model = model.stream_problem()
        problem = of_model or _graph_problem(encoder) or _graph_problem(preprocessor)
        names = []
        if not problem:
            features = [wire for wire in (wires.features, wires.feature_lengths) if wire is not None]
            dag = lower_to_stream(slice_between(features, list(file.outputs.values())))
            names = sorted(name for name, state in dag.initial_state(1).items() if state)
            if len(names) > 1:
                problem = f"states of several modules: {', '.join(names)}"
        if problem:
            by_segments = " in segments: transcribe --stream segments" if of_model else ""
            remedy = f"stream with the model folder{by_segments}"
            raise UsageError("no file with states", place=model.place, got=problem, remedy=remedy)
        assert isinstance(encoder, StreamsInGraph)
        assert isinstance(preprocessor, AudioPreprocessor)
        chunk = encoder.graph_chunk
        frames = chunk // encoder.stream_delay().stride
        return cls(model, wires, files, preprocessor, encoder, dag, names[0], chunk, frames, encoder.graph_late)

    @property
    def file(self) -> Exported:
        """The one that takes chunks."""
        return next(iter(self.files.values()))

    def state(self, batch: int) -> State:
        """The state before the first chunk, without the tensors that stay empty."""
        return {key: value for key, value in self._whole_state(batch).items() if value.numel()}

    def _whole_state(self, batch: int) -> dict[str, Tensor]:
        states = {FEATURES: self.preprocessor.graph_state(batch), self.name: self.encoder.graph_state(batch)}
        return {key: value for name, state in states.items() for key, value in prefixed(state, name).items()}

    @property
    def counter(self) -> str:
        """The state (B,) that counts the frames of the outputs before a chunk; zeros at first, as all states."""
        return f"{self.name}.num_frames"

    def features(self, signal: Tensor, length: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Features (B, D, T), frames of them up to the end of the recording, and the state with what is new of it."""
        at_start, kept = state[self.counter] == 0, keyed(self._with_empty(state), FEATURES)
        features, lengths, new_state = self.preprocessor.of_window(signal, length, at_start, kept)
        return features, lengths, self._of(state, prefixed(new_state, FEATURES))

    def step(self, features: Tensor, lengths: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """The outputs (B, U, ...), frames of them up to the end of the recording, and the new state."""
        kept = keyed(self._with_empty(state), self.name)
        (log_probs, frames), new_state = self.dag(features, lengths, state={self.name: kept}, last=False)
        return log_probs, frames, self._of(state, prefixed(new_state[self.name], self.name))

    def _with_empty(self, state: State) -> State:
        batch = state[self.counter].shape[0]
        empty = {key: value for key, value in self._whole_state(1).items() if not value.numel()}
        return {**state, **{key: value.new_zeros(batch, *value.shape[1:]) for key, value in empty.items()}}

    def _of(self, state: State, new_state: State) -> State:
        """The state with what is new of it, without the tensors that stay empty."""
        return {key: new_state.get(key, value) for key, value in state.items()}


def _graph_problem(module: object) -> str:
    if isinstance(module, (StreamsInGraph, AudioPreprocessor)):
        return module.graph_problem()
    return f"{type(module).__name__} has no form in chunks of a file"


class _Chunk(nn.Module):
    """A chunk of samples, and the states in the order of their names, to log-probabilities, frames and states."""

    def __init__(self, parts: StreamedParts) -> None:
        super().__init__()
        self.parts, self.names = parts, list(parts.state(1))
        self.preprocessor, self.dag = parts.preprocessor, parts.dag

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """``values``: as the file's inputs."""
        signal, length, *kept = values
        state: State = dict(zip(self.names, kept, strict=True))
        features, lengths, state = self.parts.features(signal, length, state)
        log_probs, frames, new_state = self.parts.step(features, lengths, state)
        return log_probs, frames.clamp(0, log_probs.shape[1]), *new_state.values()


def export_stream(model: TrainedModel, path: str | Path, recordings: Sequence[Samples] = ()) -> OutputComparison:
    """Write one ONNX file that takes a recording in chunks of samples, with the states between them.

    Further parts of the model are beside it, as of `export_onnx`.

    It is run with ONNX Runtime at once, on signals of several lengths, and compared with the stream of the modules in
    torch. If it differs, there is no file.

    Args:
        model: it is left as it was.
        path: the file; there must be none yet.
        recordings: samples at the model's rate, on which the file is compared as well.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: the model does not run in chunks of equal sizes, a package is missing, or the file and torch differ.
    """
    path = Path(path).expanduser()
    refuse_existing(path)
    parts = StreamedParts.of(model)
    preprocessor = parts.preprocessor
    shift = parts.chunk * preprocessor.hop_length * preprocessor.frame_splicing
    before, window = preprocessor.graph_window(parts.chunk)
    state = parts.state(2)
    arguments = [
        Argument("audio_signal", torch.randn(2, window, generator=torch.Generator().manual_seed(0)), {0: "batch"}),
        Argument("length", torch.tensor([10 * window, shift - 1]), {0: "batch"}),
        *(Argument(name, value, {0: "batch"}) for name, value in state.items()),
    ]
    outputs = [*parts.file.outputs, *(name + NEXT for name in state)]
    metadata = metadata_of(model, parts.wires, parts.file) | {
        "format": STREAM_FORMAT,
        CHUNK: str(shift),
        BEFORE: str(before),
        LATE: str(parts.late),
    }
    compared: list[OutputComparison] = []
    signals = [*(signal for batch in example_signals(model.card.sample_rate) for signal in batch), *recordings]

    def check(run: OnnxRun) -> None:
        for name in list(parts.files)[1:]:
            shutil.copy(part_place(path, name), run.path.parent)  # where the file is for now
        compared.append(_compare(model, run, signals))

    with parts_beside(model, parts.files, path) as (said, _), evaluated_part([parts.wires.frames]):
        write_onnx(_Chunk(parts).eval(), arguments, outputs, path, check, metadata | said)
    return compared[0]


def _compare(model: TrainedModel, run: OnnxRun, signals: Sequence[Samples]) -> OutputComparison:
    """The file's stream, and torch's on the same signals.

    Raises:
        UsageError: log-probabilities or texts differ.
    """
    streamed, written = model.streamed(), OnnxStreamedModel(run.path)
    difference, sizes = 0.0, []
    for signal in signals:
        wanted, got = (torch.from_numpy(*each.frames()(signal, True).values()) for each in (streamed, written))
        size = (1, len(signal) / model.card.sample_rate)
        same = got.shape == wanted.shape
        apart = (got - wanted).abs() if same else torch.tensor([torch.inf])
        if not same or not (apart <= TOLERANCE * (1 + wanted.abs())).all():
            problem = "the exported stream is not torch's, so no file is written"
            details = f"{tuple(got.shape)}, {apart.max().item() if apart.numel() else 0:.1e} apart"
            raise UsageError(
                f"{problem} ({size[1]:.2f} s)", place=run.path.name, got=details, wanted=str(tuple(wanted.shape))
            )
        difference = max(difference, apart.max().item() if apart.numel() else 0.0)
        sizes.append(size)
    values = "log-probabilities" if LOG_PROBS in streamed.time_axes else "values"
    return OutputComparison(tuple(sizes), difference, len(sizes), 0, values)
