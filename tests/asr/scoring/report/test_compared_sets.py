"""Two models side by side in a report."""

from html import escape

from toys.run_folder import row, rows_of, write_lines

from nemo_asr.scoring.report.compared_sets import MOST_DIFFERING
from nemo_asr.scoring.report.page import write_report
from nemo_asr.scoring.report.run_folder import read_run


def folders(tmp_path, a, b):
    for name, rows in (("a", a), ("b", b)):
        write_lines(tmp_path / name / "dev.transcripts.jsonl", rows)
    return tmp_path / "a", tmp_path / "b"


def test_utterances_with_two_texts_are_shown_by_how_much_their_errors_differ(tmp_path):
    a = [row(1, "a b c", "a b c"), row(2, "a b", "a x"), row(3, "a b", "a b"), row(4, "a", "x")]
    b = [row(4, "a", "y"), row(2, "a b", "a b"), row(3, "a b", "a b"), row(1, "a b c", "c")]
    first, second = folders(tmp_path, a, b)
    (compared,) = read_run(first, beside=second).compared
    assert (compared.num_differing, compared.comparison.num_better, compared.comparison.num_worse) == (3, 1, 1)
    shown = [(each.place, each.num_errors, each.errors_b) for each in compared.differing]
    assert shown == [("dev.json:1", 0, 2), ("dev.json:2", 1, 0), ("dev.json:4", 1, 1)]
    told = {name: [(part.text, part.kind) for part in parts] for name, parts in compared.differing[0].texts.items()}
    assert told["said"] == told["A"] == [("a b c", "equal")]
    assert told["B"] == [("a b", "delete"), ("c", "equal")]  # what is missing is shown too


def test_the_page_has_both_models_in_one_table_and_one_card(tmp_path):
    first, second = folders(tmp_path, rows_of(60, 0.3, seed=1), rows_of(60, 0.1, seed=2))
    page = write_report(first, facts={"A": "one", "B": "<two>"}, beside=second).read_text()
    assert '<h2 id="compared">Two models</h2>' in page
    assert "&lt;two&gt;" in page
    (compared,) = read_run(first, beside=second).compared
    for _, cells in compared.rates:
        assert "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells) in page
    assert page.index(compared.meaning.split(";")[0]) < page.index('<table class="compared">')
    assert page.count(" of B, in ") == len(compared.differing) == MOST_DIFFERING
    assert "Two models" not in write_report(first).read_text()


def test_above_the_table_of_two_models_stand_no_rates_of_one(tmp_path):
    first, second = folders(tmp_path, [row(1, "a b", "a, b")], [row(1, "a b", "a b")])
    assert ("dev", "WER without punctuation 0.00%") in read_run(first).facts
    assert read_run(first, beside=second).facts == []


def test_texts_are_compared_as_a_score_normaliser_leaves_them(tmp_path):
    first, second = folders(tmp_path, [row(1, "a b", "A, b")], [row(1, "a b", "a b")])
    for normalizer, number in ((None, 1), ("basic", 0)):
        report = read_run(first, beside=second, normalizer=normalizer)
        assert (report.compared[0].num_differing, report.sets[0].scores.num_wrong) == (number, number)
