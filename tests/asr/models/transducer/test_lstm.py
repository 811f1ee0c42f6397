"""Stacks of LSTM: names of weights and values are those of NVIDIA's classes, also with norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys.nemo_conformers import by_formula
from toys.nemo_source import needs_nemo, nemo_module

from nemo_asr.models.transducer.prediction import RNNTDecoder
from nemo_lite.base.errors import UsageError

DROPOUT = {"dropout": 0.25}
MODES: list[tuple[str | None, dict[str, Any]]] = [(None, DROPOUT), (None, {"rnn_hidden_size": 9})]
MODES += [("batch", {}), ("batch", DROPOUT), ("layer", {})]


def network(mode: str | None, num_layers: int = 2, **keys: Any) -> RNNTDecoder:
    torch.manual_seed(0)
    prednet = {"pred_hidden": 6, "pred_rnn_layers": num_layers, **keys}
    return RNNTDecoder(prednet, 4, normalization_mode=mode)  # type: ignore[arg-type]  # one of the known ones


def names_of(mode: str, **keys: Any) -> set[str]:
    start = "prediction.dec_rnn.layers."
    return {name.removeprefix(start) for name in network(mode, **keys).state_dict() if name.startswith(start)}


def test_weights_have_nvidias_names() -> None:
    first = {f"0.rnn.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    of_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    second = {f"bn.module.{name}" for name in of_norm} | {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}
    assert names_of("batch") == first | {f"1.{name}" for name in second}
    assert names_of("batch", **DROPOUT) == first | {f"2.{name}" for name in second}
    norms = {f"layernorm_{of}.{kind}" for of in "ihc" for kind in ("weight", "bias")}
    of_cell = {"weight_ih", "weight_hh", *norms}
    assert names_of("layer") == {f"{layer}.cell.{name}" for layer in range(2) for name in of_cell}


@needs_nemo
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize(("mode", "keys"), MODES, ids=str)
def test_states_are_those_of_nvidias_class(mode: str | None, keys: dict[str, Any], num_layers: int) -> None:
    own = network(mode, num_layers, **keys).eval()
    prednet = {"pred_hidden": 6, "pred_rnn_layers": num_layers, **keys}
    other = nemo_module("modules.rnnt").RNNTDecoder(prednet, 4, normalization_mode=mode).eval()
    state = by_formula({name: tuple(tensor.shape) for name, tensor in other.state_dict().items()})
    state["prediction.embed.weight"][-1] = 0
    own.load_state_dict(state)
    other.load_state_dict(state)
    labels = torch.tensor([[1, 0, 3, 2, 2], [2, 2, 1, 0, 3]])
    wanted, *_ = other(targets=labels, target_length=torch.tensor([5, 5]))
    torch.testing.assert_close(own.forward(labels, torch.tensor([5, 5])), wanted.mT, rtol=0, atol=1e-5)


@needs_nemo
@pytest.mark.parametrize("mode", ["batch", "layer"])
def test_in_training_values_and_gradients_are_those_of_nvidias_class(mode: str) -> None:
    own = network(mode, 3).double()
    prednet = {"pred_hidden": 6, "pred_rnn_layers": 3}
    other = nemo_module("modules.rnnt").RNNTDecoder(prednet, 4, normalization_mode=mode).double()
    other.load_state_dict(own.state_dict())
    labels, weights = torch.tensor([[1, 0, 3, 2, 2], [2, 2, 1, 0, 3]]), torch.randn(2, 6, 6, dtype=torch.float64)
    given = own.forward(labels, torch.tensor([5, 5]))
    wanted, *_ = other(targets=labels, target_length=torch.tensor([5, 5]))
    torch.testing.assert_close(given, wanted.mT, rtol=0, atol=1e-5)
    (given * weights).sum().backward()
    (wanted.mT * weights).sum().backward()
    gradients = dict(own.named_parameters())
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(
            gradients[name].grad, parameter.grad, rtol=1e-6, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(own.state_dict()[name], buffer, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("mode", ["batch", "layer"])
def test_gates_begin_as_the_keys_say(mode: str) -> None:
    def biases(**keys: Any) -> list[torch.Tensor]:
        names = ("rnn.bias_ih_l0", "rnn.bias_hh_l0") if mode == "batch" else ("layernorm_i.bias", "layernorm_h.bias")
        return [tensor for name, tensor in network(mode, 1, **keys).state_dict().items() if name.endswith(names)]

    forget = slice(6, 12)
    first, second = biases(forget_gate_bias=2.0, weights_init_scale=0.5)
    assert (first + second)[forget].tolist() == [1.0] * 6
    assert (first + second)[:6].all()
    if mode == "batch":
        first, _ = biases(t_max=20)
        assert torch.equal(first[:6], -first[forget])
        assert first[forget].all()


@pytest.mark.parametrize(
    ("mode", "keys", "message"),
    [
        ("batch", {"rnn_hidden_size": 9}, "an LSTM with batch norm has no rnn_hidden_size: got 9, wanted -1"),
        ("layer", {"rnn_hidden_size": 9}, "an LSTM with layer norm has no rnn_hidden_size: got 9, wanted -1"),
        ("layer", DROPOUT, "an LSTM with layer norm has no dropout: got 0.25, wanted 0.0"),
        ("layer", {"t_max": 20}, "an LSTM with layer norm has no t_max: got 20, wanted null"),
    ],
)
def test_what_a_normalised_lstm_has_not_is_one_line(mode: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        network(mode, **keys)
    assert str(caught.value) == f"RNNTDecoder.prednet: {message}"
