"""--import: a file of the user's is run first, so that the command line knows the names that it registers."""

import sys

import pytest
from toys.tone_corpus import CONFIG, make_corpus

from nemo_asr.argparse import AsrArgParser
from nemo_asr.audio.augmentation import perturbation_types
from nemo_asr.cli import train
from nemo_lite.core.trackers import TRACKERS
from nemo_lite.utils import lr_policies
from nemo_lite.utils.optimizers import OPTIMIZERS

OWN = """
from nemo_asr.audio.augmentation import Perturbation, register_perturbation
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
