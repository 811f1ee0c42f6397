"""The start of nemo-lite: torch is imported only where it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.onnx_toy import METADATA, write_toy

SCRIPT = """
import sys
sys.argv[0] = "nemo-lite"
sys.modules["torch"] = None  # importing it fails
from nemo_lite.base.dispatch import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "train", "plan", "eval", "transcribe", "demo"])
def test_help_is_shown_where_there_is_no_torch(words: str) -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *words.split(), "--help"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: nemo-lite ")
    assert "cannot be loaded" not in ended.stdout


@pytest.mark.slow
def test_an_onnx_file_transcribes_where_there_is_no_torch(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "toy.onnx", METADATA | {"sample_rate": "16000", "frame_seconds": str(1 / 16000)})
    soundfile.write(tmp_path / "a.wav", np.array([1, 2, 0, 3], np.float32), 16000, subtype="FLOAT")
    words = ["transcribe", str(model), str(tmp_path / "a.wav"), "--format", "json", "--nbest", "2", "--segments", "off"]
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


@pytest.mark.slow
def test_an_onnx_file_transcribes_without_packages_that_are_slow_to_import(tmp_path: Path) -> None:
    """Each of them took 5 to 100 ms of the half second from the start to the first text."""
    model = write_toy(tmp_path / "toy.onnx", METADATA | {"sample_rate": "16000", "frame_seconds": str(1 / 16000)})
    sound = np.resize(np.array([1, 4], np.float32), 8000)  # half a second that is loud, and one of silence
    soundfile.write(tmp_path / "a.wav", np.concatenate([sound, np.zeros(16000, np.float32)]), 16000, subtype="FLOAT")
    slow = ("nemo_asr.run.text.english", "numpy.ma", "rapidfuzz", "urllib.request", "http.client", "tqdm", "onnx")
    slow += ("ruamel.yaml", "multiprocessing", "nemo_lite.core.neural_types", "nemo_asr.run.search.prefix_beam_search")
    slow += ("nemo_asr.run.text.parser", "nemo_asr.run.transcribe.alignment", "nemo_asr.run.transcribe.stream")
    script = SCRIPT.replace("sys.exit(main())", f"code = main()\nprint([n for n in {slow} if n in sys.modules], code)")
    words = ["transcribe", str(model), str(tmp_path / "a.wav")]
    ended = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert ended.stdout.endswith("\n[] 0\n"), (ended.stdout[-200:], ended.stderr)


@pytest.mark.slow
def test_help_into_a_pipe_that_nobody_reads_ends_without_a_word():
    command = subprocess.Popen(
        [sys.executable, "-m", "nemo_lite", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait() == 141
