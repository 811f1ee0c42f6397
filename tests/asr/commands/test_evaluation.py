"""nemo-lite eval --segments energy: the texts are those of nemo-lite transcribe, whatever the ranks and the batches."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from ruamel.yaml import YAML
from toys.hub_server import Hub, asked_here
from toys.kaldi_folders import make_folder
from toys.ranks import on_ranks
from toys.silero import write_silero
from toys.tar_shards import write_shard
from toys.tone_corpus import CONFIG, record, run_script, write_manifest
from toys.tone_model import exported_tones, train_tones
from toys.waveform_models import write_folder as write_waveform_model

import nemo_asr
from nemo_asr.commands.cli.eval import EvalParser, main
from nemo_asr.commands.recognised_sets import _timed_words, pauses_line, recordings_of, with_recordings
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.scoring.rates import count_errors
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import DataError, UsageError

CPU = ("--placement", "CPU")
RATE = 16000
LABELS = [" ", "a", "b", "c"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder."""
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("model")
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return str(folder)


def quiet(seconds, level=0.0):
    return np.random.default_rng(0).normal(0.0, 1.0, round(seconds * RATE)) * level


def sounds(folder, *texts):
    for text in texts:
        record(folder / f"{text}.wav", text)
    return [soundfile.read(folder / f"{text}.wav")[0] for text in texts]


@pytest.fixture
def talks(tmp_path, monkeypatch):
    """The working directory with ``dev.json``: recordings with pauses, of two channels, silent, parts of files."""
    monkeypatch.chdir(tmp_path)
    cab, abba, bc = sounds(tmp_path, "cab", "abba", "bc")
    pauses = np.concatenate([quiet(1.0), cab, quiet(0.8), abba, quiet(1.5, 1e-3), bc, quiet(0.5)])
    soundfile.write("pauses.flac", pauses, RATE)
    sides = np.stack([np.pad(cab, (0, len(abba) - len(cab))), abba], axis=1)
    soundfile.write("sides.wav", np.pad(sides, ((RATE, RATE), (0, 0))), RATE)
    soundfile.write("silent.wav", quiet(2.0), RATE)
    soundfile.write("whole.mp3", np.concatenate([bc, quiet(2.0, 1e-3), cab, quiet(2.0, 1e-3)]), RATE)
    lines = [
        {"audio_filepath": "pauses.flac", "duration": len(pauses) / RATE, "text": "cab abba bc"},
        {"audio_filepath": "sides.wav", "duration": 2.0 + len(abba) / RATE, "text": "abba", "channel": 1},
        {"audio_filepath": "silent.wav", "duration": 2.0, "text": "a"},
        {"audio_filepath": "whole.mp3", "offset": 1.0, "duration": 3.0, "text": "cab", "speaker": "x"},
        {"audio_filepath": "cab.wav", "duration": 0.51, "text": "cab"},
        {"audio_filepath": "bc.wav", "duration": 0.34, "text": "bc"},
    ]
    write_manifest(tmp_path / "dev.json", lines)
    return tmp_path


def evaluated(*words, out="out", name="dev"):
    """The rows of a set as eval writes them."""
    main([*map(str, words), "--out", out, "--no-report", *CPU])
    return [json.loads(line) for line in open(f"{out}/{name}.transcripts.jsonl", encoding="utf-8")]


