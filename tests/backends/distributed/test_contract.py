"""RunContract: its comparison between ranks and with a checkpoint, and the texts; ranks that really differ."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from toys.disagreeing import actions
from toys.fake_comm import FakeComm
from toys.nets import Mse, Net, Points
from toys.rank_training import rank_factory
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed import contract
from nemo_lite.backends.pytorch.distributed.comm import Exchange, SingleProcess
from nemo_lite.backends.pytorch.distributed.contract import (
    RunContract,
    changes,
    check_equal,
    compare,
    options_of,
)
from nemo_lite.base.errors import UsageError

FULL: RunContract = {
    "run": {"run id": "a"},
    "action": {"action": "train"},
    "arguments": {"lr": 0.02, "num_epochs": 4, "betas": "[0.9,0.98]"},
    "callbacks": {"EvaluatorCallback.eval_step": 100},
    "data": {"train.json": "3f2a" * 16},
    "code": {"code of nemo_lite": f"0.1.0 {'ab' * 32}", "torch": "2.13.0"},
}


def with_(section: str, **entries: Any) -> RunContract:
    changed = {name.replace("_json", ".json").replace("_DOT_", "."): value for name, value in entries.items()}
    return {**FULL, section: {**FULL.get(section, {}), **changed}}


def lines(*contracts: RunContract, commands: Any = ()) -> str:
    found = compare(contracts, [options_of(each.split()) for each in commands])
    return found[0] if found else ""


def test_equal_contracts_have_nothing_to_say() -> None:
    assert compare([FULL] * 3) is None
    check_equal(FakeComm(1, 2), lambda: FULL)


def test_a_process_alone_makes_no_contract() -> None:
    check_equal(SingleProcess(), lambda: pytest.fail("made"))


def test_sections_of_a_checkpoint_that_are_damaged_or_unknown_are_passed_over() -> None:
    assert [*changes({"lr": 1, "arguments": [1], "data": None}, FULL)] == []


def test_most_ranks_are_the_others_and_two_ranks_are_both_named() -> None:
    other = with_("arguments", lr=0.5)
    assert lines(FULL, other, FULL) == "lr: rank 1 has 0.5, the others 0.02"
    assert lines(FULL, other) == "lr: rank 0 has 0.02, rank 1 has 0.5"
    assert lines(FULL, other, FULL, other) == "lr: ranks 0, 2 have 0.02, ranks 1, 3 have 0.5"
    third = with_("arguments", lr=None)
    assert lines(FULL, FULL, FULL, third, other) == "lr: rank 3 has none, rank 4 has 0.5, the others 0.02"


def test_digests_are_shown_by_their_beginning_and_what_a_rank_lacks_as_none() -> None:
    without = {**FULL, "data": {}}
    assert lines(FULL, with_("data", train_json="99c1" * 16)) == "train.json: rank 0 has 3f2a3f2a, rank 1 has 99c199c1"
    assert lines(FULL, without) == "train.json: rank 0 has 3f2a3f2a, rank 1 has none"
    newer = with_("code", **{"code of nemo_lite": f"0.2.0 {'ab' * 32}"})
    assert lines(FULL, newer) == "code of nemo_lite: rank 0 has 0.1.0 abababab, rank 1 has 0.2.0 abababab"


def test_every_kind_of_difference_has_its_remedy() -> None:
    def remedy(section: str, **entries: Any) -> str:
        found = compare([FULL, with_(section, **entries)])
        return found[1] if found else ""

    assert remedy("arguments", lr=1.0) == remedy("modules", size=1) == "start every process with the same command"
    assert remedy("callbacks", step=1).endswith("; give each the same callbacks")
    assert remedy("data", train_json="1") == "copy the same data to all machines"
    assert remedy("configuration", net="1") == "copy the same configuration to all machines"
    assert remedy("code", torch="1") == "copy the same code to all machines, and install the same versions"
    found = compare([FULL, {**with_("arguments", lr=1.0), "code": {}}])
    assert found is not None
    assert found[1] == f"{remedy('arguments', lr=1.0)}; {remedy('code', torch='1')}"


def test_what_follows_from_another_run_or_action_is_not_listed() -> None:
    other = {"action": {"action": "infer"}, "run": {"run id": "a"}}
    assert lines(FULL, other) == "action: rank 0 has train, rank 1 has infer"
    assert lines(FULL, {"run": {"run id": "b"}}) == "run id: rank 0 has a, rank 1 has b"


def test_of_many_differences_the_first_are_listed() -> None:
    found = lines(FULL, with_("arguments", **{f"option{number:02}": 1 for number in range(30)})).splitlines()
    assert (len(found), found[0], found[-1]) == (13, "option00: rank 0 has none, rank 1 has 1", "and 18 more")


@pytest.mark.parametrize(
    ("commands", "label"),
    [
        (["jasper.py --lr 0.02", "jasper.py --lr=0.5"], "--lr"),
        (["jasper.py --seed 1", "jasper.py --seed 1"], "lr"),
        (["jasper.py", "jasper.py --rate 0.5"], "--rate (lr)"),
        (["jasper.py --rate 2e-2 --local-rank=0", "jasper.py --rate 5e-1 --local-rank=1"], "--rate (lr)"),
        (["jasper.py --rate 1", "jasper.py --rate 2"], "lr"),  # explains nothing: other values
        (["jasper.py --a 0.02 --b 0.02", "jasper.py --a 0.5 --b 0.5"], "lr"),  # it may be either
        (["jasper.py --a 0.02 --lr x", "jasper.py --a 0.5 --lr y"], "--lr"),
    ],
)
def test_the_option_of_the_command_line_is_named_where_it_can_be_told(commands: list[str], label: str) -> None:
    other = with_("arguments", lr=0.5)
    assert lines(FULL, other, commands=commands) == f"{label}: rank 0 has 0.02, rank 1 has 0.5"


@pytest.mark.parametrize("option", ["local-rank", "local_rank", "rank", "node_rank"])
def test_numbers_that_launchers_give_each_process_explain_nothing(option: str) -> None:
    one, other = with_("arguments", depth=0), with_("arguments", depth=1)
    commands = [f"jasper.py --{option}={rank}" for rank in (0, 1)]
    assert lines(one, other, commands=commands) == "depth: rank 0 has 0, rank 1 has 1"


def test_options_of_a_command_have_no_value_one_or_several() -> None:
    found = options_of(["jasper.py", "-m", "x", "--synced_bn", "--lr=0.5", "--betas", "0.9", "0.98", "--set", "a=1"])
    assert found == {"m": "x", "synced_bn": "True", "lr": "0.5", "betas": "0.9 0.98", "set": "a=1"}


def test_a_resumed_run_tells_what_is_other_than_before() -> None:
    now = {**with_("arguments", lr=0.5, new=1), "code": with_("code", torch="2.14.0")["code"]}
    now |= {"data": {"train.json": "0" * 64}, "run": {"run id": "b"}, "callbacks": {}}
    assert [*changes(FULL, now)] == [
        "resuming with lr 0.5, the checkpoint was made with 0.02",
        "resuming with another train.json than the checkpoint was made with",
        "resuming with torch 2.14.0, the checkpoint was made with 2.13.0",
    ]
    assert [*changes(FULL, FULL)] == [*changes({}, FULL)] == []


# Real ranks


class GroupComm(FakeComm):
    """A rank of a group that goes on after an error, so that one start serves many cases."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        super().__init__(rank, 2)
        self.exchange = exchange

    def gather(self, value: Any) -> Any:
        return self.exchange.gather(value)

    def share(self, value: Any) -> Any:
        return self.exchange.share(value)


