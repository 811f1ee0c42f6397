"""Errors: one line with place, got, wanted and remedy, and an exit code for scripts."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_lite.base.errors import (
    CheckpointError,
    DistributedError,
    ModelNotFoundError,
    NemoLiteError,
    NeuralPortNmTensorMismatchError,
    TakenKeyError,
    UnknownNameError,
    UsageError,
    counted,
    did_you_mean,
    nearest,
    reported_to_user,
)


def test_one_of_a_thing_is_told_in_the_singular():
    assert [counted(0, "step"), counted(1, "step"), counted(2, "step")] == ["0 steps", "1 step", "2 steps"]
    assert [counted(1, "batch", "batches"), counted(3, "batch", "batches")] == ["1 batch", "3 batches"]


def test_an_error_says_place_got_wanted_and_what_to_do():
    error = UsageError("it is too big", place="train.json:17", got="31.2", wanted="16.7", remedy="raise max_duration")
    assert str(error) == "train.json:17: it is too big: got 31.2, wanted 16.7; raise max_duration"
    assert str(NemoLiteError("it is too big")) == "it is too big"
    assert (error.place, error.got, error.wanted, error.remedy) == (
        "train.json:17",
        "31.2",
        "16.7",
        "raise max_duration",
    )


@pytest.mark.parametrize("kind", [CheckpointError, TakenKeyError, ModelNotFoundError])
def test_who_catches_an_error_may_say_more_of_what_to_do(kind):
    error = kind("there is no model", place="runs", got="an empty folder")
    error.remedy = "name one that is published"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "runs: there is no model: got an empty folder; name one that is published"


def test_an_unknown_name_is_told_with_the_nearest_known():
    text = str(UnknownNameError("activation", "swsh", ["swish", "relu"], place="encoder"))
    assert text == 'encoder: activation "swsh" is not known; known: relu, swish (did you mean swish?)'


def test_a_type_error_shows_both_types_below_each_other():
    error = NeuralPortNmTensorMismatchError("b.x cannot take a.y", got="B T", wanted="B D T", remedy="Transpose.")
    assert str(error).splitlines() == ["b.x cannot take a.y:", "  got    B T", "  wanted B D T", "  Transpose."]


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("no"), 2), (DistributedError("no"), 3), (DistributedError("no", exit_code=9), 9)]
)
def test_a_script_ends_with_the_text_and_the_exit_code_of_the_error(error, code, capsys):
    with pytest.raises(SystemExit) as ended, reported_to_user():
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (code, f"{Path(sys.argv[0]).name}: error: no\n")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 10**6])  # written at the end, and while it runs
@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("{} | true", 141, ""),
        ("{} > /dev/full", 2, "-c: error: the output cannot be written: No space left on device; free some space\n"),
    ],
)
def test_output_that_cannot_be_written_ends_a_script_without_a_traceback(command, code, told, size):
    script = f"import time; from nemo_lite.errors import *\nwith reported_to_user(): time.sleep(.2), print('x'*{size})"
    line = command.format(f"'{sys.executable}' -c \"$SCRIPT\"") + "; exit ${PIPESTATUS[0]}"
    ended = subprocess.run(["bash", "-c", line], env={**os.environ, "SCRIPT": script}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, told)


def test_where_no_more_files_can_be_opened_a_script_ends_with_the_limit_and_what_raises_it(capsys):
    with pytest.raises(SystemExit) as ended, reported_to_user("train.py"):
        raise OSError(errno.EMFILE, "Too many open files", "a.wav")
    told = r"train\.py: error: a\.wav: Too many open files; raise the limit of open files, \d+ now \(ulimit -n; .*\n"
    assert ended.value.code == 2
    assert re.fullmatch(told, capsys.readouterr().err)


def test_another_broken_pipe_is_no_matter_of_stdout():
    with pytest.raises(BrokenPipeError), reported_to_user():
        raise BrokenPipeError


def test_a_home_folder_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended, reported_to_user("nemo-lite"):
        Path("~no-such-user/model").expanduser()
    assert ended.value.code == 2
    told = "nemo-lite: error: a path begins with ~, and there is no such home folder; write it without ~, or set HOME\n"
    assert capsys.readouterr().err == told
    with pytest.raises(RuntimeError, match="another"), reported_to_user("nemo-lite"):
        raise RuntimeError("another")


def test_control_characters_from_a_file_reach_no_terminal():
    error = NemoLiteError("the key \x1b[2J\x9b occurs twice", place="a\u202eb\udcff", got="\r\x00", remedy="a\tb\nc")
    assert str(error) == "a\\u202eb\\udcff: the key \\x1b[2J\\x9b occurs twice: got \\r\\x00; a\tb\nc"


def test_names_that_differ_in_case_and_underscores_alone_come_first():
    assert nearest("adamW", ["sgd", "adam", "adam_w"]) == ["adam_w"]
    assert did_you_mean("ADAM", ["sgd", "adam", "adam_w"]) == " (did you mean adam?)"
