"""A spoken corpus whose texts have case and punctuation, and how many marks a model of it gets right.

    python benchmarks/punctuation.py OUT [--train 2000] [--dev 200]     # OUT/train and OUT/dev: recordings and texts
    python benchmarks/punctuation.py --marks RESULTS/dev.transcripts.jsonl

The sentences are spoken by eSpeak NG in the voices of the demo's training: names, titles, hours, numbers in digits. A
comma is a pause. Of the questions most are told by their first word (Is, Do, Can), and some by the voice alone: ``The
door is open?``. The texts of dev are not among those of train. The random numbers are the same in each run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from numpy.random import Generator, default_rng

from nemo_asr.corpora.synth import SEEN_VOICES, say

NAMES = ["Mary", "John", "Susan", "Robert", "Linda", "David", "Karen", "Peter"]
LAST_NAMES = ["Smith", "Johnson", "Miller", "Davis", "Wilson", "Taylor"]
PLACES = ["London", "Paris", "Berlin", "Boston", "Nairobi", "Dublin"]
THINGS = ["window", "door", "lamp", "radio", "kitchen", "garden"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Sunday"]
QUESTION_WORDS = ("Is", "Did", "Can", "Do", "Are")


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, help="the folder to make the corpus in")
    parser.add_argument("--train", type=int, default=2000, help="utterances to train on")
    parser.add_argument("--dev", type=int, default=200, help="utterances to evaluate on")
    parser.add_argument("--marks", type=Path, help="the transcripts that nemo-lite eval wrote: counts their marks")
    parser.add_argument("--quick", action="store_true", help="a few utterances, into a temporary folder")
    args = parser.parse_args(words)
    if args.marks:
        count_marks(args.marks)
    elif args.quick:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), 3, 2)
    elif args.out:
        make(args.out, args.train, args.dev)
    else:
        parser.error("name a folder, or transcripts with --marks")


def make(out: Path, num_train: int, num_dev: int) -> None:
    """Recordings, and a text beside each, in ``out/train`` and ``out/dev``."""
    texts = record(out / "train", num_train, 1, set())
    record(out / "dev", num_dev, 2, texts)


def record(folder: Path, count: int, seed: int, used: set[str]) -> set[str]:
    """Utterances whose texts are not among ``used``; their texts."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, texts, seconds = default_rng(seed), set[str](), 0.0
    for number in range(count):
        while (text := sentence(rng)) in used:
            pass
        texts.add(text)
        path = folder / f"{number:04}.wav"
        seconds += say(path, text, pick(rng, SEEN_VOICES), seed=seed * 10000 + number)
        path.with_suffix(".txt").write_text(f"{text}\n", encoding="utf-8")
    print(f"{folder}: {count} utterances, {seconds / 60:.1f} min, {len(texts)} different texts")
    return texts


def sentence(rng: Generator) -> str:
    """One utterance."""
    one, other, name, place = person(rng), person(rng), pick(rng, NAMES), pick(rng, PLACES)
    thing, day, number = pick(rng, THINGS), pick(rng, DAYS), int(rng.integers(2, 100))
    kinds = (
        lambda: f"Is {one} in {place}?",
        lambda: f"{one} is in {place}{pick(rng, '.?')}",
        lambda: f"Did {one} call on {day}?",
        lambda: f"{one} didn't call on {day}.",
        lambda: f"It's {hour(rng)}.",
        lambda: f"Is it {hour(rng)}.?",
        lambda: f"{name}, please open the {thing}.",
        lambda: f"Yes, the {thing} is open.",
        lambda: f"The {thing} is open{pick(rng, '.?')}",
        lambda: f"No, {one} and {other} are in {place}.",
        lambda: f"Can you see the {thing}, {name}?",
        lambda: f"We need {number} minutes.",
        lambda: f"Do we need {number} minutes?",
        lambda: f"On {day}, {one} leaves at {hour(rng)}.",
        lambda: f"I'm in {place}, not in {pick(rng, PLACES)}.",
        lambda: f"{number} people are in {place}{pick(rng, '.?')}",
        lambda: f"Are there {number} people in the {thing}?",
        lambda: f"The {thing}, the {pick(rng, THINGS)} and the {pick(rng, THINGS)} are open.",
        lambda: f"You don't need {number} minutes, {name}.",
    )
    return kinds[int(rng.integers(len(kinds)))]()


def person(rng: Generator) -> str:
    """A first name, a title and a last name, or both names."""
    kind = rng.integers(3)
    if kind == 0:
        return pick(rng, NAMES)
    return f"{pick(rng, ('Mr.', 'Dr.', 'Mrs.') if kind == 1 else NAMES)} {pick(rng, LAST_NAMES)}"


def hour(rng: Generator) -> str:
    """``5 p.m``, whose last point is that of the sentence too."""
    return f"{rng.integers(1, 13)} p.m"


def pick(rng: Generator, words: Sequence[str]) -> str:
    """One of them."""
    return words[int(rng.integers(len(words)))]


def count_marks(path: Path) -> None:
    """Print how many utterances have the right mark at their end, and the right number of commas."""
    right, total = Counter[str](), Counter[str]()
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        said, heard = row["reference"], row["hypothesis"]
        is_told = said.startswith(QUESTION_WORDS) and said.endswith("?")
        end = f"{said[-1]} " + ("told by the first word" if is_told else "told by the voice" if said[-1] == "?" else "")
        for kind, is_right in ((end, heard[-1:] == said[-1]), (",", said.count(",") == heard.count(","))):
            total[kind] += 1
            right[kind] += is_right
    for kind in sorted(total):
        print(f"{kind:<26} right in {right[kind]} of {total[kind]} utterances")


if __name__ == "__main__":
    main()
