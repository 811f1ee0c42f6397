"""Byte-level BPE: ids and texts are those of transformers, also of bytes that are no letters; bad files are refused."""

from __future__ import annotations

import json
import pickle

import pytest
from toys.byte_pairs import TEXTS, pieces_and_merges, small_byte_pairs, some_ids, stored_case, transformers_case

from nemo_asr.run.search.search import TimedLabels
from nemo_asr.run.text.byte_pairs import ALPHABET, words_of
from nemo_asr.run.text.labels import in_letters, label_of_bytes, spelled, text_of
from nemo_asr.run.text.parser import make_parser
from nemo_asr.run.text.subwords import BytePairs, Subwords
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import transcript_of
from nemo_lite.base.errors import DataError


def test_texts_are_cut_as_transformers_cuts_them() -> None:
    stored = stored_case()["ids"]
    assert len(stored) == len(TEXTS) - 1
    for text, ids in stored.items():
        assert small_byte_pairs().ids_of(text) == (ids, []), text


def test_ids_are_the_texts_that_transformers_makes_of_them() -> None:
    for ids, text in zip(some_ids(), stored_case()["texts"], strict=True):
        assert text_of(ids, small_byte_pairs()).strip() == text.strip()


def test_the_stored_numbers_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    assert transformers_case() == stored_case()


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    ids, lost = small_byte_pairs().ids_of(text)
    assert text_of(ids, small_byte_pairs()) == text.strip()
    assert not lost


@pytest.mark.parametrize("content", [b"\xe4\xbd", b"\xa0x", b"\xef\xbf\xbf", "▁\uef80".encode(), bytes(range(256))])
def test_labels_of_bytes_are_written_as_their_bytes_however_they_are_cut(content: bytes) -> None:
    for cut in range(len(content) + 1):
        labels = label_of_bytes(content[:cut]), label_of_bytes(content[cut:])
        assert in_letters(spelled("".join(labels))) == content.decode("utf-8", "replace")
        "".join(labels).encode()  # JSON files can have them


def test_a_word_of_a_transcript_has_the_letters_of_all_its_pieces() -> None:
    ids, _ = small_byte_pairs().ids_of(" 世界 the 🙂")
    timed = TimedLabels(ids, range(len(ids)), range(1, len(ids) + 1), [0.0] * len(ids))
    recording = Recording("a.wav", "a.wav", seconds=10.0)
    assert [word.text for word in transcript_of(timed, small_byte_pairs(), recording, 0.1).words] == [
        "世界",
        "the",
        "🙂",
    ]


def test_words_end_where_gpt_2_ends_them() -> None:
    text = " two  spaces, they'll 2024\u00bd\u2167x\u00e9\u0301 \n\tx\u3000\x1c "
    words = [" two", " ", " spaces", ",", " they", "'ll", " 2024\u00bd\u2167", "x\u00e9", "\u0301", " \n", "\t", "x"]
    assert words_of(text) == [*words, "\u3000", "\x1c", " "]


def test_neighbours_become_one_in_the_order_of_the_merges() -> None:
    for merges, pieces in (([("t", "h"), ("h", "e")], ["th", "e"]), ([("h", "e"), ("t", "h")], ["t", "he"])):
        subwords = BytePairs.of([*ALPHABET.values(), "th", "he"], merges, "tokenizer")
        assert [subwords[i] for i in subwords.ids_of("the")[0]] == pieces


def test_the_parser_takes_texts_as_they_are() -> None:
    parser = make_parser(small_byte_pairs(), "auto", language="en")
    text = "The dog's 2nd ½ café, «naïve» [laughter]\n"
    assert parser(text) == small_byte_pairs().ids_of(text)[0]
    assert parser.reference(text) == "The dog's 2nd ½ café, «naïve» [laughter]"
    parser.check_letters("ß [noise]", "a.json:1")
    assert parser.most_ids("é") >= len(parser("é"))
    assert not parser.report()
    assert parser.describe() == "as written"
    assert text_of(parser.joined([parser("the"), parser("cat")]), small_byte_pairs()) == "the cat"


def test_the_content_of_a_file_gives_the_same_vocabulary() -> None:
    made = small_byte_pairs()
    for again in (Subwords(made.model), pickle.loads(pickle.dumps(made))):
        assert isinstance(again, BytePairs)
        assert list(again) == list(made)
        assert again.sha256 == made.sha256
        assert again.ids_of(TEXTS[4]) == made.ids_of(TEXTS[4])


def test_a_piece_that_writes_nothing_keeps_its_place() -> None:
    pieces, merges = pieces_and_merges()
    made = BytePairs.of([*pieces, ""], merges, "tokenizer")
    again = Subwords(made.model)
    assert list(again) == [*small_byte_pairs(), ""]
    assert again.ids_of(TEXTS[4]) == small_byte_pairs().ids_of(TEXTS[4])
    ids = [len(pieces), *made.ids_of("the cat")[0], len(pieces)]
    assert text_of(ids, again) == "the cat"


def without_a_byte(content: dict) -> None:
    content["byte_pairs"].remove("Ġ")


def with_a_space(content: dict) -> None:
    content["byte_pairs"].append("a b")


def with_a_piece_twice(content: dict) -> None:
    content["byte_pairs"].append("!")


def with_a_lost_merge(content: dict) -> None:
    content["merges"].append("z q")


def with_a_merge_of_three(content: dict) -> None:
    content["merges"].append("t h e")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_a_byte, "a byte has no piece: got none for byte 32"),
        (with_a_space, "a piece is not of bytes: got ' ' stands for no byte"),
        (with_a_piece_twice, "the pieces cannot be used: got 317 pieces, 316 different ones"),
        (with_a_lost_merge, "a merge makes no piece: got 'z q'"),
        (with_a_merge_of_three, "the file holds no pieces and merges"),
    ],
)
def test_a_damaged_vocabulary_is_refused_in_one_line(change, problem: str) -> None:
    pieces, merges = pieces_and_merges()
    content = {"byte_pairs": [*pieces], "merges": [" ".join(pair) for pair in merges]}
    change(content)
    with pytest.raises(DataError, match=problem) as error:
        Subwords(json.dumps(content, separators=(",", ":")).encode(), "model/tokenizer.json")
    assert str(error.value).startswith("model/tokenizer.json: ")
    assert "\n" not in str(error.value)
