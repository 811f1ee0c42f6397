"""Sizes of functions, files and folders, and where tests stand: each limit as data, each guard tested itself."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.sources import PACKAGES, ROOT, files, only_re_exports, parsed

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 350
MAX_ENTRIES = 12  # files, without ``__init__`` and files that only re-export; packages likewise, without doors
# Packages at NeMo's import places: like files that only re-export, readers of the house pass them by.
DOORS = ("collections/asr/nemo_asr/parts",)
# Source files whose tests stand in a file of another name; for a folder, all of its files.
TESTED_WITH = {
    "collections/asr/nemo_asr/commands/plan.py": "tests/asr/commands/test_scripts.py",
    "collections/asr/nemo_asr/commands/train.py": "tests/asr/commands/test_scripts.py",
    "collections/asr/nemo_asr/features/audio_preprocessor.py": "tests/asr/features/test_preprocessors.py",
    "collections/asr/nemo_asr/features/first_generation.py": "tests/asr/features/test_preprocessors.py",
    "collections/asr/nemo_asr/fine_tuning_options.py": "tests/examples/test_jasper_fine_tuning.py",
    "collections/asr/nemo_asr/known_modules.py": "tests/asr/recipe/test_registry.py",
    "collections/asr/nemo_asr/models/intermediate.py": "tests/asr/recipe/test_wiring.py",
    "collections/asr/nemo_asr/regularization_options.py": "tests/examples/test_jasper_regularization.py",
    "collections/asr/nemo_asr/scoring/report/content.py": "tests/asr/scoring/report/test_page.py",
    "collections/asr/nemo_asr/recipe/sections.py": "tests/asr/recipe/test_recipe.py",
    "collections/asr/nemo_asr/recipe/connection_check.py": "tests/asr/recipe/test_recipe.py",
    "collections/asr/nemo_asr/trained/averaged.py": "tests/examples/test_jasper_regularization.py",
    "collections/asr/nemo_asr/trained/tasks.py": "tests/asr/trained/test_classifier_model.py",
    "examples/asr/classify_eval.py": "tests/examples/test_classify.py",
    "examples/asr/demo.py": "tests/examples/test_demo_script.py",
    "examples/asr/jasper.py": "tests/examples/test_jasper_options.py",
    "examples/asr/jasper_eval.py": "tests/examples/test_trained_model.py",
    "examples/asr/jasper_infer.py": "tests/examples/test_trained_model.py",
    "nemo_lite/__main__.py": "tests/cli/test_dispatch.py",
    "nemo_lite/backends/pytorch/distributed/group.py": "tests/backends/distributed/test_comm.py",
    "nemo_lite/backends/pytorch/distributed/health/heartbeat.py": "tests/backends/distributed/health/test_monitor.py",
    "nemo_lite/backends/pytorch/checkpoint/averaging.py": "tests/backends/engine/averaging/test_averages.py",
    "nemo_lite/backends/pytorch/checkpoint/nemo_files.py": "tests/backends/checkpoint/test_folder.py",
    "nemo_lite/backends/pytorch/checkpoint/store/best.py": "tests/backends/checkpoint/test_folder.py",
    "nemo_lite/backends/pytorch/checkpoint/store/listing.py": "tests/backends/checkpoint/test_folder.py",
    "nemo_lite/backends/pytorch/engine/averaging/statistics.py": "tests/backends/engine/averaging/test_averages.py",
    "nemo_lite/backends/pytorch/engine/counters.py": "tests/backends/test_actions.py",
    "nemo_lite/backends/pytorch/engine/verdict/skipped_steps.py": "tests/backends/engine/verdict/test_verdict.py",
    "nemo_lite/backends/pytorch/engine/verdict/step_guard.py": "tests/backends/engine/verdict/test_verdict.py",
    "nemo_lite/backends/pytorch/export/wires.py": "tests/backends/export/test_onnx_files.py",
    "nemo_lite/backends/pytorch/optim": "tests/backends/optim/test_optimizers.py",
    "nemo_lite/backends/pytorch/torch_module.py": "tests/backends/test_nm.py",
    "nemo_lite/backends/pytorch/tutorials/toys.py": "tests/backends/test_tutorials.py",
    "nemo_lite/config": "tests/config/test_config.py",
    "nemo_lite/backends/pytorch/common": "tests/backends/common/test_common.py",
    "nemo_lite/backends/pytorch/neural_graph": "tests/backends/neural_graph/test_graph_runner.py",
    "nemo_lite/core/graph/kinds.py": "tests/core/graph/test_neural_module.py",
    "nemo_lite/core/graph/module_class.py": "tests/core/graph/test_neural_module.py",
    "nemo_lite/core/graph/neural_interface.py": "tests/core/graph/test_neural_module.py",
    "nemo_lite/core/neural_graph": "tests/core/neural_graph/test_neural_graph.py",
    "nemo_lite/core/neural_types": "tests/core/neural_types/test_neural_types.py",
    "nemo_lite/core/show": "tests/core/show/test_show.py",
    "nemo_lite/constants.py": "tests/utils/test_nemo_logging.py",
    "nemo_lite/core/module_decorators.py": "tests/nemo_scripts/test_core_names_script.py",
    "nemo_lite/backends/torch_backend.py": "tests/nemo_scripts/test_core_names_script.py",
    "nemo_lite/package_info.py": "tests/core/graph/test_module_config.py",
    "nemo_lite/utils/alive/connection.py": "tests/core/graph/test_nm_tensor.py",
    "nemo_lite/utils/substitutes.py": "tests/asr/test_migrate.py",
    "nemo_lite/utils/argparse.py": "tests/utils/test_nemo_argparse.py",
    "nemo_lite/utils/misc.py": "tests/utils/test_utils_helpers.py",
}
# Source files that no test runs, with the reason.
UNTESTED: dict[str, str] = {}
SOURCES = [*PACKAGES, *files("examples")]
TESTS = files("tests")
TEST_FILES = [path for path in TESTS if path.name.startswith("test_")]
# Folders of source and of the tests that mirror them.
MIRRORS = {
    "nemo_lite/backends/pytorch": "tests/backends",
    "nemo_lite": "tests",
    "collections/asr/nemo_asr": "tests/asr",
    "examples/asr": "tests/examples",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Sizes


def long_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names and lines of the functions above the limit, docstrings included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name, lines


def test_no_function_is_longer_than_a_screen() -> None:
    found = {f"{relative(path)}:{name}": lines for path in SOURCES for name, lines in long_functions(parsed(path))}
    assert found == {}


def test_no_file_of_source_is_longer_than_a_reader_takes_in() -> None:
    found = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines > MAX_FILE_LINES} == {}


def entries_of(folder: Path) -> tuple[list[str], list[str]]:
    """The files of a folder that hold code of their own, and its packages."""
    code = [path.stem for path in folder.glob("*.py") if path.stem != "__init__" and not only_re_exports(path)]
    packages = [path.parent for path in folder.glob("*/__init__.py")]
    return sorted(code), sorted(path.name for path in packages if path not in [ROOT / door for door in DOORS])


def test_no_folder_is_wider_than_a_glance() -> None:
    folders = sorted({path.parent for path in PACKAGES})
    assert len(folders) > 10
    wide = {relative(f): entries for f in folders for entries in entries_of(f) if len(entries) > MAX_ENTRIES}
    assert wide == {}


# Where tests stand


def imported_tests(path: Path) -> Iterator[str]:
    """What a file imports from files of tests, which hold nothing to share: toys do."""
    for node in ast.walk(parsed(path)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.name for alias in node.names]
        for name in names:
            if any(part.startswith("test_") or part == "conftest" for part in name.split(".")):
                yield name


def mirror_of(path: Path) -> Path:
    """The folder of tests that mirrors a source file's folder."""
    source = next(source for source in MIRRORS if relative(path).startswith(f"{source}/"))
    return ROOT / MIRRORS[source] / path.parent.relative_to(ROOT / source)


