"""nemo-lite examples copy: what users change is a copy."""

import pytest
from toys.tone_corpus import ASR

from nemo_asr.shipped import examples
from nemo_lite.base.errors import UsageError


def test_the_scripts_and_configurations_are_copied(tmp_path, capsys):
    examples(["copy", str(tmp_path / "mine")])
    copied = {file.relative_to(tmp_path / "mine") for file in (tmp_path / "mine").rglob("*.*")}
    source = [*ASR.glob("*.py"), *ASR.glob("configs/*.yaml")]
    assert copied == {file.relative_to(ASR) for file in source}
    assert (tmp_path / "mine/jasper.py").read_text() == (ASR / "jasper.py").read_text()
    assert capsys.readouterr().out.startswith(f"{len(source)} files in {tmp_path / 'mine'}: python ")


def test_no_file_is_overwritten(tmp_path):
    (tmp_path / "jasper.py").write_text("mine")
    with pytest.raises(UsageError) as caught:
        examples(["copy", str(tmp_path)])
    assert str(caught.value) == f"{tmp_path / 'jasper.py'}: a file of this name is there already; give another folder"
    assert [file.name for file in tmp_path.iterdir()] == ["jasper.py"]
    assert (tmp_path / "jasper.py").read_text() == "mine"
