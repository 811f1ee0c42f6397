"""What hot words gain, and what they cost the other words."""

import msgspec
import pytest

from nemo_asr.scoring.hotwords import HotwordScores, PhraseCounts, phrase_finder, score_hotwords, words_of

HAN = words_of([*"\u5317\u4eac\u53bb"])


def hotword_lines(*arguments):
    return score_hotwords(*arguments).lines()


def test_recall_of_each_hot_word_and_the_errors_of_the_others_before_and_after():
    said = ["go to nairobi now", "nairobi is far", "go now"]
    before = ["go to nirobi now", "nairobi is far", "go now"]
    after = ["go to nairobi now", "nairobi is far", "go nairobi now"]
    lines = hotword_lines(["nairobi", "mombasa"], said, before, after)
    assert lines[0] == "hot word nairobi: 1 of 2 found without, 2 with; false alarms 0 without, 1 with"
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


def test_a_false_alarm_is_a_hot_word_that_is_recognised_where_it_is_not_said():
    hot = ["york", "mombasa", "new york"]
    found = score_hotwords(hot, ["new york", "a fork b"], ["new york york", "a fork b"], ["york", "mombasa york b"])
    assert found.phrases == [
        PhraseCounts("york", 1, 1, 1, 1, 1),
        PhraseCounts("mombasa", 0, 0, 0, 0, 1),
        PhraseCounts("new york", 1, 1, 0, 0, 0),
    ]
    assert found.absent == []
    assert found.total == PhraseCounts("", 2, 2, 1, 1, 2)
    assert found.lines()[1] == "hot word mombasa: nobody says it; false alarms 0 without, 1 with"


def test_a_phrase_whose_words_are_right_with_another_one_between_is_no_false_alarm():
    found = score_hotwords(["new york"], ["new york"], ["new york"], ["new uh york"])
    assert found.phrases == [PhraseCounts("new york", 1, 1, 1, 0, 0)]


def test_marks_behind_words_do_not_count():
    said, before, after = (
        ["Is it Berlin?", "Dr. Bab, no."],
        ["Is it Merlin?", "Dr Bab, no."],
        ["Is it Berlin.", "Dr. Bab, no."],
    )
    lines = hotword_lines(["Berlin", "Dr. Bab"], said, before, after, words_of([*"abDB .,?"]))
    assert lines[0] == "hot word Berlin: 0 of 1 found without, 1 with"
    assert lines[1] == "hot word Dr. Bab: 1 of 1 found without, 1 with"
    assert lines[2].startswith("error rate of the other words: 0.00% (")
    assert phrase_finder(["Berlin"])(["in", "Berlin?"]) == [("Berlin", range(1, 2))]


def test_where_all_words_are_hot_the_others_have_no_rate():
    found = score_hotwords(["a"], ["a a"], ["a"], ["a a"])
    assert (found.others_without, found.others_with) == (None, None)
    assert found.lines() == ["hot word a: 1 of 2 found without, 2 with"]


def test_scores_are_the_same_after_a_way_through_json():
    found = score_hotwords(["york", "x"], ["new york b"], ["new fork b"], ["new york york"])
    assert msgspec.json.decode(msgspec.json.encode(found), type=HotwordScores) == found
    assert found.all_phrases == ["york", "x"]


def test_phrases_are_found_where_they_overlap_and_in_characters():
    found = phrase_finder(["a b", "b c", "a b c", "d", " "])(["a", "b", "c"])
    assert found == [("a b", range(2)), ("a b c", range(3)), ("b c", range(1, 3))]
    assert phrase_finder(["京北"], list)("去京北") == [("京北", range(1, 3))]


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
