"""The options NeMo's scripts share: defaults, both spellings of the local rank, one-line errors."""

from __future__ import annotations

import argparse
import os
import re
from typing import Annotated

import pytest
from toys.launchers import no_launcher, openmpi, slurm_batch, slurm_task, torchrun
from toys.sources import ROOT

from nemo_lite.base.launch import rank_in
from nemo_lite.base.options import Device, launch_arguments, number_type, option_in_place_of
from nemo_lite.base.ranges import Between
from nemo_lite.utils.argparse import NemoArgParser

LAUNCHED = {"torchrun": torchrun(1, 1), "slurm": slurm_task(5), "openmpi": openmpi(1)}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    no_launcher(monkeypatch)


def start(monkeypatch, environ):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


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
        "launcher": "auto",
        "init_method": None,
        "rank": None,
        "world_size": None,
        "dist_backend": None,
        "dist_timeout": 600.0,
        "dist_start_timeout": 300.0,
        "dist_silence_timeout": None,
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
@pytest.mark.parametrize("launcher", LAUNCHED)
def test_both_spellings_of_the_local_rank_are_one_option(option, launcher, monkeypatch):
    start(monkeypatch, LAUNCHED[launcher])
    assert NemoArgParser().parse_args([option, "1"]).local_rank == 1
    assert NemoArgParser().parse_args([f"{option}=1"]).local_rank == 1


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_the_local_rank_comes_from_every_launcher(launcher, monkeypatch):
    start(monkeypatch, LAUNCHED[launcher])
    assert NemoArgParser().parse_args([]).local_rank == 1


def test_a_script_in_a_batch_job_without_srun_has_no_local_rank(monkeypatch):
    start(monkeypatch, slurm_batch())
    assert NemoArgParser().parse_args([]).local_rank is None


@pytest.mark.parametrize(
    ("environ", "args", "message"),
    [
        ({"LOCAL_RANK": "one"}, [], "LOCAL_RANK: is not a whole number from 0: got 'one'"),
        ({"LOCAL_RANK": "0"}, [], "RANK and WORLD_SIZE are missing: got LOCAL_RANK=0; start the script with torchrun"),
        (torchrun(1, 1), ["--local_rank=0"], "--local_rank 0 and LOCAL_RANK=1 contradict each other"),
        (torchrun(1, 1), ["--launcher=none"], "the launcher is none, and a launcher started 2 processes"),
        (torchrun(1, 1), ["--launcher=slurm"], "the launcher is slurm, and this process was not started by srun"),
        (torchrun(1, 1), ["--init_method=tcp://a:1"], "--init_method tcp://a:1 and MASTER_ADDR="),
        (torchrun(1, 1), ["--rank=0"], "--rank 0 and RANK=1 contradict each other"),
        ({}, ["--local_rank=1"], "RANK and WORLD_SIZE are missing: got --local_rank 1; start the script with torchrun"),
        ({}, ["--init_method=tcp://a:1", "--rank=0"], "give --world_size and --local_rank, or start"),
        ({}, ["--init_method=file:///a"], "--init_method file:///a: cannot be used: wanted tcp://host:port or env://"),
    ],
)
def test_what_does_not_fit_together_is_one_line(environ, args, message, monkeypatch, capsys):
    start(monkeypatch, environ)
    assert message in error_of(capsys, *args)


def test_a_rank_beside_launcher_none_is_said_and_ignored(monkeypatch, caplog):
    start(monkeypatch, {"RANK": "1", "LOCAL_RANK": "1"})
    assert NemoArgParser().parse_args(["--launcher=none"]).local_rank is None
    assert caplog.messages == ["--launcher none: this process runs alone and ignores RANK=1 LOCAL_RANK=1"]
    assert rank_in(os.environ) == 0  # the log of a rank above 0 is silent


