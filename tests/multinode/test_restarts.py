"""torchrun starts all ranks anew when one dies; the run goes on from its last checkpoint, also on two machines."""

from __future__ import annotations

import json
import os
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from toys.machines import ROOT, two_machines, why_impossible
from toys.ranks import on_ranks
from toys.small_training import train

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("machines")]

SCRIPT = Path(__file__).parents[1] / "toys" / "small_training.py"
STEPS, DIES_AT = 12, 9  # four steps make an epoch: the last checkpoint is after eight
ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'collections/asr'}:{ROOT / 'tests'}"}


def torchrun_line(words: str, *script_words: object) -> list[str]:
    return [
        os.environ["PYTHON_EXEC"],
        "-m",
        "torch.distributed.run",
        *words.split(),
        str(SCRIPT),
        *map(str, script_words),
    ]


def run(command: list[str], **environ: str) -> str:
    """What ranks and torchrun print."""
    env = {**os.environ, **ENV, **environ}
    finished = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    return f"{finished.stdout}\nended with {finished.returncode}"


@pytest.fixture
def check_undisturbed(tmp_path):
    """Checks that a run of two ranks was restarted once, and ended as one does that nothing disturbs."""
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert [end.code for end in on_ranks(2, partial(train, undisturbed, steps=STEPS))] == [0, 0]

    def check(out: Path) -> None:
        for rank in range(2):
            steps = [int(line.split()[0]) for line in (out / f"steps{rank}").read_text().splitlines()]
            # A rank may not see the end of the step at which the other one dies.
            assert steps in ([*range(10), *range(8, 12)], [*range(9), *range(8, 12)])
            weights, wanted = (json.loads((folder / f"weights{rank}").read_text()) for folder in (out, undisturbed))
            assert weights == wanted

    return check


def test_on_one_machine_a_run_goes_on_from_the_last_checkpoint_with_the_same_weights(tmp_path, check_undisturbed):
    words = "--standalone --nproc-per-node=2 --max-restarts=2"
    text = run(torchrun_line(words, tmp_path, f"--steps={STEPS}", f"--die_at={DIES_AT}", "--checkpoints"))
    assert "ended with 0" in text, text
    check_undisturbed(tmp_path)


# With c10d like this each attempt has a store of its own, at another port; else the launchers' outlives the attempts.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
C10D = "--rdzv-backend=c10d --rdzv-endpoint={master}:29500 --rdzv-conf=is_host={is_first} --local-addr={own}"
STATIC = "--node-rank={node} --master-addr={master} --master-port=29500"


@pytest.mark.netns
@pytest.mark.parametrize(("meeting", "environ"), [(C10D, OWN_STORE), (STATIC, {})], ids=["c10d", "static"])
def test_on_two_machines_a_rank_killed_on_the_second_one_goes_on(tmp_path, check_undisturbed, meeting, environ):
    if reason := why_impossible():
        pytest.skip(reason)
    with two_machines() as lan:
        sides = []
        for node, machine in enumerate(lan.machines):
            at = meeting.format(node=node, is_first=int(node == 0), master=lan.master.address, own=machine.address)
            words = f"--nnodes=2 --nproc-per-node=1 --max-restarts=2 {at}"
            line = torchrun_line(words, tmp_path, f"--steps={STEPS}", f"--die_at={DIES_AT}", "--checkpoints")
            sides.append(machine.start(line, tmp_path / f"log{node}", {**ENV, **environ}))
        deadline = time.monotonic() + 120
        codes = [side.wait(deadline) for side in sides]
    assert codes == [0, 0], sides[0].text + sides[1].text
    check_undisturbed(tmp_path)
