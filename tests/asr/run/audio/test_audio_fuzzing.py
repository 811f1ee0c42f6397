"""Damaged WAV and FLAC files by the thousand: an error of ours or samples of the file, at once, and nothing else.

The seed of every case is in the message of a failure; ``NEMO_LITE_FUZZ_SEED`` starts from another one.
"""

import os
import re
import time

import numpy as np
import pytest
from toys.hostile_audio import RATE, encoded, mutated, speech_like

from nemo_asr.run.audio.reading import audio_seconds, read_audio
from nemo_lite.base.errors import DataError

# An error in a function that libsndfile calls would be a traceback on the user's stderr, a warning of numpy a line.
pytestmark = pytest.mark.filterwarnings("error")
SEED = int(os.environ.get("NEMO_LITE_FUZZ_SEED", "12"))
NUM_FILES = 500  # of each kind and number of channels
WAV_HEAD, BITS = 44, 34  # bytes of a plain head, and where it says the bits of a sample
OTHER_KINDS = [("AIFF", "PCM_16"), ("AU", "ULAW"), ("CAF", "PCM_24"), ("W64", "PCM_16"), ("NIST", "PCM_16")]
OTHER_KINDS += [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
OTHER_KINDS += [("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"), ("WAV", "DOUBLE")]
MOST_SECONDS = 2.0  # of the processor, for a file


def read_with_memory_full_of(value, content, monkeypatch, **options):
    """Samples (T,), or the text of our error; memory that nobody wrote into holds ``value``."""
    empty = np.empty

    def filled(*given, **named):
        array = empty(*given, **named)
        array.fill(value)
        return array

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", filled)
        try:
            return read_audio(content, **options).samples
        except DataError as error:
            told = str(error)
    assert len(told.splitlines()) == 1
    return told


def check(kind, num_channels, content, damaged, samples, monkeypatch, rng):
    """One damaged file, with what the sound one holds. Whether it was refused."""
    started = time.process_time()
    read = read_with_memory_full_of(77, damaged, monkeypatch, sample_rate=None)
    again = read_with_memory_full_of(-55, damaged, monkeypatch, sample_rate=None)
    if isinstance(read, str):
        assert read == again
    else:
        assert read.tobytes() == again.tobytes()  # nothing that was in memory before
        if kind in ("WAV", "IMA_ADPCM", "MS_ADPCM"):  # no more samples than bytes can hold: two codes each
            assert len(read) <= 2 * len(damaged)
        if kind == "FLAC":  # its frames have check sums: what is read is the beginning of what was written
            np.testing.assert_array_equal(read, samples[: len(read)])
        elif damaged[:WAV_HEAD] == content[:WAV_HEAD] and content[BITS] == 16:
            assert len(read) >= 0.9 * len(samples)  # a small lack is allowed
            there = np.frombuffer(damaged, "<i2", len(read) * num_channels, WAV_HEAD).reshape(-1, num_channels)
            np.testing.assert_array_equal(read, (there / np.float32(32768)).mean(axis=1))
    options = {"sample_rate": RATE, "strict": bool(rng.integers(2)), "int_values": bool(rng.integers(2))}
    options |= {"offset": 0.01 * rng.random(), "duration": 0.1 * rng.random()} if rng.integers(2) else {}
    read_with_memory_full_of(0, damaged, monkeypatch, trim_silence=bool(rng.integers(2)), **options)
    try:
        assert audio_seconds(damaged) > 0.0
    except DataError:
        assert isinstance(read, str)
    assert time.process_time() - started < MOST_SECONDS
    return isinstance(read, str)


@pytest.mark.slow
@pytest.mark.parametrize("num_files", [NUM_FILES, pytest.param(10 * NUM_FILES, marks=pytest.mark.soak)])
@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_damaged_file_gives_an_error_or_samples_of_the_file(kind, num_channels, num_files, monkeypatch, capfd):
    bases = []
    for seed, length in enumerate((300, 900, 4500)):
        written = speech_like(length, num_channels, seed)
        content = encoded(written, kind, "PCM_24" if seed == 1 else "PCM_16")
        bases.append((content, read_audio(content, sample_rate=None).samples))
    num_refused = 0
    for number in range(num_files):
        rng = np.random.default_rng([SEED, num_channels, kind == "FLAC", number])
        content, samples = bases[int(rng.integers(len(bases)))]
        damaged = mutated(content, rng)
        try:
            num_refused += check(kind, num_channels, content, damaged, samples, monkeypatch, rng)
        except Exception as error:
            raise AssertionError(f"NEMO_LITE_FUZZ_SEED={SEED}, case {number}: {error!r}") from error
    assert re.fullmatch("(warning: the audio holds more than its head counts, .*\n)?", capfd.readouterr().err)
    print(f"seed {SEED}: {num_files} {kind} files, {num_channels} channels, {num_refused} refused")
    assert 0.2 * num_files < num_refused < num_files  # neither everything nor nothing: the damages are real


@pytest.mark.parametrize(("kind", "subtype"), OTHER_KINDS)
def test_a_damaged_file_of_another_kind_gives_an_error_or_samples_and_no_traceback(kind, subtype, monkeypatch):
    written = speech_like(2000, 2)
    content = encoded(written, kind, subtype)
    refused = []
    for number in range(60):
        rng = np.random.default_rng([SEED, number])
        refused.append(check(subtype, 2, content, mutated(content, rng), written, monkeypatch, rng))
    assert 5 < sum(refused) < 60
