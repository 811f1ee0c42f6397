"""Several seeds are one command: each run in its folder, those that finished left alone, those that failed named."""

import json
import signal
import subprocess
import sys
from argparse import Namespace

import pytest
from toys.run_folder import write_lines
from toys.tone_corpus import make_corpus, run_script

from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands import seeds
from nemo_asr.commands.training import plain_arguments
from nemo_lite.base.errors import NemoLiteError, UsageError

EARLY = "wer of dev no better than at step 4 in 3 evaluations (patience 3)"


@pytest.fixture
def args(tmp_path):
    """Options of three seeds from 5 on, in the folder runs/Toy."""
    given = {
        "seeds": 3,
        "random_seed": 5,
        "exp_name": "Toy",
        "work_dir": None,
        "run_dir": tmp_path / "Toy",
        "num_processes": 1,
    }
    return Namespace(
        **given,
        **{"eval_metric": "wer", "lr": 0.1, "num_epochs": 2, "max_steps": None, "betas": (0.9, 0.98), "patience": 3},
        tells_for_all=True,
    )


def write_run(args, seed, reason="finished", **changed):
    """What a run of a seed leaves."""
    child = Namespace(
        **{**vars(args), "seeds": 1, "random_seed": seed, "run_dir": args.run_dir / f"seed_{seed}", **changed}
    )
    rates = {"set": "dev", "wer": seed / 100, "cer": seed / 200}
    lines = [
        {"kind": "start", "arguments": plain_arguments(child)},
        {"kind": "evaluation", "step": 10, **rates},
        {"kind": "model", "step": 10, "set": "dev", "metric": "wer", "value": seed / 100},
        {"kind": "end", "step": 10, "reason": reason},
    ]
    write_lines(child.run_dir / "metrics.jsonl", lines)


@pytest.fixture
def trained(args, monkeypatch):
    """The seeds that are trained, in order; ``codes`` are exit codes of some."""
    done, codes = [], {}

    def run_seed(seed, exp_name, work_dir):
        assert exp_name == "Toy"
        done.append(seed)
        if not codes.get(seed):
            write_run(args, seed)
        return codes.get(seed, 0)

    monkeypatch.setattr(seeds, "run_seed", run_seed)
    return done, codes


def test_each_seed_is_trained_once_and_the_table_has_all(args, trained, capsys):
    done, _ = trained
    write_run(args, 6)
    seeds.train_seeds(args)
    assert done == [5, 7]
    out = capsys.readouterr().out
    assert f"Seed 6 (2 of 3): has finished before in {args.run_dir / 'seed_6'}\n" in out
    assert ["dev", "WER", "5.00", "6.00", "7.00", "6.00", "1.00"] in [line.split() for line in out.splitlines()]
    assert json.loads((args.run_dir / "seeds.json").read_text())["sets"]["dev"]["wer"]["mean"] == pytest.approx(0.06)
    seeds.train_seeds(args)
    assert done == [5, 7], "a second time nothing is left to do"


@pytest.mark.parametrize(
    "left",
    [{"reason": "failed"}, {"reason": "SIGTERM"}, {"num_epochs": 1}, {"reason": EARLY, "patience": 2}],
    ids=["failed", "stopped", "shorter", "less patient"],
)
def test_a_run_that_has_not_finished_goes_on(left, args, trained):
    done, _ = trained
    write_run(args, 6, **left)
    seeds.train_seeds(args)
    assert done == [5, 6, 7]


def test_a_seed_that_has_stopped_early_is_not_started_again(args, trained):
    write_run(args, 6, reason=EARLY)
    seeds.train_seeds(args)
    assert trained[0] == [5, 7]


def test_a_run_that_finished_with_other_options_is_refused_with_their_names(args, trained):
    write_run(args, 6, lr=0.2, log_freq=3)
    wanted = (
        r"seed_6: the run has finished with other options: got lr 0\.2, now 0\.1; give another --exp_name, or delete"
    )
    with pytest.raises(UsageError, match=wanted):
        seeds.train_seeds(args)
    assert trained[0] == [], "before anything is trained"


def test_seeds_that_fail_are_named_and_the_others_are_trained(args, trained, capsys):
    done, codes = trained
    codes[6] = 1
    write_run(args, 6, reason="failed")
    wanted = rf"not all seeds finished: got seed 6 \(exit code 1, {args.run_dir}/seed_6\); see its error above"
    with pytest.raises(NemoLiteError, match=wanted):
        seeds.train_seeds(args)
    assert done == [5, 6, 7]
    said = capsys.readouterr()
    assert "Seed 6 failed with exit code 1" in said.err
    assert ["dev", "WER", "5.00", "7.00", "6.00", "1.41"] in [line.split() for line in said.out.splitlines()]
    assert json.loads((args.run_dir / "seeds.json").read_text())["failed"] == [{"seed": 6, "exit_code": 1}]


def test_a_seed_that_did_not_begin_ends_the_command(args, trained):
    done, codes = trained
    codes[5] = 2
    with pytest.raises(UsageError, match="seed 5: training did not begin: got exit code 2; the others would fail"):
        seeds.train_seeds(args)
    assert done == [5]