def transcribed(capsys, *words):
    capsys.readouterr()
    assert transcribe([*map(str, words), "--format", "json", *CPU]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--min_pause", "2"], ["--vad", "silero_vad.onnx"], ["--decoder", "beam"]])
def test_the_text_of_each_utterance_is_what_transcribe_prints(model, talks, capsys, options):
    write_silero(talks / "silero_vad.onnx")
    rows = evaluated(model, "--eval_datasets", "dev.json", "--segments", "energy", *options)
    told = capsys.readouterr().out
    lines = transcribed(capsys, model, "dev.json", *options)
    assert [row["hypothesis"] for row in rows] == [line["text"] for line in lines]
    assert len(rows) == 6
    assert rows[2]["hypothesis"] == ""
    for row, line in zip(rows, lines, strict=True):  # the report shows them
        spans = [{"start": each["start"], "end": each["end"]} for each in row["segments"]]
        assert spans == line.get("segments", [])
        assert " ".join(each["text"] for each in row["segments"] if each["text"]) == row["hypothesis"]
    number = sum(len(line.get("segments", [])) for line in lines)
    assert f"dev: {number} segments, cut at pauses as transcribe cuts them" in told
    # The guard can fail: heard as they are, the texts are others.
    assert [row["hypothesis"] for row in evaluated(model, "--eval_datasets", "dev.json")] != [
        row["hypothesis"] for row in rows
    ]


@pytest.mark.slow
def test_words_have_their_times_in_the_recording(model, talks, capsys):
    evaluated(model, "--eval_datasets", "dev.json", "--segments", "energy")
    (first, *_) = transcribed(capsys, model, "dev.json")
    ctm = [line.split() for line in (talks / "out/sclite/dev.hyp.ctm").read_text().splitlines()]
    starts = [float(start) for name, _, start, *_ in ctm if "pauses" in name]
    assert starts == pytest.approx([word["start"] for word in first["words"]], abs=2e-3)
    assert starts[0] > 0.9


def test_words_of_a_transducer_that_share_a_frame_have_a_frame_each():
    rows = [0, 1, 0, 2, 0, 1, -1], [0, 1, 3, 3, 3, 3, 0], [1, 2, 4, 4, 4, 6, 0]

    def timed(num_samples):
        values = [*([[row]] for row in rows), [num_samples]]
        (words,) = _timed_words([torch.tensor(each) for each in values], [" ", "a", "b"], 10, 10)
        return words

    assert timed(99) == [("a", 1.0, 2.0), ("b", 3.0, 4.0), ("a", 4.0, 6.0)]
    assert timed(55) == [("a", 1.0, 2.0), ("b", 3.0, 4.0), ("a", 4.0, 5.5)]
    assert timed(40) == [("a", 1.0, 2.0), ("b", 2.0, 3.0), ("a", 3.0, 4.0)]  # no room behind the recording


def _evaluate(arguments):
    main(arguments)


@pytest.mark.slow
def test_ranks_and_batches_do_not_change_a_byte(model, talks):
    words = [model, "--eval_datasets", str(talks / "dev.json"), "--segments", "energy", "--no-report", *CPU]
    main([*words, "--out", "one"])
    kept = [f"one/{name}" for name in ("dev.transcripts.jsonl", "dev.scores.json", "sclite/dev.hyp.ctm")]
    expected = [(talks / name).read_bytes() for name in kept]
    for size in ("1", "2", "64"):
        main([*words, "--out", "one", "--batch_size", size])
        assert [(talks / name).read_bytes() for name in kept] == expected
    ranks = on_ranks(3, _evaluate, [*words, "--out", str(talks / "one")])
    assert [rank.code for rank in ranks] == [0] * 3, ranks[0].err
    assert [(talks / name).read_bytes() for name in kept] == expected
    assert ["WER" in rank.out for rank in ranks] == [True, False, False]


@pytest.mark.long
@pytest.mark.slow
def test_an_exported_file_transcribes_what_was_evaluated(model, talks, capsys):
    rows = evaluated(model, "--eval_datasets", "dev.json", "--segments", "energy")
    lines = transcribed(capsys, exported_tones(), "dev.json")
    assert [row["hypothesis"] for row in rows] == [line["text"] for line in lines]


@pytest.mark.long
@pytest.mark.slow
def test_both_models_and_the_search_without_hot_words_hear_segments(model, talks, capsys):
    set_of = ("--eval_datasets", "dev.json", "--segments", "energy")
    main([model, model, "--compare", *set_of, "--out", "two", *CPU])
    told = capsys.readouterr().out
    test = json.loads((talks / "two/comparison.json").read_text())["sets"]["dev"]["wer"]
    assert (test["a"], test["difference"], test["p_value"]) == (test["b"], 0.0, 1.0)
    assert "two/comparison.json" in told
    assert "both have the same WER" in (talks / "two/report.html").read_text()
    assert "Two models" not in (talks / "two/compared/report.html").read_text()
    assert told.count("segments, cut at pauses") == 2
    counts = []
    for options in (["--decoder", "beam"], ["--hotwords", "cab"]):
        rows = evaluated(model, *set_of, *options)
        counts.append(sum("cab" in row["hypothesis"].split() for row in rows if "cab" in row["reference"]))
    without, with_them = counts
    assert f"hot word cab: {without} of 3 found without, {with_them} with" in capsys.readouterr().out
    done = run_script("jasper_eval.py", "--load_dir", model, *set_of, "--out", "script", *CPU)
    assert "segments, cut at pauses" in done.out
    assert "cut at pauses by their levels" in (talks / "script/report.html").read_text()
    assert '<a href="#segments">' in (talks / "script/report.html").read_text()
    main([model, *set_of, "--hotwords", "cab", "--out", "hot", *CPU])
    report = (talks / "hot/report.html").read_text()
    assert '<a href="#hotwords">' in report
    stored = json.loads((talks / "hot/dev.scores.json").read_text())["hotwords"]["phrases"][0]
    assert (stored["found_without"], stored["said"], stored["found_with"]) == (without, 3, with_them)
    evaluated(model, *set_of, out="hot")  # in the same folder, without hot words
    assert "hotwords" not in json.loads((talks / "hot/dev.scores.json").read_text())


@pytest.mark.slow
def test_a_published_model_is_named_as_its_user_names_it(model, talks, monkeypatch, capsys):
    folder = write_waveform_model(talks / "published")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = ["hf:owner/name", model, "--compare", "--eval_datasets", "dev.json", "--out", "two", *CPU]
    with asked_here(Hub(files), talks / "cache", monkeypatch):
        said = re.escape(
            'dev: the references of the two models differ: got 6 differ, first dev.json:1: "CAB ABBA BC" of'
        )
        with pytest.raises(UsageError, match=rf'^{said} A and "cab abba bc" of B; if .* --score_normalizer basic$'):
            main(words)  # one has capital letters
        assert not Path("two").exists()  # before they are evaluated
        main([*words, "--score_normalizer", "basic"])
    assert "A: hf:owner/name\nB: " in capsys.readouterr().out
    stored = json.loads((talks / "two/comparison.json").read_text())
    assert (stored["a"], stored["b"]) == ("hf:owner/name", model)
    page = (talks / "two/report.html").read_text()
    assert "hf:owner/name<" in page  # no step: how long it was trained is not known
    assert model in page
    assert "cache/hf" not in page


@pytest.mark.slow
def test_rates_of_the_leaderboard_are_written_for_a_models_repository(model, talks, capsys):
    pytest.importorskip("kaldialign")
    board = talks / "board/normalizer"
    board.mkdir(parents=True)
    (board / "__init__.py").write_text("from .normalizer import EnglishTextNormalizer\n")
    (board / "normalizer.py").write_text(
        "class EnglishTextNormalizer:\n    __call__ = lambda self, text: text.upper()\n"
    )
    rows = evaluated(model, "--eval_datasets", "dev.json", "--segments", "energy", "--leaderboard", "board")
    assert rows[0]["reference"] == "CAB ABBA BC"
    assert rows[0]["text"] == "cab abba bc"
    rate = 100 * count_errors([row["hypothesis"] for row in rows], [row["reference"] for row in rows]).rate
    assert 0 < rate < 100
    assert f"dev: WER {rate:.2f}% as the leaderboard counts" in capsys.readouterr().out
    (task,) = YAML(typ="safe").load((talks / "out/.eval_results/open_asr_leaderboard.yaml").read_text())
    assert (task["dataset"]["task_id"], task["value"]) == ("dev_wer", round(rate, 2))
    for words in (
        ["--leaderboard", "board", "--score_normalizer", "basic"],
        ["--leaderboard", "board", "--compare", model],
    ):
        with pytest.raises(SystemExit):
            main([model, "--eval_datasets", "dev.json", *words])
    silent = {"audio_filepath": "bc.wav", "duration": 1.0, "text": ""}
    (talks / "silent.json").write_text(json.dumps(silent))
    shutil.copy("dev.json", "DEV.json")
    for second, told in (
        ("silent.json", r"^silent: the leaderboard's normaliser leaves no words of the references; leave"),
        ("./dev.json", r"^--leaderboard takes each manifest once: got .*/dev\.json twice$"),
        ("DEV.json", r"^--leaderboard writes two sets under one name, without capital letters: got dev; rename"),
    ):
        with pytest.raises(UsageError, match=told):
            main([model, "--eval_datasets", "dev.json", second, "--leaderboard", "board", "--out", "early", *CPU])
        assert not (talks / "early").exists()  # before it is evaluated
    (talks / "taken").mkdir()
    (talks / "taken/.eval_results").write_text("a file")
    with pytest.raises(UsageError, match=r"taken/\.eval_results: there is a file where a folder is wanted"):
        main([model, "--eval_datasets", "dev.json", "--leaderboard", "board", "--out", "taken"])
    assert [path.name for path in (talks / "taken").iterdir()] == [".eval_results"]  # before it is evaluated
    with pytest.raises(UsageError, match="this is no checkout of the leaderboard"):
        main([model, "--eval_datasets", "dev.json", "--leaderboard", "talks", "--out", "none"])
    assert not (talks / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "name"), [([], "sclite"), (["--compare"], "compared")])
