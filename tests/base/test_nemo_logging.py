"""The logging singleton: where a line goes, what it looks like, whose line number it bears."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from toys.launchers import no_launcher, openmpi, slurm_batch, slurm_task, torchrun

from nemo_lite.base.errors import UnknownNameError
from nemo_lite.base.nemo_logging import Logger, LogMode
from nemo_lite.utils import logging as exported


@pytest.fixture
def logger(monkeypatch):
    no_launcher(monkeypatch)
    monkeypatch.delenv("NEMO_TESTING", raising=False)
    monkeypatch.delenv("NEMO_REDIRECT_LOGS_TO_STDERR", raising=False)
    monkeypatch.delenv("NEMO_LITE_LOG_STYLE", raising=False)
    logger = Logger("nemo_lite.test_nemo_logging")
    yield logger
    logger.captureWarnings(False)
    logger.remove_stream_handlers()


def test_the_exported_logging_is_one_object():
    assert isinstance(exported, Logger)


def test_a_line_is_the_message_and_what_is_wrong_is_marked(logger, capsys):
    logger.info("step %d of %s", 3, "ten")
    logger.debug("hidden")
    for level in (logger.warning, logger.error, logger.critical):
        level("x")
    captured = capsys.readouterr()
    assert captured.out == "step 3 of ten\n"
    assert captured.err == "warning: x\nerror: x\nerror: x\n"


def test_at_level_debug_a_line_shows_where_it_comes_from(logger, capsys):
    logger.setLevel("DEBUG")
    line_number = sys._getframe().f_lineno + 1
    logger.debug("a")
    logger.warning("b")
    captured = capsys.readouterr()
    assert captured.out == f"[test_nemo_logging:{line_number}] a\n"
    assert captured.err == f"[test_nemo_logging:{line_number + 1}] warning: b\n"


@pytest.mark.parametrize(
    ("variable", "asked", "style"),
    [
        ("nemo", None, "nemo"),
        ("NEMO", None, "nemo"),
        ("", None, "plain"),
        ("nemo", "plain", "plain"),
        ("", "nemo", "nemo"),
    ],
)
def test_the_style_is_that_of_the_call_or_of_the_environment(variable, asked, style, logger, capsys, monkeypatch):
    monkeypatch.setenv("NEMO_LITE_LOG_STYLE", variable)
    logger.set_style(asked)
    logger.info("x")
    assert logger.style == style
    assert capsys.readouterr().out.startswith({"plain": "x", "nemo": "[NeMo I 2"}[style])


def test_a_style_that_is_not_there_is_an_error(logger):
    with pytest.raises(UnknownNameError, match='style of the log "nemmo" is not known; known: nemo, plain'):
        logger.set_style("nemmo")


def test_in_the_style_of_nemo_a_line_shows_level_time_module_line_and_message(logger, capsys):
    logger.set_style("nemo")
    line_number = sys._getframe().f_lineno + 1
    logger.info("step %d of %s", 3, "ten")
    pattern = rf"\[NeMo I \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d test_nemo_logging:{line_number}\] step 3 of ten\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


@pytest.mark.parametrize("name", ["debug", "info", "warning", "error", "critical"])
def test_every_method_reports_its_caller(logger, capsys, name):
    logger.set_style("nemo")
    logger.setLevel(logger.DEBUG)
    line_number = sys._getframe().f_lineno + 1
    getattr(logger, name)("x")
    captured = capsys.readouterr()
    assert f"test_nemo_logging:{line_number}] x" in captured.out + captured.err


def test_a_wrapper_can_report_its_own_caller(logger, capsys):
    def wrapper():
        logger.info("x", stacklevel=2)

    logger.set_style("nemo")
    line_number = sys._getframe().f_lineno + 1
    wrapper()
    assert f":{line_number}]" in capsys.readouterr().out


def test_info_goes_to_stdout_and_warnings_to_stderr(logger, capsys):
    logger.info("low")
    logger.warning("high")
    captured = capsys.readouterr()
    assert "low" in captured.out
    assert "high" not in captured.out
    assert "high" in captured.err
    assert "low" not in captured.err


def test_everything_goes_to_stderr_when_asked(logger, capsys, monkeypatch):
    monkeypatch.setenv("NEMO_REDIRECT_LOGS_TO_STDERR", "1")
    logger.info("low")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "low" in captured.err


@pytest.mark.parametrize("environ", [{"RANK": "1"}, torchrun(1, 1), slurm_task(1), openmpi(1)])
def test_other_ranks_are_silent_but_for_their_files(environ, logger, capsys, monkeypatch, tmp_path):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    logger.add_file_handler(tmp_path / "log.txt")
    logger.error("x")
    logger.remove_file_handler(tmp_path / "log.txt")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
    assert re.search(r"^\[NeMo E .* rank:1\] x\n$", (tmp_path / "log.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("environ", [{"RANK": "broken"}, slurm_batch(), slurm_task(0), openmpi(0)])
def test_the_first_rank_and_a_process_that_is_alone_write(environ, logger, capsys, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    logger.info("x")
    assert capsys.readouterr().out == "x\n"


def test_other_ranks_write_with_their_number_while_testing(logger, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("NEMO_TESTING", "1")
    logger.info("x")
    logger.set_style("nemo")
    logger.info("y")
    assert re.fullmatch(r"\[rank 1\] x\n\[NeMo I .* rank:1\] y\n", capsys.readouterr().out)


def test_verbosity_filters_and_is_restored_after_a_block(logger, capsys):
    with logger.temp_verbosity("ERROR"):
        logger.warning("hidden")
    logger.warning("shown")
    assert logger.get_verbosity() == logger.INFO
    assert capsys.readouterr().err == "warning: shown\n"


def test_once_writes_a_message_once(logger, capsys):
    for number in (1, 1, 2):
        logger.info("number %d", number, mode=LogMode.ONCE)
    assert [line[-8:] for line in capsys.readouterr().out.splitlines()] == ["number 1", "number 2"]


def test_patched_streams_come_back_after_the_block(logger, capsys):
    stream = io.StringIO()
    with logger.patch_stderr_handler(stream):
        logger.error("inside")
    logger.error("outside")
    assert "inside" in stream.getvalue()
    assert "outside" in capsys.readouterr().err
    logger.patch_stdout_handler(stream)
    logger.info("for ever")
    logger.reset_stream_handler()
    logger.info("no longer")
    assert "for ever" in stream.getvalue()
    assert "no longer" not in stream.getvalue()


def test_removed_stream_handlers_write_nothing_and_come_back_once(logger, capsys):
    logger.remove_stream_handlers()
    logger.info("hidden")
    logger.add_stream_handlers()
    logger.add_stream_handlers()
    logger.info("shown")
    assert capsys.readouterr().out.count("\n") == 1


def test_a_file_is_added_once(logger, tmp_path):
    for _ in range(2):
        logger.add_file_handler(tmp_path / "log.txt")
    logger.info("x")
    logger.remove_file_handler(tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").count("\n") == 1


def test_a_log_file_on_a_full_disk_costs_a_warning(logger, capsys):
    logger.add_file_handler("/dev/full")
    logger.info("one")
    logger.info("two")
    logger.remove_file_handler("/dev/full")
    captured = capsys.readouterr()
    assert captured.out == "one\ntwo\n"
    assert captured.err.startswith("warning: /dev/full: cannot be written: No space left on device; the run goes on")
    assert captured.err.count("\n") == 1


def test_a_full_disk_behind_stdout_costs_a_warning(logger, capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        logger.info("one")
        logger.info("two")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
    told = "warning: stdout cannot be written: No space left on device; the run goes on\n"
    assert capsys.readouterr().err == told


def test_an_exception_is_written_with_its_trace(logger, capsys):
    try:
        raise KeyError("k")
    except KeyError:
        logger.error("failed", exc_info=True)
    assert "KeyError: 'k'" in capsys.readouterr().err


def test_captured_warnings_become_log_lines_with_their_own_place(logger, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logger.captureWarnings(True)
        warnings.warn("old spelling", FutureWarning, stacklevel=1)
        logger.captureWarnings(False)
        shown = warnings.showwarning
    assert capsys.readouterr().err == "warning: FutureWarning: old spelling\n"
    assert shown != logger._log_warning


def test_the_log_needs_no_torch():
    code = (
        "import sys, types, pathlib; root = pathlib.Path(sys.argv[1]);"
        # In place of the package that imports everything: a bare one.
        "package = types.ModuleType('nemo_lite'); package.__path__ = [str(root)]; sys.modules['nemo_lite'] = package;"
        "from nemo_lite.base.nemo_logging import logging; assert 'torch' not in sys.modules; logging.info('fine')"
    )
    root = Path(sys.modules["nemo_lite"].__file__).parent
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True)
    assert "fine" in done.stdout


@pytest.mark.parametrize("style", ["plain", "nemo"])
def test_control_characters_in_a_message_are_shown_and_not_obeyed(logger, style, capsys):
    logger.set_style(style)
    logger.info("%s", "a\x1b[2Jb\x9b\nc\td")
    assert capsys.readouterr().out.endswith("a\\x1b[2Jb\\x9b\nc\td\n")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_warnings_and_errors_are_coloured_on_a_terminal_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, variables, warning, error in (
        (Terminal(), {}, "\x1b[33mwarning:\x1b[0m", "\x1b[31merror:\x1b[0m"),
        (Terminal(), {"NO_COLOR": "1"}, "warning:", "error:"),
        (Terminal(), {"TERM": "dumb"}, "warning:", "error:"),
        (io.StringIO(), {}, "warning:", "error:"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with exported.patch_stderr_handler(stream):
                exported.warning("one")
                exported.error("two")
        assert stream.getvalue() == f"{warning} one\n{error} two\n"
