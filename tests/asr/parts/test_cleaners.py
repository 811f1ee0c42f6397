"""NeMo's functions that clean texts."""

import string

from nemo_asr.parts.cleaners import (
    clean_abbreviations,
    clean_numbers,
    clean_punctuations,
    clean_text,
    warn_common_chars,
)

TABLE = str.maketrans(string.punctuation, " " * len(string.punctuation))
WORDS = {"+": "plus", "&": "and", "%": "percent"}


def test_a_text_is_cleaned_in_nemos_steps():
    assert (
        clean_text("Dr. Who  paid \u00a35 & 3% - caf\u00e9", TABLE, WORDS)
        == "doctor who paid five pounds and three percent cafe"
    )
    assert clean_text("7:05am", TABLE, WORDS, abbreviation_version="fastpitch") == "seven oh five a m"


def test_each_step_can_be_called_alone():
    assert clean_numbers("at 9:30pm") == "at nine thirty p m"
    assert clean_abbreviations("mr. smith", version="fastpitch", expanded=True) == "mister smith"
    assert clean_punctuations("a+b!", TABLE, WORDS) == "a plus b "
    assert warn_common_chars("\u00a3") is None
