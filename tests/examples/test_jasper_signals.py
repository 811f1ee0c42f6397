"""jasper.py in a process of its own that a signal ends, and that the same command lets go on."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from toys.tone_corpus import ASR, ROOT

from nemo_asr.trained.folder import read_model
from nemo_lite.core.trackers import read_metrics

SECONDS = 120


def train_until(steps, number, corpus):
    """Start a run that never ends, signal it after so many steps: exit code, stdout, stderr."""
    metrics = "runs/Jasper/metrics.jsonl"
    words = [ASR / "jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"]
    words += ["--eval_datasets", corpus / "dev.json", "--batch_size", 4, "--num_epochs", 10**6, "--work_dir", "runs"]
    words += ["--log_freq", 1, "--eval_freq", 3, "--checkpoint_epoch_freq", 0]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "collections" / "asr")))}
    # A shell has SIGINT ignored in what runs in the background, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, *map(str, words)]
    process = subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline and steps_in(metrics) < steps:
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err, " ".join(command)


def steps_in(metrics):
    if not os.path.exists(metrics):
        return 0
    return max((record["step"] for record in read_metrics(metrics) if record["kind"] == "train"), default=0)


@pytest.mark.long
@pytest.mark.slow
def test_a_signal_ends_a_run_in_order_and_the_same_command_goes_on(corpus, tmp_path):
    done = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 75)):
        ended, out, err, command = train_until(done + 5, number, corpus)
        assert ended == code, out + err
        name, before = number.name, done
        done = steps_in("runs/Jasper/metrics.jsonl")
        assert f"{name}: stopping after this step; a second signal leaves at once" in out
        saved = f"saved runs/Jasper/checkpoints/checkpoint-STEP-{done}. To go on"
        assert f"{name}: stopped after {done} steps; {saved}" in out
        assert command in out
        assert "Traceback" not in out + err
        assert f"Stopped: {name}; {done} steps, " in out
        assert "\nReport so far: nemo-lite report runs/Jasper\n" in out
        if before:
            assert re.search(rf"going on at step {before}, (at the start of epoch|in epoch \d+ after)", out)
    assert read_model(tmp_path / "runs/Jasper").card.rates[0].set == "dev"
