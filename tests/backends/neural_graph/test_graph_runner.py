"""Graphs run without a factory: batches, forward, backward, weights. Files of weights have NeMo's layout."""

import pytest
import torch
from toys.nets import Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state
from nemo_lite.core import NeuralGraph, OperationMode
from nemo_lite.errors import CheckpointError, ConfigurationError, UsageError


@pytest.fixture
def net():
    return Net(norm=True, name="net")


@pytest.fixture
def whole(net):
    """Data, net and loss; its outputs are the default ones."""
    with NeuralGraph() as graph:
        x, y = Points()()
        Mse(name="mse")(out=net(x=x), target=y)
    return graph


@pytest.fixture
def part(net):
    with NeuralGraph() as graph:
        net(x=graph)
    return graph


# Batches


def test_batches_are_named_tuples_in_port_order_of_the_size_asked_for(whole):
    whole.configure_data_loader(batch_size=5)
    batches = list(whole.get_batch())
    assert [len(batch.x) for batch in batches] == [5, 5, 2]
    assert type(batches[0]).__name__ == "PointsOutput"
    assert torch.equal(torch.cat([batch.y for batch in batches]), whole["points0"].y)


def test_without_configuration_batches_have_one_item_and_dictionaries_ports(whole):
    batches = list(whole.get_batch(yield_dict=True))
    assert len(batches) == 12
    assert [*batches[0]] == ["x", "y"]


def test_a_data_layer_of_one_port_gives_the_values_themselves():
    class Numbers(nemo.DataLayerNM):
        output_ports = {"x": Points.output_ports["x"]}

        def __len__(self):
            return 4

        @property
        def dataset(self):
            return torch.utils.data.TensorDataset(torch.arange(4.0))

    with NeuralGraph() as graph:
        Numbers()()
    graph.configure_data_loader(batch_size=4)
    assert [batch.tolist() for batch in graph.get_batch()] == [[0.0, 1.0, 2.0, 3.0]]
    assert [batch["x"].tolist() for batch in graph.get_batch(yield_dict=True)] == [[0.0, 1.0, 2.0, 3.0]]


def test_a_graph_that_is_not_complete_has_no_batches(part):
    with pytest.raises(ConfigurationError, match="the graph has no data of its own: got inputs x; run it with"):
        part.get_batch()


# Forward


def test_forward_takes_a_batch_or_the_ports_and_gives_the_outputs(whole, net):
    batch = next(iter(whole.get_batch()))
    net.eval()
    expected = net(batch.x)
    by_batch, by_ports = whole.forward(batch), whole.forward(x=batch.x, y=batch.y)
    assert type(by_batch).__name__ == "NeuralGraphOutput"
    assert by_batch._fields == ("x", "y", "out", "loss")
    assert torch.equal(by_batch.out, expected)
    assert torch.equal(by_ports.loss, torch.nn.functional.mse_loss(expected, batch.y))


def test_forward_of_an_open_graph_takes_its_inputs(part, net):
    x = torch.rand(4, 3)
    net.eval()
    assert torch.equal(part.forward(x=x), net(x))
    assert torch.equal(part.forward(x), net(x))


def test_forward_sees_what_was_added_to_the_graph_later(part, net):
    x = torch.rand(4, 3)
    net.eval()
    part.forward(x=x)
    with part:
        wire = Net(name="second")(x=part)
    part.outputs["last"] = wire
    assert torch.equal(part.forward(x=x), part["second"](x))


@pytest.mark.parametrize(
    ("args", "ports", "message"),
    [
        ((1, 2), {}, "forward takes one batch, or ports by name: got 2 batches and 0 ports"),
        ((1,), {"x": 1}, "got 1 batches and 1 ports"),
        ((), {"x": 1}, "forward takes exactly the graph's ports: got x, wanted x, y"),
        ((), {"x": 1, "y": 2, "z": 3}, "got x, y, z, wanted x, y"),
        ((1,), {}, "the batch does not have the graph's ports: wanted x, y"),
    ],
)
def test_forward_refuses_other_names(whole, args, ports, message):
    with pytest.raises(UsageError, match=message):
        whole.forward(*args, **ports)


