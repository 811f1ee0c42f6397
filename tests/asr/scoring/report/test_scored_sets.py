"""What a report shows of an evaluated set."""

import pytest
from toys.run_folder import row, rows_of, tone

from nemo_asr.scoring.rates import bootstrap_interval, count_errors, utterance_errors
from nemo_asr.scoring.report.records import MOST_UTTERANCES, ClipMaker, ScoredUtterance, has_no_words, scored_sets


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
    assert [(piece.kind, piece.said, piece.heard) for piece in found.worst[0].pieces][1] == ("replace", "三", "四")
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
