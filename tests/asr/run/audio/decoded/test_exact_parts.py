"""Parts of MP3, Vorbis and Opus: to the bit those of the whole, which is decoded once."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import speech_like

from nemo_asr.run.audio import decoded, files
from nemo_asr.run.audio.files import AudioFile
from nemo_asr.run.audio.reading import open_part, read_audio
from nemo_asr.run.transcribe.inputs import Recording, batches_of
from nemo_lite.base.errors import DataError

RATE = 16000
SECONDS = 12
MEMORY = [("a.mp3", "MPEG_LAYER_III"), ("a.ogg", "VORBIS"), ("a.opus", "OPUS")]


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setattr(decoded, "_kept", OrderedDict())


@pytest.fixture(params=MEMORY, ids=lambda param: param[0])
def path(request, tmp_path):
    name, subtype = request.param
    return save(tmp_path / name, subtype)


def save(path, subtype, num_channels=1):
    samples = np.random.default_rng(0).normal(0, 0.2, (SECONDS * RATE, num_channels))
    samples *= np.sin(np.arange(len(samples)) / 9000)[:, None]  # a bit reservoir is filled by soft parts
    kind = "MP3" if subtype == "MPEG_LAYER_III" else "OGG"
    soundfile.write(path, samples, RATE, subtype=subtype, format=kind)
    return str(path)


@pytest.mark.parametrize("int_values", [False, True])
def test_a_part_is_to_the_bit_that_of_the_whole(path, int_values):
    whole = read_audio(path, sample_rate=None, int_values=int_values).samples
    for first in (1, 700, 16001, 77777, 150000):
        part = read_audio(
            path, sample_rate=None, offset=first / RATE, duration=1.0, int_values=int_values, exact=True
        ).samples
        assert part.tobytes() == whole[first : first + RATE].tobytes(), first


def test_pieces_are_to_the_bit_the_whole_at_once(path, monkeypatch):
    whole = read_audio(path, sample_rate=None).samples
    monkeypatch.setattr(files, "_PIECE_VALUES", 5000)
    assert read_audio(path, sample_rate=None).samples.tobytes() == whole.tobytes()


def test_what_is_decoded_of_a_file_is_kept_until_it_is_forgotten(path):
    for source in (path, Path(path).read_bytes()):
        read_audio(source, sample_rate=None, offset=1.0, duration=1.0, exact=True)
        assert len(decoded._kept) == 1
        files.forget_audio(source)
        assert not decoded._kept
        files.forget_audio(source)


def test_a_channel_of_a_part_is_that_channel_of_the_whole(tmp_path):
    path = save(tmp_path / "a.mp3", "MPEG_LAYER_III", num_channels=2)
    for channel in (0, 1, None):
        whole = read_audio(path, sample_rate=None, channel=channel).samples
        part = read_audio(path, sample_rate=None, offset=3.0, duration=1.0, channel=channel, exact=True).samples
        assert part.tobytes() == whole[3 * RATE : 4 * RATE].tobytes()


@pytest.fixture
def num_decoded(monkeypatch):
    """How many samples were decoded."""
    counts, read = [], AudioFile._read

    def counted(self, count, dtype):
        samples = read(self, count, dtype)
        counts.append(len(samples))
        return samples

    monkeypatch.setattr(AudioFile, "_read", counted)
    return lambda: sum(counts)


@pytest.mark.parametrize("as_content", [False, True])
def test_many_parts_cost_one_decoding(path, as_content, num_decoded):
    source = Path(path).read_bytes() if as_content else path
    for first in range(1, 11):
        read_audio(source, sample_rate=None, offset=float(first), duration=0.5, exact=True)
    assert num_decoded() == SECONDS * RATE


def test_the_whole_needs_no_temporary_file(path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    assert len(read_audio(path, sample_rate=None, exact=True).samples) == SECONDS * RATE


def test_a_codec_without_memory_needs_no_temporary_file(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.flac", speech_like(RATE), RATE)
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    with open_part(str(tmp_path / "a.flac"), offset=0.01, exact=True) as part:
        assert part.decoded_bytes == 0
        assert sum(map(len, part.pieces())) == part.num_samples


def test_a_changed_file_is_decoded_again(path, tmp_path):
    before = read_audio(path, sample_rate=None, offset=1.0, exact=True).samples
    soundfile.write(path, np.zeros(SECONDS * RATE), RATE, format="MP3" if path.endswith("mp3") else "OGG")
    after = read_audio(path, sample_rate=None, offset=1.0, exact=True).samples
    assert np.abs(before).max() > 0.1 > np.abs(after).max()


def test_a_full_disk_is_one_line(path, monkeypatch):
    def full(self, samples):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded.DecodedWriter, "add", full)
    with pytest.raises(DataError) as error:
        read_audio(path, sample_rate=None, offset=1.0, exact=True, place="train.json:3")
    folder = tempfile.gettempdir()
    wanted = f"train.json:3: {path} cannot be decoded into a temporary file in {folder} (No space left on device); "
    assert str(error.value) == f"{wanted}free space there, or set TMPDIR to another folder"


def recording(name, seconds, decoded_bytes):
    return Recording(name, name, seconds=seconds, decoded_bytes=decoded_bytes)


def test_files_that_are_decoded_as_a_whole_are_read_in_groups_that_are_kept(monkeypatch):
    monkeypatch.setattr(decoded, "KEPT_BYTES", 100)
    parts = [("a", 3.0), ("b", 9.0), ("c", 5.0), ("a", 4.0), ("flac", 7.0), ("flac", 1.0)]
    recordings = {n: recording(name, seconds, 0 if name == "flac" else 50) for n, (name, seconds) in enumerate(parts)}
    assert batches_of(recordings, batch_size=2, batch_seconds=100.0) == [[1, 3], [0], [4, 2], [5]]
    monkeypatch.setattr(decoded, "KEPT_BYTES", 150)
    assert batches_of(recordings, batch_size=9, batch_seconds=100.0) == [[1, 4, 2, 3, 0, 5]]
    monkeypatch.setattr(decoded, "KEPT_FILES", 1)
    groups = [set(batch) for batch in batches_of(recordings, batch_size=9, batch_seconds=100.0)]
    assert groups == [{0, 3}, {1}, {2, 4, 5}]
