"""Spellings of one text, in many languages: what a parser makes of them, for training and for references alike.

Each expectation says how the language writes, not what the code does; the labels are the alphabet of the language.
"""

import pickle
import time
import unicodedata

import pytest

from nemo_asr.run.text.forms import Forms, folded
from nemo_asr.run.text.parser import ENCharParser, make_parser
from nemo_lite import logging

LATIN = " abcdefghijklmnopqrstuvwxyz"
LABELS = {
    "fr": LATIN + "àâæçèéêëîïôœùûüÿ'",
    "it": LATIN + "àèéìíòóùú'",
    "ca": LATIN + "àçèéíïòóúü·'",
    "br": LATIN + "êñùü'",
    "pt": LATIN + "àáâãçéêíóôõú",
    "ro": LATIN + "âîășț",
    "vi": LATIN + "àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "de": LATIN + "äöüß",
    "pl": LATIN + "ąćęłńóśźż",
    "cs": LATIN + "áčďéěíňóřšťúůýž",
    "sv": LATIN + "åäö",
    "fi": LATIN + "åäö",
    "tr": " abcçdefgğhıijklmnoöprsştuüvyz",
    "uk": " абвгґдеєжзиіїйклмнопрстуфхцчшщьюя'",
    "ru": " абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "ar": " ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
    "fa": " آأئابتثجحخدذرزسشصضطظعغفقلمنهوپچژکگی",
    "ur": " اآبپتٹثجچحخدڈذرڑزژسشصضطظعغفقکگلمنںوہھءیےئ",
    "az": " abcçdeəfgğhxıijkqlmnoöprsştuüvyz",
    "hr": LATIN + "čćđšž",
    "af": LATIN + "êëïô'",
    "el": " αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ",
    "he": " אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "hi": " अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूृेैोौंँ़्",
    "th": " กขคฆงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหฬอฮะาำเแโใไๆั็่้๊๋์ิีึืุู",
    "ja": "あいうえおかきくけこさしすせそたちつてとなにのはまらりるれろわをんアイウカガコシタナフポマムラリルンヒョピュッー"  # noqa: E501
    "一二三四五六七八九十百千万〇零点年月日円東京駅",
    "zh": "今天气温很好有零一二三四五六七八九十百千万两点年月日约翰史密斯分之年",
    "ko": " 가각나다라마바사아자차카파하한국어이삼십오천백년월일책을읽다점영육칠팔구만",
}

