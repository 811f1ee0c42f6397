"""What a training of the speech scripts records, and what of it may fail."""

import json
import math
from argparse import Namespace
from pathlib import Path

import pytest
from toys.evaluated_texts import LABELS, wires
from toys.fake_action_state import Writer
from toys.tone_corpus import make_corpus

import nemo_asr
from nemo_asr.commands.training import ScoredClasses
from nemo_asr.scoring.callbacks import process_evaluation_batch
from nemo_lite import DataLayerNM, logging
from nemo_lite.core import Collected, Optimization, trackers


class Factory:
    """What is needed of a factory: rank 0 of a run."""

    tb_writer: Writer | None = None
    optim_level = Optimization.mxprO1
    is_first = True

    def on_first(self, make):
        return make() if self.is_first else None


@pytest.fixture
def args(tmp_path):
    given = {"run_dir": tmp_path, "checkpoint_dir": None, "track": [], "exp_name": "mine", "report": True}
    return Namespace(**given, eval_metric="wer", placement=object, init_from=None)


def test_a_run_that_goes_on_reads_its_records_and_says_how_to_make_the_report(args, tmp_path, capsys):
    values = {"wer": 0.25, "cer": 0.1}
    first = nemo_asr.trackers_of(args, Factory())
    first.record("evaluation", step=5, set="dev", **values)
    first.record("model", step=5, set="dev", metric="wer", value=0.25, path="RUN/model")
    capsys.readouterr()
    second = nemo_asr.trackers_of(args, Factory())
    second.record("evaluation", step=9, set="dev", **{**values, "wer": 0.5})
    second.record("end", step=9, epoch=2, seconds=1.0, reason="SIGTERM")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dev  WER 50.0 % (best 25.0 % at 5)  CER 10.0 %"
    assert "Best model (WER 25.0 % of dev, step 5): RUN/model" in lines
    assert lines[-1] == f"Report so far: nemo-lite report {tmp_path}"


def test_a_classifier_s_run_tells_its_error_rate_and_how_to_evaluate(args, capsys):
    args.eval_metric, args.report = "error", False
    trackers = nemo_asr.trackers_of(args, Factory())
    trackers.record("evaluation", step=5, set="dev", loss=0.5, error=0.125)
    trackers.record("model", step=5, set="dev", metric="error", value=0.125, path="RUN/model")
    trackers.record("end", step=5, epoch=1, seconds=1.0, reason="finished")
    out = capsys.readouterr().out
    assert "dev  ERROR 12.5 %" in out
    assert f"Evaluate: nemo-lite eval {args.run_dir} --eval_datasets MANIFEST" in out


def test_a_set_of_classes_is_scored_and_told_in_nemo_s_lines_on_request(monkeypatch):
    collected = Collected()
    collected.update({"batchsize": [4], "CorrectCount@1": [3]})
    said: list[str] = []
    monkeypatch.setattr(logging, "info", said.append)
    assert ScoredClasses("dev")(collected) == {"error": 0.25, "error_low": 0.0, "error_high": 1.0}
    assert said == []
    logging.set_style("nemo")
    ScoredClasses("dev")(collected)
    logging.set_style(None)
    assert said == ["==========>>>>>>Evaluation Accuracy Top@1 dev: 75.0000"]


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("tones"))
    return nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)


@pytest.fixture
def collected():
    gathered = Collected()
    process_evaluation_batch(wires(["cab", "c"], ["cab", "aabc"], loss=2.0), gathered, LABELS)
    gathered.positions = [0, 3]
    return gathered


def test_a_run_is_recorded_in_its_folder_on_the_terminal_and_in_its_events(args, tmp_path, capsys):
    factory, writer = Factory(), Writer()
    factory.tb_writer = writer
    trackers = nemo_asr.trackers_of(args, factory)
    numbers = {"loss": 2.0, "lr": 0.1, "amount_per_second": 1.0, "data_wait_share": 0.0, "step_seconds": 1.0}
    trackers.record("train", step=1, epoch=1, amount_unit="audio-s", **numbers)
    trackers.record("checkpoint", step=1, epoch=1, path="x")
    trackers.record("end", step=1, epoch=1, seconds=1.0, reason="finished")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert writer.of("loss") == [(2.0, 1)]
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("epoch 1  step 1  loss 2  ")
    assert told[-1] == f"Transcribe: nemo-lite transcribe {tmp_path} FILES"


def test_other_ranks_and_a_run_without_a_folder_write_no_file(args, tmp_path):
    factory = Factory()
    factory.is_first = False
    nemo_asr.trackers_of(args, factory).record("start", total_steps=1)
    args.run_dir = None
    nemo_asr.trackers_of(args, Factory()).record("start", total_steps=1)
    assert [*tmp_path.iterdir()] == []


def test_registered_trackers_get_the_runs_name_and_folder(args, monkeypatch):
    made = []

    def make(name, folder):
        made.append((name, folder))
        return trackers.Tracker()

    monkeypatch.setitem(trackers.TRACKERS, "file", None)
    trackers.register_tracker("file", make, help_text="a file")
    args.track = ["file"]
    assert isinstance(nemo_asr.trackers_of(args, Factory()), trackers.Trackers)
    assert made == [("mine", args.run_dir)]


def test_the_start_says_arguments_versions_and_precision(args):
    started = nemo_asr.start_record(args, Factory())
    assert json.loads(json.dumps(started)) == started
    assert started["arguments"]["run_dir"] == str(args.run_dir)
    assert started["precision"] == "O1"
    assert sorted(started["versions"]) == ["nemo_lite", "python", "torch"]


