"""Reading files of transcripts."""

import json

import pytest
from toys.run_folder import row, write_lines

from nemo_asr.scoring.report.transcripts import ScoredUtterance, find_transcripts, read_transcripts
from nemo_lite.base.errors import DataError


def test_a_line_is_read_with_its_recording_and_without(tmp_path):
    path = write_lines(
        tmp_path / "dev.transcripts.jsonl",
        [row(1, "one", "won", audio_filepath="a.wav", offset=1.5, duration=2, more=[1]), row(2, "今天", "")],
    )
    assert read_transcripts(path) == [
        ScoredUtterance("dev.json:1", "one", "won", "a.wav", 1.5, 2.0),
        ScoredUtterance("dev.json:2", "今天", ""),
    ]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "dev.transcripts.jsonl"
    path.write_text('{"place": "a:1", "reference": "a", "hypothesis": "b"}\n\n{"place": "a:2", "reference": "a"}\n')
    wanted = (
        r"dev\.transcripts\.jsonl:3: the line is not a transcript: got .*missing.*`hypothesis`, wanted an object with"
    )
    with pytest.raises(DataError, match=wanted):
        read_transcripts(path)


def test_a_text_that_nobody_says_within_an_hour_is_refused(tmp_path):
    line = {"place": "dev.json:1", "reference": "a", "hypothesis": "a" * 100_001}
    (tmp_path / "dev.transcripts.jsonl").write_text(json.dumps(line))
    with pytest.raises(
        DataError, match=r":1: the line is not a transcript: got .* length <= 100000 - at `\$\.hypothesis`"
    ):
        read_transcripts(tmp_path / "dev.transcripts.jsonl")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"x\.jsonl: the file of transcripts cannot be opened \(No such file"):
        read_transcripts(tmp_path / "x.jsonl")


def test_sets_are_found_in_a_run_and_in_the_folder_of_an_evaluation(tmp_path):
    assert find_transcripts(tmp_path) == {}
    outer = write_lines(tmp_path / "test.transcripts.jsonl", [])
    assert find_transcripts(tmp_path) == {"test": outer}
    inner = write_lines(tmp_path / "transcripts" / "dev.transcripts.jsonl", [])
    assert find_transcripts(tmp_path) == {"dev": inner}
