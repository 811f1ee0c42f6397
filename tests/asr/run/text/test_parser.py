"""Vocabulary, parsers and the English normaliser."""

import itertools
import re
import string
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.subwords import small_subwords

from nemo_asr.run.text import english_names
from nemo_asr.run.text.english import normalize_english
from nemo_asr.run.text.parser import CharParser, ENCharParser, make_parser, vocabulary
from nemo_lite.base.errors import ConfigError, DataError, UnknownNameError, UsageError

ENGLISH = list(" abcdefghijklmnopqrstuvwxyz'")


def spell(parser, ids):
    return "".join(parser.labels[i] for i in ids)


def test_labels_keep_their_positions_as_ids():
    assert vocabulary(ENGLISH) == tuple(ENGLISH)
    assert CharParser(ENGLISH)("ba c") == [2, 1, 0, 3]


def test_all_problems_of_labels_are_reported_at_once_each_with_its_place():
    with pytest.raises(ConfigError) as error:
        vocabulary(["a", "b", "a", "", 7, "x y"], lambda i: f"m.yaml:{i + 3}:5")
    text = str(error.value)
    assert "m.yaml:5:5: label 'a' repeats the one at m.yaml:3:5" in text
    assert "m.yaml:6:5: the label is empty" in text
    assert 'm.yaml:7:5: label 7 is not text; put it in quotes: "7"' in text
    assert "m.yaml:8:5: label 'x y' has white space in it" in text
    assert len(error.value.problems) == 4


def test_no_labels_at_all_is_an_error():
    with pytest.raises(ConfigError, match="list of labels is empty"):
        vocabulary([])


def test_an_unknown_parser_name_gets_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r'parser "eng" is not known; known: auto, base, en, none \(did you mean en\?\)'
    ):
        make_parser(ENGLISH, "eng")


def test_default_labels_are_printable_ascii():
    parser = make_parser()
    assert spell(parser, parser("Ab, c!")) == "ab, c!"


def test_characters_outside_the_vocabulary_are_counted_and_shown():
    parser = make_parser(ENGLISH)
    assert spell(parser, parser("caf\u00e9 \u00e9t\u00e9 \u00df")) == "caf t"
    assert parser.unknown == {"\u00e9": 3, "\u00df": 1}
    assert parser.report() == '2 characters outside the vocabulary: "\u00e9" x3 "\u00df" x1'


def test_ascii_characters_outside_the_vocabulary_are_counted_too():
    parser = make_parser(ENGLISH)
    parser("a+b=c+")
    assert parser.report() == '2 characters outside the vocabulary: "+" x2 "=" x1'


def test_the_report_of_a_clean_corpus_is_empty():
    parser = make_parser(ENGLISH)
    parser("all good")
    assert parser.report() == ""


def test_a_long_report_shows_the_most_frequent_characters():
    parser = make_parser(["a"], do_normalize=False)
    parser("a" + "bcdefghijklmz" + "z")
    assert '"z" x2' in parser.report()
    assert parser.report().endswith("and 3 more")


def test_unknown_characters_get_the_unknown_id_when_it_differs_from_the_blank():
    parser = make_parser([*ENGLISH, "<unk>"], unk_id=28)
    assert parser("a\u00e9") == [1, 28]
    assert parser.unknown == {"\u00e9": 1}


def test_the_blank_id_is_left_out():
    parser = make_parser(["a", "_", "b"], blank_id=1)
    assert parser("a_b") == [0, 2]


@pytest.mark.parametrize(("text", "reason"), [("", "is empty"), (" \t\n", "is empty"), ("\u00df", "no character")])
def test_a_text_that_leaves_nothing_is_refused_with_the_reason(text, reason):
    parser = make_parser(ENGLISH)
    with pytest.raises(DataError, match=reason):
        parser.encode(text)
    assert parser(text) is None
    assert reason in parser.report()


def test_a_text_that_is_not_a_string_is_refused_with_its_type():
    parser = make_parser(ENGLISH)
    with pytest.raises(DataError, match="not a string: got int"):
        parser.encode(5)
    assert parser(5) is None
    assert parser.report() == "1 text refused: the text is not a string x1"


