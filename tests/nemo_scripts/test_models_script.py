"""A script of NeMo 0.11 that loads, transcribes with, trains and saves a whole model runs unchanged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.nemo_alias import run_script
from toys.nemo_archives import config_0, write_0, write_1


@pytest.mark.parametrize("write", [write_0, write_1])
def test_a_whole_model_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], object]
) -> None:
    write(tmp_path / "m.nemo")
    (tmp_path / "quartznet.yaml").write_text(json.dumps(config_0()))
    lines = []
    for number in range(2):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, np.random.default_rng(number).standard_normal(8000) / 9, 8000)
        lines.append(json.dumps({"audio_filepath": str(path), "duration": 1.0, "text": "abc"}))
    (tmp_path / "train.json").write_text("\n".join(lines))
    paths = {"asr_model": "m.nemo", "config": "quartznet.yaml", "dataset": "train.json", "work_dir": "out"}
    run_script("models.py", [word for key, name in paths.items() for word in (f"--{key}", str(tmp_path / name))])
    told = capsys.readouterr().out
    assert "['QuartzNet15x5-En', 'QuartzNet15x5-Zh']" in told
    assert "QuartzNet ['AudioToMelSpectrogramPreprocessor', 'SpectrogramAugmentation', 'JasperEncoder'," in told
    assert "(did you mean QuartzNet15x5-En?)" in told
