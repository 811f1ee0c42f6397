"""Files for sclite. Its own program, run on such files of 200 utterances, counted the errors that we count."""

import random
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from rapidfuzz.distance import Levenshtein

from nemo_asr.scoring.report.transcripts import ScoredUtterance
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


SCLITE = next(
    (path for path in (shutil.which("sclite"), "/usr/lib/sctk/bin/sclite") if path and Path(path).exists()), ""
)
SPOKEN = [
    "yes",
    "no",
    "über",
    "你好",
    "<unk>",
    "(uh)",
    "{a/b}",
    ";;",
    "@",
    "Ignore_Time_Segment_In_Scoring",
    "don't",
    "x*",
    "50%",
    "--",
    "uh-",
]
RECORDINGS = [
    "a.wav",
    "d/a.wav",
    "A.wav",
    "sp ace.wav",
    "sp_ace.wav",
    "日本.wav",
    ";;c.wav",
    "(p).wav",
    "@.wav",
    "-.wav",
]
SPEAKERS = ["ann", "a-b", "ann lee", "日本", None, "(x)", ";;", "inter_segment_gap"]


def odd_rows(seed):
    """Utterances of odd names, on channels that overlap, and their words with times, some of them beyond the end."""
    draw = random.Random(seed)
    rows, words = [], []
    for number in range(40):
        said = draw.choices(SPOKEN, k=draw.randint(0, 6))
        heard = [draw.choice(SPOKEN) if draw.random() < 0.1 else word for word in said if draw.random() > 0.1]
        heard += draw.choices(SPOKEN, k=draw.random() < 0.2)
        seconds, channel = draw.uniform(0.01, 3.0), draw.choice([None, 0, 1, 2])
        where = (draw.choice(RECORDINGS), round(draw.uniform(0, 5), 2), seconds, draw.choice(SPEAKERS))
        rows.append(ScoredUtterance(f"m:{number}", " ".join(said), " ".join(heard), *where, channel=channel))
        step = draw.choice([0.9, 1.1]) * seconds / max(len(heard), 1)
        words.append([TimedWord(word, place * step, place * step + step) for place, word in enumerate(heard)])
    return rows, words


def errors_of(pairs):
    """Words of the references, and errors in the hypotheses."""
    texts = [(said.split(), heard.split()) for said, heard in pairs]
    return sum(len(said) for said, _ in texts), sum(Levenshtein.distance(said, heard) for said, heard in texts)


def read_as_sclite_does(segments, words):
    """Pairs of texts: each word of a .ctm belongs to the segment of its file and channel that has its middle."""
    said = [line.split(maxsplit=5) for line in lines_of(segments)]
    heard = defaultdict(list)
    for line in lines_of(words):
        file, channel, start, seconds, word = line.split()
        middle = float(start) + float(seconds) / 2
        (segment,) = (
            number
            for number, (its_file, its_channel, _, first, last, *_) in enumerate(said)
            if (its_file, its_channel) == (file, channel) and float(first) <= middle < float(last)
        )
        heard[segment] += [] if word == "@" else [word]
    return [("".join(text), " ".join(heard[number])) for number, (*_, text) in enumerate([*s[:5], s[5:]] for s in said)]


@pytest.mark.parametrize("seed", range(5))
def test_files_with_times_have_the_errors_of_the_evaluation_for_any_names_and_channels(seed, tmp_path):
    rows, words = odd_rows(seed)
    *_, segments, heard = write_sclite(tmp_path, "dev", rows, words)
    assert errors_of(read_as_sclite_does(segments, heard)) == errors_of((row.reference, row.hypothesis) for row in rows)
    files = {line.split()[0].lower() for line in lines_of(segments)}
    assert len(files) == len({row.audio_filepath for row in rows})


@pytest.mark.skipif(not SCLITE, reason="sclite is not installed (Debian: sctk)")
@pytest.mark.parametrize("seed", range(3))
def test_sclite_itself_counts_the_errors_of_the_evaluation(seed, tmp_path):
    rows, words = odd_rows(seed)
    write_sclite(tmp_path, "dev", rows, words)
    for reference, hypothesis, more in (("trn", "trn", ["-i", "spu_id"]), ("stm", "ctm", [])):
        files = ["-r", f"dev.ref.{reference}", reference, "-h", f"dev.hyp.{hypothesis}", hypothesis]
        command = [SCLITE, *files, *more, "-e", "utf-8", "-s", "-o", "rsum", "stdout"]
        told = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False).stdout.decode("utf-8", "replace")
        _, num_words, *_, errors = map(int, re.findall(r"[0-9]+", re.search(r"\| Sum .*", told)[0])[:7])
        assert (num_words, errors) == errors_of((row.reference, row.hypothesis) for row in rows)


def test_utterances_that_overlap_or_have_channels_are_on_channels_of_their_own(tmp_path):
    spans = [(0.0, 2.0, None), (1.0, 2.0, None), (2.0, 1.0, None), (0.0, 3.0, 1), (0.5, 1.0, 0)]
    rows = [ScoredUtterance("m:1", "a", "a", "x.wav", *span, channel=channel) for *span, channel in spans]
    *_, segments, words = write_sclite(tmp_path, "dev", rows, [[TimedWord("a", 1.9, 9.0)]] * 5)
    assert [line.split()[1:5:2] for line in lines_of(segments)] == [
        ["1", "0.000"], ["1", "2.000"], ["1-2", "0.500"], ["1-3", "1.000"], ["2", "0.000"]
    ]  # fmt: skip
    assert lines_of(words)[1:3] == ["x 1 2.998 0.002 a", "x 1-2 1.498 0.002 a"]
