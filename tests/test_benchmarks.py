"""Every benchmark runs, few steps of it, and prints its table. The figures are not judged here."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
QUICKLY = {
    "step_overhead.py": ("--quick", "--rounds", "1"),
    "training.py": ("--quick", "--rounds", "1"),
    "data_pipeline.py": ("--quick", "--rounds", "1"),
    "depthwise.py": ("--rounds", "1"),
    "ddp_scaling.py": ("--quick",),
}


def test_every_benchmark_is_run_here():
    assert {path.name for path in BENCHMARKS.glob("*.py")} == set(QUICKLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICKLY)
def test_a_benchmark_prints_its_table(name):
    command = [sys.executable, str(BENCHMARKS / name), *QUICKLY[name]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(run.stdout.splitlines()) >= 2
