"""WordPiece vocabularies and tokenizers of several languages: subwords of other kinds of files."""

from __future__ import annotations

import copy
import json
import pickle
import unicodedata
from pathlib import Path

import pytest
from toys.subwords import TEXTS, small_subwords

from nemo_asr.run.text.parser import make_parser
from nemo_asr.run.text.subwords import Subwords, SubwordsByLanguage, load_subwords
from nemo_lite.base.errors import DataError, UsageError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    "the",
    "cat",
    "c",
    "##a",
    "##at",
    "##t",
    "mat",
    "##s",
    "don",
    "'",
    "-",
    "\u00fc",
    "##ber",
    "\u732b",
    "un",
]
SENTENCES = [
    "the cat",
    "cats  cat\tmats",
    "don't the-cat",
    "caat unbelievable the",
    "\u00fcber u\u0308ber \u732b\u732b the\u732bcat",
    "the\u200b cat\ufffd",
    "c" * 101,
    "",
]


def word_pieces() -> Subwords:
    return Subwords("".join(f"{piece}\n" for piece in PIECES).encode())


def by_language() -> SubwordsByLanguage:
    return SubwordsByLanguage.joined({"en": small_subwords("bpe"), "xx": small_subwords(), "de": word_pieces()})


def test_words_are_cut_into_the_longest_pieces_from_the_left() -> None:
    subwords = word_pieces()
    ids, lost = subwords.ids_of("the cats don't")
    assert [PIECES[i] for i in ids] == ["the", "cat", "##s", "don", "'"]
    assert lost == ["t"]  # no word begins with it
    assert [subwords[i] for i in ids] == ["\u2581the", "\u2581cat", "s", "\u2581don", "\u2581'"]


def test_a_word_that_cannot_be_cut_to_its_end_is_left_out_whole() -> None:
    assert word_pieces().ids_of("caax the") == ([PIECES.index("the")], ["c", "a", "a", "x"])


@pytest.mark.parametrize("text", SENTENCES)
def test_texts_are_cut_as_bert_cuts_them(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    bert = tokenizers.BertWordPieceTokenizer(
        {piece: i for i, piece in enumerate(PIECES)}, lowercase=False, strip_accents=False
    )
    composed = unicodedata.normalize("NFC", text)  # as BERT's slow tokenizer does, which NeMo asks for
    ids = bert.encode(composed, add_special_tokens=False).ids
    assert word_pieces().ids_of(text)[0] == [i for i in ids if i != PIECES.index("[UNK]")]


def test_texts_may_hold_the_characters_of_the_pieces() -> None:
    subwords = word_pieces()
    assert subwords.written == tuple(sorted({" ", *"thecatmsdonberu'-\u00fc\u732b"}))
    parser = make_parser(subwords, "base", do_lowercase=None)
    assert parser.encode("the cat") == [PIECES.index("the"), PIECES.index("cat")]


def test_several_languages_are_one_after_another_and_texts_are_cut_by_their_own() -> None:
    joined = by_language()
    english, other = small_subwords("bpe"), small_subwords()
    assert list(joined) == [*english, *other, *word_pieces()]
    assert joined.for_language("en").ids_of(TEXTS[0]) == english.ids_of(TEXTS[0])
    shifted = [len(english) + i for i in other.ids_of(TEXTS[0])[0]]
    assert joined.for_language("xx").ids_of(TEXTS[0]) == (shifted, [])
    first = len(english) + len(other)
    assert joined.for_language("de").ids_of("the cat")[0] == [first + PIECES.index("the"), first + PIECES.index("cat")]
    assert joined.for_language("de").written == word_pieces().written


def test_the_language_of_the_texts_has_to_be_said() -> None:
    message = r"tokenizer: the pieces are of several languages: got no language, wanted en or xx or de; say which"
    with pytest.raises(UsageError, match=message):
        by_language().ids_of("the")
    with pytest.raises(UsageError, match="got no language"):
        make_parser(by_language(), "auto", do_lowercase=None)
    with pytest.raises(UsageError, match="got fr, wanted en or xx or de"):
        make_parser(by_language(), "auto", do_lowercase=None, language="fr")
    assert make_parser(by_language(), "auto", do_lowercase=None, language="de-AT").encode("the")


@pytest.mark.parametrize("subwords", [word_pieces(), by_language(), by_language().for_language("xx")])
def test_copies_and_files_cut_alike(tmp_path: Path, subwords: Subwords) -> None:
    path = tmp_path / f"tokenizer{subwords.suffix}"
    path.write_bytes(subwords.model)
    for other in (pickle.loads(pickle.dumps(subwords)), copy.deepcopy(subwords)):
        assert (type(other), other, other.sha256) == (type(subwords), subwords, subwords.sha256)
        assert other.for_language("xx").ids_of("the cat") == subwords.for_language("xx").ids_of("the cat")
    assert load_subwords(path) == subwords
    assert load_subwords(path).sha256 == subwords.sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the\n[UNK]\nthe\n", "piece 0 repeats another one: got 'the'"),
        (b"the\n\n[UNK]\n", "piece 1 is empty, too long, or has white space in it: got ''"),
        (b"th e\n[UNK]\n", "piece 0 is empty, too long, or has white space in it: got 'th e'"),
        (b"[UNK]\n\xff\n", "the list of pieces is no text"),
        (b"{}", "the file holds no tokenizers by language: wanted languages"),
        (b'{"languages": []}', "the file holds no tokenizers by language"),
        (b'{"languages": {"en": "?"}}', "a.json, en: a tokenizer in it is damaged"),
        (b'{"languages": {"en": "e30="}}', "a.json, en: a tokenizer in it is of several languages"),
        (b"{", "a.json: the tokenizer cannot be read: "),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_subwords(tmp_path / "a.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_pieces_than_a_decoder_may_have_are_refused() -> None:
    content = "[UNK]\n" + "".join(f"w{i}\n" for i in range(70_000))
    with pytest.raises(DataError, match="the number of pieces: got 70001, wanted 2 to 65536"):
        Subwords(content.encode())


def test_the_file_by_language_is_json() -> None:
    assert list(json.loads(by_language().model)["languages"]) == ["en", "xx", "de"]
