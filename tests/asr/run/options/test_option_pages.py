"""Each page of the help of all commands fits a screen, and each option is on one."""

import re

import pytest

from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands.cli import eval as eval_command
from nemo_asr.commands.cli import train
from nemo_asr.commands.cli.data import CORPORA
from nemo_asr.run.cli import serve, transcribe
from nemo_lite.base import dispatch

SCREEN = (40, 100)  # lines, columns


def shown(command, capsys, *page):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help", *page])
    read = capsys.readouterr()
    assert stopped.value.code == 0, read.err
    return read.out


def help_of(words, capsys):
    """What ``nemo-lite WORDS --help`` prints."""
    try:
        code = dispatch.main([*words])
    except SystemExit as stopped:
        code = stopped.code
    read = capsys.readouterr()
    assert code == 0, read.err
    return read.out


def pages_of(command, capsys):
    """Each page of a command, and of what it has below it."""
    yield (first := help_of([*command, "--help"], capsys))
    groups = re.findall(r"^  (\w+)  ", first.partition("--help GROUP shows more:\n")[2], re.MULTILINE)
    yield from (help_of([*command, "--help", group], capsys) for group in groups if group != "all")
    below = re.search(r"^  (\w+(?: \| \w+)+)$", first, re.MULTILINE)
    names = CORPORA if command == ["data", "make"] else below.group(1).split(" | ") if below else ()
    for name in names:
        yield from pages_of([*command, name], capsys)


# Pages that a command has at least: of --help GROUP, and of what is below it.
LEAST = {"data": 12, "models": 7, "train": 4, "eval": 4, "transcribe": 4, "serve": 4, "export": 4}


@pytest.mark.parametrize(("command", "least"), [(name, LEAST.get(name, 1)) for name in dispatch.subcommands()])
def test_each_page_fits_a_screen(command, least, capsys):
    pages = [*pages_of([command], capsys)]
    assert len(pages) >= least
    for page in [help_of(["--help"], capsys), *pages]:
        lines = page.splitlines()
        assert 3 <= len(lines) <= SCREEN[0], page
        assert max(map(len, lines)) <= SCREEN[1], page


@pytest.mark.parametrize("command", [train, eval_command, transcribe])
def test_pages_follow_the_width_of_the_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, shown(command, capsys).splitlines())) <= 60


@pytest.mark.parametrize("command", ["train", "plan", "eval", "transcribe", "serve", "export"])
def test_every_option_is_on_a_page(command, capsys):
    """The group of a new option says the page."""
    assert "\nother (" not in help_of([command, "--help", "all"], capsys)


@pytest.mark.parametrize(
    "parser", [AsrArgParser, eval_command.EvalParser, transcribe.TranscribeParser, serve.ServeParser]
)
def test_every_option_has_a_help_text(parser):
    assert [action.dest for action in parser()._actions if not action.help] == []


@pytest.mark.parametrize("command", [train, eval_command, transcribe])
def test_no_option_is_on_two_pages(command, capsys):
    names = re.findall(r"^  (--\w+)", shown(command, capsys, "all"), re.MULTILINE)
    assert {"--import", "--local_rank"} <= set(names)
    assert len(names) == len(set(names))
