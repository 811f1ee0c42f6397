"""The options about precision, folded into one level."""

from __future__ import annotations

import pytest

from nemo_lite.base.options import (
    Device,
    OneLineParser,
    TrainingPrecision,
    fold_precision,
)


def parse(*args, trains=True):
    parser = OneLineParser()
    parser.add_options(Device, *([TrainingPrecision] if trains else []))
    parsed = parser.parse_args(args)
    fold_precision(parser, parsed)
    return parsed


@pytest.mark.parametrize(
    ("args", "level"),
    [
        ((), None),
        (("--amp_dtype", "auto"), None),
        (("--amp_dtype", "float16"), "O1"),
        (("--amp_dtype", "float16", "--amp_opt_level", "O2"), "O2"),
        (("--disable_mixed_precision",), "O0"),
        (("--amp_backend", "apex"), None),
    ],
)
def test_the_level_follows_from_what_is_given(args, level):
    assert parse(*args).amp_opt_level == level


def test_a_script_that_does_not_train_has_fewer_options(capsys):
    assert parse("--amp_opt_level", "O3", trains=False).amp_opt_level == "O3"
    with pytest.raises(SystemExit):
        parse("--amp_backend", "apex", trains=False)
    assert "unrecognized arguments: --amp_backend apex" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--amp_opt_level O0 --amp_dtype bfloat16", "--amp_dtype has no effect in float32 (O0); leave it out"),
        ("--disable_mixed_precision --amp_opt_level O2", "contradicts --amp_opt_level O2; leave one out"),
        ("--amp_opt_level O0 --amp_backend apex", "--amp_backend has no effect in float32 (O0); leave it out"),
        ("--precision_check 3", "compares a level with float32; give --amp_opt_level O1, O2 or O3"),
    ],
)
def test_options_that_contradict_each_other_end_the_script_in_one_line(args, message, capsys):
    with pytest.raises(SystemExit):
        parse(*args.split())
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
