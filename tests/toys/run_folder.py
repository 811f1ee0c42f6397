"""A run's folder as training leaves it: records, transcripts with their recordings, configuration, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]
VERSIONS = {"nemo_lite": "0.1.0", "torch": "2.13.0"}
START = {"kind": "start", "time": "2026-11-22T06:00:00+00:00", "precision": "O0", "world_size": 1}
ARGUMENTS = {"model_config": "toy.yaml", "eval_datasets": ["dev.json"], "lr": 0.02, "num_epochs": 4, "max_steps": None}


def write_lines(path: Path, records: list[dict[str, object]]) -> Path:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def row(number: int, reference: str, hypothesis: str, manifest: str = "dev.json", **more: object) -> dict[str, object]:
    """One line of a file of transcripts."""
    return {"place": f"{manifest}:{number}", "reference": reference, "hypothesis": hypothesis, **more}


def rows_of(num_rows: int, error_rate: float, seed: int = 0) -> list[dict[str, object]]:
    """Digits; each word is left out, doubled or replaced with this probability. ``seed`` is of these errors."""
    texts, errors = np.random.default_rng(1), np.random.default_rng(seed)
    rows = []
    for number in range(1, num_rows + 1):
        said = [WORDS[each] for each in texts.integers(0, 10, texts.integers(3, 9))]
        heard: list[str] = []
        for word in said:
            wrong = [[], [word, word], [WORDS[errors.integers(10)]]]
            heard += wrong[errors.integers(3)] if errors.random() < error_rate else [word]
        rows.append(row(number, " ".join(said), " ".join(heard)))
    return rows


def tone(path: Path, seconds: float, rate: int = 16000) -> Path:
    """A recording whose pitch rises."""
    time = np.arange(int(seconds * rate)) / rate
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * (200 * time + 400 * time**2 / seconds)), rate)
    return path


def records(num_steps: int = 100) -> list[dict[str, object]]:
    """What training writes: a start, losses every 10 steps, two evaluations of two sets, an end."""
    lines: list[dict[str, object]] = [{**START, "arguments": ARGUMENTS, "versions": VERSIONS}]
    for step in range(10, num_steps + 1, 10):
        shared = {"time": START["time"], "step": step, "epoch": step // 25}
        speed = {"amount_per_second": 200.0 + step, "amount_unit": "audio-s", "data_wait_share": 0.01}
        lines.append({"kind": "train", **shared, "loss": 2000 / step, "lr": 0.02 * (1 - step / num_steps), **speed})
        if step % (num_steps // 2) == 0:
            for name, wer in (("dev", 0.5), ("other", 0.7)):
                rates = {"loss": 3000 / step, "wer": wer * 50 / step, "cer": wer * 20 / step}
                lines.append({"kind": "evaluation", **shared, "set": name, **rates, "num_items": 40, "seconds": 0.5})
    model = {"step": num_steps, "set": "dev", "metric": "wer", "value": 0.25, "path": "model"}
    end = {"step": num_steps, "epoch": 4, "seconds": 404.2, "reason": "finished"}
    return [*lines, {"kind": "model", **model}, {"kind": "end", **end}]


def make_run(folder: Path, num_rows: int = 40) -> Path:
    """A run with the sets ``dev`` (with recordings) and ``other`` (without any)."""
    write_lines(folder / "metrics.jsonl", records())
    rows = rows_of(num_rows, 0.2)
    for each in rows:
        path = folder / "wav" / f"{str(each['place']).rpartition(':')[2]}.wav"
        tone(path, 0.5)
        each |= {"audio_filepath": str(path), "duration": 0.5}
    write_lines(folder / "transcripts/dev.transcripts.jsonl", rows)
    write_lines(folder / "transcripts/other.transcripts.jsonl", rows_of(num_rows, 0.3, seed=1))
    (folder / "toy_2026-11-22_06-00-00.yaml").write_text("model: Toy\nlabels: [a, b]\n")
    return folder
