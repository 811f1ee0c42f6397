"""Recordings without transcripts as a data layer."""

import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.data.utterances import AudioFilesDataLayer
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.core.neural_types import AudioSignal, LengthsType
from nemo_lite.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rate, channels in (("a.wav", 16000, 1), ("b.flac", 8000, 1), ("c.ogg", 44100, 2)):
        samples = np.random.default_rng(1).uniform(-0.5, 0.5, (rate // 2, channels))
        soundfile.write(tmp_path / name, samples, rate)
    return tmp_path


def batches_of(layer):
    return list(layer.loader(training=False, shard=Shard()).epoch(0))


def test_its_ports_are_audio_at_the_models_rate_and_lengths(folder):
    ports = AudioFilesDataLayer(["a.wav"], sample_rate=8000).output_ports
    assert list(ports) == ["audio_signal", "a_sig_length"]
    assert [type(ntype.elements_type) for ntype in ports.values()] == [AudioSignal, LengthsType]
    sound = ports["audio_signal"].elements_type
    assert isinstance(sound, AudioSignal)
    assert sound.freq == 8000


def test_files_of_any_kind_come_in_the_order_given_as_mono_at_the_models_rate(folder):
    layer = AudioFilesDataLayer(["c.ogg", "a.wav", "b.flac"], batch_size=2)
    assert len(layer) == 3
    assert [layer.place_of(item) for item in range(3)] == ["c.ogg", "a.wav", "b.flac"]
    (audio, lengths), (last, last_length) = (batch.values for batch in batches_of(layer))
    assert audio.shape == (2, 8000)
    assert lengths.tolist() == [8000, 8000]
    assert last.shape == (1, 8000)
    assert last_length.tolist() == [8000]
    assert audio.dtype == torch.float32


def test_over_several_ranks_each_file_comes_once_in_order(folder):
    layer = AudioFilesDataLayer(["c.ogg", "a.wav", "b.flac"], batch_size=2)
    ranks = [list(layer.loader(training=False, shard=Shard(rank, 2)).epoch(0)) for rank in range(2)]
    assert [[(batch.number, batch.ids) for batch in batches] for batches in ranks] == [[(0, [0, 1])], [(1, [2])]]


def test_shorter_files_of_a_batch_are_padded_with_zeros(folder):
    soundfile.write("short.wav", np.full(100, 0.5), 16000)
    ((audio, lengths),) = (batch.values for batch in batches_of(AudioFilesDataLayer(["a.wav", "short.wav"], 2)))
    assert lengths.tolist() == [8000, 100]
    assert audio[1, :100].min() > 0.49
    assert audio[1, 100:].abs().max() == 0


def test_files_that_are_not_there_are_all_named_before_anything_is_read(folder):
    (folder / "folder.wav").mkdir()
    with pytest.raises(DataError, match=r"^nope\.wav, folder\.wav: there is no such audio file; .*WAV, FLAC or OGG"):
        AudioFilesDataLayer(["nope.wav", "a.wav", "folder.wav"])
    with pytest.raises(DataError, match="no audio file is given"):
        AudioFilesDataLayer([])


def test_a_damaged_file_is_named(folder):
    (folder / "damaged.wav").write_bytes(b"RIFF damaged")
    with pytest.raises(DataError, match=r"damaged\.wav is not a WAV, FLAC, OGG, MP3"):
        batches_of(AudioFilesDataLayer(["a.wav", "damaged.wav"], 2))