PHRASES = [
    # Elision: the typographic apostrophe is the one of the labels. Compounds and lists are several words.
    ("fr", "L’homme est aujourd’hui à l'école.", "l'homme est aujourd'hui à l'école"),
    ("fr", "Lʼami, peut-être ; « Paris,Lyon » et/ou Nice…", "l'ami peut être paris lyon et ou nice"),
    ("fr", "Il dit ‘bonjour’ et ‘c’est bon’.", "il dit bonjour et c'est bon"),
    ("fr", "22 v'là", "vingt deux v'là"),
    ("fr", "1 000 euros, 12 500 habitants", "mille euros douze mille cinq cents habitants"),
    ("it", "Un po’ d’acqua, l`amico e l´amica", "un po' d'acqua l'amico e l'amica"),
    ("ca", "L’home del col·legi", "l'home del col·legi"),
    ("ca", "una coŀlecció col•lectiva", "una col·lecció col·lectiva"),
    ("br", "C’hoar ha c‘hwec’h", "c'hoar ha c'hwec'h"),
    ("pt", "Disse-me: vê-lo-ei/amanhã", "disse me vê lo ei amanhã"),
    ("ro", "Într-un an; s-a dus", "într un an s a dus"),
    ("vi", "Hà Nội–Huế, rất đẹp!", "hà nội huế rất đẹp"),
    ("de", "Straße,Haus – „gut“!", "straße haus gut"),
    ("de", "E-Mail und 1.000 Äpfel", "e mail und eintausend äpfel"),
    ("pl", "Biało-czerwony, 12 500 zł", "biało czerwony dwanaście tysięcy pięćset zł"),
    ("cs", "Praha-východ a 12 500", "praha východ a dvanáct tisíc pětset"),
    ("sv", "Svart/vit och 12 500", "svart vit och tolvtusen femhundra"),
    ("fi", "Linja-auto, 12 500", "linja auto kaksitoistatuhatta viisisataa"),
    # A suffix of a name: one word, and the labels have no apostrophe.
    ("tr", "İstanbul’da IŞIK, İzmir'de", "istanbulda ışık izmirde"),
    # The apostrophe is part of the word; three characters are in use for it.
    ("uk", "п'ять об’єктів, здоровʼя", "п'ять об'єктів здоров'я"),
    ("uk", "12 500 книг", "дванадцять тисяч п'ятсот книг"),
    ("ru", "Кто-то сказал: «да»!", "кто то сказал да"),
    ("ru", "12 500 рублей", "двенадцать тысяч пятьсот рублей"),
    # Vowel marks and tatweel are no letters of the model; the comma and the question mark are punctuation.
    ("ar", "كِتَابٌ، كتـــاب؟", "كتاب كتاب"),
    ("ar", "٢٥", "خمسة و عشرون"),
    ("fa", "کِتاب، خوب!", "کتاب خوب"),
    # Gershayim and geresh stand in acronyms and in letters of foreign sounds; the maqaf is a hyphen.
    ("he", "שָׁלוֹם, צה״ל", "שלום צהל"),
    ("he", 'בית־ספר ג׳ירפה צה"ל', "בית ספר גירפה צהל"),
    ("hi", "आप,मैं। घर", "आप मैं घर"),
    ("th", "มี ๕ คน", "มี ห้า คน"),
    # Written without spaces: punctuation leaves nothing behind.
    ("ja", "２０２４年３月、東京駅。", "二千二十四年三月東京駅"),
    ("ja", "「ｺｰﾋｰ」とｶﾞﾑ", "コーヒーとガム"),
    ("zh", "今天３点，气温好！", "今天三点气温好"),
    ("zh", "约翰·史密斯", "约翰史密斯"),
    ("ko", "한국어-책을 읽다, 1,000", "한국어 책을 읽다 천"),
    # Letters as keyboards, old fonts and PDF files write them are those of the labels.
    ("fa", "كتاب ايران کتابي", "کتاب ایران کتابی"),
    ("fa", "خانۀ ما، خانهٔ ما", "خانه ما خانه ما"),
    ("fa", "ﻛﺘﺎﺏ ﻱﮎ ﻻﻟﻪ", "کتاب یک لاله"),
    ("ar", "ﻻ شیء، ﷲ کتاب", "لا شيء الله كتاب"),
    ("ur", "كهانی میں", "کہانی میں"),
    ("he", "שׁלום ﬡבגּ", "שלום אבג"),
    ("ro", "Ştiinţă, ştiinţă, fraţi", "știință știință frați"),
    ("tr", "Ișık ve șeker", "ışık ve şeker"),
    ("az", "ǝlifba Ǝ", "əlifba ə"),
    ("th", "น\u0e4d\u0e49า น\u0e49\u0e4dา ท\u0e4dา เเม่", "น้ำ น้ำ ทำ แม่"),
    ("de", "ﬁnden, Kaﬀee, eﬃzient, ﬆark", "finden kaffee effizient stark"),
    ("de", "𝐇aus und ℋaus", "haus und haus"),
    ("af", "ŉ Boek, 'n boek", "'n boek 'n boek"),
    ("hr", "ǆep, ǈubav, Ǌega", "džep ljubav njega"),
    ("el", "Τὸ φῶς, ἡ ἀρχὴ ᾠδῆς", "τό φώς η αρχή ωδής"),
    ("zh", "二〇二四年⼀⽉", "二零二四年一月"),
]


def parser_of(language, labels=None, **settings):
    labels = list(dict.fromkeys(labels or LABELS[language]))
    code = None if language in ("br", "hi", "ur", "hr", "el", "af") else language  # their numbers are not known
    return make_parser(labels, "auto", do_lowercase=None, language=code, **settings)


def spell(parser, text):
    return "".join(parser.labels[i] for i in parser.encode(text))


@pytest.mark.parametrize(("language", "text", "words"), PHRASES)
def test_a_text_is_written_as_its_language_writes_it(language, text, words):
    parser = parser_of(language)
    assert spell(parser, text) == words
    assert parser.reference(text) == words
    assert parser.reference(unicodedata.normalize("NFD", text)) == words


