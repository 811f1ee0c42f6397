"""Fingerprints: what they name, and ranks whose fingerprints differ."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from toys.ranks import on_ranks

import nemo_lite
from nemo_lite.backends.pytorch.distributed import SingleProcess
from nemo_lite.backends.pytorch.distributed.exchange import Exchange
from nemo_lite.backends.pytorch.distributed.fingerprint import check_equal, compare, fingerprint_of
from nemo_lite.backends.pytorch.tutorials import MSELoss, RealFunctionDataLayer, TaylorNet
from nemo_lite.core.graph.dag import Dag


def training_dag(n: int = 100, hidden: int = 4, twice: bool = False) -> Dag:
    x, y = RealFunctionDataLayer(n=n, batch_size=10)()
    net = TaylorNet(dim=hidden)
    predictions = net(x=x)
    return Dag([MSELoss()(predictions=net(x=predictions) if twice else predictions, target=y)])


def test_a_fingerprint_names_code_script_files_modules_and_dags_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # as in a script
    config = tmp_path / "taylor.yaml"
    config.write_text("dim: 4\n")
    prints = fingerprint_of({"training DAG": training_dag()}, [config])
    script = Path(__file__).name
    assert list(prints) == [
        *("code of nemo_lite", script, "taylor.yaml"),
        *("real_function_data_layer", "taylor_net", "mse_loss", "training DAG"),
    ]
    version, digest = prints["code of nemo_lite"].split(" ")
    assert version == nemo_lite.__version__
    assert len(digest) == 64
    assert prints == fingerprint_of({"training DAG": training_dag()}, [config])


def test_a_difference_shows_in_what_it_concerns() -> None:
    def changed(**arguments: Any) -> set[str]:
        one, other = (fingerprint_of({"training DAG": dag}) for dag in (training_dag(), training_dag(**arguments)))
        assert list(one) == list(other)
        return {name for name in one if one[name] != other[name]}

    assert changed(hidden=5) == {"taylor_net"}
    assert changed(n=200) == {"real_function_data_layer"}
    assert changed(twice=True) == {"training DAG"}


def test_modules_of_one_name_have_entries_of_their_own() -> None:
    x, _ = RealFunctionDataLayer(n=100, batch_size=10)()
    prints = fingerprint_of({"": Dag([TaylorNet(dim=4)(x=TaylorNet(dim=5)(x=x))])})
    assert prints["taylor_net"] != prints["taylor_net (2)"]


def test_the_code_of_a_module_of_another_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("version one")
    mine = ModuleType("mine")
    mine.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "mine", mine)
    x, _ = RealFunctionDataLayer(n=100, batch_size=10)()
    dag = Dag([type("Mine", (TaylorNet,), {"__module__": "mine.nets"})(dim=4)(x=x)])
    before = fingerprint_of({"": dag})["code of mine"]
    (tmp_path / "mine.py").write_text("version two")
    assert fingerprint_of({"": dag})["code of mine"] != before


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
