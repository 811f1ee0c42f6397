"""Text, JSON lines and subtitles, compared letter by letter."""

import json

import pytest

from nemo_asr.run.transcribe.transcript import FORMATS, Transcript, Word, cues_of, width_of


def said(*words, separator=" "):
    """A transcript of (text, start, end)."""
    made = tuple(Word(text, start, end, 0.5) for text, start, end in words)
    return Transcript(separator.join(word.text for word in made), made, 4000.0, "a.wav")


HELLO = said(("hello", 0.5, 0.9), ("world", 1.0, 1.4), ("again", 3661.0005, 3663.9996))


def test_text_is_the_words_on_a_line():
    assert FORMATS["text"](HELLO) == "hello world again\n"


def test_json_is_one_line_that_a_manifest_may_hold():
    line = FORMATS["json"](said(("天", 0.5, 0.9), separator=""))
    assert line == (
        '{"audio_filepath": "a.wav", "duration": 4000.0, "text": "天", '
        '"words": [{"text": "天", "start": 0.5, "end": 0.9, "confidence": 0.5}]}\n'
    )
    assert json.loads(line)["words"][0]["end"] == 0.9


def test_srt_numbers_its_cues_and_rounds_to_milliseconds():
    assert FORMATS["srt"](HELLO) == (
        "1\n00:00:00,500 --> 00:00:01,500\nhello world\n\n2\n01:01:01,000 --> 01:01:04,000\nagain\n"
    )


def test_vtt_has_its_head_and_escapes_what_would_be_markup():
    assert FORMATS["vtt"](said(("a<b", 0.0, 2.0), ("&", 2.0, 3.0))) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:03.000\na&lt;b &amp;\n"
    )


@pytest.mark.parametrize(("kind", "empty"), [("text", "\n"), ("srt", ""), ("vtt", "WEBVTT\n")])
def test_silence_makes_an_empty_file_that_is_valid(kind, empty):
    assert FORMATS[kind](said()) == empty


def test_a_pause_begins_a_new_cue():
    assert [cue.lines for cue in cues_of(said(("a", 0, 1), ("b", 1.8, 2), ("c", 2.9, 3)))] == [("a b",), ("c",)]


def test_a_cue_has_two_lines_of_42_characters_at_most_and_keeps_words_whole():
    words = [("x" * 9, number * 0.1, number * 0.1 + 0.1) for number in range(12)]
    cues = cues_of(said(*words))
    line = " ".join(["x" * 9] * 4)
    assert [cue.lines for cue in cues] == [(line, line), (line,)]
    assert cues_of(said(("y" * 50, 0, 1)))[0].lines == ("y" * 50,)


def test_no_cue_is_longer_than_seven_seconds():
    cues = cues_of(said(*(("a", number * 0.5, number * 0.5 + 0.4) for number in range(40))))
    assert [cue.end - cue.start <= 7 for cue in cues] == [True] * len(cues)
    assert sum(line.count("a") for cue in cues for line in cue.lines) == 40


def test_short_cues_last_a_second_but_never_into_the_next_one():
    cues = cues_of(said(("a", 0, 0.1), ("b", 1.0, 1.1), ("c", 1.95, 2.0)))
    assert [(cue.start, cue.end) for cue in cues] == [(0, 1.0), (1.0, 1.95), (1.95, 2.95)]


def test_a_cue_ends_where_the_next_one_begins_although_its_last_word_is_longer():
    cues = cues_of(said(("y" * 42, 0, 1), ("y" * 42, 1, 2.08), ("y", 2, 3.5)))
    assert [(cue.start, cue.end) for cue in cues] == [(0, 2), (2, 3.5)]


def test_wide_characters_take_two_columns_and_stand_without_spaces():
    assert width_of("天a") == 3
    assert width_of("e\u0301") == 1
    words = [("天", number * 0.1, number * 0.1 + 0.1) for number in range(43)]
    assert [cue.lines for cue in cues_of(said(*words, separator=""))] == [("天" * 21, "天" * 21), ("天",)]
