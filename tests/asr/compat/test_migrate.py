"""nemo-lite migrate: which lines of a script need a change; names of NeMo that are missing say what to use."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from toys.nemo_alias import nemo_alias

from nemo_asr.compat.migrate import main, uses_in
from nemo_lite.base.aliases import SUBSTITUTES, substitute_of
from nemo_lite.base.errors import UsageError

ROOT = Path(__file__).parents[3]
MISSING = {f"{place}.{name}": text for place, names in SUBSTITUTES.items() for name, text in names.items()}
SCRIPT = """
import nemo
import nemo.collections.asr as nemo_asr
import nemo_asr as old
from nemo.core import DeviceType, TrainingState
from nemo.collections.asr.helpers import word_error_rate as wer

factory = nemo.core.NeuralModuleFactory(placement=DeviceType.CPU)
encoder = nemo_asr.JasperEncoder(feat_in=64)
decoder = nemo_asr.JasperRNNConnector()
layer = nemo.collections.asr.AudioToTextDataLayer()
loss = old.CTCLossNM(num_classes=28)
print("nemo")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_each_line_that_uses_nemo_is_told_to_change_or_to_stay(script: Path) -> None:
    found: dict[int, list[str]] = {}
    for use in uses_in(script):
        found.setdefault(use.line, []).append(use.change)
    assert found[2] == ["import nemo_lite as nemo"]
    assert found[3] == ["import nemo_asr"]
    assert found[4] == [""]
    assert found[5][0] == "from nemo_lite.core import DeviceType"
    assert found[5][1].startswith("nemo.core.TrainingState is not here; instead: factory.train")
    assert found[6] == ["from nemo_asr.helpers import word_error_rate as wer"]
    assert not any(found[8])
    assert found[9] == [""]
    assert "JasperDecoderForCTC" in found[10][0]
    assert "nemo_asr.AudioToTextDataLayer" in found[11]
    assert found[12] == [""]
    assert 13 not in found


def test_the_lines_are_printed_with_their_count(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(script)])
    lines = capsys.readouterr().out.splitlines()
    assert f"{script}:2: change: import nemo_lite as nemo" in lines
    assert not any("no change" in line for line in lines)
    assert lines[-1] == f"{script}: 6 of 10 lines that use NeMo need a change"
    main([str(script), "--all"])
    assert f"{script}:12: no change: nemo.collections.asr.CTCLossNM" in capsys.readouterr().out.splitlines()


WRITTEN = """
import nemo_lite as nemo
import nemo_asr
import nemo_asr as old
from nemo_lite.core import DeviceType
from nemo.core import TrainingState
from nemo_asr.helpers import word_error_rate as wer

factory = nemo.core.NeuralModuleFactory(placement=DeviceType.CPU)
encoder = nemo_asr.JasperEncoder(feat_in=64)
decoder = nemo_asr.JasperRNNConnector()
layer = nemo_asr.AudioToTextDataLayer()
loss = old.CTCLossNM(num_classes=28)
print("nemo")
"""


def test_write_changes_the_script_and_keeps_what_it_was(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(script), "--write"])
    copy = script.with_name("train.py.orig")
    assert script.read_text(encoding="utf-8") == WRITTEN
    assert copy.read_text(encoding="utf-8") == SCRIPT
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{script}: written; what it was is in {copy}; change by hand: 2 lines, above"


def test_write_replaces_no_earlier_copy(script: Path) -> None:
    copy = script.with_name("train.py.orig")
    copy.write_text("mine")
    with pytest.raises(UsageError, match=r"train\.py\.orig"):
        main([str(script), "--write"])
    assert (copy.read_text(), script.read_text()) == ("mine", SCRIPT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os, nemo, sys\n", "import os, nemo_lite as nemo, sys\n"),
        ("import nemo\nx = nemo.collections.asr.a.b\n", "import nemo_lite as nemo, nemo_asr\nx = nemo_asr.a.b\n"),
        ("if 1:\r\n\tfrom nemo.core import (A,  # ü\r\n\t\tB)\r\n", None),
        ("from nemo.collections import asr as speech", "import nemo_asr as speech"),
        ("x = 'ü'; import nemo.utils as u; y = 2\n", "x = 'ü'; import nemo_lite.utils as u; y = 2\n"),
    ],
)
def test_write_leaves_all_else_to_the_byte(tmp_path: Path, before: str, after: str | None) -> None:
    script = tmp_path / "a.py"
    script.write_bytes(before.encode())
    main([str(script), "--write"])
    assert script.read_bytes().decode() == (after or before.replace("nemo.core", "nemo_lite.core"))


def test_write_refuses_letters_that_are_not_utf_8(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_bytes("# -*- coding: latin-1 -*-\nimport nemo  # ü\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"a\.py: its letters are not UTF-8; change the lines by hand"):
        main([str(script), "--write"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(("text", "problem"), [(None, "the script cannot be opened"), ("print 'x'", "is no Python 3")])
def test_what_is_no_script_is_one_line(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "script.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        main([str(path)])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_lists_what_is_missing_and_nothing_else(language: str) -> None:
    page = (ROOT / "docs" / language / "migration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(nemo\.[\w.]+)` \| (.*) \|$", page, re.MULTILINE))
    assert list(rows) == list(MISSING)
    if language == "en":
        assert rows == MISSING


PLACES = [place for place in SUBSTITUTES if place != "nemo.collections"]


@pytest.mark.parametrize(("place", "name"), [(place, name) for place in PLACES for name in SUBSTITUTES[place]])
def test_a_missing_name_says_what_to_use_however_it_is_asked_for(place: str, name: str) -> None:
    with nemo_alias():
        package = importlib.import_module(place)
        assert not hasattr(package, name)
        with pytest.raises(AttributeError) as read:
            getattr(package, name)
        with pytest.raises(ImportError) as imported:
            exec(f"from {place} import {name}")
    for error in (read, imported):
        assert str(error.value).endswith(f"instead: {MISSING[f'{place}.{name}']}")


def test_another_name_is_missing_in_pythons_words() -> None:
    with nemo_alias():
        core = importlib.import_module("nemo.core")
        with pytest.raises(AttributeError, match=r"module 'nemo_lite\.core' has no attribute 'nothing'"):
            core.nothing  # noqa: B018


def test_what_is_in_something_missing_is_missing_too() -> None:
    assert "CTC" in substitute_of("nemo.collections.asr.las.helpers.process_evaluation_batch")
    assert substitute_of("nemo.core.NeuralModule") == ""
