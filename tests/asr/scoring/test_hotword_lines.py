"""What hot words gain, and what they cost the other words."""

import pytest

from nemo_asr.evaluation import hotword_lines, words_of

HAN = words_of([*"\u5317\u4eac\u53bb"])


def test_recall_of_each_hot_word_and_the_errors_of_the_others_before_and_after():
    said = ["go to nairobi now", "nairobi is far", "go now"]
    before = ["go to nirobi now", "nairobi is far", "go now"]
    after = ["go to nairobi now", "nairobi is far", "go nairobi now"]
    lines = hotword_lines(["nairobi", "mombasa"], said, before, after)
    assert lines[0] == "hot word nairobi: 1 of 2 found without, 2 with"
    assert lines[1] == "hot words that nobody says here: mombasa"
    assert lines[2].startswith("error rate of the other words: 0.00% (0.00% to ")
    assert ", 14.29% (" in lines[2]
    assert lines[2].endswith(" with hot words")


def test_characters_are_words_where_there_are_no_spaces():
    assert hotword_lines(["\u4eac"], ["\u5317\u4eac"], ["\u5317"], ["\u5317\u4eac"], HAN)[0] == (
        "hot word \u4eac: 0 of 1 found without, 1 with"
    )


def test_a_phrase_is_found_as_a_whole_and_its_words_elsewhere_are_other_words():
    said, before, after = ["new york is new"], ["new fork is new"], ["new york is now"]
    lines = hotword_lines(["new york"], said, before, after)
    assert lines[0] == "hot word new york: 0 of 1 found without, 1 with"
    assert lines[1].startswith("error rate of the other words: 0.00% (")
    assert ", 50.00% (" in lines[1]
    assert hotword_lines(["\u5317\u4eac"], ["\u53bb\u5317\u4eac"], ["\u5317"], ["\u5317\u4eac"], HAN)[0].endswith(
        ": 0 of 1 found without, 1 with"
    )


@pytest.mark.parametrize("space", ["", " "], ids=["no space is a label", "a space is a label"])
def test_a_latin_word_among_han_is_one_word_and_each_han_character_another(space):
    split = words_of([*"\u6211\u7528\u53bb\u5317\u4eacaegilnpx", *space])
    said = [f"\u6211\u7528{space}xia{space}\u53bb\u5317\u4eac"]  # xia is a word, so that 6 words are said
    before, after = ["\u6211\u7528pia\u53bb\u4eac"], ["\u6211\u7528xia\u53bb\u5317\u5317\u4eac"]
    lines = hotword_lines(["xia", "\u5317\u4eac", f"\u7528{space}xia"], said, before, after, split)
    assert lines[:3] == [
        "hot word xia: 0 of 1 found without, 1 with",
        "hot word \u5317\u4eac: 0 of 1 found without, 1 with",
        f"hot word \u7528{space}xia: 0 of 1 found without, 1 with",
    ]
    # Two words are part of no hot phrase. Without hot words both are right; with them one more is heard.
    assert lines[3].startswith("error rate of the other words: 0.00% (")
    assert " without, 50.00% (" in lines[3]


def test_characters_are_words_where_labels_of_letters_have_no_space():
    assert words_of(["a", "b"])("ab") == ["a", "b"]
    assert words_of(["a", "b", " "])("ab b") == ["ab", "b"]
    assert words_of(["\u2581\u5317", "\u30c6\u30b9", "ab"])("\u5317 ab\u30c6\u30b9") == [
        "\u5317",
        "ab",
        "\u30c6",
        "\u30b9",
    ]
