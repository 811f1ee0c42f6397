"""PtActions: evaluating and inferring, exactly once and without side effects; checkpoints; precision."""

import gc
import weakref

import pytest
import torch
from toys.nets import Mse, Net, Points, Record, build

import nemo_lite as nemo
from nemo_lite.base.errors import CheckpointError, DagError, UnknownNameError, UsageError
from nemo_lite.core.neural_types import ChannelType, NeuralType


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)


def test_infer_gives_a_list_of_batches_for_each_wire_in_data_order(factory):
    data, net = Points(n=10, batch_size=4, shuffle=True), Net()
    x, _ = data()
    out, seen = factory.infer([net(x=x), x])
    assert [len(batch) for batch in seen] == [4, 4, 2]
    assert torch.equal(torch.cat(seen), data.x)
    torch.testing.assert_close(torch.cat(out), net(x=data.x).detach())


@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_infer_gives_the_same_values_for_any_batch_size(factory, batch_size):
    data, net = Points(n=10, batch_size=batch_size), Net(norm=True)
    (out,) = factory.infer([net(x=data()[0])])
    torch.testing.assert_close(torch.cat(out), net.fc(data.x / (1 + 1e-5) ** 0.5).detach())


def test_infer_leaves_modes_gradients_and_statistics_as_they_were(factory):
    net = Net(norm=True)
    net.fc.eval()
    (out,) = factory.infer([net(x=Points()()[0])])
    assert (net.training, net.norm.training, net.fc.training) == (True, True, False)
    assert net.norm.num_batches_tracked == 0
    assert not out[0].requires_grad


def test_infer_continues_from_what_an_earlier_call_kept(factory):
    data, net, more = Points(), Net(), Net(name="more")
    more.fc = torch.nn.Linear(1, 1)
    x, _ = data()
    out = net(x=x)
    (first,) = factory.infer([out], cache=True)
    data.x.zero_()  # a second run from the data would now differ
    (second,) = factory.infer([more(x=out)], use_cache=True)
    torch.testing.assert_close(torch.cat(second), more(x=torch.cat(first)).detach())


def test_infer_says_in_nemo_s_words_that_nothing_or_something_is_kept(factory):
    x, _ = Points()()
    out = Net()(x=x)
    with pytest.raises(ValueError, match="use_cache was set, but cache was empty"):
        factory.infer([out], use_cache=True)
    factory.infer([out], cache=True)
    with pytest.raises(ValueError, match="cache was set but was not empty"):
        factory.infer([out], cache=True)


def test_infer_refuses_what_does_not_follow_from_what_was_kept(factory):
    x, y = Points()()
    out = Net()(x=x)
    factory.infer([out], cache=True)
    with pytest.raises(
        DagError, match=r"needs more than the wires that are there: got net\.out, wanted also what points gives"
    ):
        factory.infer([Mse()(out=out, target=y)], use_cache=True)
    with pytest.raises(UsageError, match="cache and use_cache were both set; leave one out"):
        factory.infer([out], cache=True, use_cache=True)


def test_infer_restores_the_newest_checkpoint(factory, tmp_path):
    net, loss = build()
    factory.train(
        [loss],
        optimizer="adam",
        callbacks=[nemo.CheckpointCallback(folder=str(tmp_path), step_freq=2)],
        optimization_params={"lr": 0.1, "max_steps": 6},
    )
    trained = net.fc.weight.detach().clone()
    other = Net()
    x, _ = Points()()
    factory.infer([other(x=x)], checkpoint_dir=tmp_path)
    assert torch.equal(other.fc.weight, trained)


def test_restoring_what_is_not_there_is_an_error(factory, tmp_path):
    x, _ = Points()()
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        factory.infer([Net()(x=x)], checkpoint_dir=tmp_path)


def test_a_run_goes_on_where_its_checkpoint_ends(factory, tmp_path):
    def run(folder, max_steps, net):
        _, loss = build(net=net)
        record = Record()
        callbacks = [record, nemo.CheckpointCallback(folder=str(folder), step_freq=100)]
        params = {"lr": 0.1, "max_steps": max_steps}
        factory.train([loss], optimizer="adam", callbacks=callbacks, optimization_params=params)
        return record

    whole, halves = Net(), Net()
    run(tmp_path / "whole", 6, whole)
    run(tmp_path / "halves", 3, halves)  # three batches are one epoch
    again = run(tmp_path / "halves", 6, halves)
    assert again.events[2] == "step_start 3"
    assert torch.equal(whole.fc.weight, halves.fc.weight)


def test_evaluation_in_training_sees_every_item_once_and_changes_nothing(factory):
    net = Net(norm=True)
    _, loss = build(net=net)
    data = Points(n=10, batch_size=3, shuffle=True)
    x, _ = data()
    out, seen, modes = net(x=x), [], []

    def collect(values, _):
        modes.append(net.training)
        seen.extend(v for key, value in values.items() if key.startswith("x~~~") for v in value)

    evaluator = nemo.EvaluatorCallback([x, out], collect, lambda _: None, eval_step=100, eval_at_start=False)
    statistics = []

    class Watch(nemo.NeMoCallback):
        def on_step_end(self, state):
            statistics.append((net.training, int(net.norm.num_batches_tracked)))

    factory.train(
        [loss], optimizer="sgd", callbacks=[Watch(), evaluator], optimization_params={"lr": 0.1, "max_steps": 2}
    )
    assert torch.equal(torch.cat(seen), data.x)
    assert not any(modes)
    assert statistics == [(True, 1), (True, 2)]
    assert net.norm.num_batches_tracked == 2
    assert net.training


