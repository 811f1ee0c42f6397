"""Training over two machines, started in each way the guides give; the link between them is cut or made slow."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from toys.machines import Lan, Started, two_machines, why_impossible
from toys.ranks import on_ranks
from toys.small_training import train

pytestmark = [pytest.mark.netns, pytest.mark.long, pytest.mark.xdist_group("machines")]

SCRIPT = Path(__file__).parents[1] / "toys" / "small_training.py"
PORT = 29500
TIMEOUT = 5  # seconds, of ranks that wait for each other
START = 2  # seconds, of ranks that wait for all to come
MEET = f"""
from nemo_lite.backends.pytorch.distributed import Patience, ProcessGroup
from nemo_lite.base.errors import reported_to_user
from nemo_lite.base.launch import who_am_i
print("ready", flush=True)
with reported_to_user():
    ProcessGroup(who_am_i(), None, patience=Patience(start_seconds={START}))
"""

Command = list[object]
# (the machines, which of them, processes on each) -> the command without the script, and its environment.
# Ranks fork off a process that has imported torch; launchers are those that users start.
Launcher = Callable[[Lan, int, int], tuple[Command, dict[str, str]]]


def launch(lan: Lan, node: int, per_node: int) -> tuple[Command, dict[str, str]]:
    words = f"-m torch.distributed.launch --nproc_per_node={per_node} --nnodes=2 --node_rank={node}"
    return [sys.executable, *words.split(), f"--master_addr={lan.master.address}", f"--master_port={PORT}"], {}


def torchrun(lan: Lan, node: int, per_node: int) -> tuple[Command, dict[str, str]]:
    words = f"--nproc-per-node={per_node} --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={lan.master.address}:{PORT}"
    more = ["--rdzv-id=jasper-1", "--rdzv-conf=join_timeout=60"]
    return [Path(sys.executable).with_name("torchrun"), *words.split(), *more], {}


def srun(lan: Lan, node: int, per_node: int) -> tuple[Command, dict[str, str]]:
    """What Slurm tells the only task of each node."""
    assert per_node == 1
    return [os.environ["PYTHON_EXEC"]], {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(node),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "node[1-2]",
    }


class Run(NamedTuple):
    """A training run over both machines."""

    lan: Lan
    out: Path
    sides: tuple[Started, Started]
    has_launcher: bool

    def wait_for_step(self, step: int, world_size: int = 2) -> None:
        deadline = time.monotonic() + 60
        while any(len(steps_of(self.out, rank)) <= step for rank in range(world_size)):
            ended = [side.text for side in self.sides if side.process.poll() is not None]
            assert not ended, ended[0]
            assert time.monotonic() < deadline, [side.text for side in self.sides]
            time.sleep(0.05)

    def launchers(self) -> set[int]:
        """Processes that start the script and are not it: srun here starts it as ours does, and is not seen."""
        return {side.process.pid for side in self.sides if self.has_launcher}

    def ranks(self) -> set[int]:
        """Processes of the script."""
        return {pid for machine in self.lan.machines for pid in machine.pids()} - self.launchers()

    def listening(self, pids: set[int]) -> list[set[str]]:
        """For each machine, the addresses at which one of these waits for others."""
        return [{each.address for each in machine.listeners() if each.pids & pids} for machine in self.lan.machines]

    def codes(self, seconds: float) -> list[int | None]:
        deadline = time.monotonic() + seconds
        return [side.wait(deadline) for side in self.sides]


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = why_impossible()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def lan() -> Iterator[Lan]:
    with two_machines() as both:
        yield both


@pytest.fixture
def start(lan: Lan, tmp_path: Path) -> Callable[..., Run]:
    def start_both(launcher: Launcher, per_node: int = 1, **options: float) -> Run:
        words = [f"--{name}={value}" for name, value in options.items()]
        sides = []
        for node, machine in enumerate(lan.machines):
            command, env = launcher(lan, node, per_node)
            sides.append(machine.start([*command, SCRIPT, tmp_path, *words], tmp_path / f"log{node}", env))
        return Run(lan, tmp_path, (sides[0], sides[1]), launcher is not srun)

    return start_both


def steps_of(out: Path, rank: int) -> list[float]:
    """When each step of a rank ended."""
    file = out / f"steps{rank}"
    return [float(line.split()[1]) for line in file.read_text().splitlines()] if file.exists() else []


def weights_of(out: Path, rank: int) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in json.loads((out / f"weights{rank}").read_text()).items()}


def evaluated(text: str) -> tuple[str, list[float]]:
    """The line that says what was scored, and the outputs."""
    (scored,), (outputs,) = re.findall(r"Evaluated .*", text), re.findall(r"^outputs (.*)", text, re.MULTILINE)
    return scored, json.loads(outputs)


def check_equal_to_one_machine(run: Run, world_size: int = 2, **options: Any) -> None:
    """The same ranks on one machine end with the same weights and the same evaluation."""
    folder = run.out / "one_machine"
    folder.mkdir()
    alone = on_ranks(world_size, partial(train, folder, **options))
    assert [end.code for end in alone] == [0] * world_size, alone[0].err
    expected = weights_of(folder, 0)
    for rank in range(world_size):
        torch.testing.assert_close(weights_of(run.out, rank), expected, rtol=1e-5, atol=1e-6)
    (scored, outputs), (wanted, wanted_outputs) = evaluated(run.sides[0].text), evaluated(alone[0].out)
    assert scored == wanted
    assert outputs == pytest.approx(wanted_outputs, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("launcher", "per_node"), [(launch, 1), (torchrun, 2)])
def test_two_machines_give_what_one_gives_and_listen_on_the_link_alone(start, launcher, per_node):
    run = start(launcher, per_node, pause=0.1)
    run.wait_for_step(1, 2 * per_node)
    of_ranks, of_launchers = run.listening(run.ranks()), run.listening(run.launchers())
    assert run.codes(60) == [0, 0], run.sides[0].text + run.sides[1].text
    table = run.sides[0].text.partition(" on 2 machines, gloo\n")[2].splitlines()[1 : 1 + 2 * per_node]
    rows = [re.split(r"  +", line, maxsplit=3) for line in table]
    assert rows == [
        [str(node * per_node + i), machine.name, "cpu", f"{machine.interface} ({machine.address})"]
        for node, machine in enumerate(run.lan.machines)
        for i in range(per_node)
    ]
    assert of_ranks == [{machine.address} for machine in run.lan.machines]
    # The launcher's own store, which has no authentication: on the first machine, at all of its addresses.
    assert of_launchers == [{"*"}, set()]
    check_equal_to_one_machine(run, 2 * per_node)


def test_a_slow_link_finishes_right_and_our_own_store_listens_on_it_alone(start, lan):
    lan.limit(2)
    run = start(srun, steps=3, hidden=12_500)
    run.wait_for_step(0)
    of_ranks = run.listening(run.ranks())
    assert run.codes(60) == [0, 0], run.sides[0].text
    times = steps_of(run.out, 0)
    # 100,001 gradients of 4 bytes pass in each direction: 1.6 s at 2 Mbit/s
    assert (times[-1] - times[0]) / 2 > 1.4
    assert of_ranks == [{machine.address} for machine in run.lan.machines]
    check_equal_to_one_machine(run, steps=3, hidden=12_500)


@pytest.mark.parametrize(
    ("launcher", "lost"),
    [
        pytest.param(
            srun,
            r"rank 0 \(node1, pid \d+\) cannot be reached: the store that it serves at node1:\d+ has not answered",
            id="srun",
        ),
        pytest.param(
            torchrun,
            r"the launcher of the first machine cannot be reached: its store at node1:\d+ has not answered",
            id="torchrun",
        ),
    ],
)
def test_a_cut_link_ends_both_sides_and_each_names_the_other(start, lan, launcher, lost):
    run = start(launcher, steps=10**6, pause=0.05, dist_timeout=TIMEOUT)
    run.wait_for_step(3)
    lan.cut()
    deadline = time.monotonic() + TIMEOUT + 10
    while run.ranks():
        assert time.monotonic() < deadline, [side.text for side in run.sides]
        time.sleep(0.1)
    first, second = (side.text for side in run.sides)
    assert re.search(r"\[rank 0\] rank 1 \(node2, pid \d+\) is gone: no sign of life for \d+ s", first)
    assert re.search(rf"\[rank 1\] {lost} for \d+ s", second)
    assert all("; its machine or the network to it failed" in text for text in (first, second))
    # The second machine's torchrun waits for its own connection to the first until the system gives that up.
    assert [side.wait(deadline) for side in run.sides[: 1 if launcher is torchrun else 2]] in ([1], [3, 3])


def test_a_link_that_is_down_for_seven_seconds_ends_no_run_that_may_wait_for_600(start, lan):
    run = start(srun, steps=60, pause=0.05, dist_timeout=600)
    run.wait_for_step(3)
    lan.cut()
    time.sleep(7)
    lan.repair()
    assert run.codes(60) == [0, 0], [side.text for side in run.sides]
    times = steps_of(run.out, 0)
    assert max(after - before for before, after in pairwise(times)) > 6.5
    torch.testing.assert_close(weights_of(run.out, 0), weights_of(run.out, 1))


def meet_alone(lan: Lan, node: int, folder: Path, **environ: str) -> Started:
    """A process whose peer is not started."""
    command, env = srun(lan, node, 1)
    script = folder / "meet.py"
    script.write_text(MEET)
    return lan.machines[node].start([*command, script], folder / f"log{node}", {**env, **environ})


def codes_of(processes: Sequence[Started], seconds: float) -> list[int | None]:
    """Exit codes of processes that end within so many seconds of their imports, which take long on a busy machine."""
    codes = []
    for each in processes:
        deadline = time.monotonic() + 60
        while "ready" not in each.text and time.monotonic() < deadline:
            time.sleep(0.05)
        codes.append(each.wait(time.monotonic() + seconds))
    return codes


def test_a_machine_alone_ends_within_the_stated_time_and_names_what_is_missing(lan, tmp_path):
    first = meet_alone(lan, 0, tmp_path, MASTER_ADDR="10.99.0.1", MASTER_PORT="29501")
    second = meet_alone(lan, 1, tmp_path, MASTER_ADDR="10.99.0.1", MASTER_PORT="29502")
    assert codes_of((first, second), START + 5) == [3, 3], first.text + second.text
    assert f"1 of 2 processes came together at 10.99.0.1:29501 within {START} s; there: rank 0 (node1" in first.text
    assert "missing: rank 1; SLURM_PROCID and SLURM_STEP_NUM_TASKS say that srun started 2 tasks" in first.text
    assert "does a firewall close port 29501, and can every machine reach 10.99.0.1?" in first.text
    assert f"rank 1 on node2 could not reach rank 0 at 10.99.0.1:29502 within {START} s" in second.text


@pytest.mark.parametrize("how", ["own_name_is_loopback", "in_ipv6"])
def test_machines_meet_whose_own_names_are_the_loopback_and_those_that_have_ipv6_only(how, tmp_path):
    with two_machines(**{how: True}) as lan:
        starts = [(machine, *srun(lan, node, 1)) for node, machine in enumerate(lan.machines)]
        sides = [
            machine.start([*command, SCRIPT, tmp_path, "--pause=0.1"], tmp_path / f"log{env['SLURM_PROCID']}", env)
            for machine, command, env in starts
        ]
        run = Run(lan, tmp_path, (sides[0], sides[1]), False)
        run.wait_for_step(1)
        listening = run.listening(run.ranks())
        assert run.codes(60) == [0, 0], sides[0].text + sides[1].text
    assert listening == [{machine.address} for machine in lan.machines]
    assert all(f"{machine.interface} ({machine.address})" in sides[0].text for machine in lan.machines)


def test_a_loopback_address_of_the_first_machine_is_refused_at_once(tmp_path):
    with two_machines() as lan:
        by_number = meet_alone(lan, 1, tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT))
        codes = codes_of((by_number,), 5)
    assert codes == [2], by_number.text
    assert "master 127.0.0.1:29500: other machines cannot reach a loopback address" in by_number.text
