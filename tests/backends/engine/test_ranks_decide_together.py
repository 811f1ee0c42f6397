"""What ranks must do alike: skip, stop, run out of data, start from the same weights, leave statistics alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys.nets import Mse, Net, Points
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.data import Batch
from nemo_lite.errors import UnknownNameError, UsageError


def factory(**kwargs):
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, **kwargs)


def train(made, net, data, callbacks=(), max_steps=6, num_epochs=None, **kwargs):
    x, y = data()
    loss = Mse()(out=net(x=x), target=y)
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": None if num_epochs else max_steps, "num_epochs": num_epochs}
    made.train([loss], callbacks=list(callbacks), optimizer="sgd", optimization_params=params, **kwargs)
    return {name: value.tolist() for name, value in net.state_dict().items()}


class Count(nemo.NeMoCallback):
    """Steps made; asks to stop at one of them, on one rank."""

    def __init__(self, stop_at=None, on_rank=0):
        super().__init__()
        self.steps, self.epochs, self._stop_at, self._on_rank = 0, 0, stop_at, on_rank

    def on_step_end(self, state):
        self.steps += 1
        if self._stop_at == state.step and state.global_rank == self._on_rank:
            state.request_stop("it was asked for")

    def on_epoch_end(self, state):
        self.epochs += 1


def with_a_bad_item(stop=False, most=25):
    made, net, count = factory(), Net(norm=True), Count()
    data = Points(n=16, batch_size=2, bad_item=5)  # dealt to rank 1
    weights = train(made, net, data, [count], max_steps=12, stop_on_nan_loss=stop, max_nonfinite_steps=most)
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


def stopping(on_rank):
    count = Count(stop_at=2, on_rank=on_rank)
    train(factory(), Net(), Points(n=16, batch_size=2), [count], max_steps=50)
    return count.steps


def test_a_stop_asked_for_on_one_rank_stops_all_at_the_next_step():
    assert results_of(2, stopping, 1) == [4, 4]


class Uneven(Points):
    """Rank 1 has two batches fewer than rank 0, whatever was asked for."""

    def loader(self, *, training, shard):
        loader = super().loader(training=training, shard=shard)
        if not training:
            return loader

        class Short:
            def epoch(self, epoch):
                batches = list(loader.epoch(epoch))
                return iter(batches[: len(batches) - 2 * shard.rank])

            def __len__(self):
                return len(loader)

        return Short()


def uneven(policy, accumulated=1):
    count = Count()
    data = Uneven(n=20, batch_size=2, shuffle=False)
    weights = train(factory(), Net(), data, [count], num_epochs=1, uneven=policy, batches_per_step=accumulated)
    return weights, count.steps, count.epochs


@pytest.mark.parametrize(
    ("policy", "steps", "told"),
    [
        ("pad", 5, "Epoch 0 (uneven=pad): 4 items came twice"),
        ("drop", 3, "Epoch 0 (uneven=drop): 2 items or more were left out, because another rank had none"),
        ("join", 5, "Epoch 0 (uneven=join): 2 times a rank without data took part with weight zero"),
    ],
)
def test_ranks_that_run_out_of_data_neither_hang_nor_go_unnoticed(policy, steps, told):
    finished = on_ranks(2, uneven, policy)
    assert [end.code for end in finished] == [0, 0], finished[0].err + finished[1].err
    assert [end.result[1:] for end in finished] == [(steps, 1)] * 2
    assert finished[0].result[0] == finished[1].result[0]
    assert told in finished[0].out


def test_uneven_data_can_be_refused():
    finished = on_ranks(2, uneven, "error")
    assert [end.code for end in finished] == [2, 2]
    assert "uneven=error: 1 of 2 ranks have no batch at step 3 of epoch 0, the others have" in finished[1].err


def by_hand():
    """What ``join`` must come to: full steps of both ranks, then two steps of rank 0's batches alone."""
    data, net = Points(n=20, batch_size=2), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        items = [i for i in range(4 * step, 4 * step + 4) if i % 2 == 0 or step < 3]
        loss = nn.functional.mse_loss(net(x=data.x[items]), data.y[items])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.tolist() for name, value in net.state_dict().items()}


