"""The start of nemo-lite: torch is imported only where it is needed."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.onnx_toy import METADATA, write_toy

from nemo_lite_start import needs_no_torch

SCRIPT = """
import sys
sys.argv[0] = "nemo-lite"
sys.modules["torch"] = None  # importing it fails
from nemo_lite_start import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("line", "yes"),
    [
        ("transcribe m.onnx a.wav", True),
        ("transcribe m.onnx a.wav --out b.json", True),
        ("transcribe runs/m a.wav --out m.onnx", False),
        ("transcribe --format json m.onnx a.wav", False),
        ("transcribe m.onnx a.wav --import mine.py", False),
        ("transcribe m.onnx a.wav --import=mine.py", False),
        ("export runs/m m.onnx", False),
        ("transcribe", False),
        ("", False),
    ],
)
def test_torch_is_left_out_only_where_the_line_begins_with_transcribe_and_an_onnx_file(line: str, yes: bool) -> None:
    assert needs_no_torch(line.split()) is yes


@pytest.mark.slow
def test_an_onnx_file_transcribes_where_there_is_no_torch(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "toy.onnx", METADATA | {"sample_rate": "16000", "frame_seconds": str(1 / 16000)})
    soundfile.write(tmp_path / "a.wav", np.array([1, 2, 0, 3], np.float32), 16000, subtype="FLOAT")
    words = ["transcribe", str(model), str(tmp_path / "a.wav"), "--format", "json", "--nbest", "2"]
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["text"], found["hypotheses"][0]["text"]) == ("ab c", "ab c")
    assert f"Loaded {model}: Toy" in ended.stderr
    # The package's own mistakes are told as ever, too.
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *words[:2], "none.wav"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "nemo-lite transcribe: error: the audio file none.wav cannot be opened" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_command_starts_there() -> None:
    (command,) = [each for each in entry_points(group="console_scripts") if each.name == "nemo-lite"]
    assert command.value == "nemo_lite_start:main"
