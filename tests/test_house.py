"""Where tests stand: names are unique, and what they share is in toys."""

from __future__ import annotations

import ast
import faulthandler
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.sources import ROOT, files, parsed

TESTS = files("tests")
TEST_FILES = [path for path in TESTS if path.name.startswith("test_")]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_tests(path: Path) -> Iterator[str]:
    """What a file imports from files of tests, which hold nothing to share: toys do."""
    for node in ast.walk(parsed(path)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.name for alias in node.names]
        for name in names:
            if any(part.startswith("test_") or part == "conftest" for part in name.split(".")):
                yield name


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in TEST_FILES)
    assert len(names) > 50
    assert [name for name, number in names.items() if number > 1] == []


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_no_file_imports_from_a_file_of_tests() -> None:
    found = {relative(path): list(imported_tests(path)) for path in TESTS}
    assert {name: imported for name, imported in found.items() if imported} == {}


# The guards themselves


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from toys.nets import Net", []),
        ("from test_dag import make", ["test_dag"]),
        ("from core.test_dag import make", ["core.test_dag"]),
        ("import examples.conftest", ["examples.conftest"]),
        ("from core import test_dag", ["test_dag"]),
        ("from nemo_lite.testing import x", []),
    ],
)
def test_the_guard_of_imports_between_tests_sees_what_it_is_for(source: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(source)
    assert list(imported_tests(tmp_path / "test_a.py")) == found


def test_a_test_that_takes_too_long_fails(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    dumps: list[int] = []
    monkeypatch.setattr(conftest, "TEST_SECONDS", 0.05)
    monkeypatch.setattr(faulthandler, "dump_traceback", dumps.append)
    with pytest.raises(pytest.fail.Exception, match=r"the test took more than 0\.05 s"), conftest.limited(request.node):
        time.sleep(60)
    assert len(dumps) == 1  # stacks of all threads
