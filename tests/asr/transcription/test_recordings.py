"""Recordings in batches by length; what is no audio is refused or noted, never the end of the others."""

import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.transcription.recordings import Recording, RecordingsDataLayer, recording_of
from nemo_lite.backends.pytorch.data import Shard
from nemo_lite.errors import UsageError


def sound(num_samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32)


def layer_of(*seconds, **settings):
    recordings = [recording_of(sound(int(16000 * each)), 16000, number) for number, each in enumerate(seconds)]
    return RecordingsDataLayer(recordings, 16000, **settings)


def batches(layer, shard=None):
    return [rows.tolist() for rows in layer.plan(shard or Shard()).batches]


def test_batches_hold_similar_lengths_the_longest_first():
    assert batches(layer_of(1, 4, 2, 3, batch_size=2)) == [[1, 3], [2, 0]]


def test_no_batch_is_longer_than_asked_for_but_a_single_recording_may_be():
    assert batches(layer_of(1, 9, 1, 1, 2, 1, batch_seconds=4)) == [[1], [4, 0], [2, 3, 5]]


def test_ranks_take_turns_and_few_recordings_are_shared():
    layer = layer_of(1, 2, 3, 4)
    plans = [layer.plan(Shard(rank, 2)) for rank in range(2)]
    assert [[rows.tolist() for rows in plan.batches] for plan in plans] == [[[3, 2]], [[1, 0]]]
    assert [(list(plan.numbers), plan.num_rounds) for plan in plans] == [([0], 1), ([1], 1)]


def test_a_batch_is_padded_with_zeros():
    layer = layer_of(0.5, 1)
    (batch,) = layer.loader(training=False, shard=Shard()).epoch(0)
    signal, lengths = batch.values
    assert (batch.ids, lengths.tolist()) == ([1, 0], [16000, 8000])
    assert torch.equal(signal[1, 8000:], torch.zeros(8000))
    assert np.array_equal(signal[1, :8000].numpy(), sound(8000))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bad_recordings_are_named_once_and_the_others_come(num_workers, tmp_path):
    soundfile.write(tmp_path / "good.wav", sound(8000), 16000)
    (tmp_path / "text.wav").write_text("no audio at all")
    content = (tmp_path / "good.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(content[:600])
    soundfile.write(tmp_path / "nan.wav", np.full(100, np.nan, np.float32), 16000, subtype="FLOAT")
    names = [str(tmp_path / f"{name}.wav") for name in ("text", "good", "none", "nan")]
    layer = RecordingsDataLayer([Recording(name, name) for name in names], 16000, 1, num_workers=num_workers)
    assert sorted(layer.faults) == [0, 2]
    loader = layer.loader(training=False, shard=Shard())
    assert [batch.ids for batch in loader.epoch(0)] == [[1]]
    loader.account.report()
    assert layer.faults[0].startswith(f"{names[0]} is not a WAV, FLAC, OGG, MP3")
    assert layer.faults[2] == f"the audio file {names[2]} cannot be opened (No such file or directory)"
    assert layer.faults[3] == f"{names[3]} has samples that are NaN or infinite"


def test_a_part_of_a_file_is_read_where_there_is_an_offset(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(32000), 16000, subtype="FLOAT")
    whole = Recording("a", str(tmp_path / "a.wav"), duration=0.5).measured()
    part = Recording("a", str(tmp_path / "a.wav"), offset=0.25, duration=0.5).measured()
    rest = Recording("a", str(tmp_path / "a.wav"), offset=1.5).measured()
    assert [each.seconds for each in (whole, part, rest)] == [2.0, 0.5, 0.5]
    assert [len(each.samples(16000)) for each in (whole, part, rest)] == [32000, 8000, 8000]
    assert np.array_equal(part.samples(16000), sound(32000)[4000:12000])


def test_content_and_tensors_are_recordings_too(tmp_path):
    soundfile.write(tmp_path / "a.flac", sound(8000), 8000)
    content = Recording("stdin", (tmp_path / "a.flac").read_bytes()).measured()
    assert (content.seconds, len(content.samples(16000))) == (1.0, 16000)
    stereo = recording_of(torch.tensor([[1.0, 0.5], [0.0, 0.5]]), 8000, 3)
    assert (stereo.source, stereo.samples(8000).tolist()) == ("audio[3]", [0.5, 0.5])
    assert recording_of(np.array([-32768, 16384], np.int16), 16000, 0).samples(16000).tolist() == [-1.0, 0.5]
    assert len(recording_of(sound(8000), 8000, 0).samples(16000)) == 16000


@pytest.mark.parametrize(
    ("array", "rate", "told"),
    [
        (sound(10), None, r"audio\[2\]: an array has no sample rate; give sample_rate=16000"),
        (np.zeros((2, 2, 2)), 16000, r"audio\[2\]: this is no audio: got \(2, 2, 2\) float64, wanted \(T,\) or"),
        (np.zeros(0), 16000, r"this is no audio: got \(0,\)"),
        (np.array(["a"]), 16000, "this is no audio"),
        (np.array([np.nan]), 16000, "NaN or infinite"),
    ],
)
def test_arrays_that_are_no_audio_are_refused(array, rate, told):
    with pytest.raises(UsageError, match=told):
        recording_of(array, rate, 2)
