"""What labels say: the parser, the case, the error rate that counts."""

import pytest

from nemo_asr.text.labels import case_of, characters_of, has_words, is_piece, main_metric, parser_of, spelled

ENGLISH = [*" abcdefghijklmnopqrstuvwxyz'"]
GERMAN = [*" abcdefghijklmnopqrstuvwxyzäöüß"]
RUSSIAN = [*" абвгдеёжзийклмнопрстуфхцчшщъыьэюя"]
CHINESE = [*"今天点气温很好"]
PIECES = ["<unk>", "\u2581the", "ing", "\u2581", "t", "\u2581[SPN]", "<Noise>"]


@pytest.mark.parametrize(
    ("labels", "parser"),
    [
        (ENGLISH, "en"),
        ([c.upper() for c in ENGLISH], "en"),
        ([*ENGLISH, "<noise>", "[SPN]", "."], "en"),
        (["a", "b", " "], "en"),
        (GERMAN, "base"),
        ([*ENGLISH, "é"], "base"),
        (RUSSIAN, "base"),
        (CHINESE, "base"),
        ([*CHINESE, *ENGLISH], "base"),
        ([*ENGLISH, *"0123456789"], "base"),  # the model can write numbers as they are
        ([*ENGLISH, "a\u0328"], "base"),
        ([*" 0123456789"], "base"),
        (["<a>", "<b>"], "base"),
    ],
)
def test_english_rewriting_is_for_labels_whose_letters_are_a_to_z(labels, parser):
    assert parser_of(labels) == parser


@pytest.mark.parametrize(
    ("labels", "case"),
    [
        (ENGLISH, "lower"),
        (GERMAN, "lower"),
        ([*ENGLISH, "[SPN]"], "lower"),
        ([c.upper() for c in RUSSIAN], "upper"),
        ([*"abAB"], "kept"),
        (CHINESE, "kept"),
        ([*"กขค"], "kept"),
    ],
)
def test_the_case_is_that_of_the_labels_letters(labels, case):
    assert case_of(labels) == case


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (ENGLISH, "wer"),
        (GERMAN, "wer"),
        (RUSSIAN, "wer"),
        ([*"가나다 "], "wer"),
        (CHINESE, "cer"),
        ([*CHINESE, *ENGLISH], "cer"),
        ([*"กขค "], "cer"),
        ([*"かな "], "cer"),
        ([*"カナ "], "cer"),
        ([*"abc"], "cer"),  # without a space there are no words
    ],
)
def test_characters_count_where_texts_have_no_words(labels, metric):
    assert main_metric(labels) == metric


def test_pieces_are_known_by_their_mark_and_write_the_space_before_a_word():
    assert [is_piece(label) for label in ("\u2581the", "ing", "\u2581")] == [True, False, True]
    assert spelled("\u2581the") == " the"


def test_pieces_say_case_parser_and_rate_as_their_characters_do():
    assert [*characters_of(PIECES)] == [*" theing t"]
    assert (parser_of(PIECES), case_of(PIECES), main_metric(PIECES)) == ("en", "lower", "wer")
    assert parser_of([*PIECES, "\u2581\u00e9t"]) == parser_of([*PIECES, "1"]) == "base"
    assert case_of([*PIECES, "A"]) == "kept"
    assert main_metric(["<unk>", "\u2581今天", "气"]) == "cer"


def test_words_are_told_by_a_label_that_writes_a_space():
    assert [has_words(labels) for labels in (ENGLISH, PIECES, CHINESE)] == [True, True, False]
