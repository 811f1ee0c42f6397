"""--import: a file of the user's is run first, so that the command line knows the names that it registers."""

import sys

import pytest
from toys.tone_corpus import CONFIG, make_corpus

from nemo_asr.argparse import AsrArgParser
from nemo_asr.augmentation import perturbation_types
from nemo_asr.commands.cli import train
from nemo_lite.core.trackers import TRACKERS
from nemo_lite.utils import lr_policies
from nemo_lite.utils.optimizers import OPTIMIZERS

OWN = """
from nemo_asr.augmentation import Perturbation, register_perturbation
from nemo_lite.core.trackers import MetricsFile, register_tracker
from nemo_lite.utils.lr_policies import CosineAnnealing, register_lr_policy
from nemo_lite.utils.optimizers import register_optimizer
from toys.lion import Lion

class Silence(Perturbation):
    def perturb(self, data):
        data.samples[:] = 0

register_optimizer("own_lion", Lion)
register_lr_policy("own_cosine", CosineAnnealing)
register_tracker("own_tracker", lambda name, folder: MetricsFile(folder / "own.jsonl"))
register_perturbation("own_silence", Silence)
"""
NEEDED = ["--model_config", "own.yaml", "--train_dataset", "train.json", "--max_steps", "2"]
NAMES = ["--optimizer", "own_lion", "--lr_policy", "own_cosine", "--track", "own_tracker"]


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file_of_ones_own(tmp_path, monkeypatch):
    make_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "registering.py").write_text(OWN)
    own = "  train: {augmentor: {own_silence: {prob: 1.0}}}"
    (tmp_path / "own.yaml").write_text(CONFIG.replace("  train: {shuffle: true}", own))
    yield
    sys.modules.pop("registering", None)
    if "own_lion" in OPTIMIZERS:
        OPTIMIZERS.forget("own_lion")
    lr_policies._POLICIES.pop("own_cosine", None)
    TRACKERS.pop("own_tracker", None)
    perturbation_types.pop("own_silence", None)


def test_names_that_the_file_registers_are_choices():
    args = AsrArgParser(prog="tool").parse_args([*NAMES, *NEEDED, "--import", "registering.py"])
    assert (args.optimizer, args.lr_policy, args.track) == ("own_lion", "own_cosine", ["own_tracker"])


def test_a_name_that_is_nearly_one_of_them_is_answered_with_it(capsys):
    with pytest.raises(SystemExit):
        AsrArgParser(prog="tool").parse_args([*NEEDED, "--import=registering.py", "--optimizer", "own_lyon"])
    assert "(did you mean own_lion?)" in capsys.readouterr().err


def test_without_the_file_they_are_not(capsys):
    with pytest.raises(SystemExit):
        AsrArgParser(prog="tool").parse_args([*NAMES, *NEEDED])
    assert "invalid choice: 'own_lion'" in capsys.readouterr().err


def test_the_help_names_them(capsys):
    with pytest.raises(SystemExit):
        train.main(["--import", "registering.py", "--help", "all"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(name in text for name in ("own_lion", "own_cosine", "own_tracker"))


def test_a_plan_uses_them(capsys):
    train.plan([*NAMES, *NEEDED, "--import", "registering.py"])
    assert "2 steps in all" in capsys.readouterr().out


def test_a_training_uses_them(tmp_path):
    train.main([*NAMES, *NEEDED, "--import", "registering.py", "--batch_size", "4", "--work_dir", "runs"])
    assert '"kind":"end"' in (tmp_path / "runs/Jasper/own.jsonl").read_text().replace(" ", "")


def test_a_file_that_is_not_given_or_not_there_is_named(capsys):
    for words, text in (["--import"], "expected one argument"), (["--import", "no.py"], "'no.py' is not a Python file"):
        with pytest.raises(SystemExit):
            AsrArgParser(prog="tool").parse_args([*NEEDED, *words])
        assert f"tool: error: argument --import: {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nimport there_is_none", "ModuleNotFoundError: No module named 'there_is_none' (own_of_user.py:2)"),
        ("class A(:\n    pass", "SyntaxError: invalid syntax (own_of_user.py:1)"),
        ("a = 1\n{}['swish']", "KeyError: 'swish' (own_of_user.py:2)"),
        ("import json\njson.loads('{')", "(own_of_user.py:2)"),
        (
            "import nemo_asr\nnemo_asr.register(nemo_asr.JasperEncoder, role='encodr')",
            "(did you mean encoder?) (own_of_user.py:2)",
        ),
    ],
)
def test_an_error_of_the_file_is_one_line_with_the_line_of_the_file(text, told, tmp_path, capsys):
    (tmp_path / "own_of_user.py").write_text(text)
    try:
        with pytest.raises(SystemExit) as ended:
            AsrArgParser(prog="tool").parse_args([*NEEDED, "--import", "own_of_user.py"])
    finally:
        sys.modules.pop("own_of_user", None)
    err = capsys.readouterr().err
    assert err.startswith("tool: error: argument --import: ")
    assert err.endswith(f"{told}\n")
    assert (ended.value.code, err.count("\n")) == (2, 1)