def test_labels_of_several_characters_match_whole_words_only():
    parser = make_parser([*ENGLISH, "<noise>", "th"])
    noise, th = 28, 29
    assert parser("a <noise> b") == [1, 0, noise, 0, 2]
    assert parser("<noise>") == [noise]
    assert parser("th the") == [th, 0, 20, 8, 5]
    assert parser("a<noise>") == [1, 0, 14, 15, 9, 19, 5]
    assert parser.unknown == {"<": 1, ">": 1}


def test_an_upper_case_label_of_several_characters_survives_lowering():
    parser = make_parser([*ENGLISH, "[SPN]"], "en")
    assert parser("Yes [SPN], no; [SPN]") == [25, 5, 19, 0, 28, 0, 14, 15, 0, 28]
    assert parser("[SPN]") == [28]
    assert parser.unknown == {}
    assert parser("[spn]") is None
    assert parser.unknown == {"[spn]": 1}


def test_a_label_of_several_characters_does_not_change_how_punctuation_is_read():
    plain, with_words = make_parser(ENGLISH, "en"), make_parser([*ENGLISH, "<a&b>", "<=>"], "en")
    text = "this & that - 'tis < more > than 5%"
    assert plain.normalize(text) == with_words.normalize(text) == "this and that 'tis more than five percent"


def test_composed_and_decomposed_accents_are_one_label():
    parser = make_parser(["\u00e9", "t"])
    assert parser("e\u0301t\u00e9") == [0, 1, 0]
    assert not parser.unknown


def test_without_normalizing_the_text_is_taken_as_it_is():
    parser = make_parser(["A", "a", " "], do_normalize=False)
    assert parser(" A  a") == [2, 0, 2, 2, 1]


def test_case_is_kept_when_asked():
    assert make_parser(["A", "a"], do_lowercase=False)("Aa") == [0, 1]
    assert make_parser(["A", "a", " "], "en", do_lowercase=False)("Aa, A") == [0, 1, 2, 0]


def test_a_vocabulary_without_space_shows_that_spaces_are_lost():
    parser = make_parser(["\u4f60", "\u597d"])
    assert parser("\u4f60 \u597d") == [0, 1]
    assert parser.report() == '1 character outside the vocabulary: " " x1'


def test_large_vocabularies_and_long_texts_take_the_same_road():
    labels = [chr(0x4E00 + i) for i in range(5000)] + list("ab ")
    parser = make_parser(labels)
    assert parser(f"{labels[4999]} ab{labels[0]}") == [4999, 5002, 5000, 5001, 0]


@given(st.text(alphabet=ENGLISH + list("XYZ-\u00e9"), max_size=40))
def test_the_fast_road_and_the_general_one_agree(text):
    fast, general = CharParser(ENGLISH), CharParser(ENGLISH)
    general._table = None
    assert fast(text) == general(text)
    assert fast.unknown == general.unknown
    assert fast.refused == general.refused


@settings(deadline=None)
@given(st.text(alphabet="abc 'XYZ.,&1", max_size=30))
def test_skipping_text_that_is_already_words_changes_nothing(text):
    parser = ENCharParser(ENGLISH)
    assert parser._normalize(text) == normalize_english(text)


def test_punctuation_that_is_a_label_stays():
    parser = make_parser([*ENGLISH, "-", "&"], "en")
    assert parser.normalize("A-b, c & d.") == "a-b c & d"
    assert make_parser(list(" abc"), "en").normalize("a'b") == "a b"


def test_a_full_stop_in_the_labels_does_not_hide_abbreviations():
    assert make_parser([*ENGLISH, "."], "en").normalize("dr. who.") == "doctor who."


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("It's 5 p.m.?", "It's five p.m.?"),
        ("Mr. Smith paid $5.50, didn't he?", "Mr. Smith paid five dollars and fifty cents, didn't he?"),
        ("5 men came. 6 left!", "Five men came. Six left!"),
        ("On Mon. 3 May 2024, we met.", "On Monday third May twenty twenty four, we met."),
        ("No. 5 is 25 km.", "Number five is twenty five kilometers."),
        ("At 10:30 a.m. sharp", "At ten thirty a.m. sharp"),
        ("Visit www.example.com, U.S.", "Visit www.example.com, U.S."),
        ("5 men", "five men"),  # nothing tells that this is a sentence
        ("\u201cHello,\u201d she said\u2014twice.", "Hello, she said - twice."),
    ],
)
def test_labels_with_case_and_punctuation_get_punctuated_targets(written, target):
    parser = make_parser([*string.ascii_letters, *" '.,?!-"], "auto", do_lowercase=None)
    assert parser.normalize(written) == target
    assert parser(written) is not None
    assert not parser.unknown


