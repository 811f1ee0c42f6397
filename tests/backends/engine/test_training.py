"""The training loop: the numbers of a loop written by hand, and the same decisions on all ranks."""

import pytest
import torch
from torch import nn
from toys.device_verdict import use_device_verdict
from toys.names import forget_names
from toys.nets import Mse, Net, Points, Record, build, train
from toys.rank_training import Count, rank_factory, train_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint
from nemo_lite.backends.pytorch.data.loaders import Batch
from nemo_lite.base.errors import NonFiniteLossError, UsageError


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


def test_events_come_in_order_and_a_step_has_its_micro_batches(factory):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, batches_per_step=2, params={"num_epochs": 1})
    steps = ["step_start 0", "batch_end", "batch_end", "step_end 0", "step_start 1", "batch_end", "step_end 1"]
    assert record.events == ["action_start", "epoch_start 0", *steps, "epoch_end 0", "action_end"]


@pytest.mark.parametrize(
    ("params", "steps"),
    [
        ({"num_epochs": 2}, 6),
        ({"max_steps": 4}, 4),
        ({"max_steps": 7}, 7),
        ({"num_epochs": 2, "max_steps": 4}, 4),  # what comes first
        ({"num_epochs": 1, "max_steps": 7}, 3),
    ],
)
def test_training_ends_after_the_epochs_or_the_steps_asked_for(factory, params, steps):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, params=params)
    assert len(record.losses) == steps


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


@pytest.mark.parametrize(
    ("max_steps", "ends"), [(3, ["epoch_end 0"]), (4, ["epoch_end 0"]), (6, ["epoch_end 0", "epoch_end 1"])]
)
def test_an_epoch_ends_when_its_data_is_used_up_also_when_the_run_ends_there(factory, max_steps, ends):
    _, loss = build()
    record = Record()
    train(factory, [loss], record, params={"max_steps": max_steps})
    assert [event for event in record.events if event.startswith("epoch_end")] == ends


def test_the_epochs_order_of_shuffled_data_follows_from_the_seed():
    def losses(seed):
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=seed)
        _, loss = build(Points(shuffle=True))
        record = Record()
        train(factory, [loss], record)
        return record.losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_a_step_on_the_cpu_reads_two_numbers(factory):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    _, loss = build(Points(n=48, batch_size=4))
    with Reads() as reads:
        train(factory, [loss], batches_per_step=3, params={"num_epochs": 1})
    # Four steps, each asking whether its losses and its gradients are finite.
    assert reads.count == 4 * 2


def with_a_bad_item(stop=False, most=25):
    made, net, count = rank_factory(), Net(norm=True), Count()
    data = Points(n=16, batch_size=2, bad_item=5)  # dealt to rank 1
    weights = train_net(made, net, data, [count], max_steps=12, stop_on_nan_loss=stop, max_nonfinite_steps=most)
    return weights, count.steps


def test_a_loss_that_is_not_finite_on_one_rank_skips_that_step_on_all_and_names_the_item():
    finished = on_ranks(2, with_a_bad_item)
    assert [end.code for end in finished] == [0, 0], finished[0].err + finished[1].err
    (weights, steps), (others_weights, others_steps) = (end.result for end in finished)
    assert weights == others_weights
    assert steps == others_steps == 12
    assert torch.isfinite(torch.tensor(weights["fc.weight"])).all()
    assert "the loss of step 1 is not finite; in the batch: rank 1: points[5]" in finished[0].err
    assert "3 of 12 steps were skipped" in finished[0].err


@pytest.mark.parametrize(
    ("arguments", "told"), [((True,), "of step 1 is not finite"), ((False, 1), "it was step 1 in a row")]
)
def test_all_ranks_stop_with_the_same_exit_code_when_it_is_too_much(arguments, told):
    finished = on_ranks(2, with_a_bad_item, *arguments)
    assert [end.code for end in finished] == [2, 2]
    assert all(told in end.err and "NonFiniteLossError" in end.err for end in finished)


class TaintedOnRank(Net):
    """A net whose gradient is NaN at the third step of rank 0, with a finite loss."""

    runs = 0

    def forward(self, x):
        out = super().forward(x)
        self.runs += self.training
        if self.runs == 3 and nemo.NeuralModuleFactory.get_default_factory().global_rank == 0:
            out.register_hook(lambda gradient: gradient * float("nan"))
        return out


