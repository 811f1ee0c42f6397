"""Folders of verified files: a record and the files that it lists are what was written, or the difference is named."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from nemo_lite.base import verified
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import FileKind, JsonLimits, json_text
from nemo_lite.base.verified import LaterVersionError, RecordKind, VerifiedFile, delete_listed, write_verified


class Fields(msgspec.Struct):
    """What a record of these tests says."""

    files: list[VerifiedFile]
    count: int = 0


LIST = FileKind("the list", 1 << 16, CheckpointError)
KIND = RecordKind(LIST, "of tests", 2, Fields, partial(json_text, indent=1), JsonLimits())
EDITED = RecordKind(LIST, "of tests", 2, Fields, partial(json.dumps, sort_keys=True), JsonLimits(), may_be_edited=True)
ABC = VerifiedFile("a.bin", hashlib.sha256(b"abc").hexdigest(), 3)


def record(kind: RecordKind[Fields] = KIND, **changes: object) -> str:
    content = {"format": "of tests", "version": 2, "count": 7, "files": [msgspec.to_builtins(ABC)]}
    return kind.text(content | changes)


def read(folder: Path, text: str, kind: RecordKind[Fields] = KIND) -> Fields:
    (folder / "record.json").write_text(text, encoding="utf-8")
    return kind.read(folder / "record.json")


@pytest.mark.parametrize("kind", [KIND, EDITED])
def test_a_record_says_what_was_put_in_and_a_tuple_is_a_list(kind: RecordKind[Fields], tmp_path: Path) -> None:
    assert read(tmp_path, record(kind, files=(msgspec.to_builtins(ABC),)), kind) == Fields([ABC], 7)


@pytest.mark.parametrize(
    "change",
    [("7", "8"), ('"count": 7', '"count": 7.0'), (" 7", "  7"), ('"sha256"', '"sha257"'), ("}\n", "}"), ("of", "oF")],
)
def test_any_change_of_a_record_is_noticed(change: tuple[str, str], tmp_path: Path) -> None:
    text = record()
    changed = text.replace(*change) if change[0] in text else text + " "
    assert changed != text
    with pytest.raises(CheckpointError, match=r"record\.json: the list was changed or damaged"):
        read(tmp_path, changed)


def test_only_what_a_person_may_edit_is_read_without_a_digest(tmp_path: Path) -> None:
    content = json.loads(record(EDITED)) | {"count": 8}
    with pytest.raises(CheckpointError, match=r'damaged: .*; copy the folder again, or remove "sha256" from it'):
        read(tmp_path, json.dumps(content), EDITED)
    assert read(tmp_path, json.dumps(json.loads(record(EDITED)), sort_keys=True), EDITED).count == 7
    del content["sha256"]
    assert read(tmp_path, json.dumps(content), EDITED).count == 8
    with pytest.raises(CheckpointError, match="the list was changed or damaged"):
        read(tmp_path, json.dumps(content))


def test_a_record_of_a_later_version_or_of_another_kind_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaterVersionError, match="by a later nemo_lite: got version 3, wanted at most 2; update"):
        read(tmp_path, record(version=3))
    assert read(tmp_path, record(version=1)).count == 7
    with pytest.raises(CheckpointError, match='of another kind: got format "x", version 9, wanted format "of tests"'):
        read(tmp_path, record(format="x", version=9))
    with pytest.raises(CheckpointError, match=r"cannot be read: Expected `int`, got `str` - at `\$\.count`"):
        read(tmp_path, record(count="many"))


def test_a_file_is_listed_as_it_was_written_and_each_difference_is_named(tmp_path: Path) -> None:
    assert write_verified(tmp_path / "a.bin", lambda file: file.write(b"abc")) == ABC
    assert ABC.problem(tmp_path, contents=True) == ""
    (tmp_path / "a.bin").write_bytes(b"abd")
    assert ABC.problem(tmp_path, contents=False) == ""
    assert ABC.problem(tmp_path, contents=True) == "a.bin has changed (SHA-256 differs)"
    (tmp_path / "a.bin").write_bytes(b"ab")
    assert ABC.problem(tmp_path, contents=False) == "a.bin has 2 bytes, 3 were written"
    (tmp_path / "a.bin").unlink()
    assert ABC.problem(tmp_path, contents=False) == "lacks a.bin"


def test_who_waits_for_a_large_file_hears_whenever_some_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_SENT_BYTES", 4)
    sent: list[int] = []
    path = tmp_path / "a.bin"
    write_verified(path, lambda file: [file.write(b"abc") for _ in range(4)], lambda: sent.append(path.stat().st_size))
    assert sent == [6, 12, 12]


def test_only_listed_files_are_deleted_also_where_some_are_gone(tmp_path: Path) -> None:
    for name in ("a.bin", "mine.txt"):
        (tmp_path / name).touch()
    delete_listed(tmp_path, ["a.bin", "b.bin"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
