"""The sources: what runs code of a file is nowhere, and files are read by the policy, or for a reason that is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.sources import ROOT, files, parsed

SOURCES = files("nemo_lite", "collections", "examples")
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"extractall", "extract", "unpack_archive", "system", "popen", "execvp", "full_load", "unsafe_load"}
IMPORTING = ("import_module", "run_path", "run_module", "spec_from_file_location")
# Names of modules that are written in the sources, or that an installed package declares; no file gives one.
IMPORTS_BY_NAME = {
    "nemo_lite/backends/pytorch/optimizers.py": "apex, which may be missing",
    "nemo_lite/utils/optimizers.py": "torch's optimizers, whose names are listed without torch",
    "nemo_lite/backends/pytorch/precision.py": "apex, which may be missing",
    "nemo_lite/base/dispatch.py": "the packages that entry points name",
    "nemo_lite/base/aliases.py": "modules of the package that its table of paths or a stub file names",
    "nemo_lite/base/options.py": "files that the user names with --import",
    "collections/asr/nemo_asr/commands/cli/data.py": "the corpora that the command lists",
    "collections/asr/nemo_asr/scoring/leaderboard.py": "the normaliser of a checkout that the user names",
    "collections/asr/nemo_asr/run/engines.py": "the runtimes that it names",
    "collections/asr/nemo_asr/export/runner_export.py": "sherpa_onnx and onnx_asr, which may be missing",
}
# Files that name pickle, and what for; none reads a file with it.
PICKLING = {
    "nemo_lite/backends/pytorch/checkpoint/torch_files.py": "torch raises one of its errors",
    "nemo_lite/backends/pytorch/data/workers.py": "data sets go to this process's workers, as in multiprocessing",
}
# Files that read without the policy, and why that is right there.
READERS = {
    "nemo_lite/base/files.py": "the policy itself; digests",
    "nemo_lite/base/verified.py": "JSON of this process",
    "nemo_lite/backends/pytorch/checkpoint/saving.py": "what ranks of this run wrote",
    "nemo_lite/backends/pytorch/checkpoint/tensors.py": "opened by the policy before",
    "nemo_lite/backends/pytorch/checkpoint/torch_files.py": "opened by the policy before",
    "collections/asr/nemo_asr/trained/folder.py": "JSON of this process",
    "nemo_lite/backends/pytorch/data/workers.py": "/proc",
    "nemo_lite/backends/pytorch/distributed/": "what ranks of this run wrote",
    "nemo_lite/cli/verify_resume.py": "what the runs have written that it started",
    "nemo_lite/base/nemo_archive.py": "packs files that this process has just written",
    "collections/asr/nemo_asr/corpora/espeak.py": "a file of the package espeakng_loader",
    "collections/asr/nemo_asr/corpora/synth.py": "what the command has written, opened by the policy",
    "collections/asr/nemo_asr/commands/seeds.py": "JSON of this process",
    "collections/asr/nemo_asr/options.py": "/proc and /sys",
    "collections/asr/nemo_asr/published/hub.py": "a lock that is empty",
    "collections/asr/nemo_asr/published/transfer.py": "a connection, and what arrives by it",
    "collections/asr/nemo_asr/scoring/report/page.py": "a file of the package",
    "collections/asr/nemo_asr/export/torch_export.py": "a program that was written a moment ago",
    "collections/asr/nemo_asr/run/serve/app.py": "files of the package, of which it has a list",
}
OF_OWN_BYTES = {"loads"}  # of bytes in memory that this process or its parent made
READING = {"read_text", "read_bytes", "safe_open", "fromfile", "memmap", "loadtxt", "genfromtxt", "ZipFile"}
OF_THE_POLICY = {"read_text", "read_bytes"}  # its functions, which have the names of methods of paths


def calls(path: Path) -> Iterator[tuple[ast.Call, str, str]]:
    """Each call with the name that is called and what stands before its dot."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                yield node, called.id, ""
            elif isinstance(called, ast.Attribute):
                yield node, called.attr, called.value.id if isinstance(called.value, ast.Name) else "."


