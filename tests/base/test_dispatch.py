"""nemo-lite: the subcommands of the installed packages."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

from nemo_lite.base import dispatch
from nemo_lite.base.errors import UsageError
from nemo_lite.package_info import __version__


def said(arguments):
    """Says what it was given. The second line is not shown.

    This one is not.
    """
    print("got", *arguments)


def main(arguments):
    """Of a module with one subcommand, the module says what it is."""


def fails(arguments):
    raise UsageError("is wrong", place="--it", remedy="leave it out")


def ends_with_one(arguments):
    return 1


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    sys.modules["toy_commands"] = sys.modules[__name__]
    functions = {"say": "said", "fail": "fails", "one": "ends_with_one", "main": "main"}
    points = [EntryPoint(name, f"toy_commands:{function}", dispatch.GROUP) for name, function in functions.items()]
    points.append(EntryPoint("gone", "no_such_module:main", dispatch.GROUP))
    monkeypatch.setattr(dispatch, "entry_points", lambda group: points if group == dispatch.GROUP else [])
    yield
    del sys.modules["toy_commands"]


def test_a_subcommand_gets_the_arguments_after_its_name(capsys):
    assert dispatch.main(["say", "--a", "1"]) == 0
    assert capsys.readouterr().out == "got --a 1\n"


def test_the_arguments_are_those_of_the_process_unless_given(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nemo-lite", "say", "x"])
    dispatch.main()
    assert capsys.readouterr().out == "got x\n"


def test_torchs_launcher_may_put_the_local_rank_before_the_subcommand(capsys, monkeypatch):
    """``python -m torch.distributed.launch -m nemo_lite say x``; LOCAL_RANK says the same."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert dispatch.main(["--local-rank=1", "say", "x"]) == 0
    assert capsys.readouterr().out == "got x\n"
    assert dispatch.main(["--local-rank=0", "say", "x"]) == 2
    assert '"--local-rank=0" is not a subcommand' in capsys.readouterr().err


def test_its_result_is_the_exit_code():
    assert dispatch.main(["one"]) == 1


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        dispatch.main(["fail"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "nemo-lite fail: error: --it: is wrong; leave it out\n"


def test_the_help_ends_with_what_to_begin_with_where_all_of_it_is_installed(capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "entry_points", entry_points)  # those of the package
    dispatch.main([])
    first = capsys.readouterr().out.partition("Begin with:\n\n")[2].splitlines()
    assert [line.split("  ")[1] for line in first] == [
        "nemo-lite models list",
        "nemo-lite transcribe NAME talk.wav",
        "nemo-lite data make FOLDER",
        "nemo-lite demo",
    ]
    installed = [point for point in entry_points(group=dispatch.GROUP) if point.name != "models"]
    monkeypatch.setattr(dispatch, "entry_points", lambda group: installed)
    dispatch.main([])
    assert "Begin with" not in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["-h"], 0), ([], 2)])
def test_the_help_lists_all_subcommands_with_a_line_each(arguments, code, capsys):
    assert dispatch.main(arguments) == code
    lines = capsys.readouterr().out.splitlines()
    assert "  say   Says what it was given. The second line is not shown." in lines
    assert "  main  nemo-lite: the subcommands of the installed packages." in lines
    assert "  gone  cannot be loaded: No module named 'no_such_module'" in lines
    assert lines[-1] == "nemo-lite SUBCOMMAND --help shows the options of one."


def test_the_version_is_that_of_the_installed_package(capsys):
    assert dispatch.main(["--version"]) == 0
    assert capsys.readouterr().out == f"nemo-lite {__version__}\n"


def test_an_unknown_subcommand_is_answered_with_the_nearest_one(capsys):
    assert dispatch.main(["gonne"]) == 2
    expected = 'nemo-lite: error: "gonne" is not a subcommand; known: fail, gone, main, one, say (did you mean gone?)\n'
    assert capsys.readouterr().err == expected


def test_an_unknown_subcommand_may_be_one_of_the_larger_distribution(capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert dispatch.main(["train"]) == 2
    assert capsys.readouterr().err.endswith("; others come with nemo-lite in the place of nemo-lite-run\n")


def test_a_subcommand_that_needs_pytorch_says_so_where_there_is_none(capsys, monkeypatch):
    point = EntryPoint("train", "nemo_lite.factory:main", dispatch.GROUP)
    monkeypatch.setattr(dispatch, "entry_points", lambda group: [point])
    monkeypatch.delitem(sys.modules, "nemo_lite.factory", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert dispatch.main(["train"]) == 2
    message = "nemo-lite: error: train needs PyTorch, which is not installed; pip install torch\n"
    assert capsys.readouterr().err == message


def test_a_package_that_is_not_installed_has_no_subcommands_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr(dispatch, "entry_points", lambda group: [])
    assert dispatch.main(["train"]) == 2
    assert "no subcommand is installed; install nemo_lite again" in capsys.readouterr().err


@pytest.mark.slow
def test_python_m_nemo_lite_is_the_same_command():
    command = [sys.executable, "-m", "nemo_lite", "no-such-subcommand"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("nemo-lite: error: ")


COMPLETING = """
import sys
from importlib.metadata import EntryPoint
from nemo_lite.base import dispatch
from nemo_lite.package_info import __version__
from nemo_lite.base.options import OneLineParser

def main(arguments):
    parser = OneLineParser()
    parser.add_argument("--size")
    parser.add_argument("--other")
    parser.parse_args(arguments)

sys.modules["toy"] = sys.modules["__main__"]
dispatch.entry_points = lambda group: [EntryPoint(name, "toy:main", group) for name in ("say", "sing")]
dispatch.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "completed"),
    [("nemo-lite s", ["say", "sing"]), ("nemo-lite sa", ["say"]), ("nemo-lite say --si", ["--size"])],
)
def test_a_shell_that_asks_for_completions_is_answered(line, completed, tmp_path):
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": " "}
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([sys.executable, "-c", COMPLETING], env=environment, capture_output=True, check=True)
    assert answer.read_text().split() == completed


def test_a_closed_stdout_is_told_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert dispatch.main(["say", "a"]) == 2
    assert capsys.readouterr().err.startswith("nemo-lite: error: stdout is closed, so what say prints has no place;")


def test_a_style_of_the_log_that_there_is_not_is_told(monkeypatch, capsys):
    monkeypatch.setenv("NEMO_LITE_LOG_STYLE", "fancy")
    with pytest.raises(SystemExit, match="2"):
        dispatch.main(["say", "a"])
    told = capsys.readouterr()
    assert told.out == ""
    assert 'NEMO_LITE_LOG_STYLE: style of the log "fancy" is not known; known: nemo, plain' in told.err
