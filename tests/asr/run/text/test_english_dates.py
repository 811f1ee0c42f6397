"""Dates and times that are none stay numbers."""

import pytest

from nemo_asr.run.text.english_dates import DATES
from nemo_asr.run.text.english_numbers import apply


@pytest.mark.parametrize(
    "text", ["13/14/2020", "2020-13-01", "25:99", "May 55", "45 May", "30pm", "1/2", "3:1", "1.2.3"]
)
def test_what_cannot_be_a_date_or_time_stays(text):
    assert apply(DATES, text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1/5/2020 and 15/5/2020", "January fifth twenty twenty and fifteenth of May twenty twenty"),
        ("1.5.2020", "first of May twenty twenty"),
        ("March 3:30", "March three thirty"),
    ],
)
def test_the_order_of_day_and_month_follows_from_numbers_and_marks(text, words):
    assert apply(DATES, text) == words
