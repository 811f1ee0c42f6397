"""Before the first step: the table of ranks, the effective batch, and fingerprints that must agree."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from toys.ranks import on_ranks

import nemo_lite
from nemo_lite.backends.pytorch.distributed import SingleProcess
from nemo_lite.backends.pytorch.distributed.exchange import Exchange
from nemo_lite.backends.pytorch.distributed.fingerprint import (
    check_equal,
    compare,
    effective_batch,
    fingerprint_of,
    ranges,
    start_table,
)
from nemo_lite.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo_lite.core.graph.dag import Dag

# The table


class Seat(NamedTuple):
    rank: int
    host: str
    interface: str
    address: str


def seats(num_machines: int, per_machine: int) -> list[Seat]:
    return [
        Seat(machine * per_machine + i, f"node{machine}", "eth0", f"10.0.0.{machine + 1}")
        for machine in range(num_machines)
        for i in range(per_machine)
    ]


def test_the_table_has_a_line_for_each_rank() -> None:
    assert start_table("nccl", seats(2, 2), ["cuda:0", "cuda:1"] * 2).splitlines() == [
        "4 ranks on 2 machines, nccl",
        "rank  host   device  interface",
        "0     node0  cuda:0  eth0 (10.0.0.1)",
        "1     node0  cuda:1  eth0 (10.0.0.1)",
        "2     node1  cuda:0  eth0 (10.0.0.2)",
        "3     node1  cuda:1  eth0 (10.0.0.2)",
    ]


def test_machines_of_one_name_are_told_apart_by_their_addresses() -> None:
    one = [Seat(0, "box", "veth0", "10.0.0.1"), Seat(1, "box", "", "10.0.0.2")]
    table = start_table("gloo", one, ["cpu", "cpu"])
    assert table.startswith("2 ranks on 2 machines, gloo\n")
    assert table.endswith("cpu     10.0.0.2")
    assert start_table("gloo", one[:1], ["cpu"]).startswith("1 rank on 1 machine, gloo\n")


def test_more_than_16_ranks_are_folded_by_host() -> None:
    devices = [f"cuda:{i} NVIDIA H200" for i in range(8)] * 2 + ["cpu"] * 8
    assert start_table("nccl", seats(3, 8), devices).splitlines() == [
        "24 ranks on 3 machines, nccl",
        "rank   host   device                interface",
        "0-7    node0  cuda:0-7 NVIDIA H200  eth0 (10.0.0.1)",
        "8-15   node1  cuda:0-7 NVIDIA H200  eth0 (10.0.0.2)",
        "16-23  node2  cpu                   eth0 (10.0.0.3)",
    ]
    assert len(start_table("nccl", seats(2, 8), devices[:16]).splitlines()) == 18


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


# The fingerprint


def training_dag(n: int = 100, hidden: int = 4, twice: bool = False) -> Dag:
    x, y = RealFunctionDataLayer(n=n, batch_size=10)()
    net = TaylorNet(dim=hidden)
    predictions = net(x=x)
    return Dag([MSELoss()(predictions=net(x=predictions) if twice else predictions, target=y)])


def test_a_fingerprint_names_code_script_files_modules_and_dags_in_this_order(tmp_path: Path) -> None:
    config = tmp_path / "taylor.yaml"
    config.write_text("dim: 4\n")
    prints = fingerprint_of({"training DAG": training_dag()}, [config], [MSELoss(name="other")])
    script = Path(sys.modules["__main__"].__file__ or "").name
    assert list(prints) == [
        *("code of nemo_lite", script, "taylor.yaml"),
        *("real_function_data_layer", "taylor_net", "mse_loss", "other", "training DAG"),
    ]
    version, digest = prints["code of nemo_lite"].split(" ")
    assert version == nemo_lite.__version__
    assert len(digest) == 64
    assert prints == fingerprint_of({"training DAG": training_dag()}, [config], [MSELoss(name="other")])


def test_a_difference_shows_in_what_it_concerns() -> None:
    def changed(**arguments: Any) -> set[str]:
        one, other = (fingerprint_of({"training DAG": dag}) for dag in (training_dag(), training_dag(**arguments)))
        assert list(one) == list(other)
        return {name for name in one if one[name] != other[name]}

    assert changed(hidden=5) == {"taylor_net"}
    assert changed(n=200) == {"real_function_data_layer"}
    assert changed(twice=True) == {"training DAG"}


def test_modules_of_one_name_have_entries_of_their_own() -> None:
    prints = fingerprint_of({}, modules=[TaylorNet(dim=4), TaylorNet(dim=5)])
    assert prints["taylor_net"] != prints["taylor_net (2)"]


def test_the_code_of_a_module_of_another_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("version one")
    mine = ModuleType("mine")
    mine.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "mine", mine)
    module = type("Mine", (TaylorNet,), {"__module__": "mine.nets"})(dim=4)
    before = fingerprint_of({}, modules=[module])["code of mine"]
    (tmp_path / "mine.py").write_text("version two")
    assert fingerprint_of({}, modules=[module])["code of mine"] != before


# Ranks that compare


def test_equal_fingerprints_have_nothing_to_say() -> None:
    assert compare([{"a": "1"}] * 3) is None
    check_equal(SingleProcess(), {"a": "1"})


def test_differences_are_all_listed_with_the_ranks_of_each_digest() -> None:
    train, dev = {"train.json": "3f2a" * 16}, {"dev.json": "0123" * 16}
    prints: list[Mapping[str, str]] = [train | dev, train, {"train.json": "99c1" * 16}, train | dev, train | dev]
    assert compare(prints) == (
        "train.json differs: ranks 0, 1, 3, 4 have 3f2a3f2a, rank 2 has 99c199c1\n"
        "dev.json differs: ranks 0, 3, 4 have 01230123, ranks 1, 2 have none"
    )
    versions = [{"code of nemo_lite": f"0.{i}.0 {'ab' * 32}"} for i in (1, 2)]
    assert compare(versions) == "code of nemo_lite differs: rank 0 has 0.1.0 abababab, rank 1 has 0.2.0 abababab"


def start_with(contents: list[str], folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    group = dist.group.WORLD
    assert group is not None
    rank = dist.get_rank()
    path = Path(folder) / str(rank) / "train.json"
    path.parent.mkdir()
    if contents[rank]:
        path.write_text(contents[rank])
    comm: Any = Exchange(group, rank, dist.get_world_size())
    check_equal(comm, fingerprint_of({"training DAG": training_dag()}, [path]))


@pytest.mark.parametrize(("second", "had"), [("two", "3fc4ccfe"), ("", "none")])
def test_ranks_that_hold_different_files_or_none_all_stop_with_one_error(second: str, had: str, tmp_path: Path) -> None:
    started = time.perf_counter()
    finished = on_ranks(2, start_with, ["one", second], str(tmp_path))
    assert {end.code for end in finished} == {2}
    assert {end.err for end in finished} == {
        f"UsageError: train.json differs: rank 0 has 7692c3ad, rank 1 has {had}; "
        "copy the same code, configuration and data to all machines\n"
    }
    assert time.perf_counter() - started < 10


def test_ranks_that_hold_the_same_in_different_folders_start(tmp_path: Path) -> None:
    assert [end.err for end in on_ranks(2, start_with, ["one", "one"], str(tmp_path))] == ["", ""]
