"""All scores of a set, as a table and as JSON."""

import json

import pytest
from toys.run_folder import row, rows_of, write_lines

from nemo_asr.scoring.rates import count_errors
from nemo_asr.scoring.report.set_scores import (
    MOST_SPEAKERS,
    score_rows,
    score_transcripts,
    scores_as_json,
    scores_table,
    write_scores,
)
from nemo_asr.scoring.report.transcripts import ScoredUtterance, normalized
from nemo_lite.base.errors import UsageError


def scored(rows):
    return score_rows([ScoredUtterance(**each) for each in rows])


ROWS = [{**each, "speaker": f"s{number % 25}", "duration": 2.5} for number, each in enumerate(rows_of(100, 0.2))]


def test_the_scores_of_a_file_are_those_of_its_texts(tmp_path):
    found = score_transcripts(write_lines(tmp_path / "dev.transcripts.jsonl", ROWS))
    heard, said = [each["hypothesis"] for each in ROWS], [each["reference"] for each in ROWS]
    assert (found.words, found.characters) == (count_errors(heard, said), count_errors(heard, said, use_cer=True))
    assert found.wer.value == found.words.rate
    assert str(found.clusters) == "25 speakers"
    assert found.interval_line() == (
        f"95 % intervals: WER {found.wer.interval.low * 100:.2f} to {found.wer.interval.high * 100:.2f} %, "
        f"CER {found.cer.interval.low * 100:.2f} to {found.cer.interval.high * 100:.2f} %, by resampling 25 speakers"
    )
    assert found.interval_line("cer").startswith("95 % intervals: CER ")


def test_the_table_has_speakers_lengths_and_words():
    table = scores_table(scored(ROWS))
    lines = table.splitlines()
    assert lines[0].split() == ["speaker", "utterances", "words", "errors", "rate", "95", "%", "interval"]
    assert sum(line.startswith("  s") for line in lines) == MOST_SPEAKERS + 1  # and the header
    assert "  and 5 more, with fewer errors" in lines
    assert any(line.startswith("  2 to 5 s  ") for line in lines)
    assert "\n  lost (of those said): " in table
    assert " > " in table.partition("confused (said > heard): ")[2]


def test_a_set_without_speakers_and_errors_says_so():
    found = scored([row(1, "a b c", "a b c"), row(2, "a", "a")])
    table = scores_table(found)
    assert "speaker" not in table
    assert table.splitlines()[1].startswith("  0 to 1 words")
    assert table.count(": none") == 3
    assert found.interval_line().endswith("by resampling 2 utterances")


def test_the_json_holds_what_the_table_shows_without_limits(tmp_path):
    found = scored(ROWS)
    write_scores(tmp_path / "dev.scores.json", found)
    read = json.loads((tmp_path / "dev.scores.json").read_text(encoding="utf-8"))
    assert read == json.loads(json.dumps(scores_as_json(found)))
    assert read["resampled"] == {"unit": "speakers", "number": 25}
    assert read["wer"]["rate"] == pytest.approx(found.wer.value)
    assert read["wer"]["low"] < read["wer"]["rate"] < read["wer"]["high"]
    assert len(read["by_speaker"]) == 25
    assert sum(count for _, count, _ in read["lost"]) == read["wer"]["deletions"]
    assert sum(count for _, _, count in read["confused"]) == read["wer"]["substitutions"]


def test_rates_that_json_has_no_number_for_are_null(tmp_path):
    found = scored([row(1, "", "x"), row(2, "", "y")])
    write_scores(tmp_path / "s.json", found)
    read = json.loads((tmp_path / "s.json").read_text())
    assert (read["wer"]["rate"], read["wer"]["high"], read["wer"]["insertions"]) == (None, None, 2)


def test_a_text_that_utf_8_cannot_hold_costs_a_question_mark(tmp_path):
    write_scores(tmp_path / "s.json", scored([row(1, "a \ud800", "a")]))
    assert "?" in (tmp_path / "s.json").read_text(encoding="utf-8")


def test_a_set_without_utterances_is_refused():
    with pytest.raises(UsageError, match="a set without utterances has no scores"):
        scored([])


def test_rates_without_case_and_punctuation_are_told_where_they_differ(tmp_path):
    found = scored([row(1, "hello, world", "Hello, world."), row(2, "Yes.", "Yes.")])
    line = "WER without case 33.33%, without punctuation 33.33%, without case and punctuation 0.00%"
    assert found.variants_line() == line
    write_scores(tmp_path / "s.json", found)
    read = json.loads((tmp_path / "s.json").read_text())
    assert read["wer"]["rate"] == pytest.approx(2 / 3)
    assert read["variants"]["without case and punctuation"] == {"wer": 0.0, "cer": 0.0}
    assert read["variants"]["without case"]["cer"] > 0


def test_rates_without_punctuation_that_are_the_same_are_not_told():
    found = scored([row(1, "a b", "a, c")])
    assert list(found.variants) == ["without punctuation"]
    assert (found.variants_line(), found.variants_line("cer")[:4]) == ("WER without punctuation 50.00%", "CER ")
    found = scored([row(1, "a b", "x, y")])
    assert (list(found.variants), found.variants_line()) == (["without punctuation"], "")


def test_texts_without_case_and_punctuation_have_one_rate():
    assert scored([row(1, "it's so", "it's not")]).variants == {}
    assert list(scored([row(1, "so it is", "So it is")]).variants) == ["without case"]
    assert list(scored([row(1, "so it is", "so, it is")]).variants) == ["without punctuation"]


def test_rows_get_the_form_of_another_normaliser_from_the_texts_as_written():
    (first, second) = normalized(
        [
            ScoredUtterance("a:1", "five", "5", text="Five!", recognised="5", score_normalizer="none"),
            ScoredUtterance("a:2", "Yes.", "yes"),
        ],
        "english",
    )
    assert (first.reference, first.hypothesis, first.score_normalizer) == ("five", "five", "english")
    assert (second.reference, second.hypothesis) == ("yes", "yes")


def test_a_set_of_several_manifests_has_rates_by_source():
    both = [{**row(1, "a b", "a b"), "place": "x/one.json:1"}, {**row(2, "a b", "a"), "place": "x/two.json:9"}]
    found = scored(both)
    assert [(each.name, each.num_errors, each.num_units) for each in found.by_source] == [
        ("two.json", 1, 2),
        ("one.json", 0, 2),
    ]
    assert scores_table(found).split()[0] == "source"
    assert [each["name"] for each in json.loads(json.dumps(scores_as_json(found)))["by_source"]] == [
        "two.json",
        "one.json",
    ]
    same_names = [{**each, "place": f"{number}/test.json:1"} for number, each in enumerate(both)]
    assert [each.name for each in scored(same_names).by_source] == ["1/test.json", "0/test.json"]
    assert scored([row(1, "a", "a"), row(2, "a", "b")]).by_source == []
