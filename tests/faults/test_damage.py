"""Bit flips and cut files of every kind: each is told, and what was damaged is never used as if it were whole."""

from __future__ import annotations

import io
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from toys.faulty_run import CHECKPOINTS, EVERY, SEED, resumed_at, train
from toys.ranks import Rank

import nemo_lite as nemo
from nemo_asr.trained.folder import ModelCard, read_model, write_model
from nemo_lite.backends.pytorch.checkpoint.storage import save_module
from nemo_lite.base.errors import CheckpointError, NemoLiteError
from nemo_lite.core.trackers import MetricsFile, read_metrics

pytestmark = pytest.mark.slow
CHECKPOINT_DAMAGES, MODEL_DAMAGES, METRICS_DAMAGES = 30, 90, 30  # 150


def damage(file: Path, rng: random.Random) -> str:
    """Flip a bit or cut the file, somewhere; what was done."""
    content = bytearray(file.read_bytes())
    if rng.random() < 0.3:
        size = rng.randrange(len(content))
        file.write_bytes(content[:size])
        return f"{file.name} cut from {len(content)} to {size} bytes"
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"{file.name}: bit {bit} of byte {place} of {len(content)} flipped"


def files_of(folder: Path) -> list[Path]:
    """The files below a folder that hold something."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


class Trial(NamedTuple):
    """What came of one damage: what the user reads, and whether the run went on as if nothing had been."""

    damaged: str
    told: str
    resumed: int
    is_as_whole: bool


def damage_checkpoints(folder: Path, seed: int, number: int) -> list[Trial]:
    """In one process: two checkpoints, of which the newer is damaged; a run goes on from them. So often."""
    whole, rng = folder / "whole", random.Random(seed)
    whole.mkdir()
    train(whole, steps=EVERY)
    before = {*files_of(whole / CHECKPOINTS)}
    train(whole, steps=2 * EVERY)
    of_newer = [path.relative_to(whole) for path in files_of(whole / CHECKPOINTS) if path not in before]
    shutil.copytree(whole, folder / "expected")
    expected = train(folder / "expected", steps=2 * EVERY + 1)
    trials = []
    for trial in range(number):
        place = folder / str(trial)
        shutil.copytree(whole, place)
        # Each kind as often, whatever its size.
        damaged = damage(place / of_newer[trial % len(of_newer)], rng)
        warned, weights = io.StringIO(), None
        try:
            with nemo.logging.patch_stderr_handler(warned):
                weights = train(place, steps=2 * EVERY + 1)
            told = warned.getvalue()
        except CheckpointError as error:
            told = str(error)
        trials.append(Trial(damaged, told, resumed_at(place) if weights else -1, weights == expected))
        shutil.rmtree(place)
    return trials


@pytest.mark.parametrize("number", [CHECKPOINT_DAMAGES, pytest.param(6 * CHECKPOINT_DAMAGES, marks=pytest.mark.soak)])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, number):
    end = Rank({}, damage_checkpoints, (tmp_path, SEED, number)).wait(time.perf_counter() + 300)
    assert end.code == 0, end.err
    assert len(end.result) == number
    assert len({trial.damaged.partition(" ")[0] for trial in end.result}) > 2
    silent = [trial for trial in end.result if str(tmp_path) not in trial.told]
    assert silent == [], f"seed {SEED}"
    # Where the run goes on, it does so from the older one; the weights are then the same, as training is.
    assert [trial for trial in end.result if trial.resumed not in (EVERY, -1) or not trial.is_as_whole] == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with a module of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_module(torch.nn.Linear(3, 2), folder / ".staged.safetensors")
    card = ModelCard(name="Tones", labels=[" ", "a", "b"], sample_rate=16000, step=3)
    write_model(folder, card, "model: Tones\n", {"Linear": folder / ".staged.safetensors"})
    return folder


def readings(folder: Path, whole: Path, read: Callable[[Path], Any], number: int) -> Iterator[tuple[str, Any]]:
    """What was damaged, and what a reader makes of it: the error's text, or the value."""
    rng = random.Random(SEED)
    for trial in range(number):
        place = folder / str(trial)
        shutil.copytree(whole, place)
        files = files_of(place)
        damaged = damage(files[trial % len(files)], rng)
        try:
            yield damaged, read(place)
        except NemoLiteError as error:
            yield damaged, str(error)


def test_each_damage_to_a_model_folder_is_an_error_that_names_the_file(tmp_path, model):
    whole = read_model(model).card
    found = [*readings(tmp_path, model, read_model, MODEL_DAMAGES)]
    errors = [told for _, told in found if isinstance(told, str)]
    assert [told for told in errors if str(tmp_path) not in told] == [], f"seed {SEED}"
    # A card without its digest is read: a flipped bit in that key's name changes nothing else.
    assert [damaged for damaged, read in found if not isinstance(read, str) and read.card != whole] == [], (
        f"seed {SEED}"
    )
    assert len(errors) > 0.95 * MODEL_DAMAGES


def test_a_damaged_record_of_a_run_costs_a_record_and_no_error(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    metrics = MetricsFile(whole / "metrics.jsonl")
    for step in range(20):
        metrics.write({"kind": "train", "step": step, "loss": 1 / (step + 1)})
    for damaged, found in readings(tmp_path, whole, lambda place: [*read_metrics(place / "metrics.jsonl")], 30):
        # Records are there to be shown, nothing is computed from them: a digit that differs is seen by nobody.
        if "cut" not in damaged:
            assert len(found) >= 18, f"seed {SEED}: {damaged}"
        assert all(isinstance(record, dict) and json.dumps(record) for record in found)