def test_a_rank_that_only_takes_part_adds_nothing_to_the_step():
    expected = by_hand()
    for weights, *_ in results_of(2, uneven, "join"):
        for name, value in weights.items():
            torch.testing.assert_close(torch.tensor(value), torch.tensor(expected[name]), rtol=1e-5, atol=1e-7)


def test_with_accumulation_every_rank_makes_equally_many_batches():
    results = results_of(2, uneven, "join", 2)
    assert results[0] == results[1]
    assert results[0][1] == 3


class Far(Uneven):
    """Rank 1's data lie far from rank 0's."""

    def __init__(self):
        super().__init__(n=20, batch_size=2)
        self.x[1::2] += 100.0


def with_synced_statistics():
    made, net = factory(), Net(norm=True)
    weights = train(made, net, Far(), num_epochs=1, uneven="join", synced_batchnorm=True)
    return weights


def by_hand_with_statistics():
    data, net = Far(), Net(norm=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        items = [i for i in range(4 * step, 4 * step + 4) if i % 2 == 0 or step < 3]
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x=data.x[items]), data.y[items]).backward()
        optimizer.step()
    return {name: value.tolist() for name, value in net.state_dict().items()}


def test_a_rank_that_only_takes_part_adds_nothing_to_synchronised_statistics():
    expected = by_hand_with_statistics()
    for weights in results_of(2, with_synced_statistics):
        for name, value in weights.items():
            torch.testing.assert_close(torch.tensor(value), torch.tensor(expected[name]), rtol=1e-4, atol=1e-5)


def from_other_weights():
    made, net = factory(), Net()
    with torch.no_grad():
        net.fc.weight.add_(made.global_rank)
    return train(made, net, Points(n=16, batch_size=2), max_steps=2)


def test_all_ranks_start_from_the_first_ones_weights():
    first, second = results_of(2, from_other_weights)
    assert first == second


def with_folders_of_their_own(folder, max_steps):
    made, net = factory(), Net()
    own = folder / str(made.global_rank)  # as on machines that share no file system
    callback = nemo.CheckpointCallback(own, step_freq=4)
    weights = train(made, net, Points(n=16, batch_size=2), [callback], max_steps=max_steps, lr_policy=None)
    return weights, sorted(path.name for path in own.glob("Net-*")), made.get_trainer().step


def test_a_checkpoint_need_only_lie_with_the_first_rank(tmp_path):
    results_of(2, with_folders_of_their_own, tmp_path, 4)
    (first, saved, step), (second, nothing, _) = results_of(2, with_folders_of_their_own, tmp_path, 8)
    assert (saved, nothing, step) == (["Net-STEP-4.safetensors", "Net-STEP-8.safetensors"], [], 7)
    assert first == second


class Unfreeze(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["fc.weight"])


def unfreezing():
    made, net = factory(), Net()
    net.freeze(["fc.weight"])
    return train(made, net, Points(n=16, batch_size=2), [Unfreeze(net)])


def test_weights_that_are_unfrozen_on_the_way_are_averaged_too():
    first, second = results_of(2, unfreezing)
    assert first == second


class LateUnreached(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["spare.weight"])


def unfreezing_an_idle_weight():
    made, net = factory(), Idle()
    net.freeze(["spare.weight", "spare.bias"])
    train(made, net, Points(n=16, batch_size=2), [LateUnreached(net)])


