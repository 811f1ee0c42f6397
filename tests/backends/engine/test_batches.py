"""The batches of each step: an epoch without data, and ranks of which some run out of data."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toys.nets import Net, Points, build, train
from toys.rank_training import Count, rank_factory, train_net
from toys.ranks import on_ranks, results_of

from nemo_lite.backends.pytorch.data.loaders import BatchLoader
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.engine import batches as step_batches
from nemo_lite.base.errors import UsageError
from nemo_lite.utils import logging


@pytest.mark.parametrize("params", [{"num_epochs": 2}, {"max_steps": 2}])
def test_an_epoch_without_a_batch_is_an_error_and_not_a_run_without_end(factory, params):
    with pytest.raises(UsageError, match="the data layer gave no batch in epoch 0; it has no items"):
        train(factory, [build(Points(n=0))[1]], params=params)


class UsedUp(Points):
    """A data layer whose iterator serves for one epoch only."""

    dataset = None

    def __init__(self):
        super().__init__()
        self.iterator = iter([(self.x, self.y)])

    @property
    def data_iterator(self):
        return self.iterator


def test_an_iterator_that_is_used_up_after_its_first_epoch_is_told(factory):
    with pytest.raises(UsageError, match=r"gave no batch in epoch 1; .* data_iterator must give a new one for each"):
        train(factory, [build(UsedUp())[1]])


def test_a_step_whose_batches_are_all_empty_is_skipped_and_the_run_goes_on(factory, caplog):
    class SomeEmpty(Points):
        dataset = None

        @property
        def data_iterator(self):
            full, empty = (self.x[:4], self.y[:4]), (self.x[:0], self.y[:0])
            return iter([full, full, empty, empty, full, full])

    net, loss = build(SomeEmpty())
    train(factory, [loss], params={"num_epochs": 1}, batches_per_step=2)
    assert net.fc.weight.isfinite().all()
    assert [line for line in caplog.messages if "step 1" in line and "not finite" in line], caplog.messages


def stopping(on_rank):
    count = Count(stop_at=2, on_rank=on_rank)
    train_net(rank_factory(), Net(), Points(n=16, batch_size=2), [count], max_steps=50)
    return count.steps


def test_a_stop_asked_for_on_one_rank_stops_all_at_the_next_step():
    assert results_of(2, stopping, 1) == [4, 4]


class Uneven(Points):
    """Rank 1 has two batches fewer than rank 0, whatever was asked for."""

    def loader(self, *, training, shard):
        loader = super().loader(training=training, shard=shard)
        if not training:
            return loader

        class Short(BatchLoader):
            def epoch(self, epoch):
                batches = list(loader.epoch(epoch))
                return iter(batches[: len(batches) - 2 * shard.rank])

            @property
            def num_rounds(self):
                return loader.num_rounds

        return Short()


def uneven(policy, accumulated=1):
    count = Count()
    data = Uneven(n=20, batch_size=2, shuffle=False)
    weights = train_net(rank_factory(), Net(), data, [count], num_epochs=1, uneven=policy, batches_per_step=accumulated)
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


def padded_by_one():
    train_net(rank_factory(), Net(), Points(n=9, batch_size=2), [], max_steps=None, num_epochs=1)


def test_one_repeated_item_is_told_in_the_singular():
    assert "Epoch 0 (uneven=pad): 1 item came twice" in on_ranks(2, padded_by_one)[0].out


def test_uneven_data_can_be_refused():
    finished = on_ranks(2, uneven, "error")
    assert [end.code for end in finished] == [2, 2]
    assert "uneven=error: 1 of 2 ranks have no batch at step 3 of epoch 0, the others have" in finished[1].err


def fewer_items_than_ranks(norm):
    count, net = Count(), Net(norm=norm)
    weights = train_net(rank_factory(), net, Points(n=3, batch_size=1), [count], num_epochs=3, uneven="join")
    return weights, count.steps


def three_items_by_hand():
    data, net = Points(n=3), Net()
    for _ in range(3):
        loss = nn.functional.mse_loss(net(x=data.x), data.y)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    return {name: value.tolist() for name, value in net.state_dict().items()}


def test_a_rank_that_never_has_a_batch_takes_part_and_adds_nothing():
    finished = on_ranks(4, fewer_items_than_ranks, False)
    assert [end.code for end in finished] == [0] * 4, finished[0].err
    for end in finished:
        weights, steps = end.result
        assert steps == 3
        for name, value in three_items_by_hand().items():
            torch.testing.assert_close(torch.tensor(weights[name]), torch.tensor(value), rtol=1e-5, atol=1e-7)
    assert "Epoch 0 (uneven=join): 1 time a rank without data took part with weight zero" in finished[0].out


class OnlyLater(Points):
    """Rank 0 has no batch, rank 1 has all."""

    def loader(self, *, training, shard):
        loader = super().loader(training=training, shard=Shard())

        class Own(BatchLoader):
            def epoch(self, epoch):
                return iter(list(loader.epoch(epoch)) if shard.rank else [])

        return Own()


def rank_0_without_data(policy):
    count = Count()
    weights = train_net(rank_factory(), Net(), OnlyLater(n=8), [count], num_epochs=2, uneven=policy)
    return weights, count.steps


def test_also_rank_0_is_lent_a_batch():
    first, second = results_of(2, rank_0_without_data, "join")
    assert first == second
    assert first[1] == 4


def test_a_rank_without_a_batch_to_repeat_is_told_what_would_work():
    finished = on_ranks(2, rank_0_without_data, "pad")
    assert [end.code for end in finished] == [2, 2]
    problem = (
        "uneven=pad: 1 of 2 ranks have no batch at step 0 of epoch 0, the others have; choose join or drop, use fewer"
    )
    assert problem in finished[0].err


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
    made, net = rank_factory(), Net(norm=True)
    weights = train_net(made, net, Far(), num_epochs=1, uneven="join", synced_batchnorm=True)
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


def test_counts_of_one_are_told_as_one(monkeypatch):
    batches = step_batches.StepBatchLoader.__new__(step_batches.StepBatchLoader)
    leftover = SimpleNamespace(num_repeated=0, num_dropped=1)
    batches._loader, batches._epoch, batches._uneven = SimpleNamespace(leftover=lambda _: leftover), 0, "pad"
    batches._repeated, batches._dropped, batches._joined = 1, 0, 1
    told = []
    monkeypatch.setattr(logging, "info", lambda text, *values: told.append(text % values))
    batches.report()
    assert told == [
        "Epoch 0 (uneven=pad): 1 item came twice, 1 item was left out, "
        "1 time a rank without data took part with weight zero"
    ]
