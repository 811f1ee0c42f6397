"""A script of NeMo's that opens checkpoints by their names runs unchanged."""

from pathlib import Path

import pytest
from toys.nemo_alias import run_script


def test_checkpoints_and_single_files_are_found_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("files.py", ["--work_dir", str(tmp_path)])
    told = capsys.readouterr().out
    assert "no checkpoint files for Other of the same step" in told
    assert "half.pt: its weights are float16; converted to float32" in told
    assert "done 0.000000\n" in told
