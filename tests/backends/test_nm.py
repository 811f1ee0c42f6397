"""The bases on torch: calling, freezing, sharing weights, float32, data layers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from toys.linear import VECTOR, Linear

from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.nm import DataLayerNM, LossNM, NonTrainableNM, TorchModule, TrainableNM, without_weights
from nemo_lite.base.errors import CheckpointError, NeuralPortNameMismatchError, UnknownNameError, UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import ChannelType, LossType, NeuralType, NmTensor
from nemo_lite.core.ports import Ports
from nemo_lite.core.run_options import DeviceType
from nemo_lite.factory import NeuralModuleFactory


class Numbers(DataLayerNM):
    """A data layer of 10 numbers and their negatives; ``batch_size`` may be set over ``_batch_size``."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    output_ports = {"x": VECTOR, "target": VECTOR}

    def __init__(self, size: int = 10, name: str | None = None) -> None:
        super().__init__(name)
        self.size = size
        self._batch_size = 4

    def __len__(self) -> int:
        return self.size

    @property
    def dataset(self) -> Dataset[Any]:
        positions = torch.arange(float(self.size))
        return TensorDataset(positions, -positions)


class Distance(LossNM):
    """Mean square error."""

    input_ports = {"x": VECTOR, "target": VECTOR}
    output_ports = {"loss": NeuralType(elements_type=LossType())}

    def _loss_function(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (x - target).square().mean()


# Calling


def test_on_wires_a_module_connects_and_on_tensors_it_runs() -> None:
    module = Linear()
    x, _ = Numbers()()
    assert isinstance(module(x), NmTensor)
    assert isinstance(module(x=x), NmTensor)
    values = torch.randn(2, 3)
    for ran in (module(values), module(x=values), module(x=values, force_pt=True)):
        torch.testing.assert_close(ran, values @ module.inner.weight.T)


def test_wires_and_tensors_together_are_refused() -> None:
    x, _ = Numbers()()
    with pytest.raises(
        NeuralPortNameMismatchError, match=r'"target" must be connected to a wire: got Tensor; give wires'
    ):
        Distance()(x=x, target=torch.zeros(1))


def test_a_loss_takes_its_ports_from_its_loss_function() -> None:
    with pytest.raises(
        NeuralPortNameMismatchError, match=r'Wrong: input port "y" is not a parameter of _loss_function'
    ):

        class Wrong(LossNM):
            input_ports = {"x": VECTOR, "y": VECTOR}

            def _loss_function(self, x: torch.Tensor) -> torch.Tensor:
                raise NotImplementedError

    assert Distance()(x=torch.ones(2), target=torch.zeros(2)) == 1.0


def test_a_loss_without_a_loss_function_says_so() -> None:
    with pytest.raises(NotImplementedError, match="LossNM has no _loss_function"):
        LossNM()(x=torch.ones(1))


class Several(NonTrainableNM):
    """Gives back what it is told to."""

    input_ports = {"x": VECTOR}

    def __init__(self, num_ports: int, outputs: Any) -> None:
        super().__init__()
        self.num_ports, self.outputs = num_ports, outputs

    @property
    def output_ports(self) -> Ports:
        return {f"y{index}": VECTOR for index in range(self.num_ports)}

    def forward(self, x: torch.Tensor) -> Any:
        return self.outputs


@pytest.mark.parametrize(
    ("num_ports", "outputs", "got"),
    [
        (2, (1,), "1 outputs"),
        (2, (1, 2, 3), "3 outputs"),
        (2, 1, "one int"),
        (2, [1], "1 outputs"),
        (1, (1, 2), "2 out"),
    ],
)
def test_fewer_or_more_outputs_than_ports_are_refused_by_name(num_ports: int, outputs: Any, got: str) -> None:
    with pytest.raises(
        NeuralPortNameMismatchError,
        match=rf"several: forward does not return its output ports: got {got}.*, wanted {num_ports} \(y0",
    ):
        Several(num_ports, outputs)(torch.zeros(1))


@pytest.mark.parametrize(
    ("num_ports", "outputs", "values"),
    [
        (1, 7, 7),
        (1, (7,), 7),
        (1, ["a", "b"], ["a", "b"]),
        (2, (7, 8), (7, 8)),
        (2, [7, 8], [7, 8]),
        (2, torch.max(torch.tensor([[1.0, 2.0]]), dim=1), torch.max(torch.tensor([[1.0, 2.0]]), dim=1)),
    ],
)
def test_as_many_outputs_as_ports_are_taken(num_ports: int, outputs: Any, values: Any) -> None:
    assert Several(num_ports, outputs)(torch.zeros(1)) == values


def test_a_pretrained_model_is_not_downloaded_but_refused() -> None:
    with pytest.raises(UsageError, match=r'TrainableNM: there is no pretrained model "x"; .* restore_from\(path\)'):
        TrainableNM(pretrained_model_name="x")


# Freezing


def test_a_frozen_module_has_no_weights_to_train_and_evaluates() -> None:
    module = Linear()
    assert (module.num_weights, module.is_frozen(), module.is_trainable()) == (12, False, True)
    module.freeze()
    assert (module.num_weights, module.is_frozen(), module.is_trainable()) == (0, True, True)
    assert not module.training
    module.unfreeze()
    assert (module.num_weights, module.is_frozen()) == (12, False)
    assert module.training


def test_single_weights_can_be_frozen() -> None:
    module = Linear()
    module.freeze({"scale"})
    assert (module.num_weights, module.is_frozen(), module.training) == (9, False, True)
    assert [trainable for _, trainable in module.get_weights().values()] == [False, True]
    module.unfreeze(["scale"])
    assert module.num_weights == 12


def test_freezing_an_unknown_weight_is_refused_and_freezes_nothing() -> None:
    module = Linear(name="top")
    with pytest.raises(
        UnknownNameError, match=r'top: weight "scal" is not known; known: inner\.weight, scale \(did you mean scale'
    ):
        module.freeze(["scale", "scal"])
    assert module.num_weights == 12


def test_modules_are_shown_without_their_values() -> None:
    with without_weights():
        shown = Linear()
    with without_weights(False):
        run = Linear()
    assert shown.num_weights == run.num_weights > 0
    assert {parameter.device.type for parameter in shown.parameters()} == {"meta"}
    assert {parameter.device.type for parameter in run.parameters()} == {"cpu"}


SHOWING = """
import sys
from torch import nn
from nemo_lite.backends.pytorch.nm import without_weights
with without_weights():
    shown = nn.Embedding(3, 4)
    nn.init.normal_(shown.weight)
    nn.init.normal_(mean=1.0, tensor=shown.weight)
    shown.weight.detach().normal_()
assert shown.weight.is_meta
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_modules_are_shown_without_importing_torchs_compiler() -> None:
    shown = subprocess.run([sys.executable, "-c", SHOWING], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_what_has_values_is_drawn_where_others_are_shown() -> None:
    with without_weights():
        drawn = nn.init.normal_(torch.zeros(100, device="cpu"))
    assert drawn.count_nonzero() > 90


def test_modules_without_weights_are_never_frozen() -> None:
    assert not Several(1, 1).is_frozen()
    assert not Several(1, 1).is_trainable()
    assert not Numbers().is_trainable()


# Weights


def test_weights_can_be_read_and_set() -> None:
    module, other = Linear(), Linear()
    module.freeze(["scale"])
    other.set_weights(module.get_weights())
    torch.testing.assert_close(dict(other.named_parameters()), dict(module.named_parameters()))
    assert not other.scale.requires_grad
    assert other.scale is not module.scale


def test_weights_of_another_shape_or_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"top\.scale: the shapes differ: got \(2,\), wanted \(3,\)"):
        Linear(name="top").set_weights({"scale": (torch.ones(2), True)})
    with pytest.raises(UnknownNameError, match='weight "bias" is not known'):
        Linear().set_weights({"bias": (torch.ones(2), True)})


def test_weights_are_saved_and_restored_strictly(tmp_path: Path) -> None:
    module, other = Linear(), Linear()
    module.save_to(tmp_path / "linear.safetensors")
    other.restore_from(tmp_path / "linear.safetensors")
    torch.testing.assert_close(other.state_dict(), module.state_dict())
    with pytest.raises(CheckpointError):
        Linear(width_in=4).restore_from(tmp_path / "linear.safetensors")


# Precision


class Float32Probe(NonTrainableNM):
    """Multiplies, and tells the type it did that in."""

    keep_float32 = True
    input_ports = {"x": VECTOR, "length": VECTOR}
    output_ports = {"y": VECTOR}

    def forward(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        return x @ x


class HalfProbe(Float32Probe):
    """The same without the promise."""

    keep_float32 = False


def test_a_module_that_keeps_float32_runs_outside_autocast() -> None:
    x, length = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Float32Probe()(x.float(), length).dtype is torch.float32
        assert Float32Probe()(x=x, length=length).dtype is torch.float32
        assert HalfProbe()(x.float(), length).dtype is torch.bfloat16
        # and autocast goes on behind it
        assert (x.float() @ x.float()).dtype is torch.bfloat16
    assert Float32Probe()(x, length).dtype is torch.bfloat16


def test_a_loss_keeps_float32() -> None:
    class Product(LossNM):
        input_ports = {"x": VECTOR}
        output_ports = {"loss": NeuralType(elements_type=LossType())}

        def _loss_function(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x).sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Product()(x=torch.ones(2, 2, dtype=torch.bfloat16)).dtype is torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_lengths_on_the_cpu_do_not_hide_the_autocast_of_the_gpu() -> None:
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert Float32Probe()(length=torch.ones(2), x=x).dtype is torch.float32


# Data layers


def batches(layer: DataLayerNM, training: bool = False, shard: Shard | None = None) -> list[list[float]]:
    loader = layer.loader(training=training, shard=shard or Shard())
    return [batch.values[0].tolist() for batch in loader.epoch(0)]


def flat(batches: list[list[float]]) -> list[float]:
    return [item for batch in batches for item in batch]


def test_settings_are_read_with_and_without_underscore() -> None:
    layer = Numbers()
    assert [len(batch) for batch in batches(layer)] == [4, 4, 2]
    layer.batch_size = 5
    assert [len(batch) for batch in batches(layer)] == [5, 5]
    layer.drop_last = True
    layer.batch_size = 3
    assert [len(batch) for batch in batches(layer, training=True)] == [3, 3, 3]
    assert [len(batch) for batch in batches(layer)] == [3, 3, 3, 1]


def test_evaluation_is_in_data_order_and_training_too_unless_it_is_to_be_shuffled() -> None:
    layer = Numbers(40)
    assert (layer.batch_size, layer.shuffle, layer.num_workers, layer.pin_memory) == (4, False, os.cpu_count(), False)
    in_order = [float(number) for number in range(40)]
    assert flat(batches(layer)) == in_order
    assert flat(batches(layer, training=True)) == in_order
    layer._shuffle = True
    shuffled = flat(batches(layer, training=True))
    assert shuffled != in_order
    assert sorted(shuffled) == in_order
    layer.shuffle = False
    assert flat(batches(layer, training=True)) == in_order


@pytest.mark.parametrize("shuffle", [False, True])
def test_in_training_all_ranks_make_the_same_number_of_steps(shuffle: bool) -> None:
    layer = Numbers(9)
    layer.shuffle, layer.batch_size = shuffle, 1
    steps = [len(batches(layer, training=True, shard=Shard(rank, 4))) for rank in range(4)]
    assert steps == [3, 3, 3, 3]


class Given(DataLayerNM):
    """A data layer with whatever it is told to have."""

    batch_size: int
    output_ports = {"x": VECTOR, "target": VECTOR}

    def __init__(self, data: Any = None, iterator: Any = None, collate: Any = None) -> None:
        super().__init__()
        self._data, self._iterator = data, iterator
        if collate is not None:
            self.collate_fn = collate

    def __len__(self) -> int:
        return len(self._data)

    @property
    def dataset(self) -> Dataset[Any] | None:
        return self._data  # type: ignore[no-any-return]

    @property
    def data_iterator(self) -> Iterable[Any] | None:
        return self._iterator  # type: ignore[no-any-return]


@pytest.mark.parametrize(("data", "iterator", "got"), [(None, None, "neither"), ([1], [1], "both")])
def test_a_data_layer_has_a_dataset_or_an_iterator(data: Any, iterator: Any, got: str) -> None:
    with pytest.raises(UsageError, match=f"given: a data layer has a dataset or a data_iterator: got {got}"):
        Given(data, iterator).loader(training=False, shard=Shard())


def test_an_iterator_is_read_anew_for_each_epoch() -> None:
    layer = Given(iterator=[(torch.ones(3), torch.zeros(3)), {"target": torch.zeros(2), "x": torch.ones(2)}])
    loader = layer.loader(training=True, shard=Shard())
    for epoch in range(2):
        found = list(loader.epoch(epoch))
        assert [batch.amount for batch in found] == [3.0, 2.0]
        assert all(batch.values[0].all() and not batch.values[1].any() for batch in found)
    assert loader.num_rounds is None


def test_an_iterator_is_not_served_to_several_ranks_in_training() -> None:
    with pytest.raises(UsageError, match="given: a data_iterator is not divided among ranks; give it a dataset"):
        Given(iterator=[1]).loader(training=True, shard=Shard(1, 2))


def test_an_iterator_is_evaluated_by_all_ranks_in_turn() -> None:
    layer = Given(iterator=[(torch.full((2,), float(number)), torch.zeros(2)) for number in range(5)])
    ranks = [batches(layer, shard=Shard(rank, 3)) for rank in range(3)]
    assert ranks == [[[0.0, 0.0], [3.0, 3.0]], [[1.0, 1.0], [4.0, 4.0]], [[2.0, 2.0]]]


def test_items_are_named_by_their_position_unless_the_layer_knows_better() -> None:
    assert Given(data=[5, 6]).id_of(1) == "1"


def test_an_empty_data_layer_is_still_a_module() -> None:
    layer = Given(data=[])
    assert layer
    assert list(layer.loader(training=True, shard=Shard()).epoch(0)) == []


def test_items_may_be_dictionaries_by_port() -> None:
    layer = Given(data=[{"target": float(-index), "x": float(index)} for index in range(3)])
    assert batches(layer) == [[0.0], [1.0], [2.0]]


def test_a_collate_function_of_the_layer_is_used() -> None:
    layer = Given(data=[1, 2, 3], collate=lambda items: (torch.tensor(items), torch.tensor(items)))
    layer.batch_size = 3
    assert batches(layer) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((1.0,), r"does not hold its ports: got 1 values, wanted 2 \(x, target\)"),
        ((1.0, 2.0, 3.0), "got 3 values"),
        ({"x": 1.0}, r"a batch of the data layer lacks ports: got values for x, wanted 2 \(x, target\)"),
        (1.0, "got 1 values"),
    ],
)
def test_a_batch_that_does_not_hold_the_ports_is_refused(item: Any, message: str) -> None:
    with pytest.raises(NeuralPortNameMismatchError, match=message):
        batches(Given(data=[item]))


def test_torch_modules_form_dags() -> None:
    x, target = Numbers()()
    dag = Dag([Distance()(Linear()(x), target)])
    assert [node.name for node in dag.nodes] == ["linear", "distance"]
    assert dag.modules["linear"].num_weights == 12


def test_a_module_that_moves_itself_as_in_nemo_goes_where_the_default_factory_runs(monkeypatch):
    class Moving(TrainableNM):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 1)
            self.to(self._device)

    monkeypatch.setattr(TorchModule, "default_factory", None)
    assert Moving().fc.weight.device == torch.device("cpu")
    factory = NeuralModuleFactory(placement=DeviceType.CPU)
    monkeypatch.setattr(factory, "device", torch.device("meta"))
    assert Moving().fc.weight.device == torch.device("meta")


@pytest.mark.parametrize("claimed", [2, 5])
def test_the_items_are_those_of_the_data_set_whatever_the_layer_says_of_its_length(claimed):
    class Layer(DataLayerNM):
        output_ports = {"x": NeuralType("B D", ChannelType())}
        dataset = TensorDataset(torch.arange(3.0)[:, None])

        def __len__(self):
            return claimed

    batches = Layer().loader(training=False, shard=Shard()).epoch(0)
    assert [batch.values[0].item() for batch in batches] == [0.0, 1.0, 2.0]


def test_an_iterable_data_set_is_refused_with_the_remedy():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([torch.zeros(1)])

    class Layer(DataLayerNM):
        output_ports = {"x": NeuralType("B D", ChannelType())}
        dataset = Stream()

    with pytest.raises(UsageError, match="layer: dataset is read by position: got an IterableDataset; give batches"):
        Layer().loader(training=False, shard=Shard())
