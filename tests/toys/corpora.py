"""Recordings of a corpus, a language of Common Voice, and the manifests that were made of them."""

import json

import numpy as np
import soundfile

from toys.checked_sets import sound

HEAD = "client_id\tpath\tsentence_id\tsentence\tup_votes\n"


def record(path, seconds=0.5, rate=16000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = sound(1, seconds, rate)
    soundfile.write(path, np.stack([samples] * channels, 1) if channels > 1 else samples, rate)
    return path


def written(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def common_voice_in(root):
    """A language: three sets, a table that is none of them, and a sentence with quotation marks."""
    for number in range(4):
        record(root / f"clips/common_voice_cs_{number}.mp3", 1.0, 48000)
    rows = [
        f'spk{number % 2}\tcommon_voice_cs_{number}.mp3\tid\t"Příliš žluťoučký" kůň {number}\t2\n'
        for number in range(4)
    ]
    (root / "train.tsv").write_text(HEAD + "".join(rows[:2]), "utf-8")
    (root / "dev.tsv").write_text(HEAD + rows[2], "utf-8")
    (root / "test.tsv").write_text(HEAD + rows[3], "utf-8")
    (root / "validated.tsv").write_text(HEAD + "".join(rows), "utf-8")
    (root / "clip_durations.tsv").write_text("clip\tduration[ms]\ncommon_voice_cs_0.mp3\t1000\n")
    return root
