"""A script of NeMo's that deploys a model runs unchanged."""

from pathlib import Path

import pytest
from toys.nemo_alias import run_script

pytestmark = pytest.mark.slow  # torch's exporter takes its time


@pytest.mark.long
def test_encoder_and_decoder_are_exported_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("deployment.py", ["--work_dir", str(tmp_path)])
    told = capsys.readouterr().out
    for line in (
        "onnx (3, 167, 29)",
        "largest difference below 1e-4: True",
        "script (3, 16, 167)",
        "parameters ['decoder_layers.0.bias', 'decoder_layers.0.weight'] True",
        "refused True",
    ):
        assert f"{line}\n" in told
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"encoder.onnx", "decoder.onnx", "encoder.ts", "decoder.pt", "decoder.pt.json"}
