"""The corpus of the demo: synthetic speech. ``python -m nemo_asr.corpora.synth OUT``

Spoken letters, numbers, dates, commands and names by several voices at several rates and pitches, with the levels and
the noise of different microphones: 16 kHz, 16-bit WAV. The same arguments give the same bytes. OUT holds

- ``train.json``, ``val_seen_voices.json`` (the same voices, texts that are not in train) and
  ``val_unseen_voices.json`` (other voices, other texts), each beside a folder of audio;
- ``corpus.json``: the arguments, by which a complete set is known and reused.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import soxr
from numpy.random import Generator, default_rng

from nemo_asr.corpora.espeak import Synthesizer, Voice
from nemo_asr.corpora.writing import describe, filling_folder, write_recording
from nemo_asr.run.manifest import Entry, write_manifest
from nemo_lite.base.errors import DataError, UsageError, reported_to_user
from nemo_lite.base.files import FileKind, numbered_lines, read_json
from nemo_lite.base.options import OneLineParser, not_negative_int, number_type
from nemo_lite.base.ranges import Between


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LETTERS = tuple(string.ascii_lowercase)
DIGITS = _words("zero one two three four five six seven eight nine oh")
TEENS = _words("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
MONTHS = _words("january february march april may june july august september october november december")
COMMANDS = _words("enter erase go help no repeat rubout start stop yes")
FIRST_NAMES = _words("mary john susan robert linda david karen peter")
LAST_NAMES = _words("smith johnson miller davis wilson taylor clark walker")
VOCABULARY = (*LETTERS, *DIGITS, *TEENS, *TENS, *MONTHS, *COMMANDS, *FIRST_NAMES, *LAST_NAMES)


def sentence(rng: Generator) -> str:
    """One utterance, of one to seven words."""
    kind = list(_KINDS)[rng.choice(len(_KINDS), p=list(_KINDS.values()))]
    return " ".join(kind(rng))


def new_sentence(rng: Generator, used: Collection[str]) -> str:
    """One utterance that is not among ``used``."""
    while True:
        text = sentence(rng)
        if text not in used:
            return text


def _pick(rng: Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]


def _some(rng: Generator, words: Sequence[str], least: int, most: int) -> list[str]:
    return [_pick(rng, words) for _ in range(rng.integers(least, most + 1))]


def _entry(rng: Generator) -> list[str]:
    return [_pick(rng, ("enter", "erase", "rubout")), *_some(rng, LETTERS + DIGITS, 2, 4)]


def _name(rng: Generator) -> list[str]:
    return [_pick(rng, FIRST_NAMES), *_some(rng, LETTERS, 0, 1), _pick(rng, LAST_NAMES)]


def _date(rng: Generator) -> list[str]:
    return [_pick(rng, MONTHS), *_below_hundred(rng, 1, 31), "nineteen", *_below_hundred(rng, 20, 99)]


def _below_hundred(rng: Generator, least: int, most: int) -> list[str]:
    tens, ones = divmod(int(rng.integers(least, most + 1)), 10)
    if tens == 1:
        return [TEENS[ones]]
    return ([TENS[tens - 2]] if tens else []) + ([DIGITS[ones]] if ones else [])


# What an utterance is, and the share of such utterances.
_KINDS: dict[Callable[[Generator], list[str]], float] = {
    lambda rng: _some(rng, LETTERS, 3, 6): 0.25,
    lambda rng: _some(rng, DIGITS, 3, 7): 0.2,
    lambda rng: _some(rng, COMMANDS, 1, 3): 0.1,
    _entry: 0.15,
    _name: 0.1,
    _date: 0.2,
}


SAMPLE_RATE = 16000
_OWN = FileKind("the file", 1 << 28)
# Variants with breath noise (f2, f3, f5, ...) are left out: what they say depends on what the memory held before.
SEEN_VOICES = (
    "en-us",
    "en-us+f1",
    "en-us+m3",
    "en-us+f4",
    "en-us+m7",
    "en+m2",
    "en+shelby",
    "en-gb-x-rp+m6",
    "en-gb-scotland+m5",
    "en-gb-x-gbcwmd+belinda",
)
UNSEEN_VOICES = ("en-us+m4", "en-us+steph", "en+Andy", "en-gb-x-gbclan+linda")

TRAIN, VAL_SEEN, VAL_UNSEEN = "train", "val_seen_voices", "val_unseen_voices"
_SETS = (TRAIN, VAL_SEEN, VAL_UNSEEN)
_ABOUT = "corpus.json"
# Raise it when the sounds or texts that the same arguments give have changed: older sets are then made anew.
_EDITION = 1

_COUNT = number_type(Annotated[int, Between(1, 10_000_000)])
_MEANINGS = {
    "train": "training utterances",
    "val1": "utterances by the voices of training",
    "val2": "utterances by other voices",
    "seed": "of texts, voices and noise",
}

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arguments:
    """Utterances in each set of a corpus, and the seed."""

    train: int = 3600
    val1: int = 150
    val2: int = 150
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.train, self.val1, self.val2) < 1 or self.seed < 0:
            raise UsageError("a corpus needs at least one utterance in each set, and a seed from 0", got=str(self))


def make(out: str | Path, arguments: Arguments) -> bool:
    """Make the corpus in the folder ``out``, all of it or nothing.

    Returns:
        False when ``out`` already holds the complete corpus of the same arguments: nothing is done then.

    Raises:
        UsageError: eSpeak NG is missing, ``out`` cannot be written or holds other files.
    """
    out = Path(out).expanduser().absolute()
    with Synthesizer() as synthesizer:
        content = {"edition": _EDITION, "espeak": synthesizer.version, **asdict(arguments)}
        if _is_complete(out, content):
            return False
        with filling_folder(out) as folder:
            num_bytes = sum(_make_set(folder, name, plan, synthesizer) for name, plan in _plan(arguments).items())
            (folder / _ABOUT).write_text(json.dumps({**content, "audio_bytes": num_bytes}) + "\n", encoding="utf-8")
    return True


@dataclass(frozen=True)
class _Item:
    text: str
    voice: str
    rng: Generator


def _plan(arguments: Arguments) -> dict[str, list[_Item]]:
    """The texts and voices of each set. Each item has its own generator, so its sound does not depend on the others."""
    texts_so_far: set[str] = set()
    plan: dict[str, list[_Item]] = {}
    counts = (arguments.train, arguments.val1, arguments.val2)
    for number, (name, count) in enumerate(zip(_SETS, counts, strict=True)):
        voices = UNSEEN_VOICES if name == VAL_UNSEEN else SEEN_VOICES
        generators = [default_rng([arguments.seed, number, i]) for i in range(count)]
        texts = []
        for rng in generators:
            texts.append(sentence(rng) if name == TRAIN else new_sentence(rng, texts_so_far))
            texts_so_far.update(texts[-1:])
        plan[name] = [
            _Item(text, voices[rng.integers(len(voices))], rng) for text, rng in zip(texts, generators, strict=True)
        ]
    return plan


def _make_set(folder: Path, name: str, items: Sequence[_Item], synthesizer: Synthesizer) -> int:
    """Write one set; returns the bytes of its audio."""
    (folder / name).mkdir()
    entries: list[Entry] = []
    for i, item in enumerate(items):
        path = f"{name}/{i:05d}.wav"
        samples = _record(item, synthesizer)
        write_recording(folder / path, samples, SAMPLE_RATE)
        seconds = round(len(samples) / SAMPLE_RATE, 4)
        entries.append({"audio_filepath": path, "duration": seconds, "text": item.text, "speaker": item.voice})
    write_manifest(folder / f"{name}.json", entries)
    return _audio_bytes(folder / name)


def _record(item: _Item, synthesizer: Synthesizer) -> Samples:
    """The item as a microphone of some level in some room would have it: (T,) at 16 kHz, full scale is 1."""
    rng = item.rng
    rate, pitch, pitch_range = (int(rng.integers(low, high)) for low, high in ((110, 175), (30, 70), (30, 80)))
    voice = Voice(item.voice, rate, pitch, pitch_range, word_gap=int(rng.integers(1, 5)))
    spoken = synthesizer.speak(_spoken(item.text), voice) / 32768.0
    speech: Samples = soxr.resample(spoken, synthesizer.sample_rate, SAMPLE_RATE)
    before, after = (int(seconds * SAMPLE_RATE) for seconds in rng.uniform(0.05, 0.25, 2))
    speech = np.pad(np.trim_zeros(speech), (before, after))
    level_db, noise_db = rng.uniform(-30, -18), rng.uniform(-40, -20)
    speech *= 10 ** (level_db / 20) / np.sqrt(np.mean(speech**2))
    speech += _pink_noise(rng, len(speech)) * 10 ** ((level_db + noise_db) / 20)
    return np.clip(speech, -1, 1)


def say(path: str | Path, text: str, voice: str, seed: int = 1) -> float:
    """Write one recording beside any corpus, made as those of a corpus are: 16 kHz, 16-bit WAV.

    Args:
        path: the file to write; its folder is there.
        text: lower-case words.
        voice: a voice of eSpeak NG.
        seed: of rate, pitch, level and noise.

    Returns:
        Its seconds.

    Raises:
        UsageError: eSpeak NG is missing, or has no such voice.
    """
    with Synthesizer() as synthesizer:
        samples = _record(_Item(text, voice, default_rng(seed)), synthesizer)
    write_recording(Path(path), samples, SAMPLE_RATE)
    return len(samples) / SAMPLE_RATE


def _spoken(text: str) -> str:
    """The text with the letter a marked as one: it would be read as the article."""
    return " ".join('<say-as interpret-as="tts:char">a</say-as>' if word == "a" else word for word in text.split())


def _pink_noise(rng: Generator, num_samples: int) -> Samples:
    """Noise of equal power in each octave, like that of rooms; its root mean square is 1."""
    fft_size = 1 << (num_samples - 1).bit_length()  # transforms of odd lengths took as long as the speaking
    spectrum = np.fft.rfft(rng.standard_normal(fft_size))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    noise = np.fft.irfft(spectrum)[:num_samples]
    return np.asarray(noise / np.sqrt(np.mean(noise**2)))


def _audio_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def _is_complete(out: Path, arguments: dict[str, object]) -> bool:
    try:
        held = read_json(out / _ABOUT, _OWN)
        sizes = [_audio_bytes(out / name) for name in _SETS if (out / f"{name}.json").stat().st_size]
        return bool(held == {**arguments, "audio_bytes": sum(sizes)})
    except (OSError, DataError):
        return False


def _summary(out: Path) -> Iterator[str]:
    for name in _SETS:
        # Written by this program: is_complete has seen that it is all there.
        entries: list[Entry] = [json.loads(line) for _, line in numbered_lines(out / f"{name}.json", _OWN)]
        yield describe(str(out / f"{name}.json"), entries)


def main(argv: Sequence[str] | None = None, program: str = "python -m nemo_asr.corpora.synth") -> None:
    """The command line; ``program`` is what the user typed."""
    description = f"Make a corpus of synthetic speech over {len(VOCABULARY)} words, with manifests."
    parser = OneLineParser(prog=program, description=description)
    parser.add_argument("out", help="folder to make")
    for argument, meaning in _MEANINGS.items():
        default = getattr(Arguments, argument)
        kind = not_negative_int if argument == "seed" else _COUNT
        parser.add_argument(f"--{argument}", type=kind, default=default, help=f"{meaning} (default: %(default)s)")
    options = vars(parser.parse_args(argv))
    out = Path(options.pop("out")).expanduser()
    with reported_to_user(program):
        made = make(out, Arguments(**options))
        print("made" if made else "already there, complete", *_summary(out), sep="\n")


if __name__ == "__main__":
    main()
