"""Score normalisers: which differences between texts are no errors."""

import time
from pathlib import Path

import pytest

from nemo_asr.scoring.normalize import american, digits_for_words, score_normalizer, without_punctuation
from nemo_lite.base.errors import UnknownNameError


@pytest.mark.parametrize(
    ("written", "scored"),
    [
        ("  It's\tFIVE - p.m.? ", "It's FIVE - p.m.?"),
        ("<noise> Ünal", "<noise> Ünal"),
        ("Cafe\u0301 ﬁn", "Caf\u00e9 ﬁn"),  # one text for Unicode
    ],
)
def test_none_changes_white_space_only(written, scored):
    assert score_normalizer("none")(written) == scored


@pytest.mark.parametrize(
    ("written", "scored"),
    [
        ("C'est-à-dire, l\u2019été!", "c'est à dire l'été"),
        ("«Привет», мир…", "привет мир"),
        ("كِتَابٌ ـ جديد", "كتاب جديد"),
        ("नमस्ते दुनिया।", "नमस्ते दुनिया"),
        ("ＡＢＣ１２ １２３ ١٢٣", "abc12 123 123"),
        ("co\u00adoperate \ufeffyes", "cooperate yes"),
        ("'quoted' and rock 'n' roll", "quoted and rock n roll"),
        ("5% & more", "5 % & more"),
        ("ﬁnd the oﬃce, ﬁ", "find the office fi"),
        ("ﻛﺘﺎﺏ على علي", "كتاب على علي"),  # the last two are two words
        ("น\u0e4d\u0e49า", "น้ำ"),
        ("one\u200btwo", "one two"),
        ("<noise> hello, [SPN]!", "<noise> hello spn"),
    ],
)
def test_basic_leaves_letters_digits_and_signs_that_are_read_aloud(written, scored):
    assert score_normalizer("basic")(written) == scored


def test_turkish_has_two_letters_i():
    assert score_normalizer("basic", "tr")("IŞIK İstanbul") == "ışık istanbul"
    assert score_normalizer("basic")("ISTANBUL İstanbul") == "istanbul istanbul"


def test_vietnamese_tones_have_two_places():
    basic = score_normalizer("basic", "vi")
    old, new = "Hòa, khỏe! thủy LÓA hòe", "hoà khoẻ thuỷ loá hoè"
    assert basic(old) == basic(new) == "hòa khỏe thủy lóa hòe"
    assert basic("hoàng toán khoẻn quý thuế") == "hoàng toán khoẻn quý thuế"
    assert score_normalizer("basic")("hoà") == "hoà"


@pytest.mark.parametrize("piece", ["[", "<", "(", " ", "[ ", "((]", "\t", "[a>("])
@pytest.mark.parametrize("name", ["basic", "english", "whisper-like"])
def test_a_long_text_of_brackets_or_blanks_is_scored_in_less_than_two_seconds(name, piece):
    start = time.process_time()
    score_normalizer(name)(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 2.0


def test_english_writes_numbers_in_words():
    normalize = score_normalizer("english")
    assert normalize("Dr. Smith paid $5 at 3 p.m.") == normalize("doctor smith paid five dollars at three p m")


# Phrases, and what `EnglishTextNormalizer` of whisper_normalizer 0.1.15 makes of them.
PHRASES = [line.split("\t") for line in Path(__file__).with_name("whisper_english.tsv").read_text("utf-8").splitlines()]
OTHERWISE = {"oh my god": "oh my god"}  # there "0 my god"


@pytest.mark.parametrize(("written", "scored"), PHRASES)
def test_whisper_like_gives_what_the_published_normaliser_gives(written, scored):
    assert score_normalizer("whisper-like")(written) == OTHERWISE.get(written, scored)


@pytest.mark.parametrize(
    ("written", "scored"),
    [
        ("word (a [b) c] end", "word a end"),
        ("a()b", "a b"),
        ("[a (b] c) d", "c d"),
        ("x <y z] w", "x w"),
        ("( ) k", "k"),
    ],
)
def test_brackets_within_each_other_are_read_as_the_published_normaliser_reads_them(written, scored):
    assert score_normalizer("whisper-like")(written) == scored


@pytest.mark.parametrize(
    "word", ["four", "wise", "rise", "otherwise", "exercise", "promise", "hours", "our", "precise", "there", "figure"]
)
def test_words_that_look_british_stay(word):
    assert american(word) == word


def test_numbers_that_are_no_number_stay():
    assert digits_for_words("and point and percent") == "and point and percent"


def test_labels_that_are_words_are_no_punctuation():
    assert without_punctuation("<noise> yes, <laugh> [SPN]") == "<noise> yes <laugh> [SPN]"


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r'normaliser "bassic" is not known; known: basic, .*did you mean basic'):
        score_normalizer("bassic")
