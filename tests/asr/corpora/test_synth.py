"""The demo's corpus: what it holds, and that it is made whole, once, and always the same."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemo_asr.corpora import synth
from nemo_asr.corpora.espeak import Synthesizer
from nemo_asr.corpora.synth import Arguments, make
from nemo_lite.base.errors import UsageError

pytest.importorskip("espeakng_loader", reason="the speech synthesiser is not installed")

SMALL = Arguments(train=6, val1=3, val2=3, seed=1)
MANIFESTS = {f"{name}.json" for name in (synth.TRAIN, synth.VAL_SEEN, synth.VAL_UNSEEN)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("synth") / "corpus"
    assert make(out, SMALL)
    return out


def entries(out, name):
    return [json.loads(line) for line in (out / f"{name}.json").read_text().splitlines()]


def content(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_manifests_describe_audio_that_is_there(corpus):
    for name, count in ((synth.TRAIN, 6), (synth.VAL_SEEN, 3), (synth.VAL_UNSEEN, 3)):
        assert len(entries(corpus, name)) == count
        for entry in entries(corpus, name):
            about = soundfile.info(corpus / entry["audio_filepath"])
            assert (about.samplerate, about.channels, about.subtype) == (16000, 1, "PCM_16")
            assert entry["duration"] == pytest.approx(about.duration, abs=1e-4)
            samples, _ = soundfile.read(corpus / entry["audio_filepath"])
            assert 0.005 < np.sqrt(np.mean(samples**2)) < 0.5


def test_the_second_validation_set_has_other_voices(corpus):
    voices = {name: {entry["speaker"] for entry in entries(corpus, name)} for name in (synth.TRAIN, synth.VAL_SEEN)}
    assert voices[synth.TRAIN] | voices[synth.VAL_SEEN] <= set(synth.SEEN_VOICES)
    assert {entry["speaker"] for entry in entries(corpus, synth.VAL_UNSEEN)} <= set(synth.UNSEEN_VOICES)
    assert not set(synth.SEEN_VOICES) & set(synth.UNSEEN_VOICES)


def test_a_single_recording_sounds_as_those_of_a_corpus_and_is_always_the_same(tmp_path):
    seconds = synth.say(tmp_path / "a.wav", "help go", "en-us+m1")
    synth.say(tmp_path / "b.wav", "help go", "en-us+m1")
    about = soundfile.info(tmp_path / "a.wav")
    assert (about.samplerate, about.channels, about.subtype) == (16000, 1, "PCM_16")
    assert seconds == pytest.approx(about.duration)
    assert 0.5 < seconds < 5
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    with pytest.raises(UsageError, match="has no such voice"):
        synth.say(tmp_path / "c.wav", "help go", "en-us+nobody")


def test_no_validation_text_is_in_train_or_twice():
    plan = synth._plan(Arguments(train=300, val1=100, val2=100))
    texts = {name: [item.text for item in items] for name, items in plan.items()}
    validation = texts[synth.VAL_SEEN] + texts[synth.VAL_UNSEEN]
    assert len(set(validation)) == 200
    assert not set(validation) & set(texts[synth.TRAIN])


def test_the_same_arguments_give_the_same_bytes(corpus, tmp_path):
    assert make(tmp_path / "again", SMALL)
    assert content(tmp_path / "again") == content(corpus)


def test_another_seed_gives_other_texts():
    first, second = (synth._plan(Arguments(20, 1, 1, seed))[synth.TRAIN] for seed in (1, 2))
    assert [item.text for item in first] != [item.text for item in second]


def test_a_longer_set_begins_with_the_shorter_one(corpus, tmp_path):
    make(tmp_path / "longer", Arguments(train=7, val1=1, val2=1, seed=1))
    for entry in entries(corpus, synth.TRAIN):
        path = entry["audio_filepath"]
        assert (tmp_path / "longer" / path).read_bytes() == (corpus / path).read_bytes()


def test_a_missing_synthesiser_gives_the_install_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(UsageError, match="eSpeak NG is not installed; pip install espeakng-loader"):
        make(tmp_path / "corpus", SMALL)
    assert not names_in(tmp_path)


def test_a_complete_corpus_of_the_same_arguments_is_reused(corpus, monkeypatch):
    monkeypatch.setattr(synth, "_make_set", lambda *_: pytest.fail("made again"))
    assert not make(corpus, SMALL)


def test_a_corpus_of_other_arguments_is_replaced(tmp_path):
    out = tmp_path / "corpus"
    assert make(out, Arguments(2, 1, 1))
    assert make(out, Arguments(1, 1, 1))
    assert len(entries(out, synth.TRAIN)) == 1
    assert names_in(out / synth.TRAIN) == ["00000.wav"]
    assert names_in(tmp_path) == ["corpus"]


def test_a_corpus_with_a_missing_file_is_made_again(tmp_path):
    out = tmp_path / "corpus"
    make(out, Arguments(2, 1, 1))
    (out / synth.TRAIN / "00001.wav").unlink()
    assert make(out, Arguments(2, 1, 1))
    assert (out / synth.TRAIN / "00001.wav").exists()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, OSError("disk")])
def test_an_interrupted_run_leaves_nothing_and_keeps_what_was_there(tmp_path, monkeypatch, interrupt):
    out = tmp_path / "corpus"
    make(out, Arguments(1, 1, 1))
    before, spoken = content(out), []

    def speak(*_):
        if spoken:
            raise interrupt
        spoken.append(1)
        return np.full(22050, 1000, dtype=np.int16)

    monkeypatch.setattr(Synthesizer, "speak", speak)
    with pytest.raises((KeyboardInterrupt, OSError)):
        make(out, Arguments(3, 1, 1))
    assert content(out) == before
    assert names_in(tmp_path) == ["corpus"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"the folder holds files that .* got thesis\.tex; nothing has been deleted"):
        make(tmp_path, SMALL)
    assert names_in(tmp_path) == ["thesis.tex"]


def test_recordings_and_manifests_of_the_same_names_are_left_alone(tmp_path):
    (tmp_path / synth.TRAIN).mkdir()
    (tmp_path / synth.TRAIN / "00000.wav").write_text("mine")
    (tmp_path / f"{synth.TRAIN}.json").write_text("mine")
    with pytest.raises(UsageError, match=r"got train, train\.json, train/00000\.wav; nothing has been deleted"):
        make(tmp_path, SMALL)
    assert (tmp_path / synth.TRAIN / "00000.wav").read_text() == "mine"


def test_a_corpus_with_a_recording_of_the_users_is_left_alone(tmp_path):
    out = tmp_path / "corpus"
    make(out, Arguments(1, 1, 1))
    (out / synth.TRAIN / "00000.wav").write_text("mine")
    with pytest.raises(UsageError, match=r"got train/00000\.wav; nothing has been deleted"):
        make(out, Arguments(2, 1, 1))
    assert (out / synth.TRAIN / "00000.wav").read_text() == "mine"


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "corpus").write_text("")
    with pytest.raises(UsageError, match="a file where a folder is wanted"):
        make(tmp_path / "corpus", SMALL)


def test_the_command_line_makes_and_summarises(tmp_path, capsys):
    argv = [str(tmp_path / "c"), "--train", "1", "--val1", "1", "--val2", "1"]
    synth.main(argv)
    made = capsys.readouterr().out.splitlines()
    synth.main(argv)
    again = capsys.readouterr().out.splitlines()
    assert made[0] == "made"
    assert again == ["already there, complete", *made[1:]]
    assert "train.json: 1 utterances, " in made[1]
    assert set(names_in(tmp_path / "c")) >= MANIFESTS


def test_the_command_line_reports_bad_arguments_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        synth.main([str(tmp_path / "c"), "--train", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_paths_in_the_manifests_are_relative(corpus):
    assert all(not Path(e["audio_filepath"]).is_absolute() for e in entries(corpus, synth.TRAIN))