def with_a_bad_gradient(folder):
    made, left = rank_factory(), []
    for verdict in ("host", "device"):
        if verdict == "device":
            use_device_verdict(pytest.MonkeyPatch())
        forget_names()
        net = TaintedOnRank(norm=True, name="net")
        checkpoints = nemo.CheckpointCallback(f"{folder}/{verdict}", step_freq=2)
        left.append(train_net(made, net, Points(n=16, batch_size=2), [checkpoints], max_steps=4))
    return left


def test_a_gradient_that_is_not_finite_on_one_rank_reaches_no_weight_and_no_checkpoint(tmp_path):
    finished = on_ranks(2, with_a_bad_gradient, str(tmp_path))
    assert [end.code for end in finished] == [0, 0], finished[0].err + finished[1].err
    (by_host, by_device), (others, others_by_device) = (end.result for end in finished)
    assert by_host == by_device == others == others_by_device
    assert torch.isfinite(torch.tensor(by_host["fc.weight"])).all()
    for verdict in ("host", "device"):
        weights = read_checkpoint(tmp_path / verdict).weights["net"]
        assert weights["fc.weight"].tolist() == by_host["fc.weight"]
    assert finished[0].err.count("the gradient of step 2 is not finite; the step is skipped") == 2


def from_other_weights():
    made, net = rank_factory(), Net()
    with torch.no_grad():
        net.fc.weight.add_(made.global_rank)
    return train_net(made, net, Points(n=16, batch_size=2), max_steps=2)


def test_all_ranks_start_from_the_first_ones_weights():
    first, second = results_of(2, from_other_weights)
    assert first == second


def going_on_after_an_error():
    made = rank_factory()
    with pytest.raises(UsageError, match="how long to train must be said"):
        train_net(made, Net(), Points(n=16, batch_size=2), max_steps=None)
    train_net(made, Net(), Points(n=16, batch_size=2))


def test_a_run_that_ended_with_an_error_says_so_when_it_is_used_again():
    finished = on_ranks(2, going_on_after_an_error)
    assert [end.code for end in finished] == [2, 2]
    assert all("this process has left its group" in end.err for end in finished)


def making_two_factories():
    rank_factory()
    rank_factory()


def test_a_second_group_in_one_process_is_refused():
    finished = on_ranks(2, making_two_factories)
    assert [end.code for end in finished] == [2, 2]
    assert all("a process joins its group once; make one NeuralModuleFactory" in end.err for end in finished)


class Masks(nemo.NonTrainableNM):
    """Draws in training, as dropout does."""

    input_ports = Net.input_ports
    output_ports = Net.output_ports

    def __init__(self):
        super().__init__()
        self.drawn = []

    def forward(self, x):
        self.drawn.append(float(torch.rand(())))
        return x


def drawing(num_epochs):
    made, net, masks = rank_factory(), Net(), Masks()
    x, y = Points(n=8, batch_size=2)()
    loss = Mse()(out=net(x=masks(x=x)), target=y)
    made.train([loss], optimizer="sgd", optimization_params={"lr": 0.1, "num_epochs": num_epochs})
    return masks.drawn


def test_random_draws_differ_by_rank_and_epoch_and_follow_from_the_seed():
    (first, second), again = results_of(2, drawing, 2), results_of(2, drawing, 2)
    assert [first, second] == again
    assert len({*first, *second}) == len(first) + len(second) == 8


class Wide(Net):
    """Of another size on each rank."""

    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3))

    def forward(self, x):
        return self.fc(self.hidden(x))


def with_other_sizes():
    made = rank_factory()
    train_net(made, Wide(3 + made.global_rank), Points(n=16, batch_size=2))


def test_modules_of_different_sizes_are_named_before_their_weights_meet():
    finished = on_ranks(2, with_other_sizes)
    assert [end.code for end in finished] == [2, 2]
    assert all("wide.width: rank 0 has 3, rank 1 has 4" in end.err for end in finished)
    assert all("Traceback" not in end.err for end in finished)


def test_items_of_a_batch_without_positions_are_counted_by_its_first_value():
    assert Batch((torch.zeros(3, 2),)).num_items == 3
