"""Known texts in made frames: times, sentences, scores, and the files."""

import itertools
import json
import time

import numpy as np
import pytest

from nemo_asr.run.search.ctc import LOG_PROBS, PathAligner, align, labels_of_path
from nemo_asr.run.text.parser import make_parser
from nemo_asr.run.transcribe.alignment import (
    SentenceCutting,
    SpokenPart,
    alignment_of,
    as_ctm,
    as_json,
    as_subtitles,
    as_textgrid,
    delay_of,
    find_text,
    frames_of_parts,
    ids_of,
    manifest_lines,
    sentences_of,
)
from nemo_asr.run.transcribe.inputs import Recording
from nemo_lite.base.errors import DataError, UsageError

LABELS = [" ", "a", "b", "c"]
BLANK = len(LABELS)
SECONDS = 0.02
ALIGNER = PathAligner(BLANK)


def frames_of(path, least=-8.0):
    """Log-probabilities in which this path is plain to see: a letter a frame, ``_`` for a blank, ``-`` for a space."""
    ids = [BLANK if letter == "_" else 0 if letter == "-" else LABELS.index(letter) for letter in path]
    frames = np.full((len(ids), BLANK + 1), least, np.float32)
    frames[np.arange(len(ids)), ids] = np.log(1 - BLANK * np.exp(least))
    return frames


def sentences(text):
    return sentences_of(text, make_parser(LABELS, "none"))


def kept(frames, text):
    """Of frames (T, classes) what an alignment needs."""
    return ALIGNER.kept({LOG_PROBS: frames}, ids_of(sentences(text), LABELS)[0])


def found(text, *parts, delay=0.0, longest=60.0, shortest=0.0, pause=60.0):
    """Parts are paths, with the seconds at which they begin."""
    seconds = max(start + len(path) * SECONDS for path, start in parts)
    frames = frames_of_parts([SpokenPart(kept(frames_of(path), text), start, start) for path, start in parts], SECONDS)
    said = find_text(frames, sentences(text), LABELS, Recording("talk.wav", "talk.wav", seconds=seconds), ALIGNER)
    return said, alignment_of(said, LABELS, delay, SentenceCutting(longest, shortest, pause))


def test_words_of_several_parts_have_the_times_of_the_recording():
    _, alignment = found("ab c. ba", ("ab_-_c__", 1.0), ("___ba_", 5.0))
    assert [(word.text, word.start, word.end) for word in alignment.words] == [
        ("ab", 1.0, 1.04),
        ("c", 1.06, 1.12),
        ("ba", 5.0, 5.1),
    ]
    assert [segment.text for segment in alignment.segments] == ["ab c.", "ba"]
    assert [label.text for label in alignment.segments[0].labels] == ["a", "b", "c"]
    assert min(segment.score for segment in alignment.segments) > -0.01


def test_the_delay_of_labels_is_taken_from_the_beginnings_of_speech():
    said, _ = found("ab. ba. c", ("___ab_", 0.0), ("___ba_", 2.0), ("___c_", 4.0))
    delay = delay_of([said])
    assert delay == pytest.approx(0.06)
    words = alignment_of(said, LABELS, delay).words
    assert [word.start for word in words] == [0.0, 2.0, 4.0]
    assert words[0].end == pytest.approx(0.1)


def test_what_the_text_lacks_is_passed_over_between_sentences_only():
    _, alignment = found("ab. ca", (2 * "ccbc-bcbc-" + "ab_-_" + "bcbcbc-" + "_ca__", 0.0))
    starts = [word.start for word in alignment.words]
    assert starts == [pytest.approx(0.4, abs=0.03), pytest.approx(0.64, abs=0.03)]
    assert min(segment.score for segment in alignment.segments) > -0.01
    _, wrong = found("ab. cc", ("ab_-_ba__", 0.0))
    assert wrong.segments[1].score < -2


def test_fillers_change_nothing_where_all_is_said():
    frames = frames_of("ab_-_ca__b")
    ids = [1, 2, 0, 3, 1, 2]
    assert np.array_equal(align(frames, ids, fillers=[0, 3, 6]), align(frames, ids))


