"""nemo-lite compare."""

import pytest
from toys.run_folder import rows_of, write_lines

from nemo_asr.commands.cli.report import compare
from nemo_lite.base.errors import UsageError


def test_the_table_of_two_folders_is_printed(tmp_path, capsys):
    for name, error_rate in (("a", 0.5), ("b", 0.1)):
        write_lines(tmp_path / name / "dev.transcripts.jsonl", rows_of(100, error_rate))
    compare([str(tmp_path / "a"), str(tmp_path / "b")])
    out = capsys.readouterr().out
    assert out.startswith(f"A: {tmp_path}/a\nB: {tmp_path}/b\n")
    assert "of 100 utterances; B has the lower WER" in out


def test_a_folder_without_transcripts_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"a: the folder has no \*\.transcripts\.jsonl"):
        compare([str(tmp_path / "a"), str(tmp_path / "a")])
