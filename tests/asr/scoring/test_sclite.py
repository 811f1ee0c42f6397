"""Files for sclite. Its own program, run on such files of 200 utterances, counted the errors that we count."""

from nemo_asr.scoring.report.records import ScoredUtterance
from nemo_asr.scoring.sclite import TimedWord, timed_as_scored, write_sclite

ROWS = [
    ScoredUtterance("m:1", "für (uh) <noise>", "für a/b", "/a/rec one.wav", 5.0, 2.0, speaker="Sp_1-x"),
    ScoredUtterance("m:2", "", "", "/a/rec one.wav", 0.0, 2.0, speaker="Sp_1-x"),
    ScoredUtterance("m:3", "p.m.?", "P.M.?", "/b/two.flac", None, 1.5),
]
WORDS = [[TimedWord("für", 0.25, 0.5), TimedWord("a/b", 0.5, 1.0)], [], [TimedWord("P.M.?", 0.0, 1.0)]]


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_texts_have_ids_with_their_speakers_and_no_marks_that_sclite_reads(tmp_path):
    reference, hypothesis = write_sclite(tmp_path / "new", "dev", ROWS)
    assert [path.name for path in (reference, hypothesis)] == ["dev.ref.trn", "dev.hyp.trn"]
    assert lines_of(reference) == [
        "für \uff08uh\uff09 \uff1cnoise\uff1e (Sp.1.x-rec_one-000001)",
        "(Sp.1.x-rec_one-000002)",
        "p.m.? (unknown-two-000003)",
    ]
    assert lines_of(hypothesis)[0] == "für a\uff0fb (Sp.1.x-rec_one-000001)"


def test_times_are_those_of_the_recording_in_its_order(tmp_path):
    *_, segments, words = write_sclite(tmp_path, "dev", ROWS, WORDS)
    assert [path.name for path in (segments, words)] == ["dev.ref.stm", "dev.hyp.ctm"]
    assert lines_of(segments) == [
        "rec_one 1 Sp.1.x 0.000 2.000",
        "rec_one 1 Sp.1.x 5.000 7.000 für \uff08uh\uff09 \uff1cnoise\uff1e",
        "two 1 unknown 0.000 1.500 p.m.?",
    ]
    assert lines_of(words) == [
        "rec_one 1 0.000 0.000 @",  # sclite wants each file of the references
        "rec_one 1 5.250 0.250 für",
        "rec_one 1 5.500 0.500 a\uff0fb",
        "two 1 0.000 1.000 P.M.?",
    ]


def test_without_lengths_there_are_no_times(tmp_path):
    rows = [ScoredUtterance("m:1", "a", "a", "a.wav")]
    assert len(write_sclite(tmp_path, "dev", rows, [[TimedWord("a", 0.0, 1.0)]])) == 2


def test_files_of_one_stem_keep_their_folders(tmp_path):
    rows = [ScoredUtterance("m:1", "a", "a", f"/{folder}/x.wav") for folder in "ab"]
    assert lines_of(write_sclite(tmp_path, "dev", rows)[0]) == ["a (unknown-a_x-000001)", "a (unknown-b_x-000002)"]


def test_words_that_a_normaliser_changed_keep_their_times():
    heard = [TimedWord("It's", 0.0, 0.5), TimedWord("5", 0.5, 1.0), TimedWord("p.m.?", 1.0, 2.0)]
    assert timed_as_scored("it's five p m", heard) == [
        TimedWord("it's", 0.0, 0.5),
        TimedWord("five", 0.5, 1.0),
        TimedWord("p", 1.0, 1.5),
        TimedWord("m", 1.5, 2.0),
    ]
    assert timed_as_scored("a b", []) == [TimedWord("a", 0.0, 0.0), TimedWord("b", 0.0, 0.0)]
    assert timed_as_scored("it's", heard) == [TimedWord("it's", 0.0, 0.5)]
