"""Unusable utterances on several ranks: one budget and one report for what all of them read."""

import os

from toys.manifests import damage, layer_of, make_set
from toys.ranks import on_ranks

from nemo_lite import DeviceType
from nemo_lite.backends.pytorch.adapter import PyTorchAdapter
from nemo_lite.backends.pytorch.data import Shard, settle
from nemo_lite.core.backend import LaunchOptions


def evaluate(folder, num_times, max_corrupt):
    """On each rank: what was unusable in the end."""
    os.chdir(folder)
    comm, _, _ = PyTorchAdapter().join(DeviceType.CPU, None, LaunchOptions())
    with comm.guarded():
        layer = layer_of(batch_size=1, sample_rate=8000, max_corrupt=max_corrupt)
        for _ in range(num_times):
            loader = layer.loader(training=False, shard=Shard(comm.rank, comm.world_size))
            for _ in loader.epoch(0):
                pass
            settle(loader, comm)
        layer.report_unusable()
    comm.close()
    return layer.unusable


def test_ranks_have_one_budget_together_and_fail_alike_where_one_would(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2, 3, 4)
    told = []
    for world_size in (1, 2):
        ends = on_ranks(world_size, evaluate, tmp_path, 1, 3)
        assert [end.code for end in ends] == [2] * world_size
        told += [end.err.partition("DataError: ")[2] for end in ends if "DataError: " in end.err]
    assert told[0].startswith("train.json: 4 utterances cannot be used and max_corrupt allows 3; mend the files")
    assert told[0].count("is not a WAV") == 4
    assert told[1:] == [told[0]] * 2


def test_the_first_rank_tells_what_all_have_skipped_and_converted_once_and_all_know_it(tmp_path):
    make_set(tmp_path, 6)
    damage(tmp_path, 1, 2)
    first, second = on_ranks(2, evaluate, tmp_path, 3, 2)
    assert first.code == second.code == 0, first.err + second.err
    assert list(first.result) == [0, 1]
    assert first.result == second.result
    assert first.err.count("2 utterances skipped so far (max_corrupt 2):\n  train.json:1: 1.wav is not") == 1
    assert first.err.count("skipped so far") == 1
    assert first.err.count("train.json: 2 of 6 utterances could not be used:\n  train.json:1: ") == 1
    assert first.out.count("4 utterances resampled from 16000 Hz to 8000 Hz") == first.out.count("resampled") == 1
    assert second.err == ""