def test_a_file_where_a_folder_of_results_is_wanted_is_told_before_the_evaluation(options, name, model, talks):
    (talks / "taken").mkdir()
    (talks / "taken" / name).write_text("a file")
    models = [model, model] if options else [model]
    with pytest.raises(UsageError, match=f"taken/{name}: there is a file where a folder is wanted"):
        main([*models, *options, "--eval_datasets", "dev.json", "--out", "taken", *CPU])
    assert [path.name for path in (talks / "taken").iterdir()] == [name]


@pytest.mark.slow
def test_a_set_whose_references_have_no_words_has_no_rates(model, talks, capsys):
    lines = [{"audio_filepath": f"{text}.wav", "duration": 0.34, "text": "", "speaker": text} for text in ("cab", "bc")]
    write_manifest(talks / "silent.json", lines)
    main([model, "--eval_datasets", "silent.json", "--out", "out", "--details", *CPU])
    told = capsys.readouterr().out
    assert "silent: the references have no words, so there are no rates (" in told
    assert "silent: by speaker, length and word in out/silent.scores.json" in told
    assert ["bc", "1", "0", "1", "no", "words"] in [line.split() for line in told.splitlines()]
    assert json.loads((talks / "out/silent.scores.json").read_text())["wer"]["rate"] is None
    page = (talks / "out/report.html").read_text()
    assert ">no words<" in page
    assert not re.search(r"\binf\b", told + page)