def test_a_graph_for_evaluation_runs_in_evaluation_mode_without_gradients_and_leaves_modes_as_they_are(net):
    with NeuralGraph(OperationMode.evaluation) as graph:
        net(x=graph)
    net.train()
    x = torch.rand(4, 3)
    out = graph.forward(x=x)
    assert not out.requires_grad
    assert net.training
    assert torch.equal(out, net.eval()(x))


def test_modules_take_the_mode_of_the_graph_that_calls_them_and_a_graph_for_training_puts_it_back(net):
    with NeuralGraph(OperationMode.training) as training:
        net(x=training)
    with NeuralGraph(OperationMode.evaluation) as evaluation:
        net(x=evaluation)
    assert net.operation_mode is OperationMode.evaluation
    assert not net.training
    training.forward(x=torch.rand(4, 3))
    assert net.training


def test_a_frozen_module_stays_in_evaluation_mode(net):
    net.freeze()
    with NeuralGraph(OperationMode.training) as graph:
        net(x=graph)
    graph.forward(x=torch.rand(4, 3))
    assert not net.training


def test_an_input_that_is_not_connected_is_told_when_the_graph_runs():
    with NeuralGraph() as graph:
        Mse(name="mse")(out=graph)
    with pytest.raises(ValueError, match="mse: input ports are not connected: got out, wanted target"):
        graph.forward(out=torch.zeros(1))


def test_a_nested_graph_computes_what_its_modules_compute(part, net):
    with NeuralGraph() as outer:
        outer.outputs["predicted"] = part(x=Points()().x)
    net.eval()
    batch = next(iter(outer.get_batch()))
    assert torch.equal(outer.forward(batch), net(batch.x))


# Backward


def test_backward_adds_the_gradients_of_all_losses_of_the_last_forward(whole, net):
    with whole:
        Mse(name="twice")(out=whole.tensors[1]["out"], target=whole.tensors[0]["y"])
    batch = next(iter(whole.get_batch()))
    net.eval()
    whole.forward(batch)
    whole.backward()
    gradient = net.fc.weight.grad.clone()
    net.zero_grad()
    torch.nn.functional.mse_loss(net(batch.x), batch.y).backward()
    assert torch.allclose(gradient, 2 * net.fc.weight.grad)


def test_backward_takes_losses_of_ones_own(part, net):
    out = part.forward(x=torch.ones(2, 3))
    with NeuralGraph() as graph:
        x, y = Points()()
        Mse(name="mse")(out=net(x=x), target=y)
    graph.backward([out.sum()])
    assert net.fc.bias.grad.item() == 2


def test_backward_needs_a_trainable_graph_that_has_run(part, whole):
    with pytest.raises(ConfigurationError, match="the graph cannot be trained: got mode both, 0 losses"):
        part.backward()
    with pytest.raises(ConfigurationError, match="there is no loss to take gradients of; call forward"):
        whole.backward()


def test_a_loop_over_batches_trains(whole):
    whole.configure_data_loader(batch_size=4)
    losses = []
    for batch in [batch for _ in range(20) for batch in whole.get_batch()]:
        losses.append(whole.forward(batch).loss.item())
        whole.backward()
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    assert losses[-1] < losses[0] / 5
    assert [name for name, _ in whole.named_parameters()] == ["norm.weight", "norm.bias", "fc.weight", "fc.bias"]
    assert [name for name, _ in whole.named_parameters(recurse=False)] == []


# Devices


