"""Prediction networks: from the labels that were said to states, from which the joint network tells the next label.

Arguments and names of weights are those of NVIDIA's classes since NeMo 1.0, so weights of published files fit.

Source: Graves, "Sequence Transduction with Recurrent Neural Networks", 2012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from nemo_asr.models.jasper.layers import BATCH, TIME
from nemo_asr.models.transducer.lstm import BatchNormLSTM, LayerNormLSTM, LSTMStack, PlainLSTM
from nemo_asr.run.arguments import Channels, Classes, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.config import Checked, check_call, shown
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AxisKind, AxisType, EncodedRepresentation, LabelsType, LengthsType, NeuralType
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

Memory: TypeAlias = "tuple[Tensor, ...]"
"""What a prediction network keeps from label to label: tensors whose first axis counts the hypotheses."""
Dropout: TypeAlias = Annotated[float, Between(0, 1)]
Layers: TypeAlias = Annotated[int, Between(1, 64)]
Scale: TypeAlias = Annotated[float, Between(-100, 100)]

# NeMo's classes refuse dropout here and ignore t_max; with a projection their states fit no joint network.
_NOT_OF_NORMS = {"batch": ("rnn_hidden_size",), "layer": ("rnn_hidden_size", "dropout", "t_max")}


@dataclass(frozen=True)
class PrednetSpec:
    """The keys of ``prednet``.

    Args:
        pred_hidden: size of the states.
        pred_rnn_layers: of the LSTM.
        dropout: probability, between layers and behind the last one.
        forget_gate_bias: what gates begin with; None: as torch draws it.
        t_max: the longest time of gates, in labels, in the place of ``forget_gate_bias``. Source: Tallec and Ollivier,
            "Can recurrent neural networks warp time?", ICLR 2018.
        weights_init_scale: multiplies all weights in the beginning.
        hidden_hidden_bias_scale: multiplies the second bias of the forget gates in the beginning.
        rnn_hidden_size: of an LSTM whose output is projected to ``pred_hidden``, which is smaller; -1: there is no
            projection.
    """

    pred_hidden: Channels
    pred_rnn_layers: Layers = 1
    dropout: Dropout = 0.0
    forget_gate_bias: Scale | None = 1.0
    t_max: Annotated[int, Between(3, 1_000_000)] | None = None
    weights_init_scale: Scale = 1.0
    hidden_hidden_bias_scale: Scale = 0.0
    rnn_hidden_size: Annotated[int, Between(1, 65_536, also=(-1,))] = -1


@dataclass(frozen=True)
class StatelessSpec:
    """The keys of ``prednet`` of a `StatelessTransducerDecoder`.

    Args:
        pred_hidden: size of the states.
        dropout: probability, of the states.
    """

    pred_hidden: Channels
    dropout: Dropout = 0.0


class PredictionNetwork(TrainableNM):
    """Labels (B, U) to states (B, U + 1, ``pred_hidden``), of which the first is that of no label.

    The blank, label ``vocab_size``, stands for the beginning.

    Attributes:
        label_tensors: its weights with a row for each label, which fine-tuning takes over by label.
    """

    label_tensors: Sequence[str] = ()

    def __init__(self, vocab_size: int, pred_hidden: int, name: str | None) -> None:
        super().__init__(name=name)
        refuse_too_large(type(self).__name__, (vocab_size + 1) * pred_hidden)
        self.vocab_size, self.pred_hidden = vocab_size, pred_hidden

    @property
    def input_ports(self) -> Ports:
        return {"targets": NeuralType("B T", LabelsType()), "target_length": NeuralType("B", LengthsType())}

    @property
    def output_ports(self) -> Ports:
        size = AxisType(AxisKind.Dimension, self.pred_hidden)
        return {"states": NeuralType((BATCH, TIME, size), EncodedRepresentation())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, num_labels = shapes["targets"]
        return {"states": (batch, num_labels + 1, self.pred_hidden)}

    def forward(self, targets: Tensor, target_length: Tensor) -> Tensor:
        """States behind a target's end are padding."""
        blank = targets.new_full((len(targets), 1), self.vocab_size)
        labels = torch.cat([blank, targets], 1).long().clamp(0, self.vocab_size)
        states, _ = self.continued(labels, self.beginning(len(labels)))
        return states.clone(memory_format=torch.contiguous_format)  # no view: FSDP2 attaches its hook to it

    def beginning(self, number: int) -> Memory:
        """The memory of so many hypotheses, in front of the blank with which each begins."""
        raise NotImplementedError

    def continued(self, labels: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The states (N, U, pred_hidden) behind labels (N, U), and the memory behind the last of them."""
        raise NotImplementedError

    def after(self, labels: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """As `continued`, of one label each (N,): states (N, pred_hidden). For searches, which train nothing."""
        states, memory = self.continued(labels[:, None], memory)
        return states[:, 0], memory


class RNNTDecoder(PredictionNetwork):
    """An embedding and an LSTM. Its memory is the LSTM's, (N, layers, size) twice.

    Args:
        prednet: the keys of `PrednetSpec`.
        vocab_size: labels, without the blank.
        normalization_mode: norms in the LSTM. ``batch``: in front of each layer but the first, over all labels of a
            batch, and no dropout behind the last one; ``layer``: of gates and cells, without ``dropout`` and ``t_max``.
            Neither has ``rnn_hidden_size``.
        random_state_sampling: training utterances begin with random memory, not with zeros. Source: Narayanan et al.,
            "Recognizing long-form speech using streaming end-to-end models", ASRU 2019.
        blank_as_pad: the embedding has a row for the blank, zeros unless a file says otherwise.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: ``rnn_hidden_size`` is not above ``pred_hidden``, or it is given with a norm, or ``dropout`` or
            ``t_max`` with that of layers.
    """

    def __init__(
        self,
        prednet: Annotated[Mapping[str, Any], Checked(lambda section: check_call(section, PrednetSpec))],
        vocab_size: Classes,
        normalization_mode: Literal["batch", "layer"] | None = None,
        random_state_sampling: bool = False,
        blank_as_pad: bool = True,
        name: str | None = None,
    ) -> None:
        spec = PrednetSpec(**prednet)
        super().__init__(vocab_size, spec.pred_hidden, name)
        self._random_state_sampling, self._blank_as_pad = random_state_sampling, blank_as_pad
        padding = vocab_size if blank_as_pad else None
        embed = nn.Embedding(vocab_size + blank_as_pad, self.pred_hidden, padding_idx=padding)
        # NeMo's names of the parts, which are in the names of weights.
        self.label_tensors = ["prediction.embed.weight"]
        self.prediction = nn.ModuleDict({"embed": embed, "dec_rnn": _stack(spec, normalization_mode)})

    def beginning(self, number: int) -> Memory:
        """Zeros; in training random where ``random_state_sampling`` says so."""
        memory = [next(self.parameters()).new_zeros(shape) for shape in self._stack.memory_shapes(number)]
        if self.training and self._random_state_sampling:
            return tuple(part.normal_() for part in memory)
        return tuple(memory)

    def continued(self, labels: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """See `PredictionNetwork`."""
        hidden, cell = memory
        # By time first, as torch has it within: that the batch comes first is a copy there.
        states, memory = self._stack(self._embedded(labels).transpose(0, 1), (hidden, cell))
        return states.transpose(0, 1), memory

    def after(self, labels: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """See `PredictionNetwork`."""
        hidden, cell = memory
        return self._stack.step(self._embedded(labels), (hidden, cell))

    @property
    def _stack(self) -> LSTMStack:
        stack: LSTMStack = self.prediction["dec_rnn"]  # type: ignore[assignment]  # a dictionary of modules
        return stack

    def _embedded(self, labels: Tensor) -> Tensor:
        embed: Any = self.prediction["embed"]
        if self._blank_as_pad:
            embedded: Tensor = embed(labels)
            return embedded
        is_label = labels < self.vocab_size
        return torch.where(is_label.unsqueeze(-1), embed(labels.clamp(max=self.vocab_size - 1)), 0.0)


def _stack(spec: PrednetSpec, normalization_mode: str | None) -> LSTMStack:
    size, num_layers, dropout = spec.pred_hidden, spec.pred_rnn_layers, spec.dropout
    cell_size = size if spec.rnn_hidden_size < 0 else spec.rnn_hidden_size
    if cell_size <= size and spec.rnn_hidden_size > -1:
        got = f"rnn_hidden_size {spec.rnn_hidden_size}, pred_hidden {size}"
        raise UsageError("a projection makes states smaller", place="RNNTDecoder.prednet", got=got)
    for key in _NOT_OF_NORMS.get(normalization_mode or "", ()):
        got, default = getattr(spec, key), getattr(PrednetSpec, key)
        if got != default:
            problem = f"an LSTM with {normalization_mode} norm has no {key}"
            raise UsageError(problem, place="RNNTDecoder.prednet", got=shown(got), wanted=shown(default))
    stack: LSTMStack
    if normalization_mode == "batch":
        stack = BatchNormLSTM(size, num_layers, dropout)
    elif normalization_mode == "layer":
        stack = LayerNormLSTM(size, num_layers)
    else:
        stack = PlainLSTM(size, cell_size, num_layers, dropout)
    _begin(stack, spec, cell_size)
    return stack


@torch.no_grad()
def _begin(stack: LSTMStack, spec: PrednetSpec, cell_size: int) -> None:
    """The first values of gates' biases, and the scale of all weights."""
    forget = slice(cell_size, 2 * cell_size)  # torch has the gates in the order input, forget, cell, output
    for of_input, of_hidden in stack.biases():
        if spec.t_max is not None:
            for bias in (of_input, of_hidden):
                bias.zero_()
                bias[forget].uniform_(1, spec.t_max - 1).log_()
                bias[:cell_size] = -bias[forget]
        elif spec.forget_gate_bias is not None:
            of_input[forget] = spec.forget_gate_bias
            of_hidden[forget].mul_(spec.hidden_hidden_bias_scale)
    for values in stack.parameters():
        values.mul_(spec.weights_init_scale)


class StatelessTransducerDecoder(PredictionNetwork):
    """Embeddings of the last labels, side by side: no recurrence.

    Its memory is the labels before, (N, context_size - 1); it has none where it sees one label.

    Source: Ghodsi et al., "RNN-Transducer with stateless prediction network", ICASSP 2020.

    Args:
        prednet: the keys of `StatelessSpec`.
        vocab_size: labels, without the blank.
        context_size: how many labels it sees; of the size of the states the newest has the larger part.
        normalization_mode: ``layer``: states are normalised, without weights.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: ``pred_hidden`` is too small for so many labels.
    """

    def __init__(
        self,
        prednet: Annotated[Mapping[str, Any], Checked(lambda section: check_call(section, StatelessSpec))],
        vocab_size: Classes,
        context_size: Annotated[int, Between(1, 64)] = 1,
        normalization_mode: Literal["layer"] | None = None,
        name: str | None = None,
    ) -> None:
        spec = StatelessSpec(**prednet)
        super().__init__(vocab_size, spec.pred_hidden, name)
        older = self.pred_hidden // 2 // context_size
        sizes = [self.pred_hidden - older * (context_size - 1), *[older] * (context_size - 1)]
        if not min(sizes):
            got = f"pred_hidden {self.pred_hidden}, context_size {context_size}"
            raise UsageError("there is no room for so many labels", place="StatelessTransducerDecoder", got=got)
        embeds = nn.ModuleList(nn.Embedding(vocab_size + 1, size, padding_idx=vocab_size) for size in sizes)
        self.prediction = nn.ModuleDict({"embeds": embeds})
        self.label_tensors = [f"prediction.embeds.{number}.weight" for number in range(context_size)]
        self._is_normalized, self._dropout = normalization_mode == "layer", nn.Dropout(spec.dropout)

    def beginning(self, number: int) -> Memory:
        """Blanks."""
        embeds: Any = self.prediction["embeds"]
        num_before = len(embeds) - 1
        return (torch.full((number, num_before), self.vocab_size, device=embeds[0].weight.device),)[:num_before]

    def continued(self, labels: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """See `PredictionNetwork`."""
        embeds: Any = self.prediction["embeds"]
        seen, number = torch.cat([*memory, labels], 1), labels.shape[1]
        oldest = len(embeds) - 1
        # The k-th embedding is of the label k places before the newest.
        parts = [embed(seen[:, oldest - k : oldest - k + number]) for k, embed in enumerate(embeds)]
        states = self._dropout(torch.cat(parts, -1))
        if self._is_normalized:
            states = nn.functional.layer_norm(states, (self.pred_hidden,))
        return states, (seen[:, number:],)[:oldest]