def test_a_set_is_scored_and_its_transcripts_are_kept(collected, dev, tmp_path, capsys):
    rates = nemo_asr.ScoredSet("dev", dev, tmp_path / "transcripts")(collected)
    assert {name: rates[name] for name in ("loss", "wer", "cer")} == {"loss": 2.0, "wer": 0.5, "cer": 3 / 7}
    assert (rates["wer_low"], rates["wer_high"], rates["cer_low"], rates["cer_high"]) == (0.0, 1.0, 0.0, 0.75)
    rows = [json.loads(line) for line in (tmp_path / "transcripts/dev.transcripts.jsonl").read_text().splitlines()]
    assert [(Path(row["audio_filepath"]).name, row["reference"], row["hypothesis"]) for row in rows] == [
        ("dev0.wav", "cab", "cab"),
        ("dev3.wav", "aabc", "c"),
    ]
    assert capsys.readouterr().out == ""


def test_the_utterances_of_batches_without_a_finite_loss_are_named(dev, capsys):
    gathered = Collected()
    for texts, loss in ((["cab", "c"], 2.0), (["a"], math.inf), (["b"] * 7, math.nan)):
        process_evaluation_batch(wires(texts, texts, loss=loss), gathered, LABELS)
    gathered.positions = [0, 3, 1, 2, 0, 3, 1, 2, 0, 3]
    scored = nemo_asr.ScoredSet("dev", dev)
    assert math.isnan(scored(gathered)["loss"])
    scored(gathered)
    places = ", ".join(dev.place_of(position) for position in (1, 2, 0, 3, 1))
    told = f"dev: the loss is infinite or NaN in the batch of {places} and 3 more"
    assert [line for line in capsys.readouterr().err.splitlines() if "infinite" in line] == [f"warning: {told}"]


def test_a_set_is_scored_by_the_normaliser_of_the_run(collected, dev, tmp_path):
    collected["predictions"] = ["CAB!", "a, abc"]
    rates = nemo_asr.ScoredSet("dev", dev, tmp_path, "wer", "basic")(collected)
    assert rates["wer"] == 1.0
    rows = [json.loads(line) for line in (tmp_path / "dev.transcripts.jsonl").read_text().splitlines()]
    assert [(row["reference"], row["hypothesis"]) for row in rows] == [("cab", "cab"), ("aabc", "a abc")]
    assert [(row["text"], row["recognised"]) for row in rows] == [("cab", "CAB!"), ("aabc", "a, abc")]
    assert {row["score_normalizer"] for row in rows} == {"basic"}


def test_what_was_heard_is_scored_as_the_data_layer_says(collected, dev, monkeypatch):
    monkeypatch.setattr("nemo_asr.commands.training.hypotheses_in_data", lambda layer, texts: ["cab", "aabc"])
    assert nemo_asr.ScoredSet("dev", dev)(collected)["wer"] == 0.0


def test_the_speakers_of_a_set_are_read_once_and_decide_its_intervals(dev, tmp_path, monkeypatch):
    lines = [json.loads(line) for line in Path(dev.utterances.paths[0]).read_text().splitlines()]
    for number, line in enumerate(lines[:4]):
        line["speaker"], line["text"] = number % 2, "aabb"[number]
        line["audio_filepath"] = str(Path(dev.utterances.paths[0]).parent / line["audio_filepath"])
    manifest = tmp_path / "speakers.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data_layer = nemo_asr.AudioToTextDataLayer(str(manifest), labels=list(" abc"), batch_size=2)
    gathered = Collected()
    process_evaluation_batch(wires(["a", "ab", "b", "ab"], ["a", "a", "b", "b"], loss=2.0), gathered, LABELS)
    gathered.positions = [0, 1, 2, 3]
    scored, calls = nemo_asr.ScoredSet("dev", data_layer), []
    read = data_layer.utterance_of
    monkeypatch.setattr(data_layer, "utterance_of", lambda item: calls.append(item) or read(item))
    rates = scored(gathered)
    assert scored(gathered) == rates
    assert calls == 2 * [0, 1, 2, 3]  # for the texts and for the speakers
    by_utterance = nemo_asr.ScoredSet("dev", DataLayerNM())(gathered)
    assert rates["wer"] == by_utterance["wer"]
    assert rates["wer_low"] == 0.0
    assert rates["wer_high"] == 1.0 > by_utterance["wer_high"] - 1e-9  # all errors are of one speaker


def test_nemos_lines_are_logged_in_nemos_style(collected, dev, capsys):
    logging.set_style("nemo")
    try:
        nemo_asr.ScoredSet("dev", dev)(collected)
    finally:
        logging.set_style(None)
    assert "] ==========>>>>>>Evaluation WER dev:  50.00%" in capsys.readouterr().out


def test_transcripts_that_cannot_be_written_cost_one_warning(collected, dev, tmp_path, capsys):
    (tmp_path / "file").touch()
    scored = nemo_asr.ScoredSet("dev", dev, tmp_path / "file")
    assert scored(collected) == scored(collected)
    assert capsys.readouterr().err.count("there is a file where a folder is wanted") == 1


def test_a_set_is_scored_against_its_own_texts_also_empty_ones_and_letters_that_the_labels_lack(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    lines[0]["text"], lines[1]["text"] = "ab \u0436\u0436", ""
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)
    gathered = Collected()
    process_evaluation_batch(wires(["ab", "b"], ["ab", ""], loss=2.0), gathered, LABELS)
    gathered.positions = [0, 1]
    rates = nemo_asr.ScoredSet("dev", data_layer, tmp_path / "out")(gathered)
    assert rates["wer"] == 1.0  # of two words one is lost, and one was said about silence
    assert rates["cer"] == 4 / 5
    rows = [json.loads(line) for line in (tmp_path / "out/dev.transcripts.jsonl").read_text().splitlines()]
    assert [row["reference"] for row in rows] == ["ab \u0436\u0436", ""]