def late(function: Any) -> Any:
    def after_a_while(*args: Any) -> Any:
        time.sleep(2)
        return function(*args)

    return after_a_while


def with_names_of_their_own(run_id: str) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = run_id
    sys.argv = ["train.py", "--exp_name", "AB"[int(os.environ["RANK"])]]
    rank_factory()


def test_runs_without_an_id_are_told_apart_by_their_command_lines() -> None:
    ends = on_ranks(2, with_names_of_their_own, "none")
    told = "the ranks do not agree: --exp_name: rank 0 has A, rank 1 has B; processes of two runs, or of "
    assert [end.code for end in ends] == [2, 2]
    assert all(told in end.err for end in ends)
    assert [end.code for end in on_ranks(2, with_names_of_their_own, "run-1")] == [0, 0]


def with_timeouts_of_their_own() -> None:
    if os.environ["RANK"] == "1":  # as on a machine that is busy: the other has long said why it ends
        contract._refuse = late(contract._refuse)
    rank_factory(dist_timeout=20.0 + int(os.environ["RANK"]))


def test_ranks_that_would_exchange_in_different_ways_are_told_before_they_have_a_group() -> None:
    ends = on_ranks(2, with_timeouts_of_their_own)
    said = "the ranks do not agree: dist_timeout: rank 0 has 20.0, rank 1 has 21.0; start every process with "
    said += "the same command"
    assert [end.code for end in ends] == [2, 2]
    assert [end.err for end in ends] == [f"UsageError: {said}\n"] * 2