def test_marks_that_are_no_labels_are_left_out_beside_those_that_are():
    parser = make_parser([*string.ascii_letters, *" '?"], "auto", do_lowercase=None)
    assert parser.normalize("Mr. Smith, is it 5 p.m.?") == "mister Smith is it five p m?"


def test_accented_labels_are_not_turned_into_ascii():
    assert make_parser([*ENGLISH, "\u00e9"], "en").normalize("\u00e9t\u00e9 \u00fc") == "\u00e9t\u00e9 u"


def test_characters_that_have_no_ascii_are_counted_not_swallowed():
    parser = make_parser(ENGLISH, "en")
    assert spell(parser, parser("so \ue000")) == "so"
    assert parser.unknown == {"\ue000": 1}


@pytest.mark.slow
def test_importing_the_parsers_does_not_import_num2words():
    code = (
        "import sys; from nemo_asr.run.text import parser as t; t.make_parser(None, 'en')('no, numbers'); "
        "sys.exit('num2words' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Other languages than English

GERMAN = [*" abcdefghijklmnopqrstuvwxyzäöüß"]
RUSSIAN = [*" абвгдеёжзийклмнопрстуфхцчшщъыьэюя"]
CHINESE = [*"今天点气温很好"]
YORUBA = [*" abdefghijklmnoprstuwyàáèéẹìíòóọṣùú", "ẹ\u0301", "ọ\u0300"]


def by_labels(labels, name="auto"):
    return make_parser(labels, name, do_lowercase=None)


def test_chinese_labels_keep_chinese_text_and_nothing_is_written_in_english():
    parser = by_labels(CHINESE)
    assert parser.normalize("今天3点，气温20%") == "今天3点气温20%"
    assert spell(parser, parser("今天3点，气温20%")) == "今天点气温"
    assert parser.unknown == {"3": 1, "2": 1, "0": 1, "%": 1}


@pytest.mark.parametrize(
    ("labels", "text", "read"),
    [
        (GERMAN, "Straße, Äpfel & 20 Dr. Öl", "straße äpfel dr öl"),
        (GERMAN, "A\u0308pfel", "äpfel"),
        ([c.upper() for c in GERMAN if c != "ß"], "Straße über", "STRASSE ÜBER"),
        ([*(c.upper() for c in GERMAN if c != "ß"), "ẞ"], "Straße", "STRAẞE"),
        (RUSSIAN, "Ёлка и Йод", "ёлка и йод"),
        (RUSSIAN, "И\u0306од", "йод"),
        (RUSSIAN, "Cyrillic: С -", "с"),  # the first C is Latin
        ([*"Aab "], "Aa B", "Aa"),
        ([*" abcçdefgğhıijklmnoöprsştuüvyz"], "IĞDIR İzmir", "ığdır izmir"),
        ([*" ABCÇDEFGĞHIİJKLMNOÖPRSŞTUÜVYZ"], "ığdır izmir", "IĞDIR İZMİR"),
        ([*"กาน้ำ"], "กาน้ำ", "กาน้ำ"),
    ],
)
def test_text_keeps_its_letters_and_takes_the_case_of_the_labels(labels, text, read):
    parser = by_labels(labels)
    assert spell(parser, parser(text)) == read


def test_a_letter_that_unicode_cannot_compose_with_its_accent_is_one_label():
    parser = by_labels(YORUBA)
    assert parser("Ẹ\u0301kọ\u0300") == [YORUBA.index("ẹ\u0301"), YORUBA.index("k"), YORUBA.index("ọ\u0300")]
    assert parser("e\u0323\u0301ẹ") == [YORUBA.index("ẹ\u0301"), YORUBA.index("ẹ")]  # marks in another order
    assert not parser.unknown


@pytest.mark.parametrize("label", ["e\u0301", "\u0958", "\uf900"])
def test_a_label_matches_its_letter_in_any_unicode_form(label):
    parser = by_labels(["x", label])
    for form in ("NFC", "NFD"):
        assert parser(unicodedata.normalize(form, label) + "x") == [1, 0]
    assert not parser.unknown


def test_of_two_forms_of_one_letter_in_the_labels_the_composed_one_is_used():
    assert by_labels(["e\u0301", "\u00e9"])("e\u0301\u00e9") == [1, 1]


@pytest.mark.parametrize("name", ["base", "none"])
def test_english_labels_are_not_rewritten_when_the_parser_is_named(name):
    assert by_labels(ENGLISH, name).normalize("20 %") == "20 %"


def test_the_parser_named_none_takes_texts_as_they_are():
    parser = by_labels(["A", "a", " ", "e\u0301"], "none")
    assert parser(" A  a") == [2, 0, 2, 2, 1]
    assert parser.normalize("\u00e9") == "\u00e9"
    assert parser("e\u0301") == [3]


def test_english_capitals_get_english_rewriting_in_capitals():
    parser = by_labels([c.upper() for c in ENGLISH])
    assert parser.normalize("Dr. Smith paid $2") == "DOCTOR SMITH PAID TWO DOLLARS"
    assert parser.normalize("IT'S FINE") == "IT'S FINE"


def test_characters_that_cannot_be_seen_are_reported_by_their_code_point():
    parser = by_labels(RUSSIAN)
    parser("да\u200dнет\u0301")
    assert parser.report() == "2 characters outside the vocabulary: U+200D x1 U+0301 x1"


@pytest.mark.parametrize(
    ("labels", "name", "about"),
    [
        (GERMAN, "auto", "Unicode NFC, lower case"),
        (CHINESE, "auto", "Unicode NFC, numbers in words (zh), case as written"),
        (ENGLISH, "auto", "English: numbers, abbreviations and symbols as words, lower case"),
        (ENGLISH, "none", "as written"),
    ],
)
def test_a_parser_says_how_it_reads(labels, name, about):
    assert by_labels(labels, name).describe() == about


LANGUAGES = {
    "german": GERMAN,
    "german capitals": [c.upper() for c in GERMAN if c != "ß"],
    "russian": RUSSIAN,
    "chinese": CHINESE,
    "yoruba": YORUBA,
    "turkish": [*" abcçdefgğhıijklmnoöprsştuüvyz"],
    "english": ENGLISH,
    "mixed": [*"aAbBäÄ今"],
}


def texts_of(labels):
    """Texts of the labels' letters in both cases and forms, with signs and letters of anywhere between them."""
    own = st.sampled_from(labels).flatmap(
        lambda label: st.sampled_from([label, label.upper(), unicodedata.normalize("NFD", label)])
    )
    return st.lists(own | st.characters(exclude_categories=["Cs"]), max_size=20).map("".join)


@pytest.mark.parametrize("language", LANGUAGES)
def test_any_text_is_normalised_once_and_for_all_and_written_in_labels_only(language):
    labels = LANGUAGES[language]

    @settings(deadline=None, max_examples=60)
    @given(texts_of(labels))
    def holds(text):
        parser = by_labels(labels)
        normal = parser.normalize(text)
        assert parser.normalize(normal) == normal
        assert unicodedata.is_normalized("NFC", normal)
        ids = parser(text)
        if ids is None:
            assert parser.refused
            return
        # What the labels write, and what was counted as lost, are together the text: nothing appears or vanishes.
        written = Counter(unicodedata.normalize("NFC", spell(parser, ids)))
        assert {**(written + parser.unknown), " ": 0} == {**Counter(normal), " ": 0}
        assert not set(parser.unknown) & set(labels)

    holds()


@pytest.mark.parametrize("language", ["german", "russian", "chinese", "yoruba", "turkish"])
def test_what_the_labels_can_write_comes_back_as_it_was(language):
    labels = LANGUAGES[language]

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.sampled_from([label for label in labels if label != " "]), min_size=1, max_size=20))
    def holds(written):
        parser = by_labels(labels)
        text = unicodedata.normalize("NFC", "".join(written))
        assert spell(parser, parser(unicodedata.normalize("NFD", text))) == text
        assert not parser.unknown

    holds()