def test_eval_takes_evaluators_only(factory):
    with pytest.raises(UsageError, match="eval needs at least one EvaluatorCallback"):
        factory.eval([])
    with pytest.raises(UsageError, match="eval takes EvaluatorCallbacks only: got Record"):
        factory.eval([Record()])


def test_the_trainer_takes_the_arguments_of_factory_train_and_infer_as_they_are(factory):
    net, loss = build()
    record, params = Record(), {"lr": 0.1, "num_epochs": 1}
    trainer = factory.get_trainer()
    trainer.train([loss], optimizer="sgd", optimization_params=params, callbacks=[record], batches_per_step=2)
    assert [event for event in record.events if event.startswith("step_start")] == ["step_start 0", "step_start 1"]
    (out,) = trainer.infer([net(x=Points(n=4, batch_size=2)()[0])], verbose=False, offload_to_cpu=True)
    assert len(out) == 2
    with pytest.raises(UnknownNameError, match=r'argument "batch_per_step" is not known.*mean batches_per_step'):
        trainer.train([loss], optimizer="sgd", optimization_params=params, batch_per_step=2)


def test_an_optimizer_is_over_every_parameter_once(factory):
    net, tied = Net(name="net"), Net(name="tied")
    tied.tie_weights_with(net, ["fc.weight"])
    optimizer = factory.create_optimizer("adam", [net, tied], {"lr": 0.1})
    assert len(optimizer.param_groups[0]["params"]) == 3
    with pytest.raises(UnknownNameError, match=r'optimizer "addam" is not known; .*did you mean adam\?'):
        factory.create_optimizer("addam", [net], {"lr": 0.1})


def test_a_data_layer_is_needed_that_torch_can_load(factory):
    class Strange(nemo.NeuralModule):
        output_ports = {"x": NeuralType("B D", ChannelType())}

    with pytest.raises(DagError, match=r"strange \(Strange\) is not a data layer; derive it from DataLayerNM"):
        factory.infer([Net()(x=Strange().connect())])


class Named(nemo.NeMoCallback):
    def on_step_end(self, state):
        state.tensors.get_tensor("of the sweep")


@pytest.mark.parametrize("compile", [False, pytest.param({"backend": "eager"}, marks=pytest.mark.slow)])
def test_models_of_a_sweep_leave_memory_and_leave_their_names(factory, compile):  # noqa: A002
    (x, y), body, models = Points()(), Net(name="body"), []
    features = body(x=x)
    for _ in range(4):
        head = Net(name="head")
        head.fc = torch.nn.Linear(1, 1)
        prediction = head(x=features)
        prediction.rename("of the sweep")
        evaluator = nemo.EvaluatorCallback([prediction], lambda *_: None, lambda _: {"wer": 1.0}, eval_step=2)
        loss = Mse()(out=prediction, target=y)
        options = {"max_steps": 2, "lr": 0.01}
        factory.train([loss], "sgd", options, callbacks=[Named(), evaluator], compile=compile)
        factory.infer([prediction], compile=compile, verbose=False)
        models.append(weakref.ref(head))
        del head, prediction, evaluator, loss
    gc.collect()
    assert [model() for model in models] == [None] * 4


def test_the_last_models_optimizer_leaves_memory_with_the_model(factory):
    net, loss = build()
    factory.train([loss], "adam", {"max_steps": 2, "lr": 0.01})
    (optimizer,) = factory.get_trainer().optimizers
    held = [weakref.ref(each) for each in (optimizer, net.fc.weight, optimizer.state[net.fc.weight]["exp_avg"])]
    del optimizer, net
    gc.collect()
    assert all(each() is not None for each in held)  # the wires still hold the model
    del loss
    gc.collect()
    assert [each() for each in held] == [None] * 3
    assert factory.get_trainer().optimizers == []


def test_after_a_training_its_state_can_be_written_and_read(factory, tmp_path):
    _, loss = build()
    params = {"max_steps": 3, "lr": 0.1, "momentum": 0.9}
    factory.train([loss], optimizer="sgd", optimization_params=params)
    trainer = factory.get_trainer()
    trainer.save_state_to(tmp_path / "state.safetensors")
    before = trainer.optimizers[0].state_dict()["state"]
    trainer.optimizers[0].state.clear()
    trainer.step = 0
    trainer.restore_state_from(tmp_path / "state.safetensors")
    assert trainer.step == 3
    for key, state in trainer.optimizers[0].state_dict()["state"].items():
        assert torch.equal(state["momentum_buffer"], before[key]["momentum_buffer"])
