"""Twelve phrases in each of 35 languages, some with ordinals, dates, degrees: what is trained on and compared with."""

from collections import defaultdict
from pathlib import Path

import pytest

from nemo_asr.run.text.languages import LANGUAGES
from nemo_asr.text import make_parser

KINDS = {
    *("plain", "apostrophe", "quotation", "hyphen", "number", "native", "grouped", "wide", "marks", "spaces"),
    *("decimal", "percent"),
}
OF_SOME = {"ordinal", "date", "celsius", "below", "fahrenheit", "unread"}
WITHOUT_NUMBERS = {"hi", "el"}  # num2words has none of them


def read_table():
    """Labels by language; and language, kind, text, target, reference."""
    labels, rows = {}, []
    for line in Path(__file__).with_name("languages.tsv").read_text("utf-8").split("\n")[1:-1]:
        language, kind, written, *texts = line.split("\t")
        if kind == "labels":
            labels[language] = [*written]
        else:
            rows.append((language, kind, written.replace("\\t", "\t"), texts[0], texts[-1]))
    return labels, rows


LABELS, ROWS = read_table()


def test_the_table_has_twelve_kinds_of_phrases_in_at_least_thirty_languages():
    kinds = defaultdict(set)
    for language, kind, *_ in ROWS:
        kinds[language].add(kind)
    assert len(kinds) >= 30
    assert {*kinds} - WITHOUT_NUMBERS <= {*LANGUAGES}
    assert all(kinds[language] - OF_SOME == KINDS for language in kinds)


@pytest.mark.parametrize("language", LABELS)
def test_a_phrase_is_trained_and_scored_as_the_table_says(language):
    code = "none" if language in WITHOUT_NUMBERS else language
    parser = make_parser(LABELS[language], "auto", do_lowercase=None, language=code)
    phrases = [row[1:] for row in ROWS if row[0] == language]
    found = []
    for kind, written, *_ in phrases:
        target = "".join(LABELS[language][label] for label in parser.encode(written))
        found.append((kind, written, target, parser.reference(written)))
        assert "".join(LABELS[language][label] for label in parser.encode(target)) == target
    assert found == phrases
