"""nemo-lite demo: the corpus is made, then the demo runs. Neither runs here: both take minutes."""

import importlib.util
import re
from pathlib import Path

import pytest

from nemo_asr.cli import demo
from nemo_asr.corpora import synth
from nemo_lite.errors import UsageError


def test_the_corpus_is_made_and_the_demo_run_on_it(monkeypatch):
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
