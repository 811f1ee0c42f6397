"""What streams are worth: texts against those of whole recordings, latency, the table, the card."""

from __future__ import annotations

import json

import msgspec
import pytest
from toys.tone_corpus import make_corpus, run_subcommand
from toys.tone_model import STREAMING, stored_tones

import nemo_asr
from nemo_asr.commands.cli.eval import EvalParser
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.run.transcribe.stream import FrameStream
from nemo_asr.trained.folder import Certificate, StreamRate, read_card, store_in_card
from nemo_asr.trained.model import TrainedModel, describe
from nemo_asr.trained.stream_rates import rate_streams, stream_table
from nemo_lite.base.errors import UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    return stored_tones(folder, STREAMING), folder


@pytest.mark.slow
def test_eval_prints_the_table_and_stores_it_in_the_card(model, tmp_path, monkeypatch):
    _, folder = model
    monkeypatch.chdir(tmp_path)
    words = [folder / "model", "--eval_datasets", folder / "dev.json", "--stream", "--placement", "CPU"]
    finished = run_subcommand("eval", *words, "--no-report")
    assert finished.code == 0, finished.err
    (row,) = [line for line in finished.out.splitlines() if line.endswith("4 of 4 |")]
    (rate,) = read_card(folder / "model/model.json").streams
    assert (rate.set, rate.utterances, rate.equal, rate.context) == ("dev", 4, 4, None)
    assert rate.rate == rate.whole_rate
    assert rate.look_ahead == pytest.approx((5 * 160 + 255) / 16000, abs=1e-4)
    assert rate.look_ahead - 0.03 < rate.latency <= rate.latency_95 < 5
    assert f"| {rate.rate:.2%} |" in row
    assert f"The table is in {folder / 'model/model.json'}" in finished.out


@pytest.mark.slow
def test_a_beam_search_is_that_of_the_whole_recordings_and_has_a_row_of_its_own(model, tmp_path, monkeypatch):
    trained, folder = model
    trained.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    words = ["eval", "model", "--eval_datasets", folder / "dev.json", "--stream", "--placement", "CPU", "--no-report"]
    search = ["--beam_size", 4, "--hotwords", "cc:40", "bb:40", "--hotword_weight", 3]
    for options in ([], search, search):
        finished = run_subcommand(*words, *options)
        assert finished.code == 0, finished.err
    greedy, beam = read_card(tmp_path / "model/model.json").streams
    assert beam.search == "beam_size 4, hotwords 2, hotword_weight 3, beta 1"
    assert (greedy.search, greedy.equal, beam.equal) == ("", 4, 4)
    assert beam.rate == beam.whole_rate > greedy.rate  # so heavy a hot word is heard where nobody said it
    assert f"dev: as streams, 0.1 s of audio at a time, {beam.search}" in finished.out


def test_a_stream_of_other_recordings_than_the_evaluation_is_refused(capsys):
    for option in (["--segments", "energy"], ["B", "--compare"]):
        with pytest.raises(SystemExit):
            EvalParser().parse_args(["A", *option, "--eval_datasets", "dev.json", "--stream"])
        assert "--stream hears one model, and recordings as they are; leave" in capsys.readouterr().err


@pytest.mark.slow
def test_texts_that_differ_are_counted_with_the_interval_of_the_difference(model, monkeypatch):
    trained, folder = model
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    recordings = recordings_of([line["audio_filepath"] for line in lines])
    monkeypatch.setattr(FrameStream, "text", property(lambda stream: "a"))
    (rate,) = rate_streams(trained, "dev", recordings, [line["text"] for line in lines])
    assert rate.equal == 0
    assert rate.rate > rate.whole_rate
    assert rate.difference[0] <= rate.rate - rate.whole_rate <= rate.difference[1]
    assert "0 of 4; WER of whole recordings" in stream_table([rate])


@pytest.mark.slow
def test_the_card_of_a_set_without_texts_can_be_read_again(model, tmp_path):
    trained, folder = model
    trained.save(tmp_path / "copy")
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    rates = rate_streams(trained, "dev", recordings_of([line["audio_filepath"] for line in lines]), [""] * 4)
    store_in_card(tmp_path / "copy", read_card(tmp_path / "copy/model.json"), "streams", rates)
    (rate,) = read_card(tmp_path / "copy/model.json").streams
    assert (rate.rate, rate.whole_rate, rate.difference, rate.equal) == (None, None, [], 4)
    assert stream_table(rates).endswith("| no texts | 4 of 4 |")


def test_rates_of_a_set_take_the_place_of_earlier_ones(model, tmp_path):
    trained, _ = model
    trained.save(tmp_path / "copy")
    card = read_card(tmp_path / "copy/model.json")
    store_in_card(tmp_path / "copy", card, "streams", [StreamRate(set="a", equal=1), StreamRate(set="b")])
    store_in_card(tmp_path / "copy", card, "streams", [StreamRate(set="a", equal=2)])
    assert [(rate.set, rate.equal) for rate in read_card(tmp_path / "copy/model.json").streams] == [("b", 0), ("a", 2)]


def test_the_card_of_a_model_that_was_replaced_while_another_was_heard_stays(model, tmp_path):
    trained, _ = model
    trained.save(tmp_path / "copy")
    card = read_card(tmp_path / "copy/model.json")
    other = msgspec.structs.replace(card, step=7, weights={})
    for field, found in (("streams", [StreamRate(set="a")]), ("certificates", [Certificate(set="a")])):
        with pytest.raises(UsageError, match=r"got that of step 0, wanted that of step 7; give the command again"):
            store_in_card(tmp_path / "copy", other, field, found)
        assert read_card(tmp_path / "copy/model.json") == card
        store_in_card(tmp_path / "copy", card, field, found)
        card = read_card(tmp_path / "copy/model.json")
    assert (card.streams[0].set, card.certificates[0].set) == ("a", "a")


def test_a_model_that_cannot_stream_is_refused_before_anything_is_heard(tmp_path):
    make_corpus(tmp_path)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    model = TrainedModel("here", recipe, recipe.model(), describe(recipe))
    with pytest.raises(UsageError, match="cannot stream"):
        rate_streams(model, "dev", [], [])


def test_contexts_are_told_as_they_were_given():
    contexts = [[70, 13], [70, 6], [70, 1], [70, 0], [-1, 3]]
    encoder = ConformerEncoder(20, 1, 8, att_context_size=contexts, att_context_style="chunked_limited")
    assert [list(size) for size in encoder.att_context_sizes] == contexts
    assert ConformerEncoder(20, 1, 8, att_context_size=[4, 2]).att_context_sizes == [(4, 2)]
    assert ConformerEncoder(20, 1, 8).att_context_sizes == [(-1, -1)]
