"""Chinese numbers."""

import pytest

from nemo_asr.run.text.numbers import chinese_number, speak_chinese


@pytest.mark.parametrize(
    ("numeral", "words"),
    [
        ("0", "零"),
        ("10", "十"),
        ("12", "十二"),
        ("20", "二十"),
        ("101", "一百零一"),
        ("110", "一百一十"),
        ("1001", "一千零一"),
        ("1010", "一千零一十"),
        ("10500", "一万零五百"),
        ("100000", "十万"),
        ("1000100", "一百万零一百"),
        ("100010000", "一亿零一万"),
        ("123456789", "一亿二千三百四十五万六千七百八十九"),
        ("007", "零零七"),
    ],
)
def test_whole_numbers_are_read(numeral, words):
    assert chinese_number(numeral) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("今天3点，气温20%", "今天三点，气温百分之二十"),
        ("2024年2个人", "二零二四年两个人"),
        ("1,234.5和12个", "一千二百三十四点五和十二个"),
        ("99.9%", "百分之九十九点九"),
    ],
)
def test_years_percentages_decimals_and_pairs_are_read(text, words):
    assert speak_chinese(text, lambda _: True) == words


def test_traditional_characters_are_used_where_the_labels_have_these():
    assert speak_chinese("20000", lambda words: set(words) <= set("二萬")) == "二萬"
    assert speak_chinese("20000", lambda words: False) == "20000"
