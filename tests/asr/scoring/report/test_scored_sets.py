"""What a report shows of an evaluated set."""

import pytest
from toys.run_folder import row, rows_of, tone

from nemo_asr.scoring.hotwords import score_hotwords
from nemo_asr.scoring.intervals import bootstrap_interval, utterance_errors
from nemo_asr.scoring.rates import count_errors
from nemo_asr.scoring.report.scored_sets import MOST_CHANGED, MOST_UTTERANCES, ClipMaker, TextPart, scored_sets
from nemo_asr.scoring.report.set_scores import has_no_words
from nemo_asr.scoring.report.transcripts import ScoredUtterance, Segment


def utterances(rows):
    return [ScoredUtterance(**each) for each in rows]


def scored(rows, clips=None):
    (found,) = scored_sets({"dev": utterances(rows)}, clips or ClipMaker())
    return found


def test_rates_and_counts_are_those_of_the_transcripts():
    rows = rows_of(60, 0.3)
    found = scored(rows)
    heard, said = [each["hypothesis"] for each in rows], [each["reference"] for each in rows]
    words, characters = count_errors(heard, said), count_errors(heard, said, use_cer=True)
    assert (found.name, found.scores.num_utterances, found.scores.words) == ("dev", 60, words)
    found = found.scores
    assert (found.wer.value, found.cer.value) == (words.rate, characters.rate)
    assert found.cer.interval == bootstrap_interval(utterance_errors(heard, said, use_cer=True))
    assert found.wer.interval.low < found.wer.value < found.wer.interval.high
    assert found.num_wrong == sum(one != other for one, other in zip(heard, said, strict=True))


def test_the_worst_come_first_and_those_without_errors_not_at_all():
    rows = [row(1, "a b c", "a b c"), row(2, "a b c", "x y c"), row(3, "a b", "x y"), row(4, "a b c d", "e f g h")]
    found = scored(rows)
    assert [each.place for each in found.worst] == ["dev.json:4", "dev.json:3", "dev.json:2"]
    assert [(each.num_errors, each.num_units) for each in found.worst] == [(4, 4), (2, 2), (2, 3)]
    assert scored(rows[:1]).worst == []


def test_speakers_lengths_and_words_come_with_the_set():
    rows = [row(n, "a b c", "a b" if n < 3 else "a b c", speaker=f"s{n % 4}", duration=1.5) for n in range(8)]
    found = scored(rows).scores
    assert str(found.clusters) == "4 speakers"
    assert [(group.name, group.num_errors) for group in found.by_speaker] == [
        ("s0", 1),
        ("s1", 1),
        ("s2", 1),
        ("s3", 0),
    ]
    assert [(group.name, group.num_utterances) for group in found.by_length] == [("1 to 2 s", 8)]
    words = found.by_word
    assert (words.lost, words.said["c"], words.inserted, words.confused) == ({"c": 3}, 8, {}, {})


def test_sets_share_the_room_for_utterances():
    sets = {name: utterances(rows_of(50, 0.9)) for name in "abcd"}
    assert [len(found.worst) for found in scored_sets(sets, ClipMaker())] == [MOST_UTTERANCES // 4] * 4
    assert [found.name for found in scored_sets({"a": [], "b": sets["b"]}, ClipMaker())] == ["b"]


def test_texts_without_spaces_are_aligned_by_characters():
    found = scored([row(1, "今天三点", "今天四点"), row(2, "你好", "你好")])
    assert found.scores.unit == "character"
    said, heard = (found.worst[0].texts[name] for name in ("said", "heard"))
    assert (said[1], heard[1]) == (TextPart("三", "replace"), TextPart("四", "replace"))
    assert scored([row(1, "one two", "one")]).scores.unit == "word"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["今天"], True),
        (["ひらがな"], True),
        (["สวัสดี"], True),
        (["seven"], False),
        (["привет мир", "größe"], False),
        (["안녕 하세요"], False),
        (["ok 今天", "one", "two"], False),
    ],
)
def test_scripts_without_spaces_are_known(texts, expected):
    assert has_no_words(texts) is expected


def test_recordings_are_found_beside_the_manifest_and_in_the_working_directory(tmp_path, monkeypatch):
    tone(tmp_path / "data/wav/a.wav", 0.3)
    tone(tmp_path / "here/b.wav", 0.3)
    monkeypatch.chdir(tmp_path / "here")
    manifest = str(tmp_path / "data/dev.json")
    rows = [row(n, "a", "b", manifest, audio_filepath=name) for n, name in enumerate(("wav/a.wav", "b.wav"), 1)]
    assert [(each.clip is not None, each.note) for each in scored(rows).worst] == [(True, ""), (True, "")]


