"""Two models on the same utterances."""

import json
import re

import pytest
from toys.run_folder import row, rows_of, write_lines

from nemo_asr.scoring.intervals import paired_test, utterance_errors
from nemo_asr.scoring.report.comparison import compare, compare_folders, comparison_table, write_comparison
from nemo_asr.scoring.report.transcripts import ScoredUtterance
from nemo_lite.base.errors import UsageError


def utterances(rows):
    return [ScoredUtterance(**each) for each in rows]


RAW_A, RAW_B = rows_of(200, 0.3, seed=1), rows_of(200, 0.1, seed=2)
A, B = utterances(RAW_A), utterances(RAW_B)


def test_rates_and_tests_are_those_of_the_utterances():
    found = compare(A, B)
    for test, use_cer in ((found.wer, False), (found.cer, True)):
        counts = [utterance_errors([r.hypothesis for r in x], [r.reference for r in x], use_cer) for x in (A, B)]
        assert test == paired_test(*counts)
        assert (test.num_clusters, test.unit) == (200, "utterances")
    assert found.wer.difference < 0
    assert found.wer.probability > 0.99
    assert found.wer.interval.high < 0


def test_utterances_are_counted_by_who_is_better():
    a = [row(1, "a b", "a b"), row(2, "a b", "a"), row(3, "a b", "x y"), row(4, "c", "c")]
    b = [row(1, "a b", "a"), row(2, "a b", "a b"), row(3, "a b", "x b"), row(4, "c", "c")]
    found = compare(utterances(a), utterances(b))
    assert (found.num_better, found.num_worse, found.wer.num_utterances) == (2, 1, 4)


def test_the_order_of_the_utterances_does_not_matter():
    assert compare(A, B[::-1]) == compare(A, B)


def test_other_utterances_are_refused_with_the_difference():
    wanted = (
        r"not scored on the same utterances: got 2 only of A, first dev\.json:1 and 1 only of B, first dev\.json:9; "
        "evaluate both models on the same manifests"
    )
    rows = [row(number, "a", "a") for number in range(1, 10)]
    with pytest.raises(UsageError, match=wanted):
        compare(utterances(rows[:8]), utterances(rows[2:]))


def test_other_references_are_refused_with_the_first():
    got = r'got 1 differ, first dev\.json:2: "two" of A and "too" of B'
    wanted = rf"references .* differ: {got}; if they differ in spelling, nemo-lite compare A B --score_normalizer basic"
    with pytest.raises(UsageError, match=wanted):
        compare(*(utterances([row(1, "one", "x"), row(2, said, "x")]) for said in ("two", "too")))


def test_a_place_that_occurs_twice_and_empty_sets_are_refused():
    with pytest.raises(UsageError, match="the transcripts of B have a place twice"):
        compare(A[:2], [A[0], A[0]])
    with pytest.raises(UsageError, match="needs utterances: got none"):
        compare([], [])


def write_sets(folder, *names, rows=None):
    for name in names:
        write_lines(folder / f"{name}.transcripts.jsonl", rows or rows_of(20, 0.2))
    return folder


def test_folders_are_compared_set_by_set(tmp_path):
    a = write_sets(tmp_path / "a" / "transcripts", "dev", "test").parent
    b = write_sets(tmp_path / "b", "test", "dev", rows=rows_of(20, 0.5, seed=3))
    found = compare_folders(a, b)
    assert list(found) == ["dev", "test"]
    assert found["dev"].wer.num_utterances == 20


def test_only_the_sets_that_are_asked_for_are_compared(tmp_path):
    a, b = write_sets(tmp_path / "a", "dev", "older"), write_sets(tmp_path / "b", "dev")
    assert list(compare_folders(a, b, sets=["dev"])) == ["dev"]


def test_sets_that_one_folder_lacks_are_named(tmp_path):
    a, b = write_sets(tmp_path / "a", "dev-clean"), write_sets(tmp_path / "b", "dev_clean")
    wanted = r"b: the set dev-clean is not there: got dev_clean \(did you mean dev_clean\?\); evaluate both"
    with pytest.raises(UsageError, match=wanted):
        compare_folders(a, b)
    write_sets(b, "dev-clean")
    with pytest.raises(UsageError, match="a: the set dev_clean is not there"):
        compare_folders(a, b)
    with pytest.raises(UsageError, match=r"none: the folder has no \*\.transcripts\.jsonl; give a run's folder"):
        compare_folders(a, tmp_path / "none")


def test_an_error_names_the_set(tmp_path):
    a = write_sets(tmp_path / "a", "dev", rows=[row(1, "a", "a")])
    b = write_sets(tmp_path / "b", "dev", rows=[row(1, "b", "a")])
    with pytest.raises(UsageError, match=r"^dev: the references of the two models differ"):
        compare_folders(a, b)