def test_subwords_cut_the_normalised_text_and_count_what_they_cannot_write():
    subwords = small_subwords()
    parser = make_parser(subwords, "auto", do_lowercase=None)
    assert type(parser) is ENCharParser
    for text, pieces in [("The CAT,  sat", "the cat sat"), ("43", "fort three"), ("the <noise> on", "the <noise> on")]:
        written = "".join(subwords[i] for i in parser.encode(text)).replace("\u2581", " ")
        assert " ".join(written.split()) == pieces
    assert "y" in parser.unknown  # of forty
    base = make_parser(subwords, "base", do_lowercase=None)
    assert base.encode("the \u20ac cat \u2013 on") == base.encode("the cat on")
    assert base.unknown == {"\u20ac": 1}
    with pytest.raises(DataError, match="no character of the text is in the vocabulary"):
        base.encode("\u20ac")
    assert base("\u20ac") is None


def test_labels_that_are_pieces_without_their_model_are_refused_with_the_remedy():
    with pytest.raises(UsageError, match=r"texts cannot be cut into pieces here: .*\(tokenizer: FILE in the config"):
        make_parser(list(small_subwords()))


@pytest.mark.parametrize(
    ("labels", "text", "reference"),
    [
        ("abc ", " A, b  c! ", "a b c"),
        ("abc ", "привет a", "привет a"),
        ("abc ", "b25-c", "b25 c"),
        ("abc' ", "a'b \u2026 \u00e4", "a'b \u00e4"),
        ("\u4eca\u5929", "\u4eca \u5929\u6674\uff0c3", "\u4eca\u5929\u66743"),
        ("abc ", "", ""),
    ],
)
def test_a_reference_keeps_letters_and_digits_that_the_labels_lack(labels, text, reference):
    assert CharParser(list(labels)).reference(text) == reference


