"""Prediction networks: names of NVIDIA's weights, first values, label by label as all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_asr.models.transducer.prediction import PredictionNetwork, RNNTDecoder, StatelessTransducerDecoder

NETWORKS: dict[str, Any] = {
    "one layer": lambda: RNNTDecoder({"pred_hidden": 6}, 4),
    "two layers": lambda: RNNTDecoder({"pred_hidden": 6, "pred_rnn_layers": 2}, 4),
    "projected": lambda: RNNTDecoder({"pred_hidden": 6, "rnn_hidden_size": 9}, 4),
    "batch norm": lambda: RNNTDecoder({"pred_hidden": 6, "pred_rnn_layers": 3, "dropout": 0.2}, 4, "batch"),
    "layer norm": lambda: RNNTDecoder({"pred_hidden": 6, "pred_rnn_layers": 2}, 4, "layer"),
    "without a row for the blank": lambda: RNNTDecoder({"pred_hidden": 6}, 4, blank_as_pad=False),
    "stateless": lambda: StatelessTransducerDecoder({"pred_hidden": 6}, 4),
    "stateless, three labels": lambda: StatelessTransducerDecoder(
        {"pred_hidden": 12}, 4, context_size=3, normalization_mode="layer"
    ),
}


def shapes_of(network: PredictionNetwork) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def test_weights_have_nvidias_names() -> None:
    lstm = "prediction.dec_rnn.lstm."
    assert shapes_of(NETWORKS["projected"]()) == {
        "prediction.embed.weight": (5, 6),
        f"{lstm}weight_ih_l0": (36, 6),
        f"{lstm}weight_hh_l0": (36, 6),
        f"{lstm}bias_ih_l0": (36,),
        f"{lstm}bias_hh_l0": (36,),
        f"{lstm}weight_hr_l0": (6, 9),
    }
    assert shapes_of(NETWORKS["without a row for the blank"]())["prediction.embed.weight"] == (4, 6)
    # The newest label has the larger part.
    assert shapes_of(NETWORKS["stateless, three labels"]()) == {
        "prediction.embeds.0.weight": (5, 8),
        "prediction.embeds.1.weight": (5, 2),
        "prediction.embeds.2.weight": (5, 2),
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_label_by_label_the_states_are_those_of_all_labels_at_once(name: str) -> None:
    torch.manual_seed(0)
    network: PredictionNetwork = NETWORKS[name]().eval()
    labels = torch.tensor([[1, 0, 3, 2], [2, 2, 1, -1]])
    whole = network.forward(labels, torch.tensor([4, 3]))
    assert whole.shape == (2, 5, network.pred_hidden)
    state, memory = network.continued(torch.full((2, 1), 4), network.beginning(2))
    states = [state]
    for label in labels.clamp(min=0).split(1, dim=1):
        state, memory = network.continued(label, memory)
        states.append(state)
    found = torch.cat(states, 1)
    torch.testing.assert_close(found[0], whole[0])
    torch.testing.assert_close(found[1, :4], whole[1, :4])  # behind its end is padding
    assert all(len(part) == 2 for part in memory)


def test_gates_begin_as_the_keys_say() -> None:
    def biases(**keys: Any) -> tuple[torch.Tensor, torch.Tensor]:
        network = RNNTDecoder({"pred_hidden": 6, **keys}, 4)
        state = network.state_dict()
        return state["prediction.dec_rnn.lstm.bias_ih_l0"], state["prediction.dec_rnn.lstm.bias_hh_l0"]

    forget = slice(6, 12)
    first, second = biases()
    assert first[forget].tolist() == [1.0] * 6
    assert second[forget].tolist() == [0.0] * 6
    first, _ = biases(forget_gate_bias=2.0, weights_init_scale=0.5)
    assert first[forget].tolist() == [1.0] * 6
    first, _ = biases(t_max=20)
    assert bool(((first[forget] >= 0) & (first[forget] <= torch.tensor(19.0).log())).all())
    assert torch.equal(first[:6], -first[forget])


def test_the_blank_has_a_row_of_zeros_that_does_not_learn_and_may_be_loaded_otherwise() -> None:
    network = RNNTDecoder({"pred_hidden": 6}, 4)
    assert not network.state_dict()["prediction.embed.weight"][4].any()
    network.forward(torch.tensor([[4, 1]]), torch.tensor([2])).sum().backward()
    gradients = dict(network.named_parameters())["prediction.embed.weight"].grad
    assert gradients is not None
    assert not gradients[4].any()
    assert gradients[1].any()
    before = network.forward(torch.tensor([[1]]), torch.tensor([1])).detach()
    network.state_dict()["prediction.embed.weight"][4] = 1.0
    assert not torch.equal(network.forward(torch.tensor([[1]]), torch.tensor([1])), before)


def test_training_may_begin_with_random_memory() -> None:
    network = RNNTDecoder({"pred_hidden": 6}, 4, random_state_sampling=True)
    assert all(part.any() for part in network.train().beginning(3))
    assert not any(part.any() for part in network.eval().beginning(3))
