"""The demo: what it draws, and that it ends with a transcript, pictures and commands that work."""

import json
import shlex
import sys

import pytest
from toys.launched import warm_commands
from toys.tone_corpus import run_script, run_subcommand

from nemo_asr.commands.cli import demo
from nemo_asr.corpora import synth
from nemo_lite.base.outputs import foreign_in

pytest.importorskip("matplotlib", reason="what draws the curves is not installed")

PNG = b"\x89PNG"


def write_metrics(folder, *records):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def evaluation(name, step, wer):
    return {"kind": "evaluation", "set": name, "step": step, "loss": 10 * wer, "wer": wer}


def test_the_new_sentence_and_its_voice_are_not_in_the_corpus():
    plan = synth._plan(synth.Arguments())
    items = [item for each in plan.values() for item in each]
    assert len(items) == 3900
    assert demo.NEW_TEXT not in {item.text for item in items}
    assert demo.NEW_VOICE not in {item.voice for item in items}
    assert set(demo.NEW_TEXT.split()) <= {word for item in items for word in item.text.split()}


@pytest.mark.slow
def test_the_rates_are_those_of_the_best_model(tmp_path):
    sets = list(demo.SETS)
    rates = [(0, 1.0, 1.0), (250, 0.1, 0.3), (500, 0.2, 0.2)]
    evaluations = [evaluation(name, at, wer) for at, *wers in rates for name, wer in zip(sets, wers, strict=True)]
    steps = [{"kind": "train", "step": step, "loss": 300 / step} for step in (1, 250, 500)]
    write_metrics(tmp_path, *steps, *evaluations, {"kind": "model", "step": 0}, {"kind": "model", "step": 250})
    assert demo.curves(tmp_path) == {sets[0]: 0.1, sets[1]: 0.3}
    assert (tmp_path / "curves.png").read_bytes()[:4] == PNG


def test_a_long_command_is_shown_in_lines_that_begin_with_an_option_and_can_be_copied():
    words = ["nemo-lite", "train", *(word for number in range(12) for word in (f"--option_{number}", "a value"))]
    shown = demo.wrapped(*words)
    lines = shown.split(" \\\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= 100
    assert {line.split()[0] for line in lines[1:]} <= set(words)
    assert shlex.split(shown.replace("\\\n", " ")) == words


@pytest.mark.slow
def test_the_demo_ends_with_a_transcript_pictures_and_commands_that_work(tmp_path, monkeypatch):
    pytest.importorskip("espeakng_loader", reason="the speech synthesiser is not installed")
    monkeypatch.chdir(tmp_path)
    synth.make("corpus", synth.Arguments(train=4, val1=2, val2=2))
    with warm_commands() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(folder / "python"))  # its commands start at once
        finished = run_script("demo.py", "--corpus", "corpus", "--work_dir", "runs/demo", "--num_epochs", 1)
    assert finished.code == 0, finished.err
    said, _, ending = finished.out.partition("\nLook at\n")
    assert "\n$ nemo-lite train, with the same options\n" in said
    assert "\n$ nemo-lite transcribe runs/demo runs/demo/new.wav\n" in said
    assert "\n  spoken:     july twenty nineteen sixty nine\n  recognised:" in said
    assert "  voices heard in training\n" in said
    places, _, tries = ending.partition("\nTry next\n")
    assert [line.split()[0] for line in places.splitlines() if not (tmp_path / line.split()[0]).exists()] == []
    assert (tmp_path / "runs/demo/curves.png").read_bytes()[:4] == PNG
    assert list(foreign_in(tmp_path / "runs/demo", demo.PROGRAM)) == [], "what the next demo may delete"
    commands = [shlex.split(line) for line in tries.splitlines() if line.startswith("  nemo-lite")]
    assert len(commands) == 4
    for words in commands:
        tried = run_subcommand(*words[1:])
        assert tried.code == 0, f"{words}\n{tried.err}"