def test_what_was_said_of_the_launch_goes_to_the_factory():
    line = "--init_method tcp://127.0.0.1:99 --rank 1 --world_size 2 --dist_backend gloo --dist_timeout 7.5"
    assert launch_arguments(NemoArgParser().parse_args([*line.split(), "--dist_start_timeout", "900"])) == {
        "local_rank": 1,
        "launcher": "auto",
        "init_method": "tcp://127.0.0.1:99",
        "rank": 1,
        "world_size": 2,
        "dist_backend": "gloo",
        "dist_timeout": 7.5,
        "dist_start_timeout": 900.0,
        "dist_silence_timeout": None,
    }


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
        (["--launcher", "slrum"], "argument --launcher: invalid choice: 'slrum'"),
        (["--dist_backend", "mpi"], "argument --dist_backend: invalid choice: 'mpi'"),
        (["--dist_timeout", "0"], "argument --dist_timeout: '0' is not a number above 0, up to 604800 s"),
        (
            ["--dist_start_timeout", "0"],
            "argument --dist_start_timeout: '0' is not a number above 0, up to 604800 s",
        ),
        (["--dist_timeout", "inf"], "argument --dist_timeout: 'inf' is not a number above 0, up to 604800 s"),
        (["--world_size", "0"], "argument --world_size: '0' is not a whole number from 1"),
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
    assert (args.lr, args.optimizer, args.eval_datasets) == (0.02, "novograd", ["a.json", "b.json"])
    assert launch_arguments(args)["local_rank"] == 0


def test_no_option_takes_a_number_of_any_size():
    folders = [ROOT / folder for folder in ("nemo_lite", "collections", "examples")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    found = [str(file) for file in files if re.search(r"\btype=(int|float)\b", file.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("11", "'11' is not a whole number from 1 to 10"),
        ("1.5", "'1.5' is not a whole number from 1 to 10"),
        ("1" * 5000, "'" + "1" * 60 + "...' is not a whole number from 1 to 10"),
    ],
)
def test_a_number_outside_of_its_range_is_told_with_the_range(text, told):
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{re.escape(told)}$"):
        number_type(Annotated[int, Between(1, 10)])(text)


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["--update_cycle", "4"], {"iter_per_step": 4}),
        (["--saveto", "out"], {"work_dir": "out"}),
        (["--config_path", "a.yaml"], {"model_config": "a.yaml"}),
        (["--valid_path", "dev.json"], {"eval_datasets": ["dev.json"]}),
        (["--max_epoch", "3"], {"num_epochs": 3}),
    ],
)
def test_names_of_other_programs_are_the_same_option(words, ours):
    parsed = NemoArgParser().parse_args(words)
    assert {name: getattr(parsed, name) for name in ours} == ours


def test_options_that_are_not_here_are_told_what_stands_for_them(capsys):
    with pytest.raises(SystemExit):
        LaunchedWithDevice().parse_args(["--use_gpu"])
    assert "unrecognized arguments: --use_gpu; in place of --use_gpu: --placement GPU" in capsys.readouterr().err


class LaunchedWithDevice(NemoArgParser):
    groups = (*NemoArgParser.groups, Device)

    def __init__(self):
        super().__init__(conflict_handler="resolve")


@pytest.mark.parametrize("first", ["a.json", "a.json,"])
def test_several_manifests_of_one_option_are_told_to_be_joined(capsys, first):
    with pytest.raises(SystemExit):
        NemoArgParser().parse_args(["--train_dataset", first, "b.json", "--num_epochs", "1"])
    told = capsys.readouterr().err
    assert "unrecognized arguments: b.json; join several manifests by commas: --train_dataset a.json,b.json" in told


def test_a_key_of_wenets_is_told_the_option():
    assert option_in_place_of("accum_grad") == "--iter_per_step"
    assert option_in_place_of("log_interval") == "--log_freq"
    assert option_in_place_of("max_epoch") == "--num_epochs"
    assert option_in_place_of("filters") == ""