def test_a_reference_that_the_labels_can_write_is_what_its_ids_say():
    labels = ["<noise>", *"ab ", "\u00e4"]
    parser = CharParser(labels, do_lowercase=None)
    text = "ab  <noise> a\u0308b."
    assert parser.reference(text) == "".join(labels[i] for i in parser.encode(text)) == "ab <noise> \u00e4b"


# Languages


@pytest.mark.parametrize(
    "text",
    [
        "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
        "\u4eca\u5929 \u5929\u6c14",
        "\u03b1\u03b2\u03b3 \u03b4",
        "\u0645\u0631\u062d\u0628\u0627",
    ],
)
def test_a_text_of_another_script_is_refused_with_its_letters_counted_and_never_written_in_latin(text):
    parser = by_labels(ENGLISH)
    with pytest.raises(DataError, match="no character of the text is in the vocabulary"):
        parser.encode(text)
    assert sum(parser.unknown.values()) == len(text.replace(" ", ""))
    assert parser.normalize(text) == text


def test_words_of_another_script_leave_single_spaces():
    parser = by_labels(ENGLISH)
    assert spell(parser, parser("hello \u043c\u0438\u0440 world \u4eca")) == "hello world"
    assert spell(by_labels(GERMAN), by_labels(GERMAN)("eins \u043c\u0438\u0440 zwei")) == "eins zwei"


def test_letters_that_the_labels_lack_are_an_error_where_asked_and_signs_are_not():
    parser = by_labels(GERMAN)
    parser.check_letters("Stra\u00dfe, f\u00fcnf % & so", "a.json:3")
    with pytest.raises(
        DataError, match=r'a\.json:3: letters that the labels lack: got "\u043c" x2 "\u00e9" x1; add them'
    ):
        parser.check_letters("\u043c\u043c caf\u00e9", "a.json:3")


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("в 2024 г.", '"2024" x1'),
        ("5-летний и 5-летний", '"5" x2'),
        ("пол-литра и ½", '"½" x1'),
        ("глава ⅳ", '"ⅳ" x1'),
        ("да <unk> нет", '"<unk>" x1'),
    ],
)
def test_numbers_and_marks_that_are_not_read_are_an_error_where_asked(text, lost):
    parser = make_parser(RUSSIAN, "auto", do_lowercase=None, language="ru")
    problem = f"a.json:3: letters, numbers or marks that the labels lack: got {lost}; add them to the labels, change"
    with pytest.raises(DataError, match=re.escape(problem)):
        parser.check_letters(text, "a.json:3")
    parser.check_letters("в две тысячи, двадцать четвёртом; 3 мая", "a.json:3")


