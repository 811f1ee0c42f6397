"""Codes of languages, and which one labels tell."""

import num2words
import pytest

from nemo_asr.run.text.languages import LANGUAGES, language_code, language_of
from nemo_lite.base.errors import UnknownNameError, UsageError

ENGLISH = [*" abcdefghijklmnopqrstuvwxyz'"]
RUSSIAN = [*" абвгдеёжзийклмнопрстуфхцчшщъыьэюя"]
CHINESE = [*"今天点气温很好"]


@pytest.mark.parametrize(
    ("labels", "language"),
    [
        (ENGLISH, "en"),
        ([c.upper() for c in ENGLISH], "en"),
        ([*ENGLISH, "<noise>", "[SPN]", "."], "en"),
        (["\u2581a", "b", "\u2581"], "en"),
        ([*ENGLISH, *"0123456789"], "en"),
        ([*ENGLISH, "é"], "none"),
        ([*ENGLISH, "a\u0328"], "none"),
        (["\u2581a", "\u2581ét"], "none"),
        (RUSSIAN, "none"),
        ([*"ابت "], "none"),
        (CHINESE, "zh"),
        ([*CHINESE, *ENGLISH], "zh"),
        ([*"日本かな"], "ja"),
        ([*"カナ"], "ja"),
        ([*"가나다 "], "ko"),
        ([*"กาน้ำ"], "th"),
        ([*CHINESE, *"가"], "none"),
        ([*" 0123456789"], "none"),
        (["<a>", "<b>"], "none"),
    ],
)
def test_the_script_of_the_labels_tells_the_language_where_it_is_that_of_one(labels, language):
    assert language_of(labels) == language


def test_the_languages_are_those_of_num2words_and_chinese():
    assert {*LANGUAGES} == {code.split("_")[0] for code in num2words.CONVERTER_CLASSES} | {"zh"}


@pytest.mark.parametrize(
    ("written", "code"), [("DE", "de"), ("de_AT", "de"), ("zh-CN", "zh"), ("nb", "no"), ("kk", "kz"), ("none", "none")]
)
def test_a_code_may_have_a_region_and_capitals(written, code):
    assert language_code(written) == code


def test_what_is_no_language_is_refused():
    with pytest.raises(UnknownNameError, match='language "xx" is not known; known: am, ar'):
        language_code("xx")
    with pytest.raises(UsageError, match='language: the language is not text: got False, wanted a code such as "de"'):
        language_code(False)
