"""A wheel built from the repository, in an environment with nothing else but its dependencies: the command trains."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from toys.tone_corpus import ROOT, make_corpus

pytestmark = pytest.mark.slow


def run(command, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, ROOT / "tools/wheels.py", "--only", "all", folder], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """``nemo-lite`` of an environment with the wheel; the dependencies are those of this process."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file: the .pth files in there, with this checkout's editable installation, are not read.
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    where = run([python, "-c", "import nemo_asr, nemo_lite; print(nemo_lite.__file__, nemo_asr.__file__)"], folder)
    assert all(Path(file).is_relative_to(site_packages) for file in where.split())
    return folder / "bin/nemo-lite"


def test_the_page_of_the_server_is_in_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    page = {path.name for path in (ROOT / "collections/asr/nemo_asr/run/serve/page").iterdir()}
    assert {f"nemo_asr/run/serve/page/{name}" for name in page} <= set(names)
    assert "index.html" in page


@pytest.mark.long
def test_the_installed_command_runs_the_demo(command, tmp_path):
    told = run([command, "demo", "--utterances", 16, "--num_epochs", 1], tmp_path)
    assert "Word error rate of the model" in told
    for name in ("model/model.json", "report.html", "curves.png", "training.svg", "new.wav"):
        assert (tmp_path / "runs/demo" / name).stat().st_size


@pytest.mark.long
def test_the_installed_command_shows_plans_and_trains(command, tmp_path):
    corpus = make_corpus(tmp_path)
    assert "  train  " in run([command, "--help"], tmp_path)
    data = ["--train_dataset", corpus / "train.json", "--eval_datasets", corpus / "dev.json", "--batch_size", 4]
    planned = run([command, "plan", "--model_config", "quartznet5x5", *data, "--num_epochs", 1], tmp_path)
    assert "3 steps an epoch, 3 steps in all" in planned
    run(
        [command, "train", "--model_config", "tones.yaml", *data, "--max_steps", 2, "--work_dir", "runs"],
        tmp_path,
    )
    assert list((tmp_path / "runs/Jasper/checkpoints").iterdir())
    assert "labels       4: ' ' a b c" in run([command, "models", "show", "runs/Jasper"], tmp_path)


def test_a_release_check_names_each_python_that_is_not_here_and_fails(tmp_path):
    switched_off = tmp_path / "python3.98"  # as pyenv has one for each version that it knows
    switched_off.write_text("#!/bin/sh\nexit 127\n")
    switched_off.chmod(0o755)
    command = [sys.executable, ROOT / "tools/release_check.py", "3.98", "3.99"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rest = "not found; install it, or name those to try: PYTHONS='3.11 3.12'"
    assert finished.stdout.splitlines() == [f"Python 3.98: {rest}", f"Python 3.99: {rest}"]
    assert (finished.stderr, finished.returncode) == ("Failed: 3.98, 3.99\n", 1)
