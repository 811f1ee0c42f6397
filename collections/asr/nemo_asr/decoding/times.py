"""When labels are said, and how probable they are: of searches that say it, and of those of CTC, which do not.

Whatever a search gives, in the end there are wires ``ids``, ``starts``, ``ends`` and ``log_probs``, of the best text of
each utterance in their first row; see `HypothesesType`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nemo_asr.decoding.greedy import HypothesesType, label_ids
from nemo_asr.models.jasper import valid_frames
from nemo_asr.run.search.ctc import align, labels_of_path
from nemo_asr.run.search.search import refuse_no_probabilities
from nemo_lite import NmTensor, NonTrainableNM
from nemo_lite.core.neural_types import IntType, LengthsType, LogprobsType, ModuleCall, NeuralType, PredictionsType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol


def says_times(search: ModuleCall) -> bool:
    """Whether a search says when the labels of its hypotheses are said, and how probable they are."""
    return {"starts", "ends", "log_probs"} <= search.outputs.keys()


def frame_labels(search: ModuleCall, log_probs: NmTensor | None, length: NmTensor | None) -> list[NmTensor]:
    """Of a search that looks at each frame alone its path and the scores of that: all that is needed of each frame.

    Args:
        search: what the search gives, and of what.
        log_probs: of the frames.
        length: valid frames.

    Returns:
        Nothing of any other search: it needs all frames that it reads.
    """
    if log_probs is None or not getattr(search.module, "is_framewise", False):
        return []
    (path,) = search.outputs.values()
    return [path, PathScores().connect(log_probs=log_probs, path=path, **({"length": length} if length else {}))]


def labels_of_frames(
    path: NmTensor, scores: NmTensor | None, length: NmTensor | None, labels: Sequence[str]
) -> dict[str, NmTensor]:
    """The timed labels of a path of CTC."""
    inputs = {"path": path, "scores": scores, "length": length}
    found = PathLabels(len(labels))
    outputs = found.connect(**{name: wire for name, wire in inputs.items() if wire is not None})
    return dict(zip(found.output_ports, outputs, strict=True))


def timed_labels(
    search: ModuleCall, predictions: str, log_probs: NmTensor | None, length: NmTensor | None, labels: Sequence[str]
) -> dict[str, NmTensor]:
    """The timed labels of a search over whole utterances.

    Args:
        search: what the search gives, and of what.
        predictions: the port of its labels.
        log_probs: of the frames, by which labels get times where the search says none.
        length: valid frames.
        labels: the vocabulary.

    Returns:
        Of several hypotheses also ``several``, their ids, and ``totals``; no times where nothing says them.
    """
    ids, found = search.outputs[predictions], dict[str, NmTensor]()
    gives_ids = isinstance(ids.ntype.elements_type, HypothesesType)
    if gives_ids and "scores" in search.outputs:
        found |= {"several": ids, "totals": search.outputs["scores"]}
    if gives_ids and says_times(search):
        return {**found, "ids": ids, **{name: search.outputs[name] for name in ("starts", "ends", "log_probs")}}
    if log_probs is None or length is None:
        return found
    path = LabelAlignment().connect(log_probs=log_probs, length=length, **{"ids" if gives_ids else "predictions": ids})
    scores = PathScores().connect(log_probs=log_probs, path=path, length=length)
    return {**found, **labels_of_frames(path, scores, length, labels)}


class PathScores(NonTrainableNM):
    """The log-probability of each frame's label: (B, T, classes) and ids (B, T) to (B, T).

    Raises:
        UsageError: a valid frame's probabilities do not add up to 1.
    """

    keep_uncompiled = True  # it reads values
    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "path": NeuralType("B T", PredictionsType()),
        "length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {"scores": NeuralType("B T", LogprobsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"scores": shapes["log_probs"][:2]}

    def forward(self, log_probs: Tensor, path: Tensor, length: Tensor | None = None) -> Tensor:
        """Natural logarithms."""
        log_sums = log_probs.float().logsumexp(2)
        if length is not None:
            log_sums = log_sums[valid_frames(length, log_probs.shape[1]).squeeze(1)]
        if log_sums.numel():
            log_sums = log_sums.flatten()
            refuse_no_probabilities(float(log_sums[log_sums.abs().argmax()]))  # argmax takes NaN for the highest
        return log_probs.gather(2, path.unsqueeze(2)).squeeze(2)


class LabelAlignment(NonTrainableNM):
    """The most probable CTC path of the labels that a search has found, which says no frames, to (B, T).

    The labels are ``predictions`` (B, U), as CTC searches give them, or the first of the hypotheses ``ids`` (B, N, U).

    On the CPU, frame by frame; memory and time grow with the frames.
    """

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "length": NeuralType("B", LengthsType()),
        "predictions": NeuralType("B T", PredictionsType(), optional=True),
        "ids": NeuralType("B D T", HypothesesType(), optional=True),
    }
    output_ports: Ports = {"path": NeuralType("B T", PredictionsType())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"path": shapes["log_probs"][:2]}

    def forward(
        self, log_probs: Tensor, length: Tensor, predictions: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Blank beyond each utterance's frames."""
        blank = log_probs.shape[2] - 1
        path = torch.full(log_probs.shape[:2], blank, dtype=torch.int64)
        hypotheses = predictions if ids is None else ids
        assert hypotheses is not None, "one of the two is connected"
        label_rows = label_ids(hypotheses, None, blank)
        frames = log_probs.detach().float().cpu().numpy()
        for row, (labels, end) in enumerate(zip(label_rows, length.tolist(), strict=True)):
            path[row, :end] = torch.from_numpy(align(frames[row, :end], labels))
        return path.to(log_probs.device)


class PathLabels(NonTrainableNM):
    """The labels of paths of CTC, repeats merged and blanks left out, with their frames: (B, T) to (B, 1, U).

    On the CPU, row by row.

    Args:
        blank: the blank's number.
        name: the module's name.
    """

    keep_uncompiled = True  # it reads values
    input_ports: Ports = {
        "path": NeuralType("B T", PredictionsType()),
        "scores": NeuralType("B T", LogprobsType(), optional=True),
        "length": NeuralType("B", LengthsType(), optional=True),
    }
    output_ports: Ports = {
        "ids": NeuralType("B D T", HypothesesType()),
        "starts": NeuralType("B D T", IntType()),
        "ends": NeuralType("B D T", IntType()),
        "log_probs": NeuralType("B D T", LogprobsType()),
    }

    def __init__(self, blank: int, name: str | None = None) -> None:
        super().__init__(name)
        self._blank = blank

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """How many labels there are, is not known before."""
        return dict.fromkeys(self.output_ports, (shapes["path"][0], 1, symbol("labels")))

    def forward(
        self, path: Tensor, scores: Tensor | None = None, length: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Behind the last label of a row its ids are -1. Without scores all probabilities are 1."""
        paths = path.detach().cpu().numpy()
        values = np.zeros(paths.shape) if scores is None else scores.detach().float().cpu().numpy()
        ends = [paths.shape[1]] * len(paths) if length is None else length.tolist()
        rows = [labels_of_path(paths[row, :end], values[row, :end], self._blank) for row, end in enumerate(ends)]
        padded = torch.full((4, len(rows), 1, max(1, *(len(labels.ids) for labels in rows))), -1.0, dtype=torch.float64)
        for row, labels in enumerate(rows):
            padded[:, row, 0, : len(labels.ids)] = torch.tensor(labels, dtype=torch.float64)
        ids, starts, last = padded[:3].long().to(path.device)
        return ids, starts, last, padded[3].to(path.device)
