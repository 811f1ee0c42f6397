"""The metrics of a training's evaluated sets: their own texts, intervals by speaker, transcripts in a file."""

import json
import math
from pathlib import Path

import pytest
import torch
from toys.evaluated_texts import LABELS, batch, transcripts
from toys.fake_action_state import FakeState, Source, Writer, train
from toys.tone_corpus import make_corpus

import nemo_asr
from nemo_asr.data.evaluated_sets import ScoredClasses
from nemo_lite import DataLayerNM, logging
from nemo_lite.core import EvaluatorCallback


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("tones"))
    return nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)


def wires(number):
    return [Source().connect()[0] for _ in range(number)]


def row(heard, said, loss=2.0):
    """The values of a batch."""
    return [torch.tensor(loss), batch(heard)[0], *transcripts(said)]


def scored(data_layer, rows, positions, *options):
    """The metric of a set after these batches of these utterances."""
    metric = nemo_asr.ScoredSet(wires(4), LABELS, "dev", data_layer, *options)
    for values in rows:
        metric.update(**dict(zip(metric.wires, values, strict=True)))
    metric.positions = positions
    return metric


TWO = [row(["cab", "c"], ["cab", "aabc"])]


def test_a_set_is_scored_and_its_transcripts_are_kept(dev, tmp_path, capsys):
    rates = scored(dev, TWO, [0, 3], tmp_path / "transcripts").tagged_values("wer")
    assert list(rates) == ["loss", "wer", "cer", "wer_low", "wer_high", "cer_low", "cer_high"]
    assert [*rates.values()] == [2.0, 0.5, 3 / 7, 0.0, 1.0, 0.0, 0.75]
    rows = [json.loads(line) for line in (tmp_path / "transcripts/dev.transcripts.jsonl").read_text().splitlines()]
    assert [(Path(row["audio_filepath"]).name, row["reference"], row["hypothesis"]) for row in rows] == [
        ("dev0.wav", "cab", "cab"),
        ("dev3.wav", "aabc", "c"),
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_is_the_same_on_one_rank_and_on_two_and_the_next_one_begins_anew(dev, world_size):
    rows = [row(["cab"], ["cab"], loss=1.0), row(["c"], ["aabc"], loss=3.0)]
    state = FakeState(world_size=world_size, tb_writer=Writer(), batches=rows)
    metric = nemo_asr.ScoredSet(wires(4), LABELS, "dev", dev, metric="cer")
    train(state, [EvaluatorCallback(metrics={"cer": metric}, eval_step=1, name="dev")], steps_per_epoch=1)
    assert state.tb_writer.of("dev/loss") == [(2.0, 0), (2.0, 1)]
    assert state.tb_writer.of("dev/wer") == [(0.5, 0), (0.5, 1)]
    assert state.evaluation.higher_is_better == {"cer": False}
    assert metric.value() == 3 / 7


def test_the_utterances_of_batches_without_a_finite_loss_are_named(dev, capsys):
    batches = ((["cab", "c"], 2.0), (["a"], math.inf), (["b"] * 7, math.nan))
    metric = scored(dev, [row(texts, texts, loss) for texts, loss in batches], [0, 3, 1, 2, 0, 3, 1, 2, 0, 3])
    assert math.isnan(metric.tagged_values("wer")["loss"])
    metric.tagged_values("wer")
    places = ", ".join(dev.place_of(position) for position in (1, 2, 0, 3, 1))
    told = f"dev: the loss is infinite or NaN in the batch of {places} and 3 more"
    assert [line for line in capsys.readouterr().err.splitlines() if "infinite" in line] == [f"warning: {told}"]


def test_a_set_is_scored_by_the_normaliser_of_the_run(dev, tmp_path, monkeypatch):
    texts = iter(["CAB!", "a, abc"])
    monkeypatch.setattr("nemo_asr.data.evaluated_sets.post_process_predictions", lambda *_: list(texts))
    assert scored(dev, TWO, [0, 3], tmp_path, "wer", "basic").tagged_values("wer")["wer"] == 1.0
    rows = [json.loads(line) for line in (tmp_path / "dev.transcripts.jsonl").read_text().splitlines()]
    assert [(row["reference"], row["hypothesis"]) for row in rows] == [("cab", "cab"), ("aabc", "a abc")]
    assert [(row["text"], row["recognised"]) for row in rows] == [("cab", "CAB!"), ("aabc", "a, abc")]
    assert {row["score_normalizer"] for row in rows} == {"basic"}


def test_what_was_heard_is_scored_as_the_data_layer_says(dev, monkeypatch):
    monkeypatch.setattr("nemo_asr.data.evaluated_sets.hypotheses_in_data", lambda layer, texts: ["cab", "aabc"])
    assert scored(dev, TWO, [0, 3]).tagged_values("wer")["wer"] == 0.0


def test_without_numbered_items_what_the_label_ids_say_is_scored(dev, tmp_path):
    assert scored(dev, TWO, None, tmp_path).tagged_values("wer")["cer"] == 3 / 7
    assert [*tmp_path.iterdir()] == []


def test_the_speakers_of_a_set_are_read_once_and_decide_its_intervals(dev, tmp_path, monkeypatch):
    lines = [json.loads(line) for line in Path(dev.utterances.paths[0]).read_text().splitlines()]
    for number, line in enumerate(lines[:4]):
        line["speaker"], line["text"] = number % 2, "aabb"[number]
        line["audio_filepath"] = str(Path(dev.utterances.paths[0]).parent / line["audio_filepath"])
    manifest = tmp_path / "speakers.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data_layer = nemo_asr.AudioToTextDataLayer(str(manifest), labels=list(" abc"), batch_size=2)
    rows = [row(["a", "ab", "b", "ab"], ["a", "a", "b", "b"])]
    metric, calls = scored(data_layer, rows, [0, 1, 2, 3]), []
    read = data_layer.utterance_of
    monkeypatch.setattr(data_layer, "utterance_of", lambda item: calls.append(item) or read(item))
    rates = metric.tagged_values("wer")
    assert metric.tagged_values("wer") == rates
    assert calls == 2 * [0, 1, 2, 3]  # for the texts and for the speakers
    by_utterance = scored(DataLayerNM(), rows, [0, 1, 2, 3]).tagged_values("wer")
    assert rates["wer"] == by_utterance["wer"]
    assert rates["wer_low"] == 0.0
    assert rates["wer_high"] == 1.0 > by_utterance["wer_high"] - 1e-9  # all errors are of one speaker


def test_nemos_lines_are_logged_in_nemos_style(dev, capsys):
    logging.set_style("nemo")
    try:
        scored(dev, TWO, [0, 3]).tagged_values("wer")
    finally:
        logging.set_style(None)
    assert "] ==========>>>>>>Evaluation WER dev:  50.00%" in capsys.readouterr().out


def test_transcripts_that_cannot_be_written_cost_one_warning(dev, tmp_path, capsys):
    (tmp_path / "file").touch()
    metric = scored(dev, TWO, [0, 3], tmp_path / "file")
    assert metric.tagged_values("wer") == metric.tagged_values("wer")
    assert capsys.readouterr().err.count("there is a file where a folder is wanted") == 1


def test_a_set_is_scored_against_its_own_texts_also_empty_ones_and_letters_that_the_labels_lack(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    lines[0]["text"], lines[1]["text"] = "ab \u0436\u0436", ""
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)
    rates = scored(data_layer, [row(["ab", "b"], ["ab", ""])], [0, 1], tmp_path / "out").tagged_values("wer")
    assert rates["wer"] == 1.0  # of two words one is lost, and one was said about silence
    assert rates["cer"] == 4 / 5
    rows = [json.loads(line) for line in (tmp_path / "out/dev.transcripts.jsonl").read_text().splitlines()]
    assert [row["reference"] for row in rows] == ["ab \u0436\u0436", ""]


@pytest.fixture
def classes():
    metric = ScoredClasses(wires(3), "dev")
    for scores, targets, loss in ((torch.eye(3), [0, 1, 0], 1.0), (torch.eye(3)[:1], [0], 2.0)):
        metric.update(loss=torch.tensor(loss), logits=scores, classes=torch.tensor(targets))
    return metric


def test_a_set_of_classes_is_scored_over_its_recordings(classes):
    assert classes.tagged_values("error") == {"loss": 1.25, "error": 0.25, "error_low": 0.0, "error_high": 1.0}
    classes.reset()
    classes.update(loss=torch.tensor(1.0), logits=torch.eye(200), classes=torch.arange(200))
    assert (classes.value(), *classes.interval()) == (0.0, 0.0, pytest.approx(0.0183, abs=1e-4))


def test_a_set_of_classes_is_told_in_nemo_s_lines_on_request(classes, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logging, "info", said.append)
    classes.tagged_values("error")
    assert said == []
    logging.set_style("nemo")
    classes.tagged_values("error")
    logging.set_style(None)
    assert said == [
        "==========>>>>>>Evaluation Loss dev: 1.250",
        "==========>>>>>>Evaluation Accuracy Top@1 dev: 75.0000",
    ]
