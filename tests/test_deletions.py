"""Deletions: each place of the product that deletes or replaces something, with why it is not a user's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.sources import ROOT, files, parsed

DELETING = {"rmtree", "unlink", "rmdir", "removedirs"}
OF_OS = {"remove", "replace", "rename"}  # texts, lists and modules have methods of these names, which delete nothing
# The place, and why what it deletes is this program's.
ALLOWED = {
    "nemo_lite/base/outputs.py:remove_outputs": "the door: what a record of ours lists, as it was written",
    "nemo_lite/base/verified.py:delete_listed": "files that the record of a folder lists",
    "nemo_lite/base/files.py:write_atomically": "the temporary folder of this call; its callers may replace the file",
    "nemo_lite/base/files.py:sweep_temporaries": "temporary folders of dead processes, by names that say who made them",
    "nemo_lite/base/files.py:remove_probe": "an empty folder that this call has made",
    "nemo_lite/cli/verify_resume.py:main": "a folder of tempfile that this call has made",
    "nemo_lite/core/callbacks/checkpoint.py:ModuleSaverCallback._keep_newest": "files that this callback has saved",
    "nemo_lite/backends/pytorch/distributed/process.py:_remove_temporary_folder": "a folder of multiprocessing",
    "nemo_lite/backends/pytorch/checkpoint/store.py:write_set": "the half of a checkpoint that this call has made",
    "nemo_lite/backends/pytorch/checkpoint/store.py:delete_set": "files that the record of a checkpoint lists",
    "nemo_lite/backends/pytorch/checkpoint/store.py:sweep": "checkpoints that ended processes left half-made",
    "nemo_lite/backends/pytorch/checkpoint/store.py:rewrite_record": "a record goes in the place of its own",
    "nemo_lite/backends/pytorch/checkpoint/store.py:_put_back": "a checkpoint goes where there is none",
    "nemo_lite/backends/pytorch/checkpoint/store.py:_drop": "a checkpoint that another has replaced; other files move",
    "nemo_lite/backends/pytorch/checkpoint/store.py:link_to_files": "a link that it has made",
    "nemo_lite/backends/pytorch/checkpoint/store.py:_remove_dead_links": "links of the same kind",
    "collections/asr/nemo_asr/trained/folder.py:_named_by_content": "a file of the same content by its name",
    "collections/asr/nemo_asr/trained/folder.py:sweep_model": "files whose names hold their digest, or who made them",
    "collections/asr/nemo_asr/export/onnx_export.py:parts_beside": "parts of a model that this call has written",
    "collections/asr/nemo_asr/export/runner_export.py:new_folder": "the temporary folder of this call",
    "collections/asr/nemo_asr/published/hub.py:fetch": "parts of downloads in its cache, named by their digest",
    "collections/asr/nemo_asr/published/hub.py:_fetch_files": "a file of its cache takes the place of an older one",
    "collections/asr/nemo_asr/published/transfer.py:Transfer.receive": "a download that is not what the server stated",
    "collections/asr/nemo_asr/tasks/kept_misfits.py:write": "old entries of its own cache folder",
    "collections/asr/nemo_asr/run/serve/uploads.py:Upload._close": "a copy of tempfile that this object has made",
    "collections/asr/nemo_asr/corpora/writing.py:write_recording": "the temporary file of this call",
    "collections/asr/nemo_asr/corpora/writing.py:filling_folder": "the temporary folder of this call",
    "collections/asr/nemo_asr/corpora/librispeech.py:_folder": "what was unpacked into a temporary folder",
    "collections/asr/nemo_asr/corpora/aishell.py:_audio_folder": "what was unpacked into a temporary folder",
}


def deletions_in(path: Path) -> Iterator[str]:
    """The functions of a file that delete something, or take a function that does."""

    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = (*names, node.name)
        imported = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        is_of_os = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        is_deletion = isinstance(node, ast.Attribute) and node.attr in (DELETING | OF_OS if is_of_os else DELETING)
        if imported & DELETING or is_deletion:
            yield ".".join(names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, names)

    yield from visit(parsed(path), ())


def places(*folders: str) -> set[str]:
    return {f"{path.relative_to(ROOT).as_posix()}:{name}" for path in files(*folders) for name in deletions_in(path)}


def test_nothing_is_deleted_but_what_this_program_has_written() -> None:
    found = places("nemo_lite", "collections/asr/nemo_asr", "examples")
    remedy = "delete by nemo_lite.base.outputs.remove_outputs, or name the place here with why nothing of a user's goes"
    assert found - ALLOWED.keys() == set(), remedy
    assert ALLOWED.keys() - found == set(), "a place that deletes nothing any more"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(path):\n    path.unlink(missing_ok=True)", ["f"]),
        ("class A:\n    def f(self):\n        call(shutil.rmtree)", ["A.f"]),
        ("def f(path):\n    for _ in path:\n        os.remove(path)", ["f"]),
        ("from shutil import rmtree", [""]),
        ("def f(names):\n    names.remove('a')", []),
    ],
)
def test_the_guard_sees_what_it_is_for(source: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    assert list(deletions_in(tmp_path / "a.py")) == found
