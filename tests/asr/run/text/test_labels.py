"""What labels say: the parser, the case, the error rate that counts."""

import pytest

from nemo_asr.run.text.labels import case_of, characters_of, has_words, is_piece, main_metric, spelled

ENGLISH = [*" abcdefghijklmnopqrstuvwxyz'"]
GERMAN = [*" abcdefghijklmnopqrstuvwxyzäöüß"]
RUSSIAN = [*" абвгдеёжзийклмнопрстуфхцчшщъыьэюя"]
CHINESE = [*"今天点气温很好"]
PIECES = ["<unk>", "\u2581the", "ing", "\u2581", "t", "\u2581[SPN]", "<Noise>"]


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
    assert (case_of(PIECES), main_metric(PIECES)) == ("lower", "wer")
    assert case_of([*PIECES, "A"]) == "kept"
    assert main_metric(["<unk>", "\u2581今天", "气"]) == "cer"


def test_words_are_told_by_a_label_that_writes_a_space():
    assert [has_words(labels) for labels in (ENGLISH, PIECES, CHINESE)] == [True, True, False]
