"""Evaluation and inference on several ranks: every item once, in data order, the same result on any number of them."""

from __future__ import annotations

import pytest
import torch
from ranks import results_of
from test_training import Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.core.neural_types import NeuralType, StringType, VoidType


class Words(nemo.NonTrainableNM):
    """A list of texts for a batch, and as many numbers as the first item of the batch says: ragged."""

    input_ports = {"x": NeuralType("B D", VoidType())}
    output_ports = {"words": NeuralType("B", StringType()), "ragged": NeuralType("T", VoidType())}

    def forward(self, x):
        return [f"item {float(row[0]):.6f} ä" for row in x], torch.arange(int(x[0, 0] * 10))


def evaluate(num_items, batch_size, num_sets=1):
    """On each rank: what the callbacks got, in order, and the certificates."""
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    factory = nemo.NeuralModuleFactory.get_default_factory()
    net = Net(norm=True)
    seen, results, callbacks = [], [], []
    for _ in range(num_sets):
        x, y = Points(n=num_items, batch_size=batch_size)()
        out = net(x=x)
        wires = [x, out, Mse()(out=out, target=y)]

        def note(values, collected, wires=wires):
            rows = [torch.cat(values[wire.unique_name]) for wire in wires[:2]]
            collected.setdefault("out", []).append(rows[1])
            seen.append(rows[0])

        def done(collected):
            results.append(float(torch.cat(collected.get("out", [torch.zeros(0)])).double().sum()))

        callbacks.append(nemo.EvaluatorCallback(wires, note, done))
    factory.eval(callbacks)
    inputs = torch.cat(seen).tolist() if seen else []
    return inputs, results


def infer(num_items, batch_size):
    """What ``infer`` gives on each rank, and which items it computed."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    x, _ = Points(n=num_items, batch_size=batch_size)()
    words, ragged = Words()(x=x)
    values = factory.infer([words, ragged, x])
    inferred = factory.get_trainer().inferred
    if values is None:
        return None
    flat = [word for batch in values[0] for word in batch]
    return flat, [len(r) for r in values[1]], torch.cat(values[2]).tolist(), inferred.num_items, inferred.digest


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_130_items_are_scored_once_each_and_in_order_on_any_number_of_ranks(world_size):
    (inputs, results), *others = results_of(world_size, evaluate, 130, 8)
    assert others == [([], [])] * (world_size - 1)
    assert inputs == Points(n=130).x.tolist()
    (alone, one_result), *_ = results_of(1, evaluate, 130, 8)
    assert alone == inputs
    assert results == pytest.approx(one_result, rel=1e-6)


def test_ranks_without_data_are_fine():
    (inputs, _), *_ = results_of(3, evaluate, 2, 4)
    assert inputs == Points(n=2).x.tolist()


def test_infer_gives_texts_and_ragged_tensors_in_data_order_on_the_first_rank():
    first, *others = results_of(3, infer, 29, 4)
    assert others == [None, None]
    (alone,) = results_of(1, infer, 29, 4)
    assert first[0] == alone[0]
    assert first[2] == Points(n=29).x.tolist()
    assert first[3:] == alone[3:]
    assert first[3] == 29