def test_a_long_sentence_is_cut_at_its_longest_pause():
    _, alignment = found("ab ca bb", ("ab-____________________ca-_b_b", 0.0), longest=0.3)
    assert [segment.text for segment in alignment.segments] == ["ab", "ca bb"]


def test_a_text_that_cannot_fit_says_how_long_it_would_be():
    with pytest.raises(DataError, match=r"text is longer than its recording: got 7 labels in 0.10 s of speech, wanted"):
        found("abc abc", ("abc_a", 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab xyz", r'the labels cannot spell the text: got "x" x1 "y" x1 "z" x1; write the text in'),
        ("ab \u0436", 'the labels cannot spell the text: got "\u0436" x1'),
        ("ab 7", 'the labels cannot spell the text: got "7" x1'),
        ("\u0436", 'the labels cannot spell the text: got "\u0436" x1'),
        (" ", "there is no text to align"),
        ("...", "there is no letter in the text"),
    ],
)
def test_a_text_that_the_labels_cannot_spell_names_the_letters(text, message):
    with pytest.raises(DataError, match=message):
        sentences(text)


def test_sentences_end_at_marks_and_lines_and_marks_of_chinese_need_no_space():
    assert [sentence.text for sentence in sentences("ab, c. ba!\nca b")] == ["ab, c.", "ba!", "ca b"]
    parser = make_parser(["\u4f60", "\u597d"], "none")
    assert [sentence.text for sentence in sentences_of("\u4f60\u597d\u3002\u597d\u3002", parser)] == [
        "\u4f60\u597d\u3002",
        "\u597d\u3002",
    ]


def test_marks_in_a_text_to_align_are_no_words():
    found = sentences_of("ab <unk> c.\n[laughter]\nba!", make_parser(LABELS, "base"))
    assert [sentence.text for sentence in found] == ["ab <unk> c.", "ba!"]


def test_a_long_run_of_blanks_is_cut_in_less_than_two_seconds():
    start = time.process_time()
    assert len(sentences("ab." + " " * 1_000_000 + "c\nba" + "\t" * 1_000_000)) == 3
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Mr. A. Bab saw Dr. Cab. He left.", ["Mr. A. Bab saw Dr. Cab.", "He left."]),
        ("At 5 p.m. on Friday. Then", ["At 5 p.m. on Friday.", "Then"]),
        ("at 5 p.m. on friday. then", ["at 5 p.m.", "on friday.", "then"]),
        ("am 3. Mai. Dann", ["am 3. Mai.", "Dann"]),
        ("In 1999. Then", ["In 1999.", "Then"]),
        ("Is it? no!\nMr.\nBab", ["Is it?", "no!", "Mr.", "Bab"]),
        ("\u0410. \u0421. \u041f\u0443\u0448. \u041d\u0443", ["\u0410. \u0421. \u041f\u0443\u0448.", "\u041d\u0443"]),
    ],
)
def test_points_of_titles_initials_and_ordinals_end_no_sentence(text, wanted):
    parser = make_parser(sorted({*text, *text.lower(), " "} - {"\n"}), "none")
    assert [sentence.text for sentence in sentences_of(text, parser)] == wanted


def test_files_say_the_same_times():
    _, alignment = found("ab c. ba", ("ab_-_c__", 1.0), ("___ba_", 5.0))
    assert as_ctm(alignment, "talk").splitlines()[0] == "talk 1 1.000 0.040 ab 0.999"
    assert as_ctm(alignment, "AUD 1 (2)").startswith("AUD_1_(2) 1 1.000 ")
    grid = as_textgrid(alignment)
    assert [line.split('"')[1] for line in grid.splitlines() if "name =" in line] == ["segments", "words", "labels"]
    edges = [float(line.split(" = ")[1]) for line in grid.splitlines() if line.startswith("            xm")]
    assert all(later >= earlier for earlier, later in zip(edges[0::2], edges[1::2], strict=True))
    assert "00:00:01,000" in as_subtitles(alignment)
    line = json.loads(as_json(alignment))
    assert line["segments"][1]["words"][0] == {"text": "ba", "start": 5.0, "end": 5.1, "confidence": 0.999}


