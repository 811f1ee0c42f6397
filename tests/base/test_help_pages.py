"""--help in pages."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from nemo_lite.base.options import OneLineParser, option, positive_int
from nemo_lite.base.ranges import PositiveInt


@dataclass(frozen=True)
class Data:
    """A group whose options are on the page ``data``."""

    page: ClassVar[str] = "data"
    size: PositiveInt = option(3, "how many")
    path: str | None = option(None, "where")


class Parser(OneLineParser):
    """Has two pages, of which one has no options here, and an option that is on none."""

    groups = (Data,)
    pages = {"data": "what is read", "gone": "nothing"}
    most_used = "size"

    def __init__(self):
        super().__init__(prog="tool", description="Does it")
        self.add_argument("files", nargs="+")
        kinds = [f"kind_{number}" for number in range(9)]
        self.add_argument("--kind", choices=kinds, help="which")


def page(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as stopped:
        Parser().parse_args(arguments)
    assert stopped.value.code == code
    read = capsys.readouterr()
    return read.err if code else read.out


def test_the_first_page_has_the_most_used_options_and_the_names_of_the_others(capsys):
    text = page(capsys, "--help")
    assert text == (
        "usage: tool files ... [options]\n\nDoes it\n\nmost used:\n  files\n  --size N  how many (default: 3)\n\n"
        "--help GROUP shows more:\n  data   what is read\n  other  options of no group\n"
        "  all    everything\n"
    )


def test_a_page_has_its_options_and_no_others(capsys):
    text = page(capsys, "--help", "data")
    assert text == "data (what is read):\n  --size N     how many (default: 3)\n  --path TEXT  where\n"


def test_long_lists_of_choices_stand_behind_the_help(capsys):
    lines = page(capsys, "-h", "other").splitlines()
    assert lines[1] == (
        "  --kind NAME  which (one of kind_0, kind_1, kind_2, kind_3, kind_4, kind_5, kind_6, kind_7, kind_8)"
    )


def test_all_pages_at_once(capsys):
    text = page(capsys, "--help", "all")
    assert [option in text for option in ("--size", "--path", "--kind")] == [True] * 3


def test_an_unknown_page_is_answered_with_the_nearest_one(capsys):
    text = page(capsys, "--help", "dta", code=2)
    assert text == (
        'tool: error: argument --help: "dta" is not a group of options; known: data, other, all (did you mean data?)\n'
    )


def test_a_parser_without_pages_shows_everything(capsys):
    parser = OneLineParser(prog="tool")
    parser.add_argument("--size", type=positive_int, help="how many")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "  --size N" in capsys.readouterr().out
