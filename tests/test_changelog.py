"""The changelog: a page, and a table of own import paths that lead somewhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest
from toys.sources import MODULES, ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MOST_WORDS = 1000  # two pages of paper: what 0.1.0 is, and the table


def moves() -> Iterator[tuple[str, list[str]]]:
    """Each module of the table with where it is now."""
    table = CHANGELOG.partition("| before | modules | now |")[2]
    for row in re.findall(r"^\| `.*", table, re.MULTILINE):
        before, modules, now = (re.findall("`([^`]+)`", cell) for cell in row.strip("|").split("|"))
        for module in modules:
            yield f"{before[0]}.{module}", [f"{now[0]}.{module}"]
        if not modules:
            yield before[0], now


MOVES = dict(moves())


def test_the_changelog_begins_with_the_first_release_and_is_short() -> None:
    assert re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)[-1] == "0.1.0"
    assert len(CHANGELOG.split()) < MOST_WORDS
    assert len(MOVES) > 60


def test_modules_of_the_table_are_where_it_says() -> None:
    assert [name for now in MOVES.values() for name in now if name not in MODULES] == []


@pytest.mark.parametrize("before", sorted(MOVES)[::8])
def test_an_old_own_path_is_gone_and_not_an_alias(before: str) -> None:
    assert before not in MODULES
    with pytest.raises(ImportError):
        importlib.import_module(before)