def test_the_manifest_of_sentences_keeps_half_of_a_pause_at_most():
    _, alignment = found("ab c. ba", ("ab_-_c__", 1.0), ("ba_", 1.3))
    first, second = manifest_lines(alignment, 0.2)
    assert (first["offset"], first["text"]) == (0.8, "ab c.")
    assert first["offset"] + first["duration"] == pytest.approx(second["offset"])
    assert second["offset"] + second["duration"] <= alignment.duration


def test_a_long_pause_ends_an_utterance_unless_it_leaves_too_little():
    said = ("ab-____________________ca-_b_b", 0.0)
    for settings, texts in (
        ({"pause": 0.3}, ["ab", "ca bb"]),
        ({"pause": 0.5}, ["ab ca bb"]),
        ({"pause": 0.3, "shortest": 1.0}, ["ab ca bb"]),
    ):
        _, alignment = found("ab ca bb", said, **settings)
        assert [segment.text for segment in alignment.segments] == texts


def test_a_short_sentence_is_joined_to_its_neighbour_unless_a_long_pause_is_between():
    for settings, texts in (
        ({"shortest": 0.1, "pause": 0.3}, ["ab. ca"]),
        ({"shortest": 0.1, "pause": 0.01}, ["ab.", "ca"]),
        ({"shortest": 0.1, "pause": 0.3, "longest": 0.12}, ["ab.", "ca"]),
        ({"pause": 0.3}, ["ab.", "ca"]),
    ):
        _, alignment = found("ab. ca", ("ab_-_ca__", 0.0), **settings)
        assert [segment.text for segment in alignment.segments] == texts
    with pytest.raises(UsageError, match="no utterance has these lengths: got 3 and 2 s, wanted a shortest below"):
        SentenceCutting(2.0, 3.0)


@pytest.mark.parametrize(("speech_end", "word_end"), [(0.3, 0.3), (0.9, 0.06), (0.0, 0.06)])
def test_the_last_word_of_a_part_ends_where_its_sound_does(speech_end, word_end):
    parts = [SpokenPart(kept(frames_of("_ab" + 50 * "_"), "ab"), 0.0, 0.0, speech_end)]
    frames = frames_of_parts(parts, SECONDS)
    assert parts == []  # frames are in memory once
    said = find_text(frames, sentences("ab"), LABELS, Recording("a", "a", seconds=2.0), ALIGNER)
    assert alignment_of(said, LABELS, 0.0).words[0].end == word_end


def test_words_that_a_transducer_says_in_one_frame_have_a_frame_each():
    """So that no file has a word of no length."""
    said, _ = found("a b c b", ("_a-b__-c__-b_", 0.0))
    starts = [said.timed.starts[0], *[said.timed.starts[1]] * 4, *said.timed.starts[5:]]
    in_one = said._replace(timed=said.timed._replace(starts=starts, ends=[start + 1 for start in starts]))
    words = alignment_of(in_one, LABELS, 0.0).words
    assert [word.text for word in words] == ["a", "b", "c", "b"]
    assert all(word.end - word.start >= SECONDS - 1e-9 for word in words)
    assert all(before.end <= word.start for before, word in itertools.pairwise(words))


def test_frames_of_the_labels_of_a_text_give_the_path_of_all_frames():
    rng = np.random.default_rng(0)
    frames = np.log(rng.dirichlet(np.ones(BLANK + 1), 60)).astype(np.float32)
    own = kept(frames, "acca")
    assert own.shape == (60, 4)
    said = ALIGNER.align(own, [1, 3, 3, 1], [0, 4])
    path = align(frames, [1, 3, 3, 1], fillers=[0, 4])
    assert said.scores.tolist() == frames[np.arange(60), path].tolist()
    assert said.timed == labels_of_path(path, said.scores, BLANK)
    with pytest.raises(UsageError, match="log_probs are no logarithms of probabilities"):
        kept(frames + 1, "a")