@pytest.mark.parametrize("mark", ["'", "\u2019", "\u02bc"])
@pytest.mark.parametrize("own", ["'", "\u2019", "\u02bc"])
def test_an_apostrophe_takes_the_form_that_the_labels_have(mark, own):
    parser = make_parser([*" aehjlmorud", own], "base")
    assert spell(parser, f"aujourd{mark}hu l{mark}home") == f"aujourd{own}hu l{own}home"
    assert parser.reference(f"l{mark}home") == f"l{own}home"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("ﬁnd", "ﬁnd"),
        ("كکيیىهہ ", "كک يیى هہ"),
        ("şș", "şș"),
        ("〇零", "〇零"),
        ("ὸό", "ὸό"),
    ],
)
def test_letters_that_are_labels_in_both_forms_both_stay(labels, text):
    assert spell(make_parser([*labels], "base"), text) == text


@pytest.mark.parametrize(
    ("labels", "text", "written"),
    [
        (" abcdef", "½ a² ① № ª ™ ㎏ Ⅳ … d", "a d"),  # signs say more than the letters in them
        (" كتعلي", "على", "عل"),  # another word: "Ali"
        (" ابعلي", "ﺃب", "ب"),  # no letter of another form than the labels have
        (" абвсе", "cе", "е"),  # the first is Latin
    ],
)
def test_signs_and_letters_of_other_words_take_no_other_form(labels, text, written):
    assert spell(make_parser([*labels], "base"), text) == written


def test_two_apostrophes_that_are_labels_both_stay():
    parser = make_parser([*" abl'\u2019"], "base")
    assert spell(parser, "l'a l\u2019a l\u02bca") == "l'a l\u2019a l'a"


def test_an_apostrophe_that_stands_alone_is_no_word():
    parser = parser_of("fr")
    assert parser.normalize("'Bonjour,' dit-il") == "'bonjour dit il"
    assert parser.reference("a ' b '' c") == "a b c"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'Hello,' he said, 'go'", "'hello he said 'go'"),
        ("5 ' 3", "five three"),
        ("rock ' n ' roll", "rock n roll"),
        ("'tis the dogs' day, isn't it", "'tis the dogs' day isn't it"),
        ("\u2018Yes,\u2019 she said", "'yes she said"),
        ("a ''quoted'' word", "a ''quoted'' word"),
    ],
)
def test_an_english_quotation_mark_that_is_left_alone_is_no_word(text, words):
    assert ENCharParser([*LATIN, "'"]).normalize(text) == words


def test_punctuation_that_is_a_label_stays_in_its_form():
    parser = make_parser([*LATIN, *"-.,"], "base")
    assert parser.normalize("A\u2010b, c\u2011d\uff0c e\u2013f. g/h") == "a-b, c-d, e-f. g h"
    assert parser.normalize("a \u2013 b") == "a b"  # a dash, no hyphen


def test_signs_that_are_read_aloud_are_counted_and_part_words():
    parser = make_parser([*LATIN], "base")
    assert spell(parser, "a&b 5%") == "a b"
    assert parser.unknown == {"&": 1, "5": 1, "%": 1}
    assert parser.reference("a&b 5%") == "a b 5"


def test_a_letter_that_the_labels_lack_is_no_punctuation():
    parser = make_parser([*LATIN], "base")
    assert parser.normalize("hawai\u02bbi") == "hawai\u02bbi"
    assert make_parser([*LATIN, "'"], "base").normalize("Hawai\u02bbi") == "hawai'i"


