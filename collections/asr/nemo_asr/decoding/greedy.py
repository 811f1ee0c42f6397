"""Greedy CTC decoding, and labels to texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from nemo_asr.models.jasper import valid_frames
from nemo_asr.run.arguments import Classes
from nemo_asr.run.search.ctc import PathSearch, StreamedPath
from nemo_asr.run.search.search import Hypotheses, States
from nemo_asr.run.text.labels import text_of as text_of
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import AxisKind, AxisType, LengthsType, LogprobsType, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

# From a decoder's ids to texts. Nothing in here runs a model.
# Here a decoder is a search: a module in the role ``search``, see :class:`Decoder`. The role ``decoder`` is something
# else: the layer from encoded frames to log-probabilities. A beam search that is registered (``nemo_asr.register``)
# and has a section in a model's YAML takes the place of greedy decoding in every script, also as ``Model.search``.


class HypothesesType(PredictionsType):
    """Hypotheses of a search: label ids (B, N, U) of N texts for each utterance, the best first, -1 behind each end.

    A search that gives them may say more in outputs of these names: ``scores`` (B, N), natural logarithms; and, of each
    label, its frames ``starts`` to before ``ends`` (B, N, U) and ``log_probs`` (B, N, U), the natural logarithms of its
    probability, summed over these frames. Then words have times and confidences.
    """


class Decoder(Protocol):
    """A search of CTC: greedy decoding, a beam search, a search with a language model.

    In a DAG its ports take LogprobsType and, optionally, LengthsType, and give PredictionsType: a path of labels. Other
    searches give hypotheses: :class:`HypothesesType`.
    """

    def __call__(self, log_probs: Tensor, log_probs_length: Tensor | None = None, /) -> Tensor:
        """(B, T, classes), of which the last is the blank, and valid frames (B,) -> (B, U) ids.

        :func:`post_process_predictions` turns the ids into texts: equal neighbours are merged, blanks are left out. A
        search that finds labels, not frames, gives them with a blank between equal neighbours and blanks at the end.
        """


def ctc_collapse(predictions: Tensor, lengths: Tensor | None, blank: int) -> list[list[int]]:
    """Best paths to label ids: repeats merged, then blanks left out, frames beyond ``lengths`` not looked at.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 3.1.

    Args:
        predictions: (B, T) the best label of each frame.
        lengths: (B,) frames that belong to each utterance; None where all of them do.
        blank: the id of the CTC blank.
    """
    predictions = predictions.detach().cpu()
    keep = predictions != blank
    keep[:, 1:] &= predictions[:, 1:] != predictions[:, :-1]
    if lengths is not None:
        keep &= torch.arange(predictions.shape[1]) < lengths.detach().cpu().reshape(-1, 1)
    ids = predictions[keep].tolist()
    return [ids[start:end] for start, end in pairwise(accumulate(keep.sum(dim=1).tolist(), initial=0))]


def label_ids(predictions: Tensor, lengths: Tensor | None, blank: int) -> list[list[int]]:
    """The label ids of the best hypothesis of each utterance.

    Args:
        predictions: (B, N, U) hypotheses (:class:`HypothesesType`), or (B, T) paths of CTC (:func:`ctc_collapse`).
        lengths: of paths.
        blank: the id of the CTC blank.
    """
    if predictions.dim() == 2:
        return ctc_collapse(predictions, lengths, blank)
    return [[label for label in ids if label >= 0] for ids in predictions[:, 0].tolist()]


def post_process_predictions(
    predictions: Iterable[Tensor], labels: Sequence[str], lengths: Iterable[Tensor] | None = None
) -> list[str]:
    """The best texts of all batches.

    Args:
        predictions: batches of (B, T) paths of ids, as ``infer`` returns them; the id ``len(labels)`` is the blank. Or
            of (B, N, U) hypotheses: :class:`HypothesesType`.
        labels: the vocabulary.
        lengths: for each batch, (B,) frames of each utterance. Leave it out only where the decoder has already
            blanked the frames that are padding.

    Raises:
        UsageError: an id is neither a label nor the blank, or ``lengths`` has another number of batches.
    """
    batches = list(predictions)
    ends: list[Tensor | None] = [None] * len(batches) if lengths is None else list(lengths)
    if len(ends) != len(batches):
        got = f"{len(batches)} batches of predictions, {len(ends)} of lengths"
        raise UsageError("predictions and lengths must pair up", got=got)
    blank = len(labels)
    return [
        text_of(ids, labels) for batch, end in zip(batches, ends, strict=True) for ids in label_ids(batch, end, blank)
    ]


def post_process_transcripts(
    transcripts: Iterable[Tensor], transcript_lengths: Iterable[Tensor], labels: Sequence[str]
) -> list[str]:
    """The references of all batches.

    Args:
        transcripts: batches of (B, U) label ids, padded.
        transcript_lengths: for each batch, (B,) labels of each utterance.
        labels: the vocabulary.

    Raises:
        UsageError: an id inside a length is not a label.
    """
    return [
        text_of(ids[:length], labels)
        for batch, lengths in zip(transcripts, transcript_lengths, strict=True)
        for ids, length in zip(batch.tolist(), lengths.tolist(), strict=True)
    ]


# Decoders of the ASR collection: from log-probabilities to each frame's best label. No text and no metrics here.


class GreedyCTCDecoder(NonTrainableNM):
    """The most probable class of each frame; repeats and blanks (the last class) are left in.

    Where ``log_probs_length`` is connected, frames behind the end of an utterance are blank, so that its transcript
    does not depend on its neighbours in the batch.

    Args:
        name: the module's name.
        num_classes: labels without the blank; with it a decoder of another number of classes is refused.
    """

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "log_probs_length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"predictions": NeuralType("B T", PredictionsType())}
    is_framewise = True

    def __init__(self, name: str | None = None, num_classes: Classes | None = None) -> None:
        super().__init__(name)
        if num_classes is not None:
            port = next(iter(self.input_ports))
            classes = AxisType(AxisKind.Dimension, num_classes + 1)
            axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Time), classes)
            self.input_ports = {**self.input_ports, port: NeuralType(axes, LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, time, _ = shapes["log_probs"]
        return {"predictions": (batch, time)}

    def forward(self, log_probs: Tensor, log_probs_length: Tensor | None = None) -> Tensor:
        """(B, T, classes) and valid frames (B,) -> (B, T), int64."""
        best = log_probs.argmax(dim=-1)
        if log_probs_length is None:
            return best
        blank = log_probs.shape[2] - 1
        return torch.where(valid_frames(log_probs_length, best.shape[1]).squeeze(1), best, blank)

    def recognise(self, states: States, nbest: int = 1) -> Hypotheses:
        """See `nemo_asr.run.search.search.Search`."""
        return PathSearch().recognise(states, nbest)

    def stream(self, most_frames: int) -> StreamedPath:
        """See `nemo_asr.run.search.search.Search`."""
        return StreamedPath()
