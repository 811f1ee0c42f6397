"""Each page of the help of the speech scripts fits a screen, and each option is on one."""

import re

import pytest

from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands.cli import eval as eval_command
from nemo_asr.commands.cli import train
from nemo_asr.run.cli import serve, transcribe

SCREEN = (40, 100)  # lines, columns


def shown(command, capsys, *page):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help", *page])
    read = capsys.readouterr()
    assert stopped.value.code == 0, read.err
    return read.out


@pytest.mark.parametrize("command", [train, eval_command, transcribe, serve])
def test_each_page_fits_a_screen(command, capsys):
    first = shown(command, capsys)
    names = re.findall(r"^  (\w+)  ", first.partition("--help GROUP shows more:\n")[2], re.MULTILINE)
    assert len(names) >= 3
    for page in [first, *(shown(command, capsys, name) for name in names if name != "all")]:
        lines = page.splitlines()
        assert 3 <= len(lines) <= SCREEN[0], page
        assert max(map(len, lines)) <= SCREEN[1], page


@pytest.mark.parametrize("command", [train, eval_command, transcribe])
def test_pages_follow_the_width_of_the_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, shown(command, capsys).splitlines())) <= 60


@pytest.mark.parametrize("command", [train, eval_command, transcribe, serve])
def test_every_option_is_on_a_page(command, capsys):
    """The group of a new option says the page."""
    assert "\nother (" not in shown(command, capsys, "all")


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
