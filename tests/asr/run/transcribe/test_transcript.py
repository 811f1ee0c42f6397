"""From a CTC path to words with times and confidences."""

import numpy as np
import pytest

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.search.ctc import labels_of_path
from nemo_asr.run.search.search import TimedLabels
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript, Word, transcript_of

LABELS = [" ", "a", "b"]
BLANK = 3


def made(path, probabilities=None, labels=LABELS, frame_seconds=0.1, duration=10.0):
    scores = np.log(probabilities or [0.5] * len(path))
    return transcript_of(
        labels_of_path(np.array(path), np.array(scores), len(labels)),
        labels,
        Recording("a.wav", "a.wav", seconds=duration),
        frame_seconds,
    )


def test_words_begin_with_their_first_label_and_end_with_their_last():
    found = made([BLANK, 1, 1, BLANK, 2, 0, 0, BLANK, 2, 2, BLANK])
    assert found.text == "ab b"
    assert [(word.text, word.start, word.end) for word in found.words] == [("ab", 0.1, 0.5), ("b", 0.8, 1.0)]


def times_of(starts, ends, ids=None, first_frame=0):
    labels = TimedLabels(ids or [0, 1] * (len(starts) // 2), starts, ends, [-0.1] * len(starts))
    whole = Recording("a.wav", "a.wav", seconds=10.0)
    return [(word.start, word.end) for word in transcript_of(labels, LABELS, whole, 1.0, first_frame=first_frame).words]


def test_a_word_ends_where_the_next_one_begins_at_the_latest():
    """A transducer may say the next word in the frame of a label that has no duration."""
    assert times_of([0, 1, 3, 3], [1, 2, 4, 5]) == [(1, 2), (3, 5)]
    assert times_of([0, 1, 3, 3, 3], [1, 2, 4, 4, 5], ids=[0, 1, 2, 0, 2]) == [(1, 3), (3, 5)]


def test_words_that_begin_in_one_frame_have_a_frame_each():
    assert times_of([2, 2, 2, 2, 2, 2], [3] * 6) == [(2, 3), (3, 4), (4, 5)]
    assert times_of([2, 2, 2, 2, 3, 3, 8, 8], [3, 3, 3, 3, 4, 4, 9, 9]) == [(2, 3), (3, 4), (4, 5), (8, 9)]
    assert times_of([0, 0, 4, 4], [1, 1, 5, 5], first_frame=2) == [(2, 3), (4, 5)]


def frames_of(starts, ends, num_frames, first_frame=0):
    labels = TimedLabels([0, 1] * (len(starts) // 2), starts, ends, [-0.1] * len(starts))
    return [(word.start, word.end) for word in labels.timed_words(LABELS, num_frames, first_frame)]


def test_words_without_room_behind_the_recording_begin_earlier():
    assert frames_of([9, 9, 9, 9], [10] * 4, num_frames=10) == [(8, 9), (9, 10)]
    assert frames_of([2, 2, 7, 8, 9, 9, 9, 9], [3, 3, 9, 9, 10, 10, 10, 12], num_frames=10) == [
        *((2, 3), (7, 8), (8, 9), (9, 10))
    ]
    assert frames_of([0, 1, 8, 8], [1, 2, 9, 12], num_frames=10) == [(1, 2), (8, 10)]
    assert frames_of([3] * 6, [4] * 6, num_frames=4, first_frame=2) == [(2, 2), (2, 3), (3, 4)]  # no room at all


def test_the_last_frame_is_one_that_begins_before_the_end_of_the_recording():
    def last_word(duration):
        (word,) = made([BLANK] * 3 + [1], duration=duration).words
        return word.start, word.end

    assert last_word(0.4) == (0.3, 0.4)
    assert last_word(0.31) == (0.3, 0.31)
    assert last_word(0.3) == (0.2, 0.3)
    assert last_word(0.3002) == (0.2, 0.3)


def test_equal_labels_are_one_without_a_blank_between_and_two_with_one():
    assert made([1, 1, 1]).text == "a"
    assert made([1, BLANK, 1]).text == "aa"


def test_the_confidence_is_the_geometric_mean_over_the_frames_of_the_labels():
    # Frames of blanks (0.01) and of the space (0.02) do not count.
    found = made([BLANK, 1, 1, BLANK, 2, 0, 2], [0.01, 0.9, 0.4, 0.01, 0.6, 0.02, 0.7])
    assert found.words[0].confidence == pytest.approx((0.9 * 0.4 * 0.6) ** (1 / 3), abs=5e-4)
    assert found.words[1].confidence == pytest.approx(0.7)


def test_a_calibration_changes_each_confidence():
    scores, halved = np.log([0.5, 0.5, 0.9]), lambda confidence: confidence / 2
    found = transcript_of(
        labels_of_path(np.array([1, 0, 2]), np.array(scores), len(LABELS)),
        LABELS,
        Recording("a.wav", "a.wav", seconds=10.0),
        0.1,
        calibration=halved,
    )
    assert [word.confidence for word in found.words] == [0.25, 0.45]


def test_spaces_at_the_ends_and_several_of_them_make_no_words():
    found = made([0, BLANK, 0, 1, 0, BLANK, 0, 2, 0])
    assert found.text == "a b"
    assert [word.text for word in found.words] == ["a", "b"]


def test_without_a_space_among_the_labels_each_character_is_a_word():
    found = made([0, 2, 1, 1], labels=["天", "气"])
    assert found.text == "天气"
    assert [(word.text, word.start, word.end) for word in found.words] == [("天", 0.0, 0.1), ("气", 0.2, 0.4)]
    assert found.separator == ""
    assert made([1, 0, 2]).separator == " "


def test_no_word_ends_behind_the_recording():
    assert made([1, 1, 1], duration=0.25).words == (Word("a", 0.0, 0.25, 0.5),)


@pytest.mark.parametrize("path", [[], [BLANK] * 4])
def test_silence_has_no_words(path):
    assert made(path, duration=0.4) == Transcript("", (), 0.4, "a.wav")


def test_pieces_of_words_are_joined_where_a_word_goes_on():
    labels = ["\u2581th", "e", "\u2581", "\u2581cat", "s"]
    found = made([5, 0, 0, 5, 1, 3, 4, 5, 2, 1, 5], labels=labels)
    assert found.text == "the cats e"
    assert [(word.text, word.start, word.end) for word in found.words] == [
        ("the", 0.1, 0.5),
        ("cats", 0.5, 0.7),
        ("e", 0.9, 1.0),
    ]


def test_words_belong_to_the_segment_that_has_their_middle():
    words = [Word("a", 1.0, 1.2, 0.9), Word("b", 1.3, 2.02, 0.9), Word("c", 3.0, 3.5, 0.9)]
    spans = (Span(0.9, 2.0), Span(2.0, 2.5), Span(2.9, 3.6))
    cut = Transcript("a b c", tuple(words), 5.0, "x.wav", segments=spans)
    assert cut.segment_texts() == ["a b", "", "c"]
    chinese = Transcript("ac", (words[0], words[2]), 5.0, "x.wav", segments=spans)
    assert chinese.segment_texts() == ["a", "", "c"]
    assert Transcript("", (), 5.0, "x.wav").segment_texts() == []