def test_texts_of_two_normalisers_are_told_and_compared_by_a_third(tmp_path):
    a = write_sets(tmp_path / "a", "dev", rows=[{**row(1, "Ab c.", "Ab c."), "score_normalizer": "none"}])
    b = write_sets(tmp_path / "b", "dev", rows=[row(1, "ab c", "ab d")])
    with pytest.raises(UsageError, match=r"differ \(score normalisers: none and the default\): got 1 differ"):
        compare_folders(a, b)
    found = compare_folders(a, b, normalizer="basic")["dev"].wer
    assert (found.rate_a, found.rate_b) == (0.0, 0.5)


def test_the_table_says_the_numbers_and_what_they_mean():
    found = compare(A, B)
    text = comparison_table({"dev": found}, "runs/A", "runs/B")
    test = found.wer
    assert text.startswith("A: runs/A\nB: runs/B\n")
    line = next(line for line in text.splitlines() if line.startswith("dev  WER"))
    interval = f"{test.interval.low * 100:+.2f} to {test.interval.high * 100:+.2f}"
    for cell in (f"{test.rate_a:.2%}", f"{test.rate_b:.2%}", f"{test.difference * 100:+.2f}", interval, "< 0.0001"):
        assert cell in line
    better, worse = found.num_better, found.num_worse
    assert f"dev: B is better on {better} and worse on {worse} of 200 utterances; B has the lower WER: by" in text
    assert "two equally good models differ as much in less than 0.01 % of such comparisons." in text
    assert "by resampling 200 utterances." in text


def test_the_table_says_when_a_difference_may_be_chance():
    assert "; both have the same WER." in comparison_table({"dev": compare(A, A)})
    assert "A has the lower WER: by" in comparison_table({"dev": compare(B, A)})
    near = [*A[:199], utterances([{**RAW_A[199], "hypothesis": "x"}])[0]]
    text = comparison_table({"dev": compare(A, near)})
    assert re.search(
        r"has the lower WER here, but the difference may be chance: by 0\.\d+ points, and .* 32 % of", text
    )


def test_references_without_words_have_no_rates_to_compare(tmp_path):
    a, b = (utterances([row(number, "", heard) for number in range(20)]) for heard in ("x", ""))
    found = {"dev": compare(a, b)}
    text = comparison_table(found)
    assert "nan" not in text
    assert "inf" not in text
    meaning = "B is better on 20 and worse on 0 of 20 utterances; the references have no words, so there are no rates"
    assert f"dev: {meaning} to compare." in text
    rates = json.loads(write_comparison(tmp_path, found, "A", "B").read_text())["sets"]["dev"]["wer"]
    assert [rates[key] for key in ("a", "b", "difference", "low", "high")] == [None] * 5
    assert not rates["is_sure"]


def test_one_utterance_is_told_as_one():
    text = comparison_table({"dev": compare(A[:1], B[:1])})
    assert " of 1 utterance; " in text
    assert "by resampling 1 utterance." in text
    one, other = ([{**each, "hypothesis": heard} for each in RAW_A[:1]] for heard in (RAW_A[0]["reference"], "x"))
    assert "; 1 utterance is few, so others" in comparison_table({"dev": compare(utterances(one), utterances(other))})


def test_models_are_compared_by_speaker_and_few_speakers_are_told():
    a, b = ([{**each, "speaker": f"s{n % 4}"} for n, each in enumerate(rows)] for rows in (RAW_A, RAW_B))
    found = compare(utterances(a), utterances(b))
    assert (found.wer.num_clusters, found.wer.unit) == (4, "speakers")
    # One of the files names no speakers: the other one's are taken.
    assert compare(utterances(RAW_A), utterances(b)) == compare(utterances(a), utterances(RAW_B)) == found
    text = comparison_table({"dev": found})
    assert "; 4 speakers are few, so others may decide otherwise." in text
    assert "by resampling 4 speakers." in text
    assert "are few" not in comparison_table({"dev": compare(A, B)})


def test_the_file_has_the_numbers_of_the_table_and_replaces_only_its_own(tmp_path):
    found = {"dev": compare(A, B)}
    path = write_comparison(tmp_path / "out", found, "one", "two")
    stored = json.loads(path.read_text())
    dev, test = stored["sets"]["dev"], found["dev"].wer
    assert (stored["a"], stored["b"], dev["utterances"], dev["b_better"]) == (
        "one",
        "two",
        200,
        found["dev"].num_better,
    )
    expected = [test.rate_a, test.rate_b, test.difference, test.interval.low, test.interval.high]
    told = [dev["wer"][key] for key in ("a", "b", "difference", "low", "high")]
    assert told == pytest.approx(expected, abs=1e-8)
    assert (dev["wer"]["p_value"], dev["wer"]["is_sure"]) == (test.p_value, True)
    assert dev["meaning"] in comparison_table(found)
    write_comparison(tmp_path / "out", found, "one", "two")
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"comparison\.json: the file was changed since nemo-lite compare wrote it"):
        write_comparison(tmp_path / "out", found, "one", "two")
    assert path.read_text() == "mine"