@pytest.mark.parametrize("name", ["en", "base"])
def test_marks_that_are_no_words_are_left_out_and_counted(name):
    parser = make_parser(ENGLISH, name)
    text = "<unk> five {NOISE}, [laughter]. [door slams] two (zero) <unk>"
    assert spell(parser, parser(text)) == "five two zero" == parser.reference(text)
    assert parser.unknown == {"<unk>": 2, "{NOISE}": 1, "[laughter]": 1, "[door slams]": 1}
    assert parser("[laughter]") is None
    assert parser.refused == {"no character of the text is in the vocabulary": 1}


def test_brackets_that_are_labels_or_part_of_words_are_no_marks():
    assert make_parser().unknown == {}
    printable = make_parser(do_lowercase=False)
    assert spell(printable, printable("a [b] <c> {d}")) == "a [b] <c> {d}"
    parser = make_parser(ENGLISH)
    assert spell(parser, parser("a <b and c> d, e[f] g < h")) == "a b and c d e f g h"


def test_a_zero_width_space_parts_two_words():
    for name, labels in (("en", ENGLISH), ("base", ENGLISH), ("base", GERMAN)):
        parser = make_parser(labels, name)
        assert spell(parser, parser("one\u200btwo")) == "one two" == parser.reference("one\u200btwo")
        assert parser.report() == ""
    assert by_labels(CHINESE).reference("今天\u200b天气") == "今天天气"


def test_english_letters_lose_accents_and_that_is_told():
    parser = by_labels(ENGLISH)
    assert spell(parser, parser("Caf\u00e9 \u00fcber caf\u00e9")) == "cafe uber cafe"
    assert parser.report() == 'letters written without their accents: "\u00e9" x2 "\u00fc" x1'


@pytest.mark.parametrize(
    ("labels", "language", "text", "read"),
    [
        (GERMAN, "de", "25 \u00c4pfel f\u00fcr 3,5", "f\u00fcnfundzwanzig \u00e4pfel f\u00fcr drei komma f\u00fcnf"),
        (GERMAN, "de-AT", "21", "einundzwanzig"),
        (GERMAN, None, "25 \u00c4pfel", "25 \u00e4pfel"),
        (GERMAN, "none", "25 \u00c4pfel", "25 \u00e4pfel"),
        (GERMAN, "en", "25 \u00c4pfel", "twenty five \u00e4pfel"),
        (ENGLISH, "de", "25", "25"),  # the labels have no u with dots
        (ENGLISH, "de", "21", "einundzwanzig"),
        (ENGLISH, "none", "25 %", "25 %"),
        ([*ENGLISH, "1"], "en", "25", "25"),  # a digit is a label
        (RUSSIAN, "ru", "25", "\u0434\u0432\u0430\u0434\u0446\u0430\u0442\u044c \u043f\u044f\u0442\u044c"),
        ([c.upper() for c in GERMAN if c != "\u00df"], "de", "25", "F\u00dcNFUNDZWANZIG"),
        ([*"\u4e8c\u5341\u4e94\u5929"], None, "25\u5929", "\u4e8c\u5341\u4e94\u5929"),
    ],
)
def test_the_language_says_how_numbers_are_read(labels, language, text, read):
    assert make_parser(labels, "auto", do_lowercase=None, language=language).normalize(text) == read


@pytest.mark.parametrize(("name", "wanted"), [("en", "en"), ("base", "none"), ("none", "none")])
def test_a_language_that_the_named_parser_does_not_read_is_an_error(name, wanted):
    with pytest.raises(
        UsageError, match=rf"language: parser {name} does not read .*: got de, wanted {wanted}; leave out"
    ):
        make_parser(ENGLISH, name, language="de")
    assert make_parser(ENGLISH, name, language=wanted)


def test_an_unknown_language_gets_the_known_ones():
    with pytest.raises(UnknownNameError, match=r'language "eng" is not known; known: am, .*, zh \(did you mean'):
        make_parser(ENGLISH, "auto", language="eng")


# How many ids a text gives at most, without finding them.

