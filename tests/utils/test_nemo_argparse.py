"""The options NeMo's scripts share: defaults, both spellings of the local rank, one-line errors."""

from __future__ import annotations

import argparse

import pytest

from nemo_lite.utils.argparse import NemoArgParser


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def error_of(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        NemoArgParser(prog="jasper.py").parse_args(args)
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1, "one line"
    return text


def test_defaults_are_those_of_nemo():
    assert vars(NemoArgParser().parse_args([])) == {
        "local_rank": None,
        "amp_opt_level": "O0",
        "cudnn_benchmark": False,
        "model_config": None,
        "train_dataset": None,
        "eval_datasets": None,
        "batch_size": None,
        "eval_batch_size": None,
        "eval_freq": 1000,
        "optimizer": None,
        "weight_decay": 0.0,
        "num_epochs": None,
        "max_steps": None,
        "lr": 1e-3,
        "lr_policy": "WarmupAnnealing",
        "iter_per_step": 1,
        "work_dir": None,
        "checkpoint_dir": None,
        "create_tb_writer": False,
        "tensorboard_dir": None,
        "checkpoint_save_freq": 1000,
    }


@pytest.mark.parametrize("option", ["--local_rank", "--local-rank"])
def test_both_spellings_of_the_local_rank_are_one_option(option):
    assert NemoArgParser().parse_args([option, "3"]).local_rank == 3
    assert NemoArgParser().parse_args([f"{option}=3"]).local_rank == 3


def test_the_local_rank_comes_from_the_environment_unless_given(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert NemoArgParser().parse_args([]).local_rank == 2
    assert NemoArgParser().parse_args(["--local-rank=1"]).local_rank == 1


def test_a_broken_local_rank_in_the_environment_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "one")
    assert "'one' (from the option, or from LOCAL_RANK) is not a whole number" in error_of(capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--lr", "fast"], "argument --lr: 'fast' is not a number from 0"),
        (["--lr", "-1"], "argument --lr: '-1' is not a number from 0"),
        (["--lr", "nan"], "argument --lr: 'nan' is not a number from 0"),
        (["--batch_size", "0"], "argument --batch_size: '0' is not a whole number from 1"),
        (["--optimizer", "sdg"], "argument --optimizer: invalid choice: 'sdg'"),
        (["--lr_policy", "Cosine"], "argument --lr_policy: invalid choice: 'Cosine'"),
        (["--amp_opt_level", "O4"], "argument --amp_opt_level: invalid choice: 'O4'"),
        (["--weigth_decay=1"], "unrecognized arguments: --weigth_decay=1 (did you mean --weight_decay?)"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(capsys, args, message):
    text = error_of(capsys, *args)
    assert text.startswith("jasper.py: error: ")
    assert message in text


def test_it_serves_as_a_parent_whose_options_can_be_replaced():
    parser = argparse.ArgumentParser(parents=[NemoArgParser()], conflict_handler="resolve")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.set_defaults(optimizer="novograd")
    args = parser.parse_args(["--eval_datasets", "a.json", "b.json", "--local-rank", "0"])
    assert (args.lr, args.optimizer, args.eval_datasets, args.local_rank) == (0.02, "novograd", ["a.json", "b.json"], 0)
