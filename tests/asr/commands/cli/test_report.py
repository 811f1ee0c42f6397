"""nemo-lite report."""

import pytest
from toys.run_folder import row, write_lines

from nemo_asr.commands.cli import report
from nemo_lite.base.errors import UsageError


def test_the_page_is_written_and_its_place_printed(tmp_path, capsys):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    report.main([str(tmp_path)])
    report.main([str(tmp_path), "--out", str(tmp_path / "x.html")])
    assert capsys.readouterr().out == f"Report: {tmp_path}/report.html\nReport: {tmp_path}/x.html\n"
    assert (tmp_path / "x.html").read_text() == (tmp_path / "report.html").read_text()


def test_a_page_of_the_users_is_replaced_with_overwrite_alone(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    (tmp_path / "x.html").write_text("mine")
    line = [str(tmp_path), "--out", str(tmp_path / "x.html")]
    with pytest.raises(UsageError, match=r"x\.html: the file was not written by nemo-lite report; .* or --overwrite"):
        report.main(line)
    assert (tmp_path / "x.html").read_text() == "mine"
    report.main([*line, "--overwrite"])
    report.main(line)


def test_a_folder_without_results_and_a_page_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is nothing to report"):
        report.main([str(tmp_path)])
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    with pytest.raises(UsageError, match=r"none/x\.html: the file cannot be written") as error:
        report.main([str(tmp_path), "--out", str(tmp_path / "none/x.html")])
    assert error.value.exit_code == 2


def test_a_comparison_writes_a_page_with_both_models_and_its_numbers(tmp_path, capsys):
    for name in ("a", "b"):
        write_lines(tmp_path / name / "dev.transcripts.jsonl", [row(1, "a b", name)])
    line = [str(tmp_path / "a"), str(tmp_path / "b")]
    report.compare(line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(UsageError, match=r"report\.html: the file was not written by nemo-lite report"):
        report.compare([*line, "--out", str(tmp_path)])
    assert not (tmp_path / "comparison.json").exists()
    report.compare([*line, "--out", str(tmp_path), "--overwrite"])
    assert f"The comparison is in {tmp_path}/comparison.json" in capsys.readouterr().out
    assert "Two models" in (tmp_path / "report.html").read_text()


def test_a_page_that_is_written_again_has_both_models_of_a_comparison(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a b", "a")])
    write_lines(tmp_path / "compared" / "dev.transcripts.jsonl", [row(1, "a b", "b")])
    report.main([str(tmp_path)])
    assert "Two models" not in (tmp_path / "report.html").read_text()
    (tmp_path / "comparison.json").write_text("{}")
    report.main([str(tmp_path)])
    assert "Two models" in (tmp_path / "report.html").read_text()
