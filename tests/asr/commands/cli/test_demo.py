"""nemo-lite demo: the corpus is made, then the demo runs. Neither runs here: both take minutes."""

import importlib.util
import re
from pathlib import Path

import pytest

from nemo_asr.commands.cli import demo
from nemo_asr.corpora import synth
from nemo_lite.base.errors import UsageError


def test_the_corpus_is_made_and_the_demo_run_on_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a folder runs/demo of the checkout may hold files of its user
    calls = []
    monkeypatch.setattr(demo, "_NEEDED", ())
    monkeypatch.setattr("nemo_asr.corpora.synth.main", lambda arguments, program: calls.append([*arguments, program]))
    monkeypatch.setattr(demo, "run_demo", lambda *arguments: calls.append(arguments))
    demo.main(["--corpus", "c", "--num_epochs", "2"])
    assert calls == [["c", "nemo-lite demo"], (Path("c"), Path("runs/demo"), 2)]
    for utterances, validation in ((4, "1"), (800, "100"), (4000, "150")):
        calls.clear()
        demo.main(["--corpus", "c", "--utterances", str(utterances)])
        assert calls[0][1:-1] == ["--train", str(utterances), "--val1", validation, "--val2", validation]


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """What the demo does, in a folder of its own; each step writes what the real one does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_NEEDED", ())
    monkeypatch.setattr("nemo_asr.corpora.synth.main", lambda arguments, program: None)

    def train(corpus, work_dir, num_epochs):
        for name in ("checkpoints/checkpoint-STEP-3/record.json", "model/model.json", "metrics.jsonl", "report.html"):
            (work_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (work_dir / name).write_text(str(num_epochs))

    def end(*words, **options):
        raise SystemExit(7)

    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "curves", lambda work_dir: {})
    monkeypatch.setattr("nemo_asr.corpora.synth.say", lambda path, text, voice: path.write_text(text))
    monkeypatch.setattr(demo, "run_subcommand", end)
    return tmp_path


def run(*options):
    with pytest.raises(SystemExit) as stopped:
        demo.main([*options])
    assert stopped.value.code == 7, "of the last step, which fails"


def test_a_second_demo_replaces_the_first_one_and_what_it_left_when_it_was_stopped(steps):
    run("--num_epochs", "1")
    (steps / "runs/demo/metrics.jsonl").chmod(0o400)
    run("--num_epochs", "2")
    assert (steps / "runs/demo/metrics.jsonl").read_text() == "2"


@pytest.mark.parametrize("folder", ["runs", "runs/", ".", "..", "~", "runs/demo", "link", "thesis.txt"])
def test_a_folder_with_files_of_the_users_is_left_alone(folder, steps, monkeypatch):
    monkeypatch.setenv("HOME", str(steps))
    run()
    (steps / "runs/demo/checkpoints/thesis.txt").write_text("precious")
    (steps / "thesis.txt").write_text("precious")
    (steps / "link").symlink_to("runs")
    (steps / "inner").mkdir()
    monkeypatch.chdir(steps / "inner" if folder == ".." else steps)
    before = {path: path.read_text() for path in steps.rglob("*") if path.is_file()}
    with pytest.raises(
        UsageError, match=r"the folder holds files that nemo-lite demo has not listed as its own|there is a file"
    ):
        demo.main(["--work_dir", folder])
    assert {path: path.read_text() for path in steps.rglob("*") if path.is_file()} == before


def test_what_a_demo_that_was_killed_has_left_is_refused_with_that_reason(steps, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(demo, "list_outputs", lambda *_: None)
        run()
    with pytest.raises(UsageError, match=r"not listed as its own \(if it is killed, it lists none\)"):
        demo.main([])


def test_what_was_trained_on_in_the_folder_of_a_demo_is_not_deleted(steps):
    run()
    (steps / "runs/demo/model/model.json").write_text("of another training")
    with pytest.raises(UsageError, match=r"got model/model\.json; nothing has been deleted; choose another folder"):
        demo.main([])


def test_a_file_that_is_put_there_while_the_demo_runs_is_not_the_demos(steps, monkeypatch):
    train = demo.train
    monkeypatch.setattr(demo, "train", lambda *args: (train(*args), (args[1] / "notes.txt").write_text("mine")))
    run()
    with pytest.raises(UsageError, match=r"got notes\.txt; nothing has been deleted"):
        demo.main([])


def test_a_demo_in_the_folder_of_one_that_runs_is_refused_with_that_reason(steps, monkeypatch):
    train, told = demo.train, []

    def train_while_another_starts(corpus, work_dir, num_epochs):
        train(corpus, work_dir, num_epochs)
        with pytest.raises(UsageError) as refused:
            demo.main([])
        told.append(str(refused.value))

    monkeypatch.setattr(demo, "train", train_while_another_starts)
    run("--num_epochs", "3")
    place = Path("runs/demo")
    assert told == [f"{place}: another nemo-lite demo runs there; wait until it has ended, or choose another folder"]
    assert (place / "metrics.jsonl").read_text() == "3"


def test_the_help_names_the_defaults_of_the_corpus_and_of_the_demo(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--help"])
    told = re.findall(r"default: (\d+)", " ".join(capsys.readouterr().out.split()))
    assert told == [str(synth.Arguments.train), str(demo.NUM_EPOCHS)]


def test_packages_that_are_missing_are_named_before_anything_is_made(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    with pytest.raises(UsageError) as caught:
        demo.main([])
    expected = "packages are missing: matplotlib; pip install espeakng-loader matplotlib"
    assert str(caught.value) == expected
