"""NeMo's parsers: ids or None, and which names there are."""

import pytest

from nemo_asr.parts.parsers import NAME_TO_PARSER, CharParser, ENCharParser, make_parser

LABELS = [" ", "a", "b", "c"]


@pytest.mark.parametrize(("text", "ids"), [("ab", [1, 2]), (" A b ", [1, 0, 2]), ("", []), ("todo", []), (3, None)])
def test_a_text_becomes_ids_perhaps_none_and_what_is_no_text_becomes_none(text, ids):
    assert CharParser(LABELS)(text) == ids


def test_settings_are_those_of_nemo():
    assert CharParser(LABELS, unk_id=9, do_normalize=False, do_lowercase=False)("axB") == [1, 9, 9]
    english = ENCharParser(list(" abcdefghijklmnopqrstuvwxyz"), abbreviation_version="fastpitch")
    assert english("3") == english("three")


def test_parsers_have_names():
    assert {"base": CharParser, "en": ENCharParser} == NAME_TO_PARSER
    assert type(make_parser(LABELS, name="en", unk_id=-1)) is ENCharParser
    assert make_parser()("az") == [10, 35]
    with pytest.raises(ValueError, match='parser "fr" is not known'):
        make_parser(LABELS, name="fr")
