"""Doubtful texts: those that repeat themselves, and those that nobody has said."""

from __future__ import annotations

import pytest

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.transcribe.doubts import doubtful_span, is_to_be_drawn_anew, repeats_itself
from nemo_asr.run.transcribe.transcript import Word

SPEECH = (
    "he said that the river rose in the night, and that nobody in the village had heard the bells, because the wind "
    "came from the north; when the morning broke the bridge was gone, and so were two of the boats"
)


@pytest.mark.parametrize(
    ("text", "is_doubtful"),
    [
        (SPEECH, False),
        (f"{SPEECH} {SPEECH.upper()}", False),
        ("thank you " * 20, True),
        (f"{SPEECH[:40]} {'and then ' * 30}", True),
        ("谢谢观看" * 20, True),
        ("no no no no", False),  # somebody may say that
        ("five five three five five two", False),
        ("", False),
    ],
)
def test_a_text_is_doubtful_where_it_repeats_itself_more_than_speech(text: str, is_doubtful: bool) -> None:
    assert repeats_itself(text) == is_doubtful


@pytest.mark.parametrize(
    ("confidences", "text", "is_to_be"),
    [
        ((0.4, 0.33), "you know", True),  # the product is less than exp(-2)
        ((0.4, 0.36), "you know", False),
        ((0.9, 0.0), "you know", True),
        ((0.9, 0.9), "thank you " * 20, True),
        ((), "", False),
    ],
)
def test_a_text_is_drawn_anew_where_it_repeats_itself_or_is_improbable(confidences, text, is_to_be) -> None:
    words = [Word("word", 0.0, 1.0, confidence) for confidence in confidences]
    assert is_to_be_drawn_anew(words, text) == is_to_be


WORDS = [Word("you", 1.0, 1.5, 0.9), Word("know", 1.5, 2.0, 0.9)]


@pytest.mark.parametrize(
    ("text", "spoken", "found"),
    [
        ("you know", None, ()),
        ("you know", [Span(0.5, 2.0)], ()),
        ("you know", [], (Span(1.0, 2.0),)),
        ("you know " * 20, None, (Span(1.0, 2.0),)),
    ],
)
def test_a_doubtful_text_is_told_from_its_first_to_its_last_word(text: str, spoken, found) -> None:
    assert doubtful_span(WORDS, text, spoken) == found
    assert doubtful_span([], "", spoken) == ()