def places_of_tests(path: Path) -> list[Path]:
    """Where the tests of a source file may stand: under its name, or its package's and its name, to be unique."""
    folder, package = mirror_of(path), path.parent.name.removeprefix("nemo_")
    own = [folder / f"test_{path.stem}.py", folder / f"test_{package}_{path.stem}.py"]
    subjects = [TESTED_WITH.get(relative(place)) for place in (path, path.parent)]
    return [*own, *(ROOT / subject for subject in subjects if subject is not None)]


def test_every_source_file_has_tests_of_its_name() -> None:
    sources = [path for path in SOURCES if path.stem != "__init__" and not only_re_exports(path)]
    untested = [relative(path) for path in sources if not any(test.exists() for test in places_of_tests(path))]
    assert sorted(untested) == sorted(UNTESTED)


def test_files_of_one_subject_have_their_tests_in_one_file() -> None:
    assert [name for pair in TESTED_WITH.items() for name in pair if not (ROOT / name).exists()] == []


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in TEST_FILES)
    assert len(names) > 50
    assert [name for name, number in names.items() if number > 1] == []


def test_no_file_imports_from_a_file_of_tests() -> None:
    found = {relative(path): list(imported_tests(path)) for path in TESTS}
    assert {name: imported for name, imported in found.items() if imported} == {}


# The guards themselves


@pytest.mark.parametrize(("lines", "found"), [(MAX_FUNCTION_LINES, []), (MAX_FUNCTION_LINES + 1, ["f"])])
def test_the_guard_of_sizes_sees_what_it_is_for(lines: int, found: list[str]) -> None:
    body = "    pass\n" * (lines - 1)
    assert [name for name, _ in long_functions(ast.parse(f"class A:\n  def f():\n{body}"))] == found


def test_the_guard_of_folders_counts_code_and_not_re_exports(tmp_path: Path) -> None:
    for name, text in {"a": "x = 1", "again": '"""Again."""\nfrom a import x as x', "__init__": ""}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/__init__.py").touch()
    (tmp_path / "data").mkdir()
    assert entries_of(tmp_path) == (["a"], ["inner"])


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


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("nemo_lite/core/graph/dag.py", "tests/core/graph/test_dag.py"),
        ("nemo_lite/backends/pytorch/engine/training.py", "tests/backends/engine/test_training.py"),
        ("collections/asr/nemo_asr/argparse.py", "tests/asr/test_asr_argparse.py"),
    ],
)
def test_tests_are_looked_for_in_the_mirrored_folder(source: str, test: str) -> None:
    assert ROOT / test in places_of_tests(ROOT / source)
