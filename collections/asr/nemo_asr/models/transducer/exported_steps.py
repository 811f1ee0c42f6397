"""The networks of a transducer as parts of an exported file: a step of each, for a search that runs without torch.

The search of such a file: `nemo_asr.run.search.exported_transducer`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_asr.models.jasper.layers import BATCH
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import PredictionNetwork
from nemo_lite.backends.pytorch.nm import NonTrainableNM
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AxisKind,
    AxisType,
    EncodedRepresentation,
    LabelsType,
    LogitsType,
    NeuralType,
)
from nemo_lite.core.ports import Ports


class PredictionStep(NonTrainableNM):
    """A label (N,) and the memory before it to a state (N, joint_hidden), as the joint network adds it, and the memory.

    The memory is that of the prediction network, two tensors at most: ``memory_1`` and ``memory_2``.
    """

    def __init__(
        self, prediction: Reference[PredictionNetwork], joint: Reference[RNNTJoint], name: str | None = None
    ) -> None:
        super().__init__(name)
        self._prediction, self._joint = prediction, joint

    @property
    def input_ports(self) -> Ports:
        return {"label": NeuralType("B", LabelsType()), **self._memory_ports("")}

    @property
    def output_ports(self) -> Ports:
        size = AxisType(AxisKind.Dimension, self._joint.module.joint_hidden)
        return {"state": NeuralType((BATCH, size), EncodedRepresentation()), **self._memory_ports("new_")}

    def _memory_ports(self, prefix: str) -> Mapping[str, NeuralType]:
        return {
            f"{prefix}memory_{number}": NeuralType(
                (BATCH, *(AxisType(AxisKind.Dimension, size) for size in part.shape[1:])),
                EncodedRepresentation() if part.is_floating_point() else LabelsType(),
            )
            for number, part in enumerate(self._prediction.module.beginning(1), start=1)
        }

    def examples(self) -> list[Tensor]:
        """A value of each input for two hypotheses."""
        network = self._prediction.module
        random = torch.Generator().manual_seed(0)
        memory = [
            torch.randn(part.shape, generator=random) if part.is_floating_point() else part.cpu()
            for part in network.beginning(2)
        ]
        return [torch.tensor([0, network.vocab_size]), *memory]

    def forward(
        self, label: Tensor, memory_1: Tensor | None = None, memory_2: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """As the ports say; the label ``vocab_size`` stands for the beginning."""
        memory = tuple(part for part in (memory_1, memory_2) if part is not None)
        states, new_memory = self._prediction.module.continued(label.unsqueeze(1), memory)
        return self._joint.module.pred(states[:, 0]), *new_memory


class JointStep(NonTrainableNM):
    """A frame and a state, both as the joint network has projected them, (N, joint_hidden), to scores (N, outputs)."""

    def __init__(self, joint: Reference[RNNTJoint], name: str | None = None) -> None:
        super().__init__(name)
        self._joint = joint

    @property
    def input_ports(self) -> Ports:
        size = AxisType(AxisKind.Dimension, self._joint.module.joint_hidden)
        return {name: NeuralType((BATCH, size), EncodedRepresentation()) for name in ("frame", "state")}

    @property
    def output_ports(self) -> Ports:
        return {"scores": NeuralType("B D", LogitsType())}

    def examples(self) -> list[Tensor]:
        """A value of each input for two hypotheses."""
        random = torch.Generator().manual_seed(0)
        return [torch.randn(2, self._joint.module.joint_hidden, generator=random) for _ in self.input_ports]

    def forward(self, frame: Tensor, state: Tensor) -> Tensor:
        """As the ports say."""
        scores: Tensor = self._joint.module.joint_net(frame + state)
        return scores
