"""The subcommands train, eval and plan: the scripts of examples/asr under another name."""

import importlib
import re
import sys

import pytest
from toys.tone_corpus import ROOT, make_corpus, read_manifest, write_manifest

from nemo_asr.commands.cli import eval as eval_command
from nemo_asr.commands.cli import train
from nemo_lite.base.errors import UsageError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("tones"))


def declared():
    """The subcommands in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split('[project.entry-points."nemo_lite.commands"]')[1].split("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(\S+)"$', section, re.MULTILINE))


def test_every_subcommand_is_declared_and_there():
    subcommands = declared()
    assert subcommands.keys() >= {"train", "eval", "plan"}
    for name, value in subcommands.items():
        module, function = value.split(":")
        assert function in ("main", name)
        assert callable(getattr(importlib.import_module(module), function))
    files = {file.stem for file in (ROOT / "collections/asr/nemo_asr").glob("*/cli/[!_]*.py")}
    named = {value.split(":")[0].rpartition(".")[2] for value in subcommands.values()}
    assert files <= named


def test_plan_runs_the_script_of_training_with_its_own_name(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = list(sys.argv)
    data = ["--train_dataset", str(corpus / "train.json"), "--num_epochs", "2"]
    train.plan(["--model_config", str(corpus / "tones.yaml"), *data])
    assert "training: 5 nodes, 3,941 parameters" in capsys.readouterr().out
    assert sys.argv == before


@pytest.mark.parametrize("mode", [[], ["--precision_check", "1", "--amp_opt_level", "O1"]])
def test_a_folder_that_cannot_be_written_is_refused_before_a_plan_is_shown(mode, corpus, capsys, tmp_path):
    (tmp_path / "file").touch()
    data = ["--train_dataset", str(corpus / "train.json"), "--num_epochs", "2", "--placement", "CPU"]
    run = train.main if mode else train.plan
    with pytest.raises(UsageError, match="file: there is a file where a folder is wanted; choose another folder"):
        run(["--model_config", str(corpus / "tones.yaml"), *data, *mode, "--work_dir", str(tmp_path / "file")])
    printed = capsys.readouterr().out
    assert "nodes" not in printed
    assert "float32" not in printed


def test_a_patience_by_a_set_without_words_is_refused_before_a_folder_is_made(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_manifest(tmp_path / "silent.json", [{**line, "text": ""} for line in read_manifest(corpus / "dev.json")])
    data = ["--model_config", str(corpus / "tones.yaml"), "--train_dataset", str(corpus / "train.json")]
    words = [*data, "--num_epochs", "2", "--placement", "CPU", "--patience", "2", "--eval_datasets"]
    told = r"^silent: the texts of the set that decides for --patience have no words, .*; name another set first, or"
    with pytest.raises(UsageError, match=told):
        train.main([*words, "silent.json", str(corpus / "dev.json"), "--work_dir", "runs"])
    assert not (tmp_path / "runs").exists()
    train.plan([*words, str(corpus / "dev.json"), "silent.json"])
    assert "evaluation_silent: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "name"), [(train.main, "train"), (train.plan, "plan"), (eval_command.main, "eval")]
)
def test_errors_and_help_name_the_subcommand(command, name, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(["--no_such_option"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"nemo-lite {name}: error: ")


def test_a_configuration_is_found_by_name_and_its_values_can_be_set(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = ["--train_dataset", str(corpus / "train.json"), "--num_epochs", "2"]
    train.plan(["--model_config", "quartznet5x5", *data, "--set", "AudioToMelSpectrogramPreprocessor.features=32"])
    assert "B 32 T" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "told"), [(train.main, "Train a speech"), (train.plan, "and train nothing")])
def test_the_first_page_of_help_says_what_the_command_does(command, told, capsys):
    with pytest.raises(SystemExit):
        command(["--help"])
    page = capsys.readouterr().out
    assert told in page
    assert "  --find_batch  " in page