def test_devices_that_are_not_there_are_refused(whole, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert whole.to(nemo.DeviceType.CPU) is whole
    with pytest.raises(ConfigurationError, match=r"there is no GPU: got AllGpu; use DeviceType\.CPU"):
        whole.to(nemo.DeviceType.AllGpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigurationError, match="divides batches among GPUs: got 1 to use, wanted 2 or more"):
        whole.to(nemo.DeviceType.GPU, use_dataparallel=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_modules_and_batches_move_to_the_gpu(whole):
    whole.to(nemo.DeviceType.GPU)
    assert whole.forward(next(iter(whole.get_batch()))).loss.device.type == "cuda"


# Weights


def test_weights_go_to_one_file_by_module_and_back(whole, net, tmp_path):
    whole.save_to(tmp_path / "weights.chkpt")
    stored = load_training_state(tmp_path / "weights.chkpt")
    assert set(stored) == {"header", "modules"}
    assert stored["header"]["name"] == whole.name
    assert list(stored["modules"]) == ["net"]
    before = net.fc.weight.clone()
    torch.nn.init.zeros_(net.fc.weight)
    whole.restore_from(tmp_path / "weights.chkpt")
    assert torch.equal(net.fc.weight, before)


def test_weights_of_nemos_file_are_read(whole, net, tmp_path):
    weights = {name: torch.ones_like(value) for name, value in net.state_dict().items()}
    torch.save({"header": {"nemo_core_version": "0.11.0"}, "modules": {"net": weights}}, tmp_path / "graph.pt")
    whole.restore_from(tmp_path / "graph.pt")
    assert net.fc.bias.item() == 1


def test_modules_that_are_in_one_place_only_are_told_in_one_warning(whole, part, net, tmp_path, caplog):
    whole.save_to(tmp_path / "weights")
    with part:
        Net(name="unsaved")(x=part)
    part.restore_from(tmp_path / "weights", module_names=["net", "unsaved", "nobody"])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert f"unsaved (not in the file), nobody (not in graph {part.name})" in warnings[0]


def test_a_file_that_does_not_fit_leaves_all_modules_as_they_are(whole, net, tmp_path):
    before = net.fc.weight.clone()
    torch.save({"header": {}, "modules": {"net": {"fc.weight": torch.zeros(2)}}}, tmp_path / "graph.pt")
    with pytest.raises(CheckpointError, match="net"):
        whole.restore_from(tmp_path / "graph.pt")
    assert torch.equal(net.fc.weight, before)
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match="these are no weights of a graph: wanted modules by name"):
        whole.restore_from(tmp_path / "module.pt")


def test_freezing_takes_names_of_modules(whole, net):
    whole.freeze(["net", "points0"])
    assert net.is_frozen()
    assert "net (Net) [FROZEN]" in whole.summary()
    whole.unfreeze()
    assert not net.is_frozen()
    with pytest.raises(KeyError, match=r'has no module "nett"; modules: points0, net, mse \(did you mean net\?\)'):
        whole.freeze(["nett"])


# With the factory


@pytest.mark.parametrize("names", [[], ["loss"]])
def test_the_factory_trains_the_losses_of_a_graph(whole, net, names):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    for name in names:
        whole.outputs[name] = whole.losses[0]
    before = net.fc.weight.clone()
    factory.train(training_graph=whole, optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 1})
    assert not torch.equal(net.fc.weight, before)


def test_the_factory_refuses_a_graph_beside_losses_and_one_that_cannot_be_trained(whole, part):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    with pytest.raises(UsageError, match="got both tensors_to_optimize and training_graph; give one of them"):
        factory.train(whole.losses, whole)
    with pytest.raises(ConfigurationError, match=r"the graph cannot be trained: got mode both, outputs out; give"):
        factory.train(training_graph=part)


def test_arguments_by_position_in_the_order_of_nemo_09_are_accepted(whole):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    rates = []

    def policy(rate, step, epoch):
        rates.append(rate)
        return rate

    logger = nemo.SimpleLogger(step_freq=1)
    factory.train(whole.losses, "sgd", {"lr": 0.5, "max_steps": 1}, [logger], policy)
    assert rates == [0.5]
    factory.train(whole.losses, "sgd", {"lr": 0.5, "max_steps": 1}, callbacks=[logger], lr_policy=policy, reset=True)
    assert rates == [0.5, 0.5]