def test_what_cannot_be_heard_says_why(tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF damaged")
    long, bad = str(tone(tmp_path / "long.wav", 16.0)), str(tmp_path / "bad.wav")
    rows = [
        row(1, "a", "b"),
        row(2, "a", "b", audio_filepath=bad),
        row(3, "a", "b", audio_filepath=long),
        row(4, "a", "b", audio_filepath=str(tmp_path / "none.wav")),
    ]
    notes = [each.note for each in scored(rows).worst]
    assert notes[0] == "the transcripts do not say where the recording is"
    assert "bad.wav is not a WAV" in notes[1]
    assert notes[2] == "the first 15 s of the recording"
    assert "none.wav cannot be opened (No such file or directory)" in notes[3]


def test_clips_stop_where_the_page_would_get_large(tmp_path):
    path = str(tone(tmp_path / "a.wav", 1.0))
    rows = [row(number, "a", "b", audio_filepath=path) for number in range(1, 4)]
    one = scored(rows).worst[0].clip.num_bytes
    found = scored(rows, ClipMaker(2 * one)).worst
    assert [each.clip is not None for each in found] == [True, True, False]
    assert found[2].note == "the recording is left out to keep this page small"


# Segments and hot words.


def cut(number, spans, duration=10.0, hypothesis="b", **more):
    segments = [Segment(start, end, "b") for start, end in spans]
    return row(number, "a", hypothesis, duration=duration, segments=segments, **more)


def test_segments_of_a_set_are_counted_and_what_lies_in_none_is_cut_away():
    rows = [cut(1, [(1.0, 3.0), (4.0, 8.0)]), cut(2, []), cut(3, [(0.0, 10.0)]), row(4, "a", "a", duration=9.0)]
    found = scored(rows).segments
    assert found.lengths == [2.0, 4.0, 10.0]
    assert found.extent == (2.0, 4.0, 10.0)
    assert (found.num_silent, found.seconds, found.cut_away) == (1, 30.0, 14.0)
    assert found.shares == pytest.approx([0.0, 0.4, 1.0])
    assert scored(rows[3:]).segments is None
    assert scored(rows[1:2]).segments.extent == ()


def test_what_is_cut_away_of_a_clip_is_shares_of_its_picture(tmp_path):
    long = str(tone(tmp_path / "long.wav", 20.0))
    rows = [cut(1, [(1.5, 3.0), (3.0, 12.0), (14.0, 19.0)], 20.0, audio_filepath=long)]
    (utterance,) = scored(rows).worst
    assert utterance.cut_away == pytest.approx([(0.0, 0.1), (0.8, 14 / 15)])  # of the first 15 s
    assert utterance.seconds_cut_away == pytest.approx(4.5)
    (silent,) = scored([cut(1, [], 20.0, audio_filepath=long)]).worst
    assert silent.cut_away == [(0.0, 1.0)]
    (whole,) = scored([row(1, "a", "b", audio_filepath=long)]).worst
    assert (whole.cut_away, whole.segments) == ((), None)


def with_hotwords(rows, *hot):
    columns = [[each[name] for each in rows] for name in ("reference", "without_hotwords", "hypothesis")]
    (found,) = scored_sets({"dev": utterances(rows)}, ClipMaker(), {"dev": score_hotwords(hot, *columns)})
    return found


def test_hot_words_are_marked_where_they_are_right_and_where_they_are_not():
    rows = [row(1, "go to new york now", "go new york york", without_hotwords="go to new fork now")]
    (utterance,) = with_hotwords(rows, "new york", "york").worst
    assert utterance.texts == {
        "said": [
            TextPart("go", "equal"),
            TextPart("to", "delete"),
            TextPart("new york", "equal", True),
            TextPart("now", "replace"),
        ],
        "heard": [TextPart("go", "equal"), TextPart("new york", "equal", True), TextPart("york", "replace", True)],
        "without": [TextPart("go to new", "equal"), TextPart("fork", "replace"), TextPart("now", "equal")],
    }
    assert (utterance.num_errors, utterance.errors_without) == (2, 1)


def test_the_utterances_that_hot_words_changed_come_with_the_set_those_that_changed_most_first():
    rows = [
        row(1, "a b c", "a b c", without_hotwords="a b c"),
        row(2, "a b c", "a b c", without_hotwords="a x c"),
        row(3, "a b c", "b b b", without_hotwords="a b c"),
        row(4, "a b c", "a b x", without_hotwords="a b y"),
    ]
    found = with_hotwords(rows, "b")
    assert [(each.place, each.errors_without, each.num_errors) for each in found.changed] == [
        ("dev.json:3", 0, 2),
        ("dev.json:2", 1, 0),
        ("dev.json:4", 1, 1),
    ]
    many = with_hotwords([row(n, "a b", "a b", without_hotwords="a") for n in range(50)], "b")
    assert (len(many.changed), many.num_changed) == (MOST_CHANGED, 50)