def keyword(call: ast.Call, name: str) -> object:
    return next((getattr(each.value, "value", ...) for each in call.keywords if each.arg == name), None)


def runs_code(path: Path) -> Iterator[str]:
    """What could run code of a file, or unpack where the file says."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if PICKLES & {name.partition(".")[0] for name in names} and str(path.relative_to(ROOT)) not in PICKLING:
                yield f"{node.lineno}: import {names[0]}"
    for call, name, owner in calls(path):
        if (not owner and name in CALLS) or (owner and name in METHODS):
            yield f"{call.lineno}: {owner}.{name}"
        if keyword(call, "shell") not in (None, False):
            yield f"{call.lineno}: {name}(shell)"
        if owner in PICKLES and not (name in OF_OWN_BYTES and path.name == "workers.py"):
            yield f"{call.lineno}: {owner}.{name}"
        is_load = (owner, name) in {("torch", "load"), ("np", "load"), ("yaml", "load")}
        if is_load and (owner, keyword(call, "weights_only")) != ("torch", True):
            yield f"{call.lineno}: {owner}.{name}"
        is_import = name in IMPORTING
        if is_import and str(path.relative_to(ROOT)) not in IMPORTS_BY_NAME:
            yield f"{call.lineno}: {name}"


def reads(path: Path) -> Iterator[str]:
    """What reads a file without the policy."""
    for call, name, owner in calls(path):
        mode = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else "r"
        is_open = name == "open" and (not owner or owner in ("gzip", "bz2", "lzma", "tarfile"))
        if (
            (is_open and "w" not in str(mode))
            or name in READING - (set() if owner else OF_THE_POLICY)
            or (owner, name) in {("json", "loads"), ("json", "load")}
        ):
            yield f"{call.lineno}: {owner}.{name}"


def told(path: Path, found: Iterator[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{each}" for each in found]


@pytest.mark.slow
def test_nothing_runs_code_of_a_file():
    assert [each for path in SOURCES for each in told(path, runs_code(path))] == []


def test_files_are_read_by_the_policy_or_for_a_reason():
    others = [path for path in SOURCES if not str(path.relative_to(ROOT)).startswith(tuple(READERS))]
    assert len(others) > 150
    assert [each for path in others for each in told(path, reads(path))] == []


@pytest.mark.parametrize("given", [*IMPORTS_BY_NAME, *READERS])
def test_an_exception_that_nothing_needs_any_more_is_taken_out(given):
    of = [path for path in SOURCES if str(path.relative_to(ROOT)).startswith(given)]
    found = (
        reads
        if given in READERS
        else lambda path: (name for _, name, _ in calls(path) if "import" in name or "spec" in name)
    )
    assert any(list(found(path)) for path in of)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from dill import load", "eval(text)", "tar.extractall(folder)", "run(line, shell=True)",
        "np.load(path, allow_pickle=True)", "torch.load(path)", "torch.load(path, weights_only=False)",
        "import_module(name)", "os.system(line)", "np.load(path)",
    ],
)  # fmt: skip
def test_the_walk_finds_what_runs_code(source, monkeypatch):
    monkeypatch.setitem(globals(), "parsed", lambda path: ast.parse(source))
    assert len(list(runs_code(ROOT / "nemo_lite/x.py"))) == 1


@pytest.mark.parametrize(
    "source", ["open(path)", "path.read_text()", "json.loads(text)", "gzip.open(path)", "zipfile.ZipFile(path)"]
)
def test_the_walk_finds_what_reads(source, monkeypatch):
    monkeypatch.setitem(globals(), "parsed", lambda path: ast.parse(source))
    assert len(list(reads(ROOT / "nemo_lite/x.py"))) == 1
