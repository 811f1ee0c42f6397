"""benchmarks/gpu_tests.py: a test that does not end is told with its stacks, and those behind it run."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HANGING = "tests/toys/hanging_tests.py"


@pytest.fixture
def gpu_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_tests")


def short_name(outcome):
    return outcome.test.partition("::test_that_")[2]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True], ids=["in_one_process", "each_alone"])
def test_what_does_not_end_is_told_with_its_stacks_and_the_rest_runs(gpu_tests, alone):
    stage = gpu_tests.Stage("hanging", HANGING, "", seconds=1.5, alone=alone, retries=({"AS_IF": "1"},))
    tried = list(gpu_tests.run_stage(stage, has_gpu=False))
    outcomes = {short_name(each): each for each in tried if not each.settings}
    assert [(name, each.outcome) for name, each in outcomes.items()] == [
        ("passes_before", "passed"),
        ("waits_in_python", "did not end"),
        ("waits_in_a_call_of_c", "did not end"),
        ("fails", "failed"),
        ("is_skipped", "skipped"),
        ("passes_behind", "passed"),
    ]
    assert "the test took more than 1.5 s" in outcomes["waits_in_python"].why
    for name in ("waits_in_python", "waits_in_a_call_of_c"):
        assert f"in test_that_{name}" in outcomes[name].why
    assert "assert (1 + 1) == 3" in outcomes["fails"].why
    assert outcomes["is_skipped"].why == "Skipped: has no card"
    assert [(short_name(each), each.settings) for each in tried if each.settings] == [
        ("waits_in_python", "AS_IF=1"),
        ("waits_in_a_call_of_c", "AS_IF=1"),
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("has_gpu", [True, False], ids=["on_cuda", "on_the_cpu"])
def test_each_test_of_gpu_code_is_in_one_stage(gpu_tests, has_gpu):
    stages = [set(gpu_tests.collected(stage, has_gpu)) for stage in gpu_tests.STAGES]
    together = (
        gpu_tests.collected(gpu_tests.Stage("all", file, "", 1.0), has_gpu)
        for file in (gpu_tests.ONE, gpu_tests.SEVERAL)
    )
    found = [test for stage in stages for test in stage if not test.startswith(gpu_tests.REHEARSAL)]
    assert len(found) == len(set(found))
    assert {test for file in together for test in file} == set(found)
    assert all(stages)


def test_a_package_that_is_missing_is_named_with_the_way_to_have_it_without_installing(gpu_tests, monkeypatch):
    monkeypatch.setattr(gpu_tests, "missing_packages", lambda: ["msgspec", "pytest"])
    with pytest.raises(SystemExit, match=r"are missing: msgspec pytest; .*pip install --target deps msgspec pytest"):
        gpu_tests.run_tests(["kernels"], has_gpu=False)


def test_half_a_line_of_a_killed_process_is_not_read(gpu_tests, tmp_path):
    whole = {"test": "a", "phase": "call", "outcome": "passed", "seconds": 1.0, "why": ""}
    (tmp_path / "reports").write_text(json.dumps(whole) + '\n{"test": "b", "pha')
    assert list(gpu_tests.reports(tmp_path / "reports")) == [whole]
