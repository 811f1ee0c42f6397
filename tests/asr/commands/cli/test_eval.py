"""nemo-lite eval: models in front of the options."""

import pytest

from nemo_asr.commands.cli.eval import EvalParser, main
from nemo_lite.base.errors import UsageError


@pytest.mark.parametrize(
    ("line", "load_dir", "compare"),
    [
        ("--load_dir A --eval_datasets x", "A", None),
        ("A --eval_datasets x", "A", None),
        ("A B --eval_datasets x --compare --out o", "A", "B"),
        ("A B --eval_datasets x y --compare", "A", "B"),
        ("A --compare B --out o --eval_datasets x", "A", "B"),
        ("--import=of_this_test.py A --eval_datasets x", "A", None),
        ("--out A --details A --eval_datasets x y", "A", None),
    ],
)
def test_models_in_front_of_options_and_behind_them_become_options(line, load_dir, compare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_this_test.py").touch()
    args = EvalParser(prog="nemo-lite eval").parse_args(line.split())
    assert (args.load_dir, args.compare) == (load_dir, compare)


@pytest.mark.parametrize("models", ["A B", "A B C --compare", "--load_dir A B"])
def test_models_that_are_not_compared_are_refused(models):
    wanted = r"cannot be evaluated together: got A B.*, wanted one model, or two and --compare"
    with pytest.raises(UsageError, match=wanted):
        EvalParser().parse_args([*models.split(), "--eval_datasets", "x"])


def test_a_model_is_needed(capsys):
    with pytest.raises(SystemExit):
        main(["--eval_datasets", "x"])
    told = (
        "the following arguments are required: MODEL; MODEL may be the name of a published one: nemo-lite models list"
    )
    assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["A"])
    assert capsys.readouterr().err.endswith("the following arguments are required: --eval_datasets\n")


def test_the_leaderboard_without_a_folder_is_told_where_its_checkout_is(capsys):
    with pytest.raises(SystemExit):
        main(["A", "--leaderboard", "--eval_datasets", "x"])
    told = "error: argument --leaderboard: no checkout is named; give a checkout: git clone https://github.com/"
    assert told in capsys.readouterr().err


def test_the_help_shows_the_models_in_front(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith(
        "usage: nemo-lite eval MODEL [MODEL_B --compare] --eval_datasets MANIFEST"
    )
