"""nemo-lite eval: models in front of the options."""

import sys

import pytest

from nemo_asr.cli.eval import as_options, main
from nemo_lite.errors import UsageError


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("--load_dir A --eval_datasets x", "--load_dir A --eval_datasets x"),
        ("A --eval_datasets x", "--load_dir A --eval_datasets x"),
        ("A B --compare --out o", "--load_dir A --compare B --out o"),
        ("A B --eval_datasets x y --compare", "--load_dir A --eval_datasets x y --compare B"),
        ("A --compare B --out o", "--load_dir A --compare B --out o"),
        ("--import f.py A --eval_datasets x", "--load_dir A --import f.py --eval_datasets x"),
        ("--out A --details A --eval_datasets x y", "--load_dir A --out A --details --eval_datasets x y"),
        ("", ""),
    ],
)
def test_models_in_front_of_options_and_behind_them_become_options(given, options):
    assert as_options(given.split()) == options.split()


@pytest.mark.parametrize("given", ["A B --eval_datasets x", "A B C --compare"])
def test_models_that_are_not_compared_are_refused(given):
    wanted = r"cannot be evaluated together: got A B.*, wanted one model, or two and --compare"
    with pytest.raises(UsageError, match=wanted):
        as_options(given.split())


def test_the_help_shows_the_models_in_front(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nemo-lite", "eval"])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith(
        "usage: nemo-lite eval MODEL [MODEL_B --compare] --eval_datasets MANIFEST"
    )