@pytest.mark.parametrize("digits", ["１２", "١٢", "۱۲", "१२", "๑๒", "12"])
def test_digits_of_any_script_take_the_form_that_the_labels_have(digits):
    assert folded(digits) == "12"
    for own in ("0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "๐๑๒๓๔๕๖๗๘๙"):
        parser = make_parser([*own, " "], "auto")
        assert spell(parser, digits) == own[1] + own[2]
    both = make_parser([*"0123456789०१२३४५६७८९", " "], "auto")  # labels stay, others become ASCII
    assert spell(both, digits) == (digits if "१" in digits else "12")


@pytest.mark.parametrize(
    ("language", "text"), [("ja", "１２"), ("ar", "١٢"), ("fa", "۱۲"), ("th", "๑๒"), ("de", "１２"), ("zh", "１２")]
)
def test_digits_of_any_script_are_read_in_the_language(language, text):
    read = make_parser([*LATIN, "é"], "auto", language=language, do_lowercase=None)._unified(text)
    assert read == "12"
    parser = parser_of(language)
    assert parser.reference(text) == parser.reference("12")
    assert not any(character.isdigit() for character in parser.reference(text))


def test_full_width_and_half_width_are_one_letter_unless_both_are_labels():
    parser = make_parser([*"アガabc，"], "base")
    assert parser.normalize("ｱｶﾞＡＢ，,") == "アガab，"
    both = make_parser(["a", "ａ"], "base")
    assert both("aａ") == [0, 1]


@pytest.mark.parametrize(
    ("text", "labels", "strip_marks", "written"),
    [
        ("كِتَابٌ كتـــاب", "ar", None, "كتاب كتاب"),
        ("כָּתַב", "he", None, "כתב"),
        ("كِتَاب", "كتاب\u0650\u064e ", None, "كِتَاب"),  # the labels have marks: the model writes them
        ("كِتَـاب", "كتاب\u0650\u064e ", None, "كِتَاب"),
        ("كِتَاب", "كتاب\u0650\u064e ", True, "كتاب"),
        ("كـتاب", "كتاب\u0640 ", None, "كـتاب"),
        ("كـتاب", "كتاب\u0640 ", True, "كتاب"),
    ],
)
def test_vowel_marks_are_left_out_where_the_labels_have_none(text, labels, strip_marks, written):
    parser = parser_of("none", LABELS.get(labels, labels), strip_marks=strip_marks)
    assert spell(parser, text) == written
    assert parser.reference(text) == written
    assert not parser.unknown


def test_vowel_marks_that_are_kept_on_request_count_as_errors():
    parser = parser_of("ar", strip_marks=False)
    assert parser.reference("كِتَاب") == "كِتَاب"
    assert spell(parser, "كِتَاب") == "كتاب"
    assert parser.unknown == {"\u0650": 1, "\u064e": 1}


def test_what_a_model_wrote_is_rid_of_the_marks_that_references_are_rid_of():
    labels = "كتاب\u0650\u064e "
    assert parser_of("none", labels, strip_marks=True).hypothesis("كِتَاب") == "كتاب"
    assert parser_of("none", labels).hypothesis("كِتَاب") == "كِتَاب"
    assert parser_of("fr").hypothesis("l'été  -") == "l'été  -"  # nothing else is changed


def test_accents_of_other_scripts_are_no_vowel_marks():
    parser = make_parser(["ẹ\u0301", "k", "o\u0300"], "base")
    assert spell(parser, "Ẹ\u0301ko\u0300") == "ẹ\u0301ko\u0300"
    assert not parser.unknown


def test_labels_with_the_prolonged_sound_mark_and_in_full_width_are_japanese():
    parser = make_parser([*LABELS["ja"], "Ａ"], "auto", do_lowercase=None)
    assert "(ja)" in parser.describe()


def test_labels_that_are_taken_as_english_say_so_once_in_the_log(caplog):
    logging._once.clear()
    told = "Texts are read as English, because the letters of the labels are a to z"
    for _ in range(2):
        make_parser([*LATIN], "auto")
    assert [told in line for line in caplog.messages] == [True]
    caplog.clear()
    logging._once.clear()
    make_parser([*LATIN], "auto", language="en")
    make_parser([*LATIN], "auto", language="none")
    make_parser([*LATIN, "1"], "auto")
    make_parser([*LATIN], "en")
    assert not caplog.messages


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (" абвгд", "The labels do not tell the language of the texts, so none is taken: numbers are not read out"),
        ("今天 ", "Texts are read as zh, because of the script of the labels: numbers become words of it"),
        (" абв1", ""),
    ],
)
def test_the_log_says_which_language_the_labels_tell_and_what_becomes_of_numbers(labels, told, caplog):
    logging._once.clear()
    make_parser([*labels], "auto")
    assert [line[: len(told)] for line in caplog.messages] == [told] * bool(told)
    caplog.clear()
    make_parser([*labels], "auto", language="ru")
    assert not caplog.messages


def test_a_parser_can_be_sent_to_another_process():
    parser = parser_of("fr")
    copy = pickle.loads(pickle.dumps(parser))
    assert copy.reference("L’été, c'est １") == parser.reference("L’été, c'est １") == "l'été c'est un"


@pytest.mark.parametrize("text", ["'a " * 20_000, " ‘a’a" * 20_000, "l'" * 30_000, "1 000 " * 10_000, "१," * 30_000])
def test_a_long_text_of_marks_is_read_in_less_than_two_seconds(text):
    start = time.process_time()
    parser_of("fr").normalize(text)
    make_parser([*LATIN, "\u2019"], "base").normalize(text)
    assert time.process_time() - start < 2


def test_forms_without_a_space_in_the_labels_leave_no_gap():
    assert Forms("好天").punctuate("好，天% 好") == "好天% 好"
