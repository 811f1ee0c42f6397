"""Ranks on GPUs: nccl alone and in twos, batch statistics of all ranks under autocast, a rank that is killed."""

import os
import signal

import pytest
import torch
from toys.gpus import factory_on, on_cpu_and
from toys.nets import Net, Points
from toys.rank_training import train_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.actions import PtActions

NUM_STEPS = 6


def weights_of(net):
    return [parameter.detach().float().cpu() for parameter in net.parameters()]


def trained_on_a_rank(device):
    """Weights in float32; weights with synchronised statistics and a rank without data in the last round, under O1."""
    net = Net(norm=True)
    made = factory_on(device, dist_timeout=60.0)
    assert made.device.type == device
    train_net(made, net, Points(n=16, batch_size=4), max_steps=NUM_STEPS)
    synced = Net(norm=True)
    # A process joins its group once, so the second precision shares the first one's.
    precision = {"optimization_level": "O1", "amp_dtype": "bfloat16"}
    mixed = PtActions(device=made.device, comm=made._comm, seed=1, **precision)
    data = Points(n=12, batch_size=4)  # three batches: the second rank has none in the second round
    train_net(mixed, synced, data, num_epochs=2, synced_batchnorm=made.world_size > 1, uneven="join")
    statistics = [buffer.float().cpu() for buffer in synced.buffers()]
    return weights_of(net), weights_of(synced) + statistics


def close(results, expected, **tolerance):
    torch.testing.assert_close(results, expected, **tolerance)


@pytest.mark.slow
@on_cpu_and(num_gpus=1)
def test_one_rank_trains_to_the_weights_of_a_process_without_a_launcher(device):
    ((weights, synced),) = results_of(1, trained_on_a_rank, device, timeout=180.0)
    expected, expected_synced = trained_on_a_rank("cpu")
    close(weights, expected, rtol=1e-3, atol=1e-4)
    close(synced, expected_synced, rtol=0.1, atol=0.05)


@pytest.mark.slow
@on_cpu_and(num_gpus=2)
def test_two_ranks_end_with_equal_weights_also_with_a_rank_without_data(device):
    (first, first_synced), (second, second_synced) = results_of(2, trained_on_a_rank, device, timeout=180.0)
    close(first, second, rtol=0, atol=0)
    close(first_synced, second_synced, rtol=0, atol=0)
    assert all(torch.isfinite(value).all() for value in [*first, *first_synced])


class Dies(nemo.NeMoCallback):
    """Kills rank 1 after a step."""

    def on_step_end(self, state):
        if state.global_rank == 1 and state.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def dying(device):
    train_net(factory_on(device, dist_timeout=20.0), Net(), Points(n=64), [Dies()], max_steps=10**6)


@pytest.mark.slow
@on_cpu_and(num_gpus=2)
def test_a_rank_that_is_killed_ends_the_other_with_its_name(device):
    first, second = on_ranks(2, dying, device, timeout=90.0)
    assert second.code == -signal.SIGKILL
    assert first.code == 3
    assert "rank 1" in first.err
    assert "is gone" in first.err
    assert first.seconds < 60
