"""OnnxStreamedModel: a file with states, which `nemo-lite export --stream` wrote, in ONNX Runtime. No torch in here.

What it computes for a recording in pieces is what the modules in torch compute; see `stream_export`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from nemo_asr.run.audio.files import Samples
from nemo_asr.run.onnx.onnx_model import STREAM_FORMAT, DescribedFile, OnnxModel, states_of
from nemo_asr.run.search.search import Search, States, num_frames_of
from nemo_lite.base.errors import CheckpointError

# Any: onnxruntime has no types.

NEXT = ".next"
CHUNK, BEFORE, LATE = "chunk_samples", "before", "late_frames"
_MOST_NUMBERS = 1 << 26  # 256 MB
_MOST_LATE = 1 << 20
_UNKNOWN = 1 << 40  # samples to the end of a recording that has not ended


class OnnxStreamedModel(DescribedFile):
    """A model in chunks, of which many streams can be made.

    Arguments, attributes and errors are those of `DescribedFile`.

    Attributes:
        hop_samples: samples of one frame of features.
        frame_samples: samples of one frame of log-probabilities.
    """

    format = STREAM_FORMAT

    def _read(self) -> None:
        self._chunk, self._before, self._late = (int(self.metadata[name]) for name in (CHUNK, BEFORE, LATE))
        self.hop_samples, self.frame_samples = (
            int(self.metadata[f"{name}_stride_samples"]) for name in ("feature", "frame")
        )
        inputs = {each.name: each for each in self._session.get_inputs()}
        sizes = {name: each.shape[1:] for name, each in inputs.items()}
        numbers = [size for shape in sizes.values() for size in shape]
        if not all(isinstance(size, int) for size in numbers):
            raise ValueError("sizes of inputs are not fixed")
        if (total := sum(math.prod(shape) for shape in sizes.values())) > _MOST_NUMBERS:
            raise ValueError(f"{total} numbers in its inputs")
        (self._window,) = sizes["audio_signal"]
        if not 1 <= self._chunk <= self._window or not 0 <= self._before <= self._window:
            raise ValueError(f"chunks of {self._chunk} samples in windows of {self._window}")
        if not 1 <= self.hop_samples <= self.frame_samples <= self._chunk:
            raise ValueError(f"frames of {self.frame_samples} samples in chunks of {self._chunk}")
        if not 0 <= self._late <= _MOST_LATE:
            raise ValueError(f"{self._late} frames before the first")
        self._states = [name for name in inputs if name not in ("audio_signal", "length")]
        shapes = {each.name: each.shape for each in self._session.get_outputs()}
        axes = {name: axis for name, axis in self.time_axes.items() if axis is not None}
        self._frames_of_chunk = {shapes[name][axis] for name, axis in axes.items()}.pop()
        sizes_of_frames = {
            name: [size for place, size in enumerate(shapes[name]) if place not in (0, axis)]
            for name, axis in axes.items()
        }
        self._none = {name: np.zeros((0, *sizes), np.float32) for name, sizes in sizes_of_frames.items()}
        self._initial = {
            name: np.zeros((1, *sizes[name]), np.int64 if "int64" in inputs[name].type else np.float32)
            for name in self._states
        }

    @property
    def search(self) -> Search:
        """The model's own, which decodes greedily."""
        return self.new_search()

    @property
    def look_ahead(self) -> float:
        """Seconds of audio behind the beginning of a chunk that its first frame waits for."""
        chunks_late = self._late * self.frame_samples // self._chunk
        return float(self._window - self._before + chunks_late * self._chunk) / self.sample_rate

    def frame_model(self) -> OnnxStreamedModel:
        """See `StreamEngine`."""
        return self

    def frames(self) -> Callable[[Samples, bool], States]:
        """See `FrameModel`. Frames come as soon as the chunk is whole in which they are."""
        return _OnnxFrames(self)


def described_file(path: str) -> DescribedFile:
    """A file of either kind, to look at.

    Raises:
        CheckpointError, UsageError: as of `DescribedFile`.
    """
    with suppress(CheckpointError):
        return OnnxStreamedModel(path)
    return OnnxModel(path)


class _OnnxFrames:
    def __init__(self, model: OnnxStreamedModel) -> None:
        self._model, self._state = model, dict(model._initial)
        self._samples = np.zeros(model._before, np.float32)  # from the window of the next chunk on
        self._outputs = [*model.time_axes, *(name + NEXT for name in model._states)]
        self._is_empty = True
        self._late = model._late  # frames to come before the first one of the recording

    def __call__(self, samples: Samples, last: bool) -> States:
        model = self._model
        self._is_empty = self._is_empty and not len(samples)
        self._samples = np.concatenate([self._samples, np.asarray(samples, np.float32)])
        found: list[States] = []
        while len(self._samples) >= model._window:
            found.append(self._step(_UNKNOWN)[0])
        if last and not self._is_empty:
            left = len(self._samples) - model._before
            is_whole = True
            while is_whole:  # after a chunk that is whole, one more may have frames
                self._samples = np.pad(self._samples, (0, max(model._window - len(self._samples), 0)))
                states, is_whole = self._step(left)
                left -= model._chunk
                found.append(states)
        return {name: np.concatenate([none, *(each[name] for each in found)]) for name, none in model._none.items()}

    def _step(self, length: int) -> tuple[States, bool]:
        """The frames of a chunk, and whether it has as many as it can hold."""
        model = self._model
        signal: Any = self._samples[None, : model._window]
        inputs = {"audio_signal": signal, "length": np.array([length]), **self._state}
        values = model._session.run(self._outputs, inputs)
        self._state = dict(zip(model._states, values[len(model.time_axes) :], strict=True))
        self._samples = self._samples[model._chunk :]
        (states,) = states_of(dict(zip(model.time_axes.items(), values, strict=False)))
        number = num_frames_of(states)
        late = min(self._late, number)
        self._late -= late
        return {name: frames[late:] for name, frames in states.items()}, number == model._frames_of_chunk