@pytest.mark.slow
def test_hot_words_are_normalised_like_the_texts_that_they_are_looked_for_in(model, talks, monkeypatch):
    monkeypatch.setattr("nemo_asr.data.scored_texts.score_normalizer", lambda *_: str.upper)
    words = ("--eval_datasets", "dev.json", "--hotwords", "cab", "--score_normalizer", "basic", "--out", "hot")
    main([model, *words, "--no-report", *CPU])
    (stored,) = json.loads((talks / "hot/dev.scores.json").read_text())["hotwords"]["phrases"]
    assert (stored["phrase"], stored["said"]) == ("CAB", 3)


@pytest.mark.slow
def test_a_recording_that_cannot_be_read_ends_the_evaluation_unless_some_are_allowed(model, talks, capsys):
    (talks / "bc.wav").write_bytes((talks / "bc.wav").read_bytes()[:2000])
    words = (model, "--eval_datasets", "dev.json", "--segments", "energy")
    told = r"dev\.json:6: .*bc\.wav is damaged.*; 1 utterance cannot be used and max_corrupt allows 0"
    with pytest.raises(DataError, match=told):
        evaluated(*words)
    rows = evaluated(*words, "--set", "AudioToTextDataLayer.eval.max_corrupt=1")
    assert [row["place"] for row in rows] == [f"dev.json:{number}" for number in range(1, 6)]
    assert "1 utterance skipped so far (max_corrupt 1)" in capsys.readouterr().err


