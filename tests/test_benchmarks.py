"""Every benchmark runs, few steps of it, and prints its table. The figures are not judged here."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from toys.launched import run_as_script
from toys.ranks import Rank, wait_all
from toys.warm_python import serve_warm_python

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
QUICKLY = {
    "conformer.py": ("--quick", "--rounds", "1"),
    "step_overhead.py": ("--quick", "--rounds", "1"),
    "training.py": ("--quick", "--rounds", "1"),
    "data_pipeline.py": ("--quick", "--rounds", "1"),
    "data_workers.py": ("--quick",),
    "depthwise.py": ("--quick", "--rounds", "1"),
    "gpu.py": ("--quick",),
    "gpu_tests.py": ("--quick",),
    "ddp_scaling.py": ("--quick", "--processes", "2"),
    "inference.py": ("--quick", "--rounds", "1"),
    "transcription.py": ("--quick", "--rounds", "1", "--transducer"),
    "alignment.py": ("--quick",),
    "evaluation.py": ("--quick", "--rounds", "1"),
    "hotwords.py": ("--quick", "--labels", "letters"),
    "punctuation.py": ("--quick",),
    "tarred_data.py": ("--quick", "--rounds", "1"),
    "step_memory.py": ("--quick",),
    "transducer_memory.py": ("--quick", "--rounds", "1", "--vocabularies", "33", "--batches", "2", "--slices", "1"),
}
WITH_PYTEST = {"gpu.py", "gpu_tests.py"}  # which takes a Python of its own, with other paths
GOLDEN = {
    "golden.py",
    "golden_api.py",
    "golden_cases.py",
    "golden_runs.py",
}  # "golden.py small" runs in CI, the whole by hand
# With recordings or models that are not here: run by hand.
WITH_RECORDINGS = {"domain.py", "framing.py", "published_models.py", "upsampled_speech.py", "segments.py", "serving.py"}


def test_every_benchmark_is_run_here():
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*QUICKLY, *GOLDEN, *WITH_RECORDINGS}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", QUICKLY)
def test_a_benchmark_prints_its_table(name):
    (end,) = wait_all([Rank({"OMP_NUM_THREADS": "1"}, run_beside_others, (name, QUICKLY[name]))], timeout=300)
    assert end.code == 0, end.err[-2000:]
    assert len(end.out.splitlines()) >= 2


def run_beside_others(name: str, args: Sequence[str]) -> None:
    """``python benchmarks/name args``, in a process that has imported torch already; so do those that it starts."""
    sys.path.insert(0, str(BENCHMARKS))
    if name in WITH_PYTEST:
        run_as_script(str(BENCHMARKS / name), args)
        return
    with serve_warm_python() as sys.executable:
        os.environ["PYTHON_EXEC"] = sys.executable  # with which launchers start their workers
        run_as_script(str(BENCHMARKS / name), args)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("is_flat", [False, True], ids=["TDT", "flat RNNT"])
def test_a_transducers_loss_needs_65_mb_where_the_joint_needs_20_times_as_much_and_not_twice_the_time(
    monkeypatch, is_flat
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    memory = importlib.import_module("transducer_memory")
    case = 1025, 8, memory.NUM_FRAMES, 1, is_flat
    whole, sliced = (memory.in_own_process(way, *case) for way in ("whole", "sliced"))
    assert sliced["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert sliced["bytes"] <= 65e6
    assert whole["bytes"] >= 20 * 65e6
    assert sliced["seconds"] <= 2 * whole["seconds"]  # 0.8 on an idle machine; the more, the more memory is shared


@pytest.fixture
def golden(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("golden")
    for name in GOLDEN:
        sys.modules.pop(Path(name).stem, None)


def test_two_golden_records_differ_by_section_and_a_line_names_the_place(golden):
    old = {"losses": {"plain": {"loss": ["0x1.8p+1", "0x1.0p+1"]}}, "errors": {"typo": {"exit": [2]}}}
    new = {"losses": {"plain": {"loss": ["0x1.8p+1", "0x1.2p+1"]}}, "errors": {"typo": {"exit": [2]}}}
    assert golden.differences(old, old, ["losses", "errors"]) == {}
    found = golden.differences(old, new, ["losses", "errors"])
    assert found.keys() == {"losses"}
    assert "-plain/loss: 0x1.0p+1\n+plain/loss: 0x1.2p+1" in found["losses"]
    assert "and 3 more lines; see them with --full" in golden.differences(old, new, ["losses"], most=2)["losses"]
    assert golden.differences(old, {**new, "errors": {}}, ["errors"]).keys() == {"errors"}


def test_times_paths_and_places_of_log_lines_are_no_difference_between_golden_runs(golden):
    runs = sys.modules["golden_runs"]
    text = "[NeMo I 2026-01-02 03:04:05 actions:229] /tmp/x/runs saved in 0.25 seconds"
    assert runs.normal(text, Path("/tmp/x")) == "[NeMo I] WORK/runs saved in N seconds"


def test_golden_cases_have_names_of_their_own(golden):
    first, later = sys.modules["golden_runs"].needed(list(golden.SECTIONS))
    names = [case.name for case in first + later]
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "none.json"], "none.json cannot be read as a record"),
        (["compare", "none.json", "--only", "loses"], "no section loses; known: losses, rates"),
        (["record", "none/golden.json"], "there is no folder none; make it first"),
    ],
)
def test_golden_misused_says_so_and_returns_2(words, told, golden, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["golden.py", *words])
    with pytest.raises(SystemExit) as stopped:
        golden.main()
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_the_small_golden_form_runs_cases_that_exist(golden):
    cases = sys.modules["golden_cases"]
    first, later = sys.modules["golden_runs"].needed(list(golden.SECTIONS))
    assert {case.name for case in first + later} >= cases.SMALL


def test_a_recorded_loss_may_differ_by_a_thousandth_and_no_more(golden):
    recorded = {"losses": {"run": {"loss": [2.0, 1.0]}}}
    for loss, is_equal in ((1.001, True), (1.01, False)):
        now = {"losses": {"run": {"loss": [2.0, loss]}}}
        assert (golden.differences(recorded, golden.rounded(now, recorded), ["losses"]) == {}) is is_equal
    fewer = {"losses": {"run": {"loss": [2.0]}}}
    assert golden.differences(recorded, golden.rounded(fewer, recorded), ["losses"])
