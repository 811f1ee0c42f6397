"""One definition of CI: the target ci of the Makefile, which .ci/run and the public workflow start."""

from __future__ import annotations

import re

from toys.sources import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def targets_of(text: str) -> list[str]:
    """The targets that lines such as ``make golden``, ``exec make ci`` and ``$(MAKE) OPTIONS test`` name, in order."""
    lines = re.findall(r"^\s*(?:- run: |exec )?(?:make|\$\(MAKE\)) (.*)$", text, re.MULTILINE)
    return [word for line in lines for word in line.partition("#")[0].split() if re.fullmatch("[a-z]+", word)]


def recipe_of(target: str) -> str:
    """The lines of a target in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return "".join(re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))


def test_ci_runs_golden_the_site_the_tests_and_the_long_tests() -> None:
    assert targets_of(recipe_of("ci")) == ["golden", "site", "test", "long"]
    assert targets_of(recipe_of("test")) == ["lint", "unit"]


def test_both_ways_to_run_ci_run_the_one_target() -> None:
    assert targets_of((ROOT / ".ci/run").read_text(encoding="utf-8")) == ["imports", "ci"]
    assert {path.name: targets_of(path.read_text(encoding="utf-8")) for path in WORKFLOWS} == {"test.yml": ["ci"]}


def test_the_workflow_has_the_history_that_golden_reads_and_each_python_of_the_makefile() -> None:
    (workflow,) = (path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert "fetch-depth: 0" in workflow
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (pythons,) = re.findall(r"^PYTHONS \?= (.*)$", makefile, re.MULTILINE)
    assert re.findall(r'"(3\.\d+)"', workflow) == pythons.split()
