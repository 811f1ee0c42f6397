"""The tests in tests/gpu, on a machine that has a GPU: one at a time, each with its own limit of time.

    python benchmarks/gpu_tests.py [--stages kernels "steps left out" ...] [--json tests.json] [--quick]

Several processes on one card wait for each other's compilers, and a test that hangs takes those behind it along. So
there is no pytest-xdist here, and the tests come in stages: kernels first, what compiles last, each test of that in a
process of its own. A test that is over its limit ends with the stacks of all threads, and the next one begins.

Without a GPU the same tests run on the CPU, to see that they run. Nothing has to be installed: the checkout is put on
PYTHONPATH for them. This file is also the pytest plugin that reports each test as soon as it has ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ONE, SEVERAL = "tests/gpu/test_one_gpu.py", "tests/gpu/test_several_gpus.py"
REHEARSAL = "tests/gpu/test_rehearsal_on_fake_cuda.py"
PASSED, FAILED, SKIPPED, NOT_ENDED = "passed", "failed", "skipped", "did not end"
_REPORTS, _NO_TREES = "NEMO_LITE_TEST_REPORTS", "NEMO_LITE_NO_CUDAGRAPH_TREES"
_START_SECONDS = 120.0  # to import torch, start CUDA and collect, on a busy machine
_EXIT_SECONDS = 60.0  # as tests/conftest.py waits for a test that is in a call of C, then ends the process


@dataclass(frozen=True)
class Stage:
    """Tests that run in one process, or each in one of its own.

    Attributes:
        keywords: pytest's ``-k``.
        seconds: limit of one test.
        alone: each test in a process of its own.
        settings: of the environment.
        retries: further ones, with which a test that did not end is tried again, to find the cause.
    """

    name: str
    file: str
    keywords: str
    seconds: float
    alone: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    retries: tuple[Mapping[str, str], ...] = ()


STAGES = (
    Stage("kernels", ONE, "features or ctc", 60.0),
    Stage("steps left out", ONE, "finite", 25.0),
    Stage("training", ONE, "not (compiled or features or ctc or finite)", 60.0),
    Stage("rehearsal", REHEARSAL, "", 120.0),
    Stage("ranks", SEVERAL, "", 200.0),
    Stage(
        "CUDA graphs",
        ONE,
        "compiled and graphs",
        120.0,
        alone=True,
        settings={"TORCH_LOGS": "cudagraphs,recompiles"},  # told with the stacks
        retries=(
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            {_NO_TREES: "1"},
            {"TORCHINDUCTOR_WORKER_START": "fork"},
        ),
    ),
    Stage("compiled", ONE, "compiled and not graphs", 240.0, alone=True),
)
QUICK = ("kernels", "steps left out")


@dataclass
class Outcome:
    """How a test ended.

    Attributes:
        seconds: of set-up, call and tear-down.
        why: the reason of a skip, the traceback of a failure, the stacks of a test that did not end.
        settings: what was in the environment for this try.
    """

    stage: str
    test: str
    outcome: str
    seconds: float
    why: str = ""
    settings: str = ""


# As a plugin of pytest.


def pytest_configure() -> None:
    """Switch off what a retry wants to be without."""
    if _NO_TREES in os.environ:
        import torch._inductor.config

        torch._inductor.config.triton.cudagraph_trees = False


def pytest_runtest_logreport(report: Any) -> None:
    """A line for each phase of each test: a process that is killed has then told what it had done."""
    why = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else report.longreprtext
    phase = {"test": report.nodeid, "phase": report.when, "outcome": report.outcome, "seconds": report.duration}
    with open(os.environ[_REPORTS], "a", encoding="utf-8") as file:
        file.write(json.dumps({**phase, "why": why}) + "\n")


# As the program that starts pytest.


def missing_packages() -> list[str]:
    """The names of packages that the tests need and that cannot be imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=]", each)[0] for each in project["dependencies"]]
    return [each for each in (*names, "pytest", "hypothesis") if importlib.util.find_spec(each) is None]


def environment() -> dict[str, str]:
    """The checkout on PYTHONPATH; one compile process, since more would compete with the test for the cores."""
    paths = (ROOT, ROOT / "collections/asr", ROOT / "benchmarks", os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path)),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def test_command(*words: str) -> list[str]:
    """``python -m pytest`` without xdist and without a cache, with this file as plugin."""
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "gpu_tests", *words]


