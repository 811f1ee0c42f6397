"""torchrun starts all ranks anew when one of them dies; the run goes on from its last checkpoint. On the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from toys.machines import ROOT
from toys.ranks import free_port, on_ranks
from toys.small_training import train

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]

SCRIPT = Path(__file__).parents[1] / "toys" / "small_training.py"
STEPS, DIES_AT = 12, 9  # four steps make an epoch: the last checkpoint is after eight


def torchrun(words: list[str], script_words: list[object], **environ: str) -> str:
    """What ranks and torchrun print."""
    command = [Path(sys.executable).with_name("torchrun"), *words, SCRIPT, *map(str, script_words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'collections/asr'}", **environ}
    finished = subprocess.run(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return f"{finished.stdout}\nended with {finished.returncode}"


def test_the_documented_line_goes_on_from_the_last_checkpoint_with_the_same_weights(tmp_path):
    restarted, straight = tmp_path / "restarted", tmp_path / "straight"
    restarted.mkdir()
    straight.mkdir()
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    text = torchrun(
        ["--nproc-per-node=2", "--rdzv-backend=c10d", endpoint, "--max-restarts=2"],
        [restarted, f"--steps={STEPS}", f"--die_at={DIES_AT}", "--checkpoints"],
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    assert "ended with 0" in text, text
    assert "is not reliable" not in text
    steps = [int(line.split()[0]) for line in (restarted / "steps0").read_text().splitlines()]
    assert steps in ([*range(10), *range(8, 12)], [*range(9), *range(8, 12)])  # rank 0 may not see the end of step 9
    assert [end.code for end in on_ranks(2, partial(train, straight, steps=STEPS))] == [0, 0]
    for rank in range(2):
        weights, wanted = (json.loads((out / f"weights{rank}").read_text()) for out in (restarted, straight))
        for name, value in wanted.items():
            torch.testing.assert_close(torch.tensor(weights[name]), torch.tensor(value), rtol=0, atol=0)


def test_a_line_that_is_known_not_to_restart_is_warned_about_at_the_start(tmp_path):
    text = torchrun(["--standalone", "--max-restarts=1"], [tmp_path, "--steps=1"])
    warning, table = (
        text.find("--max-restarts=1 is not reliable as this run was started"),
        text.find("1 rank on 1 machine"),
    )
    assert 0 <= warning < table, text
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT" in text