GERMAN, TURKISH, CATALAN = (list(f" -'abcdefghijklmnopqrstuvwxyz{more}") for more in ("äöüß", "çğıöşü", "·àçèéíòóúü"))
PARSERS = {
    "english": make_parser(ENGLISH, "en", do_lowercase=None),
    "english capitals": make_parser([label.upper() for label in ENGLISH], "en", do_lowercase=None),
    "english as written": make_parser([*ENGLISH, *string.ascii_uppercase, ","], "en", do_lowercase=None),
    "english with points": make_parser([*ENGLISH, *string.ascii_uppercase, ".", ","], "en", do_lowercase=None),
    "german": make_parser(GERMAN, "auto", language="de", do_lowercase=None),
    "german capitals": make_parser([label.upper() for label in GERMAN if label != "ß"], "base", do_lowercase=None),
    "turkish": make_parser([*TURKISH, "i\u0307"], "base", do_lowercase=None),
    "turkish capitals": make_parser([*"ABCDEFGHI\u0130JKL "], "base", do_lowercase=None),
    "catalan": make_parser(CATALAN, "auto", language="ca", do_lowercase=None),
    "arabic": make_parser([" ", *"ابتثجحخد"], "auto", language="ar", do_lowercase=None),
    "as they are": make_parser(ENGLISH, "none"),
    "with words": make_parser([*ENGLISH, "<noise>"], "base"),
    "unknown counts": make_parser(ENGLISH, "base", unk_id=3, blank_id=40),
    "pieces": make_parser(small_subwords(), "auto", language="en", do_lowercase=None),
    "pieces as written": make_parser(small_subwords(), "none"),
}
ABBREVIATED = [
    *english_names._ABBREVIATIONS,
    *english_names._TITLES,
    *english_names._DEGREES,
    "www",
    "oct",
    "sept",
    "ft",
    "w/o",
    "v",
]
WORDS = [
    *("the", "cat", "Sat", "MAT", "it's", "naïve", "straße", "ŀ", "ﬁ", "İ", "ǰ", "q̇", "a m", "John", "Henry", "VIII"),
    *("XXXVIII", "7", "½", "३", "٣", "%", "$", "€5", "&", "'quoted'", "<noise>", "col·legi", "क़ि", "ｶﾞ", "№", "…", "—"),
    *("one, two; three!", '"so"', "(or)", "well-known", "e.g.", "example.com", "U.S.A.", "\t", "...", "مَرْحَبًا", "שׁ"),
    *(f"{word}." for word in ABBREVIATED),
    *(f"{word.title()}. Smith" for word in ABBREVIATED),
    *(f"{word.upper()}." for word in ABBREVIATED),
]


def check_most_ids(parser, text):
    most = parser.most_ids(text)
    assert most is None or len(parser(text) or ()) <= most, text
    return most is not None


@given(
    st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=8).map(" ".join), st.sampled_from(sorted(PARSERS))
)
def test_no_text_has_more_ids_than_it_is_said_to_have_at_most(text, name):
    check_most_ids(PARSERS[name], text)
    check_most_ids(PARSERS[name], text.replace(" ", ""))


@pytest.mark.parametrize("name", PARSERS)
def test_of_each_character_of_unicode_too_few_ids_are_never_said(name):
    parser = PARSERS[name]
    # What is normal at once is looked at here, other characters where they stand alone.
    codes = itertools.chain(range(0x3100), range(0xA640, 0xA800), range(0xF900, 0xFB50), range(0xFE00, 0x10000))
    for code in codes:
        character = chr(code)
        if not 0xD800 <= code < 0xE000 and parser.most_ids(f"a{character}a") is not None:
            assert len(parser(f"a{character}a") or ()) <= parser.most_ids(f"a{character}a"), hex(code)


def test_usual_texts_need_not_be_read_to_know_how_many_ids_they_have_at_most():
    for name, text in {
        "english": "It was cold, wasn't it, Mr. Smith?",
        "english capitals": "it was cold",
        "german": "Das weiß ich nicht: wirklich?",
        "arabic": "مرحبا بك",
        "pieces": "The cat sat.",
        "as they are": "7 % of €5",
    }.items():
        assert check_most_ids(PARSERS[name], text), text
    for name, text in {"english": "7 of Henry VIII", "german": "7 Tage", "with words": "<noise>"}.items():
        assert PARSERS[name].most_ids(text) is None

    class Doubling(CharParser):
        def normalize(self, text):
            return text * 2

    assert Doubling(ENGLISH).most_ids("a") is None, "what a parser of one's own does is not known"