def collected(stage: Stage, has_gpu: bool) -> list[str]:
    """The ids of a stage's tests: on a GPU those for CUDA, elsewhere those for the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--collect-only", "-k", stage.keywords, stage.file]
        if stage.file != REHEARSAL:
            words += ["-m", "gpu" if has_gpu else "not gpu"]
        process = subprocess.run(
            test_command(*words),
            cwd=ROOT,
            env={**environment(), _REPORTS: str(Path(folder, "reports"))},
            capture_output=True,
            text=True,
        )
    if process.returncode not in (0, 5):  # 5: no test is left by the keywords
        sys.exit(f"{process.stdout}{process.stderr}\nThe tests of GPU code cannot be collected.")
    return [line for line in process.stdout.splitlines() if line.startswith(stage.file)]


def reports(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def run_once(stage: Stage, tests: Sequence[str], settings: Mapping[str, str]) -> list[Outcome]:
    """Run tests in one process, until all have ended or one did not."""
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder, "reports"), Path(folder, "stderr")
        limits = {_REPORTS: str(path), "NEMO_LITE_TEST_SECONDS": str(stage.seconds)}
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                test_command("--tb=short", *tests),
                cwd=ROOT,
                env={**environment(), **limits, **stage.settings, **settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            started = time.monotonic()
            try:
                process.wait(_START_SECONDS + _EXIT_SECONDS + stage.seconds * len(tests))
            except subprocess.TimeoutExpired:
                pass  # a call of C that not even faulthandler could end
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        phases: dict[str, list[dict[str, Any]]] = {}
        for report in reports(path):
            phases.setdefault(report["test"], []).append(report)
        stacks = errors.read_text(encoding="utf-8", errors="replace")[-20_000:]
    ended = []
    for test in tests:
        seconds = sum(report["seconds"] for report in phases.get(test, ()))
        told = {report["outcome"]: report["why"] for report in phases.get(test, ())}
        if "failed" in told and "the test took more than" in told["failed"]:
            ended.append(Outcome(stage.name, test, NOT_ENDED, seconds, f"{stacks}\n{told['failed']}".strip()))
        elif {"failed", "skipped"} & told.keys():
            outcome = FAILED if "failed" in told else SKIPPED
            ended.append(Outcome(stage.name, test, outcome, seconds, told[outcome]))
        elif any(report["phase"] == "teardown" for report in phases.get(test, ())):
            ended.append(Outcome(stage.name, test, PASSED, seconds))
        else:
            why = stacks or f"its process ended with code {process.returncode}"
            ended.append(Outcome(stage.name, test, NOT_ENDED, time.monotonic() - started, why))
            break
    for each in ended:
        each.settings = " ".join(f"{name}={value}" for name, value in settings.items())
    return ended


def run_stage(stage: Stage, has_gpu: bool) -> Iterator[Outcome]:
    """Run all tests of a stage; what did not end is tried again with each of the stage's settings."""
    left = collected(stage, has_gpu)
    while left:
        outcomes = run_once(stage, left[:1] if stage.alone else left, {})
        yield from outcomes
        for outcome in outcomes:
            if outcome.outcome == NOT_ENDED:
                for settings in stage.retries:
                    yield from run_once(stage, [outcome.test], settings)
        left = left[len(outcomes) :]


def print_outcome(outcome: Outcome) -> None:
    """A line, and the reason of whatever did not pass."""
    name = outcome.test.partition("::")[2]
    print(f"  {outcome.outcome:<12}{outcome.seconds:>7.1f} s  {name}  {outcome.settings}".rstrip(), flush=True)
    if outcome.outcome in (FAILED, NOT_ENDED):
        print("\n".join(f"    {line}" for line in outcome.why.splitlines()[-40:]), flush=True)


def run_tests(names: Sequence[str], has_gpu: bool) -> list[Outcome]:
    """Run stages and print each test as it ends.

    Args:
        names: names of stages; they run in the order of ``STAGES``.
        has_gpu: run the tests for CUDA, else those for the CPU.
    """
    missing = missing_packages()
    if missing:
        words = " ".join(missing)
        sys.exit(
            f"packages are missing: {words}; without installing: "
            f"{sys.executable} -m pip install --target deps {words}, then the same command with PYTHONPATH=deps"
        )
    outcomes = []
    for stage in STAGES:
        if stage.name in names:
            print(f"\n{stage.name}: {stage.seconds:g} s a test{', each in its own process' * stage.alone}", flush=True)
            for outcome in run_stage(stage, has_gpu):
                print_outcome(outcome)
                outcomes.append(outcome)
    counts = [
        f"{sum(each.outcome == kind for each in outcomes)} {kind}" for kind in (PASSED, FAILED, NOT_ENDED, SKIPPED)
    ]
    print(f"\ntests: {', '.join(counts)}", flush=True)
    return outcomes


def all_passed(outcomes: Sequence[Outcome]) -> bool:
    """Whether no test failed and none was over its limit."""
    return all(each.outcome in (PASSED, SKIPPED) for each in outcomes)


def main() -> None:
    """Run the stages that are asked for."""
    import torch

    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=names, default=names, help="which of the stages to run")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    parser.add_argument("--quick", action="store_true", help="the first two stages, to see that it runs")
    args = parser.parse_args()
    outcomes = run_tests(QUICK if args.quick else args.stages, torch.cuda.is_available())
    if args.json:
        args.json.write_text(json.dumps([vars(each) for each in outcomes], indent=1))
    sys.exit(not all_passed(outcomes))


if __name__ == "__main__":
    main()
