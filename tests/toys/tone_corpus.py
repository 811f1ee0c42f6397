"""A language that a tiny model learns in a second: each letter is a tone. And the scripts, run within this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from nemo_lite import logging
from nemo_lite.base import dispatch

ROOT = Path(__file__).resolve().parents[2]
ASR = ROOT / "examples" / "asr"
STYLE = "NEMO_LITE_LOG_STYLE"
FREQUENCIES = {"a": 500, "b": 1200, "c": 2600}  # Hz
TEXTS = ["cab", "abba", "bc", "aabc", "caca", "bab", "ccb", "acb", "bbca", "cb", "abc", "cabb"]

# Of a configuration, up to the blocks of its encoder.
HEAD = """sample_rate: 16000
AudioToTextDataLayer:
  train: {shuffle: true}
  eval: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {features: 32, n_fft: 512, dither: 0.0}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:"""
CONFIG = (
    "model: Tones\n"
    + HEAD
    + """
    - {filters: 32, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false, separable: true}
    - {filters: 64, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}
labels: [" ", "a", "b", "c"]
"""
)


class Finished(NamedTuple):
    """A script that has run."""

    code: int
    out: str
    err: str

    @property
    def losses(self) -> list[str]:
        """The training losses, as logged."""
        return re.findall(r"\] Loss: (\S+)", self.out)


def record(path: Path, text: str, rate: int = 16000, channels: int = 1) -> float:
    """Write the recording of a text; its seconds."""
    time = np.arange(int(0.15 * rate)) / rate
    silence = np.zeros(int(0.02 * rate))
    tones = [np.concatenate([0.3 * np.sin(2 * np.pi * FREQUENCIES.get(letter, 0) * time), silence]) for letter in text]
    samples = np.concatenate(tones) + np.random.default_rng(len(text)).normal(0, 1e-3, len(text) * len(tones[0]))
    soundfile.write(path, np.tile(samples[:, None], channels), rate)
    return len(samples) / rate


def make_corpus(folder: Path) -> Path:
    """``train.json`` (all texts), ``dev.json`` (the first four), ``other.json`` (four at 22.05 kHz), ``tones.yaml``."""
    for name, texts, rate in (("train", TEXTS, 16000), ("dev", TEXTS[:4], 16000), ("other", TEXTS[4:8], 22050)):
        lines = []
        for number, text in enumerate(texts):
            path = folder / f"{name}{number}.wav"
            lines.append({"audio_filepath": str(path), "duration": record(path, text, rate), "text": text})
        write_manifest(folder / f"{name}.json", lines)
    (folder / "tones.yaml").write_text(CONFIG)
    return folder


def read_manifest(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_manifest(path: Path, lines: Sequence[object]) -> Path:
    """A line that is a str is written as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def run_script(script: str, *args: object) -> Finished:
    """Run one of the scripts in this process: importing torch for each would take seconds.

    Its log has NeMo's style, in which losses have all their digits, unless ``--log_style`` is given.
    """
    path = str(ASR / script)
    return _run(lambda: runpy.run_path(path, run_name="__main__"), path, *args)


def run_subcommand(*words: object) -> Finished:
    """Run ``nemo-lite`` with these words in this process, otherwise as `run_script` does."""
    return _run(lambda: sys.exit(dispatch.main()), "nemo-lite", *words)


def _run(call: Callable[[], object], *words: object) -> Finished:
    """Call what reads its arguments from ``sys.argv``."""
    before, code, level = sys.argv, 0, logging.get_verbosity()
    style = os.environ.get(STYLE)
    os.environ.setdefault(STYLE, "nemo")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        sys.argv = [str(word) for word in words]
        try:
            call()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        finally:
            sys.argv = before
            logging.setLevel(level)
            logging.set_style(None)
            if style is None:
                del os.environ[STYLE]
            for log in Path.cwd().rglob("log_globalrank*.txt"):
                logging.remove_file_handler(log)
    return Finished(code, out.getvalue(), err.getvalue())


def run_process(script: str, *args: object, launcher: Sequence[str] = ()) -> Finished:
    """Run one of the scripts as a user does, with the log as `run_script` has it.

    ``launcher``: words between ``python`` and the script.
    """
    command = [sys.executable, *launcher, str(ASR / script), *map(str, args)]
    environment = {STYLE: "nemo", **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'collections' / 'asr'}"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return Finished(finished.returncode, finished.stdout, finished.stderr)
