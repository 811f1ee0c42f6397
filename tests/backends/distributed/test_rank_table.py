"""The table that rank 0 prints at start-up, the effective batch, and ranges of ranks."""

from __future__ import annotations

import pytest

from nemo_lite.backends.pytorch.distributed.contract import effective_batch, ranges, rank_table
from nemo_lite.backends.pytorch.distributed.rendezvous import RankIdentity


def member(rank: int, host: str, interface: str, address: str) -> RankIdentity:
    return RankIdentity(rank, host, 100 + rank, interface, address, host)


def members(num_machines: int, per_machine: int) -> list[RankIdentity]:
    return [
        member(machine * per_machine + i, f"node{machine}", "eth0", f"10.0.0.{machine + 1}")
        for machine in range(num_machines)
        for i in range(per_machine)
    ]


def test_the_table_has_a_line_for_each_rank() -> None:
    assert rank_table("nccl", members(2, 2), ["cuda:0", "cuda:1"] * 2).splitlines() == [
        "4 ranks on 2 machines, nccl",
        "rank  host   device  interface",
        "0     node0  cuda:0  eth0 (10.0.0.1)",
        "1     node0  cuda:1  eth0 (10.0.0.1)",
        "2     node1  cuda:0  eth0 (10.0.0.2)",
        "3     node1  cuda:1  eth0 (10.0.0.2)",
    ]


def test_machines_of_one_name_are_told_apart_by_their_addresses() -> None:
    one = [member(0, "box", "veth0", "10.0.0.1"), member(1, "box", "", "10.0.0.2")]
    table = rank_table("gloo", one, ["cpu", "cpu"])
    assert table.startswith("2 ranks on 2 machines, gloo\n")
    assert table.endswith("cpu     10.0.0.2")
    assert rank_table("gloo", one[:1], ["cpu"]).startswith("1 rank on 1 machine, gloo\n")


def test_more_than_16_ranks_are_folded_by_host() -> None:
    devices = [f"cuda:{i} NVIDIA H200" for i in range(8)] * 2 + ["cpu"] * 8
    assert rank_table("nccl", members(3, 8), devices).splitlines() == [
        "24 ranks on 3 machines, nccl",
        "rank   host   device            interface",
        "0-7    node0  cuda NVIDIA H200  eth0 (10.0.0.1)",
        "8-15   node1  cuda NVIDIA H200  eth0 (10.0.0.2)",
        "16-23  node2  cpu               eth0 (10.0.0.3)",
    ]
    assert len(rank_table("nccl", members(2, 8), devices[:16]).splitlines()) == 18


def test_ranges_name_each_number_once() -> None:
    assert ranges([6, 0, 1, 2, 4, 5]) == "0-2, 4-6"
    assert ranges([0, 1, 3]) == "0, 1, 3"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((64, 4, 2), "64 x 4 ranks x 2 accumulated = 512 utterances per step"),
        ((64, 1, 2), "64 x 2 accumulated = 128 utterances per step"),
        ((64, 3, 1), "64 x 3 ranks = 192 utterances per step"),
        ((64, 1, 1), "64 utterances per step"),
    ],
)
def test_the_effective_batch_names_its_factors(numbers: tuple[int, int, int], text: str) -> None:
    assert effective_batch(*numbers, unit="utterances") == text