CASES: list[tuple[str, Any, Any]] = [
    ("lr", {"lr": 0.02}, {"lr": 0.5}),
    ("num_epochs", {"num_epochs": 1}, {"num_epochs": 2}),
    ("seed", {"seed": 0}, {"seed": 1}),
    ("eval_freq", {"eval_step": 1}, {"eval_step": 2}),
    ("equal", {"lr": 0.02}, {"lr": 0.02}),
    ("file", {"file": "one"}, {"file": "two"}),
    ("no file", {"file": "one"}, {"file": ""}),
    ("infer", {}, None),
]


def start(comm: Any, given: Any, path: Path) -> str:
    (path / "net.yaml").unlink(missing_ok=True)
    if content := (given or {}).get("file"):
        (path / "net.yaml").write_text(content)
    made = actions(comm, seed=(given or {}).get("seed"), files=[path / "net.yaml"])
    x, y = Points()()
    out = Net(name="net")(x=x)
    try:
        if given is None:
            made.infer([out])
            return ""
        evaluate = [nemo.EvaluatorCallback([out], lambda *_: None, lambda _: None, eval_step=given.get("eval_step", 1))]
        params = {"lr": given.get("lr", 0.02), "num_epochs": given.get("num_epochs", 1)}
        made.train([Mse()(out=out, target=y)], "sgd", params, evaluate)
    except UsageError as error:
        return str(error)
    return ""


def start_all(folder: str) -> list[tuple[str, str, float]]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    group = dist.group.WORLD
    assert group is not None
    rank = dist.get_rank()
    path = Path(folder) / str(rank)
    path.mkdir()
    ends = []
    for name, *given in CASES:
        started = time.perf_counter()
        said = start(GroupComm(Exchange(group, rank, 2), rank), given[rank], path)
        ends.append((name, said, time.perf_counter() - started))
    return ends


def test_two_processes_that_differ_all_get_one_error_at_once(tmp_path: Path) -> None:
    ends = results_of(2, start_all, str(tmp_path))
    first, second = ({name: said for name, said, _ in each} for each in ends)
    assert first == second
    assert all(seconds < 10 for each in ends for *_, seconds in each)
    same, place = "start every process with the same command", "the ranks do not agree: "
    data = "copy the same configuration to all machines"
    assert first == {
        "lr": f"{place}lr: rank 0 has 0.02, rank 1 has 0.5; {same}",
        "num_epochs": f"{place}num_epochs: rank 0 has 1, rank 1 has 2; {same}",
        "seed": f"{place}random_seed: rank 0 has 0, rank 1 has 1; {same}",
        "eval_freq": f"{place}EvaluatorCallback.eval_step: rank 0 has 1, rank 1 has 2; "
        f"{same}; give each the same callbacks",
        "equal": "",
        "file": f"{place}net.yaml: rank 0 has 7692c3ad, rank 1 has 3fc4ccfe; {data}",
        "no file": f"{place}net.yaml: rank 0 has 7692c3ad, rank 1 has none; {data}",
        "infer": f"{place}action: rank 0 has train, rank 1 has infer; call the same in every process",
    }
