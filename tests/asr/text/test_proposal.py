"""Labels proposed of texts: the letters of any language, its numbers, its marks, and what is too rare."""

import string

import pytest

from nemo_asr.run.text.parser import make_parser
from nemo_asr.text.proposal import propose_labels
from nemo_lite.base.errors import DataError, UnknownNameError

ENGLISH = " " + string.ascii_lowercase + "'"


@pytest.mark.parametrize(
    ("text", "language", "labels"),
    [
        ("Hello, World!", None, ENGLISH),
        ("Dünya’nın ILIK suyu: İzmir", None, " adiklmnrsuyzüı'"),
        ("Straße", None, " aerstß"),
        ("Straße um 5", "de-AT", " aefmnrstuüß"),
        ("Größe 5", None, " egröß0123456789"),
        ("ΣΟΦΌΣ λόγος", None, " γλοςσφό"),
        ("你好,２世界", None, "世二你好界"),
        ("สวัสดี ครับ", None, "คดบรวสัี"),
        ("नमस्ते दुनिया", None, " तदनमयसािुे्"),
        ("안녕 세계", None, " 계녕세안"),
        ("сім’я", "uk", " імся'"),
        ("col·legi", "ca", " cegilo·"),
        ("e\u0301te\u0301 \u201cvu\u2019 \u2019", "fr", " tuvé"),
    ],
)
def test_the_letters_of_a_language_are_the_labels(text, language, labels):
    proposed = propose_labels([text], language).labels
    assert sorted(proposed) == sorted(labels)
    assert (" " in proposed) == proposed[0].isspace(), "the space is the first"


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["Ich hätte gern 3 Brötchen.", "Übermorgen um 17 Uhr"], "de"),
        (["İstanbul'a IŞIK hızıyla", "3 ılık çay"], "tr"),
        (["Їжак з’їв 5 яблук"], "uk"),
        (["今年是2024年", "你好"], None),
        (["Πόσο κάνουν 5 ΚΑΦΈΔΕΣ;"], None),
        (["هذا كتابٌ ٣"], "ar"),
        (["Anh ấy có 2 quyển sách"], "vi"),
    ],
)
def test_a_parser_with_these_labels_loses_nothing_of_the_texts(texts, language):
    parser = make_parser(propose_labels(texts, language).labels, "auto", do_lowercase=None, language=language)
    for text in texts:
        parser.encode(text)
    assert parser.report() == ""


def test_letters_of_foreign_names_are_no_labels_where_they_are_rare():
    texts = ["der Hund läuft schön über die Straße"] * 2000 + ["Gdańsk"]
    proposal = propose_labels(texts, "de")
    assert dict(proposal.rare) == {"ń": 1, "k": 1, "g": 1}
    assert not {"ń", "k", "g"} & {*proposal.labels}
    assert str(proposal).startswith("19 labels of 2001 texts: abcdefhilnorstuvxyzäöüß"[:24])
    assert "; too rare to be labels: " in str(proposal)


def test_rare_characters_of_han_are_labels():
    common = "".join(chr(0x4E00 + number) for number in range(400))
    proposal = propose_labels([common] * 100 + ["龘"])
    assert "龘" in proposal.labels
    assert proposal.rare == {}


def test_labels_are_letters_in_their_usual_forms_and_none_of_marks():
    assert propose_labels(["да <unk> нет", "[laughter] ﬁn"]).labels == [" ", *sorted("данетfin")]
    assert propose_labels(["ﻻ ﻛﺘﺎب"]).labels == [" ", *sorted("لاكتب")]


def test_digits_are_labels_where_no_language_reads_them_out_and_that_is_told():
    proposal = propose_labels(["Größe 42"])
    assert [*"0123456789"] == [label for label in proposal.labels if label.isdigit()]
    assert "digits are labels, because the letters tell no language that reads them out (--language CODE)" in str(
        proposal
    )


def test_texts_without_letters_and_unknown_languages_are_refused():
    with pytest.raises(DataError, match="the texts have no letters: got 2 texts"):
        propose_labels(["123", "..."])
    with pytest.raises(UnknownNameError, match='language "klingon" is not known'):
        propose_labels(["a"], "klingon")


@pytest.mark.parametrize(
    ("texts", "language", "labels"),
    [
        (["Is it 5?", "Yes, it's."], None, " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz',.?"),
        (["Äh, ß."], "de", " HÄhßä,."),
        (["İı, i."], "tr", " IiİI\u0131,."),
        (["\u4f60\u597d\uff1f"] * 9 + ["\u4f60?"], None, "\u4f60\u597d\uff1f"),  # the usual width of a mark
        (["¿a? ¡a!"], "es", " Aa!?¡¿"),
    ],
)
def test_punctuated_labels_have_both_cases_and_the_marks_of_the_texts(texts, language, labels):
    assert sorted(propose_labels(texts, language, punctuated=True).labels) == sorted({*labels})


def test_marks_that_are_rare_are_no_labels_and_texts_that_lose_all_say_how_to_keep_them():
    texts = ["Is it, Ann?"] * 4000 + ["No;"]
    assert [mark for mark in propose_labels(texts, punctuated=True).labels if mark in ",;?"] == [",", "?"]
    hint = "; case and punctuation are left out (labels: auto_punctuated keeps them)"
    assert hint in str(propose_labels(texts))
    assert hint not in str(propose_labels(texts, punctuated=True)) + str(propose_labels(["is it ann"]))
