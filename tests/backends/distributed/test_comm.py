"""Comm: a process alone, and what a rank does when others disagree, by the fake."""

import signal

import pytest
import torch
from toys.fake_comm import FakeComm
from toys.nets import Points, Record, build

from nemo_lite.backends.pytorch.actions import PtActions
from nemo_lite.backends.pytorch.distributed.comm import Comm, SingleProcess, is_divided, piece_of
from nemo_lite.backends.pytorch.distributed.group import ProcessGroup
from nemo_lite.base.interruption import STOP_SIGNALS, Interrupted


def train_as(comm, max_steps=1, **kwargs):
    net, loss = build(Points())
    record = Record()
    before = net.fc.weight.detach().clone()
    actions = PtActions(device=torch.device("cpu"), comm=comm)
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": max_steps}
    actions.train([loss], optimizer="sgd", callbacks=[record], optimization_params=params, **kwargs)
    return not torch.equal(net.fc.weight, before), record


def test_a_process_alone_agrees_with_itself():
    comm = SingleProcess()
    assert [comm.all_agree(ok) for ok in (True, False)] == [True, False]
    assert comm.sum([1.0, 2.0]) == [1.0, 2.0]
    assert comm.gather("here") == ["here"]
    assert list(comm.rounds(["a", "b"])) == [["a"], ["b"]]
    assert comm.on_first(lambda: "made") == "made"
    assert comm.share_work(5, list) == [[0, 1, 2, 3, 4]]


def test_a_group_of_ranks_does_itself_whatever_concerns_the_others():
    of_all = {"all_agree", "on_first", "from_first", "share_work"}  # made of the others
    methods = {name for name, value in vars(Comm).items() if callable(value) and not name.startswith("_")}
    assert methods - of_all <= vars(ProcessGroup).keys()


def finite(count=2.0, *, bad=0.0, stop=0.0, out=0.0, sigterm=0.0):
    """What two ranks say together behind a step, one batch of four items next on each."""
    return [bad, stop, 0.0, 4.0 * count, 0.0, count, count, out, 0.0, 0.0, 0.0, *signals(sigterm)]


def signals(sigterm=0.0):
    """How many of two ranks got each stop signal."""
    return [sigterm * (number == signal.SIGTERM) for number in STOP_SIGNALS]


def test_a_step_that_is_not_finite_on_another_rank_is_skipped_here_too():
    assert train_as(FakeComm(0, 2, {"sum": [finite(), finite()]}))[0]
    updated, record = train_as(FakeComm(0, 2, {"sum": [finite(), finite(bad=1.0)]}))
    assert not updated
    assert len(record.losses) == 1


def test_a_stop_that_another_rank_asks_for_ends_the_run_here_too():
    _, record = train_as(FakeComm(0, 2, {"sum": [finite(), finite(), finite(stop=1.0)]}), max_steps=9)
    assert len(record.losses) == 2


@pytest.mark.parametrize(
    "sums", [[finite(), finite(sigterm=1.0)], [finite(), finite(), signals(sigterm=1.0)]], ids=["step", "end"]
)
def test_a_signal_to_another_rank_ends_the_run_here_too(sums):
    with pytest.raises(Interrupted) as stopped:
        train_as(FakeComm(1, 2, {"sum": sums}))
    assert (stopped.value.number, stopped.value.exit_code) == (signal.SIGTERM, 75)


def test_gradients_are_exchanged_on_the_last_micro_batch_only_and_the_vote_is_one_a_step():
    comm = FakeComm(1, 2)
    train_as(comm, batches_per_step=2)
    # The last one, at the end, is about signals.
    assert [name for name, _ in comm.calls] == ["sum", "sync_only_if", "sync_only_if", "sum", "sum"]
    assert [said for name, said in comm.calls if name == "sync_only_if"] == [False, True]


def test_only_the_first_rank_makes_what_there_is_one_of():
    assert [FakeComm(rank, 2).on_first(lambda: "made") for rank in (0, 1)] == ["made", None]


def test_a_tensor_that_is_not_divided_is_its_own_piece():
    tensor = torch.ones(3, requires_grad=True)
    assert not is_divided(tensor)
    assert piece_of(tensor) is tensor