def test_a_weight_that_is_unfrozen_and_not_reached_is_refused_before_a_step_is_made_with_it():
    finished = on_ranks(2, unfreezing_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight; freeze them" in finished[0].err


def all_frozen():
    made, net = factory(), Net()
    net.freeze()
    train(made, net, Points(n=16, batch_size=2))


def test_a_model_that_is_frozen_altogether_is_refused_in_one_line():
    finished = on_ranks(2, all_frozen)
    assert [end.code for end in finished] == [2, 2]
    assert "no weight that the loss depends on is trained" in finished[0].err


def going_on_after_an_error():
    made = factory()
    with pytest.raises(UsageError, match="how long to train must be said once"):
        train(made, Net(), Points(n=16, batch_size=2), max_steps=None)
    train(made, Net(), Points(n=16, batch_size=2))


def test_a_run_that_ended_with_an_error_says_so_when_it_is_used_again():
    finished = on_ranks(2, going_on_after_an_error)
    assert [end.code for end in finished] == [2, 2]
    assert all("this process has left its group" in end.err for end in finished)


def making_two_factories():
    factory()
    factory()


def test_a_second_group_in_one_process_is_refused():
    finished = on_ranks(2, making_two_factories)
    assert [end.code for end in finished] == [2, 2]
    assert all("a process joins its group once; make one NeuralModuleFactory" in end.err for end in finished)


class Idle(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def with_an_idle_weight():
    train(factory(), Idle(), Points(n=16, batch_size=2))


def test_a_weight_that_the_loss_does_not_reach_is_refused_by_name():
    finished = on_ranks(2, with_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight, idle.spare.bias; freeze them" in finished[1].err


class Watching(nemo.NeMoCallback):
    """The batch-norm statistics of this rank right before and after an evaluation, and the mode."""

    def __init__(self, net):
        super().__init__()
        self.net, self.seen = net, []

    def on_step_end(self, state):
        self.seen.append((self.net.training, self.net.norm.running_mean.tolist()))


def evaluating():
    made, net = factory(), Net(norm=True)
    before, after = Watching(net), Watching(net)
    used = []
    sets = []
    for count in (6, 4):
        x, _ = Points(n=count, batch_size=2)()
        sets.append(nemo.EvaluatorCallback([net(x=x)], lambda values, _: None, lambda _: used.append(1), eval_step=1))
    train(made, net, Points(n=16, batch_size=2), [before, *sets, after], max_steps=3)
    return before.seen, after.seen, net.norm.running_mean.tolist(), len(used)


def test_evaluations_of_several_sets_leave_modes_and_statistics_of_the_training_alone():
    first, second = results_of(2, evaluating)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]  # each rank has statistics of its own while it trains
    assert first[2] == second[2]  # and all the same in the end
    assert all(training for training, _ in first[0])
    assert first[3] >= 6
    assert second[3] == 0


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
    made, net, masks = factory(), Net(), Masks()
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
    made = factory()
    train(made, Wide(3 + made.global_rank), Points(n=16, batch_size=2))


def test_modules_of_different_sizes_are_named_before_their_weights_meet():
    finished = on_ranks(2, with_other_sizes)
    assert [end.code for end in finished] == [2, 2]
    assert all("wide" in end.err and "differs: rank 0 has" in end.err for end in finished)
    assert all("Traceback" not in end.err for end in finished)


def with_other_arguments():
    made, net = factory(), Net(name="net")
    data = Points(n=16, batch_size=2 + 2 * made.global_rank)
    train(made, net, data)


def test_ranks_that_are_about_to_run_different_things_are_stopped_before_step_0():
    finished = on_ranks(2, with_other_arguments)
    assert [end.code for end in finished] == [2, 2]
    assert all("points" in end.err and "differs: rank 0 has" in end.err for end in finished)
    assert all(end.seconds < 10 for end in finished)


def test_a_policy_for_uneven_data_that_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match=r'uneven "padd" is not known.*did you mean pad'):
        train(factory(), Net(), Points(n=4), uneven="padd")


def test_items_of_a_batch_without_positions_are_counted_by_its_first_value():
    assert Batch((torch.zeros(3, 2),)).num_items == 3
