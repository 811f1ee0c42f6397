"""Losses, joined data layers and small modules that several collections use."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from toys.nets import Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.common import (
    BCEWithLogitsLossNM,
    CrossEntropyLossNM,
    DataCombination,
    LossAggregatorNM,
    MSELoss,
    MultiDataLayer,
    MultiDataset,
    MultiLayerPerceptron,
    SequenceEmbedding,
    SequenceLoss,
    ZerosDataLayer,
    ZerosLikeNM,
    char_lm_metrics,
    neuralType2TensorShape,
)
from nemo_lite.base.errors import CountError, MissingOptionError, UnknownNameError, UsageError
from nemo_lite.core.neural_types import AxisKind, AxisType, ChannelType, LabelsType, NeuralType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# Losses


def test_cross_entropy_counts_masked_positions_only():
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    loss = CrossEntropyLossNM(logits_ndim=3)
    torch.testing.assert_close(
        loss(logits=logits, labels=labels), F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    )
    mask = torch.tensor([[1, 0, 0], [1, 1, 0]])
    wanted = F.cross_entropy(logits[mask.bool()], labels[mask.bool()])
    for given in (mask, mask.bool(), mask.float()):
        torch.testing.assert_close(loss(logits=logits, labels=labels, loss_mask=given), wanted)


def test_cross_entropy_of_nothing_is_zero_with_a_gradient():
    logits = torch.randn(2, 5, requires_grad=True)
    loss = CrossEntropyLossNM()(logits=logits, labels=torch.tensor([1, 2]), loss_mask=torch.zeros(2))
    loss.backward()
    assert loss == 0
    assert logits.grad.eq(0).all()


def test_cross_entropy_weighs_classes():
    logits, labels, weight = torch.randn(4, 3), torch.tensor([0, 1, 2, 2]), [1, 2, 4]
    wanted = F.cross_entropy(logits, labels, weight=torch.tensor(weight).float(), reduction="sum")
    torch.testing.assert_close(CrossEntropyLossNM(weight=weight, reduction="sum")(logits=logits, labels=labels), wanted)


def test_cross_entropy_refuses_unknown_reductions_and_flat_logits():
    with pytest.raises(UnknownNameError, match='reduction "avg" is not known; known: mean, none, sum'):
        CrossEntropyLossNM(reduction="avg")
    with pytest.raises(UsageError, match="got logits_ndim=1, wanted 2 or more"):
        CrossEntropyLossNM(logits_ndim=1)


def test_binary_cross_entropy_counts_masked_values_only_and_weighs_classes():
    logits, labels = torch.randn(4, 3), torch.randint(0, 2, (4, 3))
    weight, mask = [1.0, 2.0, 4.0], torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    each = F.binary_cross_entropy_with_logits(logits, labels.float(), torch.tensor(weight), reduction="none")
    loss = BCEWithLogitsLossNM(weight=weight)
    torch.testing.assert_close(loss(logits=logits, labels=labels), each.mean())
    torch.testing.assert_close(loss(logits=logits, labels=labels, loss_mask=mask), each[mask.bool()].mean())
    assert loss(logits=logits, labels=labels, loss_mask=torch.zeros(4, 3)) == 0


def test_squared_errors_are_averaged_or_summed():
    preds, labels = torch.tensor([1.0, 2.0]), torch.tensor([3, 2])
    assert MSELoss()(preds=preds, labels=labels) == 2
    assert MSELoss(reduction="sum")(preds=preds, labels=labels) == 4


def test_losses_are_added_with_weights():
    losses = {"loss_1": torch.tensor(1.0), "loss_2": torch.tensor(10.0), "loss_3": torch.tensor(100.0)}
    assert LossAggregatorNM(num_inputs=3)(**losses) == 111
    aggregator = LossAggregatorNM(num_inputs=3, weights=[1, 0.5, 2])
    assert aggregator(**losses) == 206
    assert list(aggregator.input_ports) == list(losses)
    with pytest.raises(ValueError, match="weights do not fit the losses: got 1 weights, wanted 2, one for each loss"):
        LossAggregatorNM(weights=[1])


def sequence():
    log_probs = torch.randn(2, 4, 5).log_softmax(2)
    return log_probs, torch.tensor([[1, 2, 0, 0], [3, 3, 4, 0]])


def test_sequence_loss_without_smoothing_is_cross_entropy_of_what_is_no_padding():
    log_probs, targets = sequence()
    total = F.nll_loss(log_probs.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(SequenceLoss(eps=0.0)(log_probs=log_probs, targets=targets), total / 5)
    torch.testing.assert_close(SequenceLoss(sample_wise=True)(log_probs=log_probs, targets=targets), total / 2)


def test_sequence_loss_smooths_as_torch_does():
    log_probs, targets = sequence()
    wanted = F.cross_entropy(log_probs.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.2)
    got = SequenceLoss(smoothing_coef=0.2, eps=0.0)(log_probs=log_probs, targets=targets)
    torch.testing.assert_close(got, wanted)


def test_sequence_loss_of_impossible_padding_is_finite_with_a_finite_gradient():
    log_probs, targets = sequence()
    log_probs[0, 2:, 0] = -math.inf
    log_probs.requires_grad_()
    loss = SequenceLoss()(log_probs=log_probs, targets=targets)
    loss.backward()
    assert loss.isfinite()
    assert log_probs.grad.isfinite().all()


def test_sequence_loss_adds_ctc():
    log_probs, targets = sequence()
    plain = SequenceLoss()(log_probs=log_probs, targets=targets)
    both = SequenceLoss(aux_ctc=True, ctc_initial_coef=0.5, ctc_blank_id=0)(log_probs=log_probs, targets=targets)
    lengths = torch.tensor([4, 4]), torch.tensor([2, 3])
    ctc = F.ctc_loss(log_probs.transpose(0, 1), targets, *lengths, blank=0, zero_infinity=True)
    torch.testing.assert_close(both, plain + 0.5 * ctc)
    with pytest.raises(AssertionError, match="aux_ctc needs the blank; give ctc_blank_id") as caught:
        SequenceLoss(aux_ctc=True)
    assert isinstance(caught.value, MissingOptionError)


# Joined data layers


class Letters(nemo.DataLayerNM):
    output_ports = {"x": NeuralType("B T", LabelsType())}

    def __init__(self, n, collate_fn=None):
        super().__init__()
        self._n, self._collate_fn = n, collate_fn

    def __len__(self):
        return self._n

    @property
    def dataset(self):
        return [torch.full((i + 1,), i) for i in range(self._n)]


@pytest.mark.parametrize("lengths", [(2, 3), (2, 4), (3, 1, 2)])
def test_a_cross_product_has_every_combination_once(lengths):
    joined = MultiDataset([range(length) for length in lengths])  # type: ignore[misc]
    assert len(joined) == math.prod(lengths)
    assert [joined[i] for i in range(len(joined))] == list(itertools.product(*map(range, lengths)))


def test_zip_joins_items_of_one_position_and_one_length():
    joined = MultiDataset([[(1, 2), (3, 4)], [5, 6]], DataCombination.ZIP)  # type: ignore[list-item]
    assert [joined[i] for i in range(len(joined))] == [(1, 2, 5), (3, 4, 6)]
    with pytest.raises(ValueError, match=r"ZIP joins data sets of one length: got 2, 3; use DataComb"):
        MultiDataset([range(2), range(3)], DataCombination.ZIP)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="combination_mode is not known: got 3, wanted"):
        MultiDataset([range(2)], 3)  # type: ignore[list-item, arg-type]


def test_joined_layers_have_the_ports_of_all_and_number_those_of_one_name():
    layer = MultiDataLayer([Points(), Letters(2), Letters(2)], batch_size=4)
    assert list(layer.output_ports) == ["x", "y", "x_1", "x_2"]
    named = MultiDataLayer([Points(), Letters(2)], batch_size=4, port_names=["a", "b", "c"])
    assert list(named.output_ports) == ["a", "b", "c"]
    numbered = MultiDataLayer([Points(), Letters(2)], batch_size=4, port_names=["1", "2", "3"])
    assert [wire.name.rpartition(".")[2] for wire in numbered()] == ["1", "2", "3"]
    with pytest.raises(IndexError, match="port_names names every port: got 2, wanted 3") as caught:
        MultiDataLayer([Points(), Letters(2)], batch_size=4, port_names=["a", "b"])
    assert isinstance(caught.value, CountError)


def test_joined_layers_are_collated_each_in_its_own_way():
    def padded(items):
        return [torch.nn.utils.rnn.pad_sequence([x for (x,) in items], batch_first=True, padding_value=-1)]

    layer = MultiDataLayer([Points(n=3), Letters(3, padded)], 3, combination_mode=DataCombination.ZIP)
    (x, _, letters), *others = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU).infer_batches([*layer()])
    assert others == []
    assert x.shape == (3, 3)
    assert letters.tolist() == [[0, -1, -1], [1, 1, -1], [2, 2, 2]]


def test_a_layer_without_a_data_set_is_not_joined():
    with pytest.raises(UsageError, match="a data layer without a dataset cannot be joined"):
        MultiDataLayer([Points(), nemo.DataLayerNM(name="streamed")], batch_size=1)


# Zeros


def test_shapes_follow_from_types():
    axes = (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, 64), AxisType(AxisKind.Time))
    ntype = NeuralType(axes, ChannelType())
    assert neuralType2TensorShape(ntype) == [64, 32]
    assert neuralType2TensorShape(ntype, default_dim=7, skip_batch_axis=False) == [7, 64, 7]
    assert neuralType2TensorShape(NeuralType("B", LabelsType())) == []


def test_a_layer_of_zeros_has_items_of_the_types_and_shapes_asked_for():
    ports = {"audio": NeuralType("B T", ChannelType()), "length": NeuralType("B", LabelsType())}
    layer = ZerosDataLayer(3, ports, dtype=[torch.FloatTensor, torch.long], batch_size=2)
    assert len(layer) == 3
    audio, length = layer.dataset[0]
    assert (audio.shape, audio.dtype, length.shape, length.dtype) == ((32,), torch.float32, (), torch.int64)
    assert ZerosDataLayer(3, ports, batch_size=2, shapes=[(8,), ()]).dataset[2][0].shape == (8,)
    with pytest.raises(UsageError, match="shapes does not fit the ports: got 1, wanted 2, one for each of audio"):
        ZerosDataLayer(3, ports, shapes=[(8,)])


def test_zeros_like_another_tensor_are_integers():
    zeros = ZerosLikeNM()(input_type_ids=torch.ones(2, 3))
    assert zeros.tolist() == [[0] * 3] * 2
    assert zeros.dtype == torch.long


# Small modules


def test_an_embedding_gives_a_vector_for_each_token():
    module = SequenceEmbedding(voc_size=10, hidden_size=4, dropout=0.5).eval()
    ids = torch.tensor([[1, 2], [2, 9]])
    assert torch.equal(module(input_seq=ids), module.state_dict()["embedding.weight"][ids])


def test_a_perceptron_gives_log_probabilities_or_logits():
    module = MultiLayerPerceptron(4, 3, "cpu", num_layers=3)
    assert list(module.state_dict()) == [f"layer{n}.{kind}" for n in (0, 2, 4) for kind in ("weight", "bias")]
    hidden = torch.randn(2, 5, 4)
    torch.testing.assert_close(module(hidden).exp().sum(2), torch.ones(2, 5))
    module.log_softmax = False
    logits = module(hidden)
    module.log_softmax = True
    torch.testing.assert_close(module(hidden), logits.log_softmax(2))
    assert module.last_linear_layer.out_features == 3
    with pytest.raises(UnknownNameError, match=r'activation "rellu" is not known; known: .*did you mean relu'):
        MultiLayerPerceptron(4, 3, activation="rellu")


def test_bits_and_perplexities_of_even_guesses_are_those_of_the_alphabet():
    log_probs = torch.full((1, 6, 4), 0.25).log()
    targets = torch.tensor([[1, 2, 3, 1, 0, 0]])
    bits, perplexities = char_lm_metrics([log_probs, log_probs], [targets, targets], [["ab c"], ["abcd"]], pad_id=0)
    assert bits == pytest.approx([2.0, 2.0])
    assert perplexities == pytest.approx([4.0**2, 4.0**4])
