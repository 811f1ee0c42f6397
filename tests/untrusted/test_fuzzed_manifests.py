"""Manifests with bytes changed at random: each is read or refused, with an error of ours, and soon."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_asr.augmentation import read_recordings
from nemo_asr.compat.parts import item_iter
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.text.parser import make_parser
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_lite.base.errors import NemoLiteError

LABELS = list(" abcdefghijklmnopqrstuvwxyz'")
GOOD = [
    {"audio_filepath": "a.wav", "duration": 1.5, "text": "a b"},
    {"audio_filepath": "ü/b.wav", "duration": 2, "text": "12 é $3.50", "offset": 0.5, "speaker": {"id": [1, "x"]}},
    {"audio_filename": "c.flac", "duration": 3.25, "text_filepath": "c.txt", "x": [None, True, -1e-3]},
]
CONTROLS = set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x2028]))
PARTS = (
    b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\n", b"\r", b"\0", b"\xff", b"\x1b[2J", b"\\u0000", b"\\ud800",
    b"1e308", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b'"text":', b'"t\\u0065xt":"b"', b'"duration":0',
    b"[" * 2000, b"9" * 5000, b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"offset":1e308,', b'"speaker":' + b"[" * 500,
)  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """A good manifest with one to five changes."""
    data = bytearray("".join(json.dumps(line, ensure_ascii=rng.random() < 0.5) + "\n" for line in GOOD).encode())
    for _ in range(rng.randint(1, 5)):
        at, size = rng.randrange(len(data) + 1), rng.randint(1, 12)
        change = rng.randrange(4)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[at : at + size]
        elif change == 2:
            data[at:at] = data[at : at + 10 * size]
        else:
            data[at:at] = rng.choice(PARTS)
    return bytes(data)


def read_all(path: str, parse: Callable[[str], object]) -> None:
    """What training does with a manifest, but for the audio."""
    manifest = Manifest.open(path, lenient=True)
    for ref in manifest.refs(range(len(manifest))):
        parse(manifest.reader.utterance(ref).text)
    list(manifest.written_paths())


def fuzz(folder: Path, number: int, seed: int) -> Counter[str]:
    """How many manifests ended how, by reader and by the name of the error."""
    path, found = folder / "a.json", Counter[str]()
    (folder / "c.txt").write_text("c")
    parse = make_parser(LABELS, "en")
    readers: dict[str, Callable[[], object]] = {
        "training": lambda: read_all(str(path), parse),
        "strict": lambda: Manifest.open(str(path), strict=True),
        "noises": lambda: read_recordings(str(path)),
        "transcribing": lambda: recordings_of([str(path)]),
        "lists of NeMo": lambda: list(item_iter(str(path))),
    }
    for case in range(number):
        path.write_bytes(mutated(random.Random(f"{seed} {case}")))
        for name, read in readers.items():
            started, told = time.process_time(), ""
            try:
                read()
                ended = "read"
            except NemoLiteError as error:
                ended, told = type(error).__name__, str(error)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}, case {case}: {error!r}") from error
            assert time.process_time() - started < 2.0, (name, seed, case)
            assert not CONTROLS & set(told), (name, seed, case)
            found[f"{name}: {ended}"] += 1
    return found


@pytest.mark.slow
def test_500_manifests_with_changed_bytes_are_read_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = fuzz(tmp_path, 500, seed=1)
    assert set(found) == {f"{name}: {end}" for name in READERS for end in ("read", "DataError")}, found
    assert min(found.values()) > 5, found


READERS = ("training", "strict", "noises", "transcribing", "lists of NeMo")


@pytest.mark.soak
def test_20000_manifests_with_changed_bytes_are_read_or_refused(tmp_path):
    seed = time.time_ns()
    print(f"seed {seed}")
    fuzz(tmp_path, 20_000, seed)
