"""Groups of options: a dataclass gives parser, checks and the arguments of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest

from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands.cli.eval import EvalParser
from nemo_asr.run.cli.transcribe import TranscribeParser
from nemo_lite.base.options import OneLineParser, arguments_of, names_of, option
from nemo_lite.base.ranges import Between


@dataclass(frozen=True)
class Base:
    """A group that another one extends."""

    page: ClassVar[str] = "data"
    size: Annotated[int, Between(1, 9)] | None = option(None, "how many pieces there are of it")


@dataclass(frozen=True)
class Cut(Base):
    """A group with a field of each kind.

    Attributes:
        share: this is for readers of the code.
    """

    kind: Literal["a", "b"] = option("a", "which", passed_as="mode")
    fast: bool = option(False, "in this way")
    safe: bool | None = option(None, "in this way")
    names: list[str] = option([], "of whom", "--name", action="append")
    share: Annotated[float, Between(0, 1)] | None = option(None, "of the size", needs="size fast")


def parsed(*words):
    parser = OneLineParser(prog="cut")
    parser.add_options(Cut)
    values = parser.parse_args(words)
    parser.check_needs(values)
    return values


def test_values_become_the_arguments_of_a_call():
    values = parsed("--size", "3", "--kind=b", "--fast", "--no-safe", "--name", "x", "--name", "y", "--share", "0.5")
    expected = {"size": 3, "mode": "b", "fast": True, "safe": False, "names": ["x", "y"], "share": 0.5}
    assert arguments_of(values, Cut) == expected
    assert arguments_of(values, Base) == {"size": 3}
    assert names_of(Cut) == vars(values).keys()


def test_defaults_are_those_of_the_fields():
    expected = {"size": None, "mode": "a", "fast": False, "safe": None, "names": [], "share": None}
    assert arguments_of(parsed(), Cut) == expected


def test_the_help_is_what_the_option_says_in_a_group_or_one_that_it_extends():
    parser = OneLineParser(prog="cut")
    parser.add_options(Cut)
    texts = {action.dest: action.help for action in parser._actions}
    assert texts["size"] == "how many pieces there are of it"
    assert texts["fast"] == texts["safe"] == "in this way"
    assert texts["share"] == "of the size"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--size 10", "argument --size: '10' is not a whole number from 1 to 9"),
        ("--kind c", "argument --kind: invalid choice: 'c'"),
        ("--share 0.5", "--share has no effect without --size or --fast; leave it out"),
    ],
)
def test_what_cannot_be_used_is_one_line(words, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        parsed(*words.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"cut: error: {told}")


@pytest.mark.parametrize("parser", [AsrArgParser, EvalParser, TranscribeParser])
def test_options_need_options_that_are_there(parser):
    made = parser()
    needed = {name for member in made.members for name in member.metadata["needs"].split()}
    assert needed <= {member.name for member in made.members}
