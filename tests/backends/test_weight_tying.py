"""Tied weights: one parameter, trained, saved and copied once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from toys.linear import VECTOR, Linear

from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import LabelsType, NeuralType
from nemo_lite.core.ports import WeightShareTransform


class Embedding(TrainableNM):
    """Weights that lie directly on the typed module."""

    input_ports = {"ids": NeuralType("B", LabelsType())}
    output_ports = {"y": VECTOR}

    def __init__(self, number: int = 5, width: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(number, width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids]


def tied(transform: WeightShareTransform) -> tuple[Embedding, Linear]:
    embedding, output = Embedding(5, 3), Linear(3, 5) if transform is WeightShareTransform.SAME else Linear(5, 3)
    output.tie_weights_with(embedding, ["inner.weight"], {"inner.weight": ("weight", transform)})
    return embedding, output


@pytest.mark.parametrize("transform", list(WeightShareTransform))
def test_a_tied_weight_is_one_parameter_that_both_train(transform: WeightShareTransform) -> None:
    embedding, output = tied(transform)
    shape = (5, 3) if transform is WeightShareTransform.SAME else (3, 5)
    assert output.inner.weight.shape == shape
    output.freeze(["scale"])
    parameters = [p for p in nn.ModuleList([embedding, output]).parameters() if p.requires_grad]
    assert [parameter.shape for parameter in parameters] == [(5, 3)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    before = embedding.weight.detach().clone()
    for _ in range(2):  # a second step: the transpose is not one of the first step's graph
        optimizer.zero_grad()
        output(torch.ones(1, shape[1])).sum().backward()
        optimizer.step()
    assert embedding.weight.grad is not None
    torch.testing.assert_close(embedding.weight.grad, torch.ones(5, 3))
    transposed = output.inner.weight if transform is WeightShareTransform.SAME else output.inner.weight.T
    torch.testing.assert_close(transposed, embedding.weight)
    torch.testing.assert_close(embedding.weight, before - 2)


def test_tied_weights_are_trained_through_both_modules() -> None:
    embedding, output = tied(WeightShareTransform.TRANSPOSE)
    (embedding(torch.tensor([0])).sum() + output(torch.ones(1, 5)).sum()).backward()
    expected = torch.ones(5, 3)
    expected[0] += 1
    torch.testing.assert_close(embedding.weight.grad, expected)


@pytest.mark.parametrize("transform", list(WeightShareTransform))
def test_tied_modules_load_what_they_saved(transform: WeightShareTransform, tmp_path: Path) -> None:
    embedding, output = tied(transform)
    embedding.save_to(tmp_path / "embedding.safetensors")
    output.save_to(tmp_path / "output.safetensors")
    values = embedding.weight.detach().clone()
    again, again_output = tied(transform)
    again.restore_from(tmp_path / "embedding.safetensors")
    again_output.restore_from(tmp_path / "output.safetensors")
    torch.testing.assert_close(again.weight, values)
    assert ("inner.weight" in output.state_dict()) == (transform is WeightShareTransform.SAME)


@pytest.mark.parametrize("transform", list(WeightShareTransform))
def test_copying_tied_modules_together_copies_the_tie(transform: WeightShareTransform) -> None:
    original = tied(transform)
    embedding, output = copy.deepcopy(original)
    with torch.no_grad():
        embedding.weight.fill_(7.0)
    assert bool((output.inner.weight == 7.0).all())
    assert not bool((original[0].weight == 7.0).any())


def test_a_module_tied_by_its_own_weight_keeps_its_class_for_configurations() -> None:
    source, mine = Embedding(5, 3), Embedding(3, 5)
    mine.tie_weights_with(source, ["weight"], {"weight": ("weight", WeightShareTransform.TRANSPOSE)})
    torch.testing.assert_close(mine(torch.tensor([1]))[0], source.weight[:, 1])
    assert mine.serialize()["header"]["full_spec"] == f"{__name__}.Embedding"
    again = NeuralModule.deserialize(mine.serialize())
    assert type(again) is Embedding
    assert isinstance(again.weight, nn.Parameter)


def test_tying_another_shape_or_an_unknown_weight_is_refused() -> None:
    with pytest.raises(UsageError, match=r"linear\.inner\.weight: the shapes differ: got \(5, 3\), wanted \(3, 3\)"):
        Linear().tie_weights_with(
            Embedding(5, 3), ["inner.weight"], {"inner.weight": ("weight", WeightShareTransform(0))}
        )
    with pytest.raises(UnknownNameError, match=r'embedding: weight "inner\.weight" is not known'):
        Linear().tie_weights_with(Embedding(), ["inner.weight"])
