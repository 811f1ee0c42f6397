"""StreamedModel: a model of torch's modules that runs in chunks. What becomes of its frames: `frame_stream`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from nemo_asr.decoding.hypotheses import time_axis
from nemo_asr.features.audio_preprocessor import audio_ports
from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.search.search import Search, States
from nemo_asr.tasks.family import Model, StandIn, connect, is_lengths
from nemo_lite.backends.pytorch.streaming import StreamedDag, lower_to_stream
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import slice_between


class StreamedModel(NamedTuple):
    """A model that runs in chunks, of which many streams can be made.

    Attributes:
        dag: samples and their number to what the search reads.
        labels: the vocabulary.
        sample_rate: samples a second that it takes.
        frame_samples: samples of one frame of that.
        hop_samples: samples of one frame of features.
        search: the model's own.
        time_axes: of the outputs of ``dag``, by the search's names for them.
    """

    dag: StreamedDag
    labels: Sequence[str]
    sample_rate: int
    frame_samples: int
    hop_samples: int
    search: Search
    time_axes: Mapping[str, int]

    @property
    def look_ahead(self) -> float:
        """Seconds of audio behind the beginning of a frame that it waits for."""
        return self.dag.delay.look_ahead / self.sample_rate

    def frames(self) -> Callable[[Samples, bool], States]:
        """See `FrameModel`."""
        return _TorchFrames(self)


def streamed_model(model: Model, labels: Sequence[str], sample_rate: int) -> StreamedModel:
    """The model as it runs in chunks, in evaluation mode, where its modules are.

    Raises:
        UsageError: it cannot: all its modules that see the whole utterance are named, with the reason; or its search
            needs the whole utterance.
    """
    sources = StandIn(audio_ports(sample_rate))()
    wires = connect(model, sources)
    search: Any = wires.predictions.call.module
    states = {port: wire for port, wire in wires.predictions.call.inputs.items() if not is_lengths(wire.ntype)}
    if not hasattr(search, "stream") or wires.features is None:
        problem = f"the search of family {model.family} does not stream by frames"
        wanted, remedy = "a search with a method stream", "stream in segments"
        raise UsageError(problem, got=search.label, wanted=wanted, remedy=remedy)
    dag = lower_to_stream(slice_between(sources, list(states.values()))).eval()
    if late := [port for port, wire in states.items() if dag.delays[wire] != dag.delay]:
        problem, remedy = f"{', '.join(late)} comes later than {next(iter(states))}", "stream in segments"
        raise UsageError("the search reads wires of several delays", place=search.label, got=problem, remedy=remedy)
    strides = dag.delay.stride, dag.delays[wires.features].stride
    axes = {port: time_axis(wire.ntype) for port, wire in states.items()}
    return StreamedModel(dag, list(labels), sample_rate, *strides, search, axes)


class _TorchFrames:
    """The frames of one stream."""

    def __init__(self, model: StreamedModel) -> None:
        self._dag, self._state = model.dag, model.dag.initial_state(1)
        self._time_axes = model.time_axes

    @torch.no_grad()
    def __call__(self, samples: Samples, last: bool) -> States:
        tensors = (tensor for state in self._state.values() for tensor in state.values())
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        signal = torch.from_numpy(np.ascontiguousarray(samples)).to(device).unsqueeze(0)
        length = torch.tensor([len(samples)], device=device)
        outputs, self._state = self._dag(signal, length, state=self._state, last=last)
        return {
            name: value.movedim(axis, 1)[0].float().cpu().numpy()
            for (name, axis), value in zip(self._time_axes.items(), outputs, strict=True)
        }
