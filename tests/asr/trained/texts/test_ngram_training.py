"""Language models of manifests' texts: how they are spelled, what is left out, how well they predict."""

import json
from types import SimpleNamespace

import pytest

from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_asr.run.search.ngram import NgramModel
from nemo_asr.run.text.parser import make_parser
from nemo_asr.trained.texts import (
    Speller,
    open_texts,
    perplexity,
    speller_of,
    text_layer,
    texts_of,
    train_language_model,
)
from nemo_lite.base.errors import ConfigError, DataError, UsageError


def manifest(path, *texts):
    path.write_text("".join(json.dumps({"audio_filepath": "no.wav", "duration": 1.0, "text": t}) + "\n" for t in texts))
    return str(path)


def test_texts_are_spelled_as_the_model_s_parser_does(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "It's 7 o'clock!", "Room 12.")])
    speller = speller_of("digits", texts)
    assert list(speller.sentences(texts)) == [["it's", "seven", "o'clock"], ["room", "twelve"]]


def test_without_a_model_the_texts_letters_are_the_labels(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "Grüße, Welt!", "Füße"), manifest(tmp_path / "b.json", "ÄÄ")])
    assert list(speller_of(None, texts).sentences(texts)) == [["grüße", "welt"], ["füße"], ["ää"]]


def test_without_a_model_one_apostrophe_and_one_width_stand_for_all(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "L’ami, peut-être", "lʼami ＡＢ")])
    assert list(speller_of(None, texts).sentences(texts)) == [["l'ami", "peut", "être"], ["l'ami", "ab"]]


def test_labels_without_a_space_are_words_themselves_and_pieces_are_joined():
    assert Speller(make_parser(["你", "好"]), ["你", "好"]).words("你好 你") == ["你", "好", "你"]
    parser = make_parser(["a", "b", "c"])  # as if 0, 1, 2 were the ids of pieces
    assert Speller(parser, ["\u2581he", "llo", "\u2581"]).words("abaca") == ["hello", "he", "he"]


def test_a_text_that_cannot_be_written_is_left_out_and_told(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "a b", "привет", "a c")])
    trained = train_language_model(texts, Speller(make_parser(" abc"), " abc"), 2)
    assert (trained.num_texts, trained.num_words) == (2, 4)
    assert "1 text refused: no character of the text is in the vocabulary" in trained.lost


def test_perplexity_leaves_unknown_words_out_and_counts_them(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "a", "b")])
    trained = train_language_model(texts, speller_of(None, texts), 1)
    # a and b once, the end twice: Witten-Bell with 3 kinds, 4 ids share what is left.
    a, end = (1 + 3 / 4) / 7, (2 + 3 / 4) / 7
    found = perplexity(NgramModel(trained.estimated.tables), iter([["a", "zzz"]]))
    assert (found.num_words, found.num_unknown) == (2, 1)
    assert found.value == pytest.approx((a * end) ** (-1 / 2), rel=1e-5)


def test_texts_come_in_order_from_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_asr.trained.texts._LINES_AT_ONCE", 2)
    written = [f"text {number}" for number in range(5)]
    assert list(texts_of(open_texts([manifest(tmp_path / "a.json", *written)]))) == written


def test_bad_orders_models_and_texts_are_told_in_one_line(tmp_path):
    texts = open_texts([manifest(tmp_path / "a.json", "привет", "")])
    speller = Speller(make_parser(" abc"), " abc")
    with pytest.raises(UsageError, match="order of a language model is out of range: got 7, wanted 1 to 6"):
        train_language_model(texts, speller, 7)
    with pytest.raises(DataError, match=r"a\.json: there are no words to make a language model of: got 0 texts"):
        train_language_model(texts, speller, 2)
    with pytest.raises(ConfigError, match="quartznet15x6: is neither a file nor the name of a configuration"):
        speller_of("quartznet15x6", texts)


def test_a_data_layer_of_tar_shards_is_refused():
    config = SimpleNamespace(place=lambda: "tar.yaml")
    recipe = SimpleNamespace(data_layer_class=lambda training: TarredAudioToTextDataLayer, config=config)
    with pytest.raises(
        UsageError, match=r"tar\.yaml: .* reads no manifests of texts: got Tarred.*, wanted AudioToText"
    ):
        text_layer(recipe, "a.json")
