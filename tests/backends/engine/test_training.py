"""The training loop: the same numbers as a loop written by hand, and what it does when things go wrong."""

import pytest
import torch
from torch import nn
from toys.nets import Mse, Net, Points, Record, build, train

import nemo_lite as nemo
from nemo_lite.errors import DagError, NonFiniteLossError, UsageError


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)


def by_hand(data, net, num_epochs=2, lr=0.1, per_step=1, clip=None):
    """The reference: what one would write, with the batches of each step weighted by their real number."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    batches = list(zip(data.x.split(data.batch_size), data.y.split(data.batch_size), strict=True))
    for _ in range(num_epochs):
        for start in range(0, len(batches), per_step):
            group = batches[start : start + per_step]
            optimizer.zero_grad()
            for x, y in group:
                (nn.functional.mse_loss(net.fc(net.norm(x)), y) / len(group)).backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(
    ("per_step", "clip"), [(1, None), (2, None), (3, None), (1, 0.01)], ids=["plain", "tail of one", "whole", "clipped"]
)
def test_training_gives_the_very_weights_of_a_hand_written_loop(factory, per_step, clip):
    reference, data = Net(), Points()
    by_hand(data, reference, per_step=per_step, clip=clip)
    net, loss = build(data)
    train(factory, [loss], batches_per_step=per_step, params={"num_epochs": 2, "grad_norm_clip": clip})
    assert same_weights(net, reference)


def test_dropping_the_tail_of_an_epoch_would_be_noticed(factory):
    reference, data = Net(), Points(n=12, batch_size=4)
    by_hand(data, reference, per_step=2)
    net, loss = build(Points(n=8, batch_size=4))  # the first two batches only: what is left when the tail is dropped
    train(factory, [loss], batches_per_step=2)
    assert not same_weights(net, reference)


def test_accumulating_equal_batches_gives_the_weights_of_one_big_batch(factory):
    one, loss = build(Points(n=12, batch_size=12))
    train(factory, [loss])
    several, loss = build(Points(n=12, batch_size=4))
    train(factory, [loss], batches_per_step=3)
    for p, q in zip(one.parameters(), several.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_several_losses_are_summed(factory):
    data, net, record = Points(), Net(), Record()
    x, y = data()
    out = net(x=x)
    losses = [Mse()(out=out, target=y), Mse()(out=out, target=y)]
    train(factory, losses, record, params={"max_steps": 1})
    expected = 2 * nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4])
    assert record.losses == [pytest.approx(expected.item())]


def test_optimizer_and_loss_tuples_are_taken_in_turn(factory):
    data, first, second, record = Points(), Net(name="first"), Net(name="second"), Record()
    x, y = data()
    losses = [Mse()(out=net(x=x), target=y) for net in (first, second)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second)]
    before = [net.fc.weight.clone() for net in (first, second)]
    train(factory, [(o, [loss]) for o, loss in zip(optimizers, losses, strict=True)], record, params={"max_steps": 1})
    assert not torch.equal(first.fc.weight, before[0])
    assert torch.equal(second.fc.weight, before[1])


def test_tuples_do_not_go_with_accumulation(factory):
    net, loss = build()
    with pytest.raises(UsageError, match="tuples go with neither optimizer= nor batches_per_step above 1"):
        train(factory, [(torch.optim.SGD(net.parameters(), lr=0.1), [loss])], batches_per_step=2)


def test_events_come_in_order_and_a_step_has_its_micro_batches(factory):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, batches_per_step=2, params={"num_epochs": 1})
    steps = ["step_start 0", "batch_end", "batch_end", "step_end 0", "step_start 1", "batch_end", "step_end 1"]
    assert record.events == ["action_start", "epoch_start 0", *steps, "epoch_end 0", "action_end"]


@pytest.mark.parametrize(("params", "steps"), [({"num_epochs": 2}, 6), ({"max_steps": 4}, 4), ({"max_steps": 7}, 7)])
def test_training_ends_after_the_epochs_or_the_steps_asked_for(factory, params, steps):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, params=params)
    assert len(record.losses) == steps


@pytest.mark.parametrize(
    ("params", "got"), [({}, "neither"), ({"num_epochs": 2, "max_steps": 3}, "num_epochs=2 and max_steps=3")]
)
def test_both_or_neither_of_epochs_and_steps_is_refused_before_anything_runs(factory, params, got):
    _, loss = build()
    record = Record()
    with pytest.raises(UsageError, match=f"must be said once: got {got}, wanted num_epochs or max_steps"):
        train(factory, [loss], record, params={**params, "momentum": 0.0})
    assert record.events == []


def test_the_learning_rate_policy_scales_each_parameter_group_from_its_own_rate(factory):
    net, loss = build()
    optimizer = torch.optim.SGD([{"params": [net.fc.weight], "lr": 0.1}, {"params": [net.fc.bias], "lr": 0.01}])
    seen = []

    class Watch(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.append([group["lr"] for group in state["optimizers"][0].param_groups])

    train(
        factory,
        [loss],
        Watch(),
        optimizer=optimizer,
        lr_policy=lambda lr, step, epoch: lr / (step + 1),
        params={"max_steps": 2},
    )
    assert seen == [[0.1, 0.01], [0.05, 0.005]]


def test_a_step_whose_loss_is_not_finite_is_skipped_and_counted_and_the_run_ends(factory, caplog):
    net, loss = build(Points(bad_item=5))
    reference, record, weights = Net(), Record(), []
    data = Points()

    class Watch(nemo.NeMoCallback):
        def on_step_end(self, state):
            weights.append(net.fc.weight.detach().clone())

    factory.train(
        [loss],
        optimizer="sgd",
        callbacks=[record, Watch()],
        optimization_params={"lr": 0.1, "momentum": 0.0, "max_steps": 3},
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for part in (0, 8):  # the batch with item 5 is left out
        optimizer.zero_grad()
        nn.functional.mse_loss(reference.fc(data.x[part : part + 4]), data.y[part : part + 4]).backward()
        optimizer.step()
    assert torch.equal(weights[0], weights[1])
    assert same_weights(net, reference)
    assert len(record.losses) == 3


def test_a_run_can_be_told_to_stop_at_a_loss_that_is_not_finite(factory):
    _, loss = build(Points(bad_item=5))
    with pytest.raises(
        NonFiniteLossError, match=r"the loss of step 1 is not finite; in the batch: points\[4\], points\[5\]"
    ):
        train(factory, [loss], stop_on_nan_loss=True)


def test_one_bad_batch_among_accumulated_ones_skips_their_step(factory):
    net, loss = build(Points(bad_item=5))
    before = net.fc.weight.detach().clone()
    train(factory, [loss], batches_per_step=3, params={"max_steps": 1})
    assert torch.equal(net.fc.weight, before)


def test_a_frozen_module_keeps_its_weights_its_statistics_and_its_mode(factory):
    net, head = Net(norm=True, name="net"), Net(name="head")
    head.fc = nn.Linear(1, 1)
    x, y = Points()()
    loss = Mse()(out=head(x=net(x=x)), target=y)
    net.freeze()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    train(factory, [loss])
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert not net.training
    assert head.training


def test_a_part_that_the_user_put_into_evaluation_mode_stays_there(factory):
    net, loss = build(net=Net(norm=True))
    net.norm.eval()
    mean = net.norm.running_mean.clone()
    train(factory, [loss])
    assert torch.equal(net.norm.running_mean, mean)


def test_a_renamed_wire_beyond_the_training_dag_is_computed_when_asked_for(factory):
    net, loss = build()
    prediction = next(iter(loss.call.inputs.values()))
    head = Net(name="head")
    head.fc = nn.Linear(1, 1)
    head(x=prediction).rename("beyond")
    record = Record("beyond")
    train(factory, [loss], record, params={"max_steps": 1})
    assert record.tensors[0][0].shape == (4, 1)
    assert not record.tensors[0][0].requires_grad
    assert head.fc.weight.grad is None
    del net


def test_a_wire_of_the_training_dag_that_was_not_kept_is_an_error_with_the_remedy(factory):
    _, loss = build()
    prediction = next(iter(loss.call.inputs.values()))

    class Ask(nemo.NeMoCallback):
        def on_step_end(self, state):
            state["tensors"].get_tensor(prediction)

    with pytest.raises(DagError, match=r"net\.out was not kept in this step: .*; name the wire before training starts"):
        train(factory, [loss], Ask())


def test_the_loss_of_an_objective_that_is_not_at_its_turn_can_be_read_too(factory):
    data, nets = Points(), [Net(name="first"), Net(name="second")]
    x, y = data()
    losses = [Mse()(out=net(x=x), target=y) for net in nets]
    seen = []

    class Ask(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.append([state["tensors"].get_tensor(loss).item() for loss in losses])

    pairs = [(torch.optim.SGD(net.parameters(), lr=0.1), [loss]) for net, loss in zip(nets, losses, strict=True)]
    train(factory, pairs, Ask(), params={"max_steps": 2})
    assert seen[0][1] == pytest.approx(nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4]).item())
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("max_steps", "ends"), [(3, ["epoch_end 0"]), (4, ["epoch_end 0"]), (6, ["epoch_end 0", "epoch_end 1"])]
)
def test_an_epoch_ends_when_its_data_is_used_up_also_when_the_run_ends_there(factory, max_steps, ends):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, params={"max_steps": max_steps})
    assert [event for event in record.events if event.startswith("epoch_end")] == ends


def test_an_unknown_tensor_name_lists_the_known_ones(factory):
    _, loss = build()
    next(iter(loss.call.inputs.values())).rename("prediction")
    with pytest.raises(DagError, match=r'named "predictoin"; known: loss, prediction \(did you mean prediction\?\)'):
        train(factory, [loss], Record("predictoin"))


def test_a_second_run_starts_anew(factory):
    _, loss = build()
    first, second = Record(), Record()
    train(factory, [loss], first, params={"max_steps": 2})
    train(factory, [loss], second, params={"max_steps": 2})
    assert second.events[:3] == ["action_start", "epoch_start 0", "step_start 0"]


def test_a_callback_can_ask_to_stop(factory):
    _, loss = build()
    record = Record()

    class Stop(nemo.NeMoCallback):
        def on_step_end(self, state):
            if state.step == 1:
                state.request_stop("enough")

    factory.train([loss], optimizer="sgd", callbacks=[record, Stop()], optimization_params={"lr": 0.1, "num_epochs": 9})
    assert record.events[-2:] == ["step_end 1", "action_end"]


def test_the_epochs_order_of_shuffled_data_follows_from_the_seed():
    def losses(seed):
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=seed)
        _, loss = build(Points(shuffle=True))
        record = Record()
        train(factory, [loss], record)
        return record.losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_a_step_reads_one_number_from_the_device(factory):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    _, loss = build(Points(n=48, batch_size=4))
    with Reads() as reads:
        train(factory, [loss], batches_per_step=3, params={"num_epochs": 1})
    # Four steps, each asking once whether its losses are finite, and the seed of the epoch's loader.
    assert reads.count == 4 + 1
