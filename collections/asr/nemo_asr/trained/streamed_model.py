"""StreamedModel: a model of torch's modules that runs in chunks. What becomes of its frames: `frame_stream`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from nemo_asr.data.utterances import audio_ports
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.run.audio.segments import Samples
from nemo_asr.run.transcribe.frame_stream import FloatArray
from nemo_asr.tasks.families import Model, connect
from nemo_asr.trained.engine import StandIn
from nemo_lite.backends.pytorch.streaming import StreamedDag, lower_to_stream
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import slice_between


class StreamedModel(NamedTuple):
    """A model that runs in chunks, of which many streams can be made.

    Attributes:
        dag: samples and their number to log-probabilities.
        labels: the vocabulary.
        sample_rate: samples a second that it takes.
        frame_samples: samples of one frame of log-probabilities.
        hop_samples: samples of one frame of features.
        decoder: the model's own beam search; None: it decodes greedily.
    """

    dag: StreamedDag
    labels: Sequence[str]
    sample_rate: int
    frame_samples: int
    hop_samples: int
    decoder: BeamSearchCTCDecoder | None = None

    @property
    def look_ahead(self) -> float:
        """Seconds of audio behind the beginning of a frame that its log-probabilities wait for."""
        return self.dag.delay.look_ahead / self.sample_rate

    def frames(self) -> Callable[[Samples, bool], FloatArray]:
        """See `FrameModel`."""
        return _Frames(self.dag)


def streamed_model(model: Model, labels: Sequence[str], sample_rate: int) -> StreamedModel:
    """The model as it runs in chunks, in evaluation mode, where its modules are.

    Raises:
        UsageError: it cannot: all its modules that see the whole utterance are named, with the reason; or it has
            another search, or no log-probabilities.
    """
    sources = StandIn(audio_ports(sample_rate))()
    wires = connect(model, sources)
    search = wires.predictions.call.module
    if wires.log_probs is None or not isinstance(search, (GreedyCTCDecoder, BeamSearchCTCDecoder)):
        problem, wanted = "this search does not stream by frames", "GreedyCTCDecoder or BeamSearchCTCDecoder"
        raise UsageError(problem, got=search.label, wanted=wanted, remedy="stream in segments")
    dag = lower_to_stream(slice_between(sources, [wires.log_probs])).eval()
    assert wires.features is not None, "there are log-probabilities of them"
    strides = dag.delay.stride, dag.delays[wires.features].stride
    decoder = None if isinstance(search, GreedyCTCDecoder) else search
    return StreamedModel(dag, list(labels), sample_rate, *strides, decoder)


class _Frames:
    """The frames of one stream."""

    def __init__(self, dag: StreamedDag) -> None:
        self._dag, self._state = dag, dag.initial_state(1)

    @torch.no_grad()
    def __call__(self, samples: Samples, last: bool) -> FloatArray:
        device = next((tensor.device for tensor in self._state.values()), torch.device("cpu"))
        signal = torch.from_numpy(np.ascontiguousarray(samples)).to(device).unsqueeze(0)
        length = torch.tensor([len(samples)], device=device)
        (log_probs,), self._state = self._dag(signal, length, state=self._state, last=last)
        found: FloatArray = log_probs[0].float().cpu().numpy()
        return found