@pytest.mark.parametrize("code", [130, 75])
def test_a_seed_that_a_signal_ended_ends_the_command_with_its_code(code, args, trained, capsys):
    done, codes = trained
    codes[6] = code
    with pytest.raises(SystemExit) as stopped:
        seeds.train_seeds(args)
    assert (stopped.value.code, done) == (code, [5, 6])
    assert "Stopped at seed 6; the same command goes on there" in capsys.readouterr().out


def test_of_several_processes_the_first_alone_tells_and_all_start_every_run(args, trained, capsys):
    done, _ = trained
    args.num_processes, args.tells_for_all = 2, False
    write_run(args, 6)
    seeds.train_seeds(args)
    assert (done, capsys.readouterr().out) == ([5, 6, 7], "")
    assert not (args.run_dir / "seeds.json").exists()


def test_the_command_is_that_of_this_process_with_a_seed_and_a_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nemo-lite train", "--lr", "1", "--seeds", "3"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "/bin/nemo-lite", "train", "--lr", "1", "--seeds", "3"])
    own = ["--seeds", "1", "--random_seed", "4", "--exp_name", "Toy/seed_4"]
    command = ["-u", "/bin/nemo-lite", "train", "--lr", "1", "--seeds", "3"]
    assert seeds.command_of(4, "Toy") == [sys.executable, *command, *own]
    monkeypatch.setattr(sys, "argv", ["jasper.py", "--lr", "2"])  # called by another program
    assert seeds.command_of(4, "Toy") == [sys.executable, "jasper.py", "--lr", "2", *own]
    assert seeds.command_of(4, "Toy", "runs")[-2:] == ["--work_dir", "runs"], "also where it is the default"


def test_a_signal_is_handed_on_to_the_run_which_may_save(monkeypatch):
    class Process:
        sent = []

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait(self):
            if not self.sent:
                raise KeyboardInterrupt
            return 0

        def send_signal(self, number):
            self.sent.append(number)

    monkeypatch.setattr(subprocess, "Popen", lambda command: Process())
    assert seeds.run_seed(1, "Toy") == 130, "also where the run had just ended"
    assert Process.sent == [signal.SIGINT]


def test_the_exit_code_of_a_run_is_that_of_its_process(monkeypatch):
    monkeypatch.setattr(seeds, "command_of", lambda seed, *folders: [sys.executable, "-c", f"raise SystemExit({seed})"])
    assert (seeds.run_seed(0, "Toy"), seeds.run_seed(7, "Toy")) == (0, 7)


BASE = ("--model_config", "x.yaml", "--train_dataset", "t.json", "--num_epochs", "1")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--work_dir", "runs"), "--seeds has no effect without --eval_datasets"),
        (("--eval_datasets", "d", "--work_dir", "r", "--cudnn_benchmark"), "--seeds contradicts --cudnn_benchmark"),
        (
            ("--eval_datasets", "d", "--work_dir", "r", "--checkpoint_dir", "c"),
            "own folders; leave --checkpoint_dir out",
        ),
    ],
)
def test_options_that_do_not_fit_several_seeds_are_refused(given, wanted, capsys):
    with pytest.raises(SystemExit) as stopped:
        AsrArgParser().parse_args([*BASE, "--seeds", "3", *given])
    assert stopped.value.code == 2
    assert wanted in capsys.readouterr().err


def test_a_plan_is_the_same_for_every_seed():
    parsed = AsrArgParser().parse_args([*BASE, "--seeds", "3", "--eval_datasets", "d", "--work_dir", "r", "--plan"])
    assert parsed.seeds == 1


@pytest.mark.slow
def test_the_script_trains_each_seed_in_its_folder_and_prints_the_table(tmp_path, monkeypatch):
    """The runs are in this process: importing torch for each would take seconds."""
    folder = make_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["python"])

    def run_seed(seed, exp_name, work_dir):
        finished = run_script("jasper.py", *seeds.command_of(seed, exp_name)[2:])
        assert finished.code == 0, finished.err
        return finished.code

    monkeypatch.setattr(seeds, "run_seed", run_seed)
    finished = run_script(
        *("jasper.py", "--model_config", folder / "tones.yaml", "--train_dataset", folder / "train.json"),
        *("--eval_datasets", folder / "dev.json", "--max_steps", 1, "--batch_size", 4, "--work_dir", "runs"),
        *("--seeds", 2, "--no-report"),
    )
    assert finished.code == 0, finished.err
    runs = [json.loads((tmp_path / f"runs/Jasper/seed_{seed}/model/model.json").read_text()) for seed in (0, 1)]
    assert runs[0]["weights"] != runs[1]["weights"]
    (line,) = [line.split() for line in finished.out.splitlines() if line.startswith("dev")]
    assert line[:2] == ["dev", "WER"]
    assert [float(each) for each in line[2:4]] == [100 * run["rates"][0]["wer"] for run in runs]
