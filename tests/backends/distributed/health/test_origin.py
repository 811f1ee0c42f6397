"""Where an error comes from is decided by the frame that raised it and by its type, whatever words it has."""

import pytest
import torch
import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health import Origin, one_line, origin_of, remedy_of
from nemo_lite.errors import DistributedError


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Error opening '/data/gloo/a.wav': connection reset by peer, broken pipe, nccl, monitoredBarrier"),
        OSError("connection refused: /mnt/gloo"),
        torch.OutOfMemoryError("nccl: out of memory, timed out"),
        DistributedError("gloo"),
    ],
)
def test_words_of_networks_in_an_error_do_not_make_it_one_of_the_network(error):
    assert origin_of(raised(fail(error))) is Origin.ELSEWHERE


def test_what_torchs_collectives_raise_comes_from_an_exchange():
    # A stand-in for a group whose gloo raises: the frame is that of torch's own function.
    names = {}
    exec(compile("def all_reduce():\n    raise RuntimeError('data')", dist.distributed_c10d.__file__, "exec"), names)
    assert origin_of(raised(names["all_reduce"])) is Origin.EXCHANGE


def test_torchs_own_types_come_from_an_exchange_wherever_they_are_raised():
    assert origin_of(raised(fail(dist.DistNetworkError("x")))) is Origin.EXCHANGE
    assert origin_of(raised(fail(dist.DistStoreError("x")))) is Origin.EXCHANGE


class InPython(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("gloo")


def test_what_torchs_backward_raises_may_come_from_an_exchange_and_what_users_code_raises_in_it_does_not():
    x = torch.ones(1, requires_grad=True)
    y = x * x
    y.backward()
    assert origin_of(raised(y.backward)) is Origin.BACKWARD  # a second time through the same graph
    assert origin_of(raised(InPython.apply(x).backward)) is Origin.ELSEWHERE


def test_an_error_in_one_line_leaves_out_where_in_gloo_it_was():
    assert one_line(RuntimeError("[/gloo/pair.cc:525] Connection closed\nmore")) == "Connection closed"
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "text",
    [
        "Unable to find address for: eth77",
        "Connection closed by peer [10.0.0.2]:4711",
        "Timed out waiting 10000ms for recv operation to complete",
        "NCCL error in: ..., socketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused",
    ],
)
def test_errors_of_sockets_and_addresses_send_the_user_to_the_network(text):
    assert remedy_of(text).endswith("check the network between them")


@pytest.mark.parametrize(
    "text",
    [
        "DDP expects same model across all ranks, but Rank 0 has 6 params, while rank 1 has inconsistent 5 params.",
        "op.preamble.length <= op.nbytes. 4 vs 8",
    ],
)
def test_other_errors_of_an_exchange_send_the_user_to_what_ranks_call(text):
    assert "network" not in remedy_of(text)
    assert "calls the same in the same order" in remedy_of(text)