@pytest.mark.slow
def test_strict_data_is_strict_about_durations_here_too(model, talks):
    record(talks / "long.wav", "cabcabcab")
    write_manifest(talks / "cut.json", [{"audio_filepath": "long.wav", "duration": 0.51, "text": "cab"}])
    words = (model, "--eval_datasets", "cut.json", "--segments", "energy")
    (row,) = evaluated(*words, name="cut")
    assert row["hypothesis"] == "cab"
    with pytest.raises(DataError, match=r"cut\.json:1: .*duration 0\.51 s disagrees with .*long\.wav"):
        evaluated(*words, "--strict_data")


@pytest.mark.slow
def test_recordings_in_tar_shards_are_cut(model, talks):
    names = ["pauses.flac", "sides.wav", "cab.wav"]
    shard = write_shard(talks / "a.tar", *((name, (talks / name).read_bytes()) for name in names))
    lines = [{"audio_filepath": name, "duration": soundfile.info(name).duration, "text": "cab"} for name in names]
    write_manifest(talks / "tarred.json", lines)
    layer = nemo_asr.TarredAudioToTextDataLayer(shard, str(talks / "tarred.json"), LABELS, batch_size=4, shuffle_n=0)
    whole = nemo_asr.AudioToTextDataLayer(str(talks / "tarred.json"), LABELS, batch_size=4)
    loaded = nemo_asr.load_model(model)
    texts = [[each.text for each in loaded.transcribe(recordings_of(data, range(3)))] for data in (layer, whole)]
    assert texts[0] == texts[1]
    assert texts[0][0].split()[0] == "cab"


def test_features_cannot_be_cut(tmp_path):
    make_folder(tmp_path / "kaldi")
    layer = nemo_asr.KaldiFeatureDataLayer(str(tmp_path / "kaldi"), LABELS, batch_size=2)
    told = r"kaldi_feature_data_layer: --segments energy needs recordings, and this data layer has none; leave it out"
    with pytest.raises(UsageError, match=told):
        with_recordings(layer, "--segments energy")


def test_what_cannot_be_evaluated_is_refused_before_anything_is_heard(model, talks):
    """A model that cannot stream, a folder below a file, a second model that cannot spell the hot word, or leaves out.

    The last one hears no utterance of more than a second.
    """
    (talks / "a.yaml").write_text(CONFIG)
    (talks / "b.yaml").write_text(CONFIG.replace(', "c"]', "]"))
    for name, config, overrides in (("b", "b.yaml", []), ("short", "a.yaml", ["AudioToTextDataLayer.max_duration=1"])):
        recipe = nemo_asr.load_recipe(talks / config, overrides)
        TrainedModel("here", recipe, recipe.model(), describe(recipe)).save(talks / name)
    for options, told in (
        (["--stream", "--certify"], "the model cannot stream by frames"),
        (["--out", "cab.wav/out"], "cab.wav: there is a file where a folder is wanted"),
        (["--compare", "b", "--hotwords", "cc"], "cannot spell"),
        (
            ["--compare", "short"],
            r"^dev: the two models leave out other utterances: got 6 of A and 2 of B; evaluate each",
        ),
    ):
        with pytest.raises((UsageError, DataError), match=told):
            main([model, "--eval_datasets", "dev.json", "--out", "out", "--no-report", *CPU, *options])
    assert not Path("out").exists()


def test_a_certificate_of_recordings_that_are_all_too_long_is_refused_before_anything_is_heard(
    model, talks, monkeypatch
):
    monkeypatch.setattr(nemo_asr.AudioToMelSpectrogramPreprocessor, "longest_seconds", 0.3, raising=False)
    told = (
        r"^dev: all recordings are longer than the model hears at once: got 0\.3 s and more, wanted at most 0\.3 s for "
        r"--certify; give a set of shorter ones$"
    )
    with pytest.raises(UsageError, match=told):
        main([model, "--eval_datasets", "dev.json", "--certify", "--out", "out", "--no-report", *CPU])
    assert not Path("out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--stream", "--certify"])
