"""The wheel of nemo-lite-run, in an environment with nothing else but what it requires: no PyTorch."""

import json
import os
import subprocess
import sys
import urllib.request
import venv
import zipfile
from contextlib import contextmanager

import pytest
from toys.sources import MODULES, ROOT, is_inside
from toys.tone_corpus import record
from toys.tone_model import exported_tones

pytestmark = pytest.mark.slow
WITHOUT_TORCH = ("nemo_lite.base", "nemo_asr.run")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, ROOT / "tools/wheels.py", "--only", "run", folder]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    (wheel,) = folder.glob("nemo_lite_run-*.whl")
    return wheel


def test_it_holds_what_recognises_and_nothing_that_needs_pytorch(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names}
    expected = {module for module in MODULES if any(is_inside(module, package) for package in WITHOUT_TORCH)}
    assert expected <= modules
    roots = {"nemo_lite", "nemo_lite.__main__", "nemo_lite.package_info", "nemo_asr"}
    tables = {f"{package}.compat{inner}" for package in ("nemo_lite", "nemo_asr") for inner in ("", ".paths")}
    assert modules - expected == roots | tables


def test_it_requires_neither_pytorch_nor_what_brings_it(wheel):
    metadata = zipfile.ZipFile(wheel).read("nemo_lite_run-0.1.0.dist-info/METADATA").decode()
    required = {line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    names = {line.partition(">")[0] for line in required}
    assert {"numpy", "onnxruntime", "soundfile", "starlette"} <= names
    assert not names & {"torch", "safetensors", "tensorboard", "silero-vad"}


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """``nemo-lite`` of a new environment, with the wheel's requirements from the index."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin/pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "1"]
    installed = subprocess.run([*pip, wheel], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if "Could not find a version" in installed.stderr or "ConnectionError" in installed.stderr:
        pytest.skip("no index of packages can be reached")
    assert installed.returncode == 0, installed.stderr
    return folder / "bin/nemo-lite"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "a.wav"
    record(path, "cab")
    return path


@contextmanager
def running(*words):
    process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        yield next(line for line in process.stderr if "Serving at" in line).split()[2]
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.long
def test_its_command_transcribes_and_serves_a_file_without_pytorch(command, recording, tmp_path):
    model = exported_tones()
    words = [command, "transcribe", model, recording]
    told = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert told.stdout == "cab\n"
    with running(command, "serve", model, "--port", "0") as address:
        part = b"--b\r\nContent-Disposition: form-data; name=file; filename=a.wav\r\n\r\n"
        body = part + recording.read_bytes() + b"\r\n--b--"
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        request = urllib.request.Request(f"{address}/v1/audio/transcriptions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["text"] == "cab"


@pytest.mark.long
def test_what_needs_pytorch_says_so_in_one_line(command, recording, tmp_path):
    (tmp_path / "model").mkdir()
    for words, line in (
        (
            ["transcribe", tmp_path / "model", recording],
            "this model needs all of nemo-lite; install nemo-lite in the place of nemo-lite-run",
        ),
        (["train"], '"train" is not a subcommand; known: align, serve, transcribe; others come with nemo-lite in'),
    ):
        told = subprocess.run([command, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert told.returncode == 2
        assert line in told.stderr
        assert len(told.stderr.splitlines()) == 1
