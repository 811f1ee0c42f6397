"""What hot words gain, and what they cost the other words."""

from nemo_asr.evaluation import hotword_lines


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
    assert hotword_lines(["\u4eac"], ["\u5317\u4eac"], ["\u5317"], ["\u5317\u4eac"], True)[0] == (
        "hot word \u4eac: 0 of 1 found without, 1 with"
    )


def test_a_phrase_is_found_as_a_whole_and_its_words_elsewhere_are_other_words():
    said, before, after = ["new york is new"], ["new fork is new"], ["new york is now"]
    lines = hotword_lines(["new york"], said, before, after)
    assert lines[0] == "hot word new york: 0 of 1 found without, 1 with"
    assert lines[1].startswith("error rate of the other words: 0.00% (")
    assert ", 50.00% (" in lines[1]
    assert hotword_lines(["\u5317\u4eac"], ["\u53bb\u5317\u4eac"], ["\u5317"], ["\u5317\u4eac"], True)[0].endswith(
        ": 0 of 1 found without, 1 with"
    )