def test_recordings_are_heard_in_several_ways_by_one_process_alone(option, model, talks):
    ranks = on_ranks(2, _evaluate, [model, "--eval_datasets", str(talks / "dev.json"), option])
    assert [rank.code for rank in ranks] == [2, 2]
    assert f"{option} hears recordings in one process: got 2 ranks; run it without a launcher" in ranks[0].err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--min_pause 0.3", "--min_pause has no effect with --segments off; give --segments energy"),
        ("--segments off --vad v", "--vad has no effect with --segments off; give --segments energy"),
        ("--segments some", "argument --segments: invalid choice: 'some'"),
        ("--segments energy --lm a.arpa --search_weights d", "--search_weights hears recordings as they are, not cut"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        EvalParser(prog="nemo-lite eval").parse_args(["A", "--eval_datasets", "x", *options.split()])
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"nemo-lite eval: error: {told}")
    assert err.count("\n") == 1


def test_lengths_out_of_range_are_told_before_the_model_is_loaded():
    with pytest.raises(UsageError, match=r"min_pause is 0\.01, wanted float from 0\.05 to 3600 s"):
        EvalParser().parse_args(["A", "--eval_datasets", "x", "--segments", "energy", "--min_pause", "0.01"])


def test_a_classifier_is_no_model_for_segments(monkeypatch, capsys):
    monkeypatch.setattr("nemo_asr.trained.fine_tuning.task_of_model", lambda path: "classification")
    with pytest.raises(SystemExit):
        main(["A", "--eval_datasets", "x", "--segments", "energy"])
    assert "--segments is for models that transcribe; leave it out" in capsys.readouterr().err


# The line about pauses.


def manifest_of(folder, *signals):
    lines = []
    for number, samples in enumerate(signals):
        soundfile.write(folder / f"{number}.wav", samples, RATE)
        lines.append({"audio_filepath": f"{number}.wav", "duration": len(samples) / RATE, "text": "cab"})
    return nemo_asr.AudioToTextDataLayer(str(write_manifest(folder / "set.json", lines)), LABELS, batch_size=4)


def test_long_pauses_are_counted_and_short_ones_are_not(tmp_path):
    (cab,) = sounds(tmp_path, "cab")
    short = np.concatenate([cab, quiet(0.45), cab])
    assert pauses_line(manifest_of(tmp_path, cab, short)) is None
    long = np.concatenate([cab, quiet(0.6), cab])
    told = pauses_line(manifest_of(tmp_path, cab, long, short, np.concatenate([cab, quiet(0.6, 1e-4)])))
    remedy = "--segments energy cuts there as transcribe does"
    assert told == f"2 of 4 utterances have pauses longer than 0.5 s: {remedy}"


def test_of_many_utterances_some_are_heard_evenly_spread(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_asr.commands.recognised_sets._MOST_HEARD", 3)
    (cab,) = sounds(tmp_path, "cab")
    layer = manifest_of(tmp_path, *[np.concatenate([cab, quiet(1.0)])] * 7)
    assert pauses_line(layer).startswith("3 of 3 utterances, evenly spread, have pauses")
    monkeypatch.setattr("nemo_asr.commands.recognised_sets._MOST_HEARD_SECONDS", 3.5)
    assert pauses_line(layer).startswith("2 of 2 utterances, evenly spread, have pauses")


def test_a_file_that_is_gone_has_no_pause(tmp_path):
    (cab,) = sounds(tmp_path, "cab")
    layer = manifest_of(tmp_path, np.concatenate([cab, quiet(1.0)]), np.concatenate([cab, quiet(1.0)]))
    os.remove(tmp_path / "0.wav")
    assert pauses_line(layer).startswith("1 of 2 utterances have pauses")


def test_features_have_no_pauses_that_are_told(tmp_path):
    make_folder(tmp_path / "kaldi")
    assert pauses_line(nemo_asr.KaldiFeatureDataLayer(str(tmp_path / "kaldi"), LABELS, batch_size=2)) is None


@pytest.mark.slow
def test_without_the_option_evaluation_is_as_before_and_tells_of_pauses(model, talks, capsys):
    evaluated(model, "--eval_datasets", "dev.json")
    told = capsys.readouterr().out
    assert "dev: 3 of 6 utterances have pauses longer than 0.5 s: --segments energy cuts there" in told
    assert not re.search(r"\d segments", told)
