"""Recordings in batches by length; what is no audio is refused or noted, never the end of the others."""

import numpy as np
import pytest
import soundfile
import torch
from toys.tone_corpus import write_manifest

from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_asr.run.audio.reading import read_audio
from nemo_asr.run.transcribe.inputs import Recording, recordings_in, recordings_of
from nemo_asr.trained.engine import RecordingsDataLayer
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import UsageError


def sound(num_samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32)


def recording_of(audio, rate, number):
    return recordings_in([None] * number + [audio], rate)[-1]


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
    signal, lengths, starts, _ = batch.values
    assert starts.tolist() == [0, 0]
    assert (batch.ids, lengths.tolist()) == ([1, 0], [16000, 8000])
    assert torch.equal(signal[1, 8000:], torch.zeros(8000))
    assert np.array_equal(signal[1, :8000].numpy(), sound(8000))


@pytest.mark.slow
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


def samples_of(recording, rate=16000, **reading):
    return recording.read(rate, **reading).samples


def test_an_offset_and_a_duration_are_those_of_a_part(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(32000), 16000, subtype="FLOAT")
    path = str(tmp_path / "a.wav")
    times = [{}, {"duration": 0.5}, {"offset": 0.25, "duration": 0.5}, {"offset": 1.5}, {"duration": 1.995}]
    parts = [Recording("a", path, **each).measured() for each in times]
    assert [each.seconds for each in parts] == [2.0, 0.5, 0.5, 0.5, 2.0]  # 5 ms are rounding
    ends = [(0, 32000), (0, 8000), (4000, 12000), (24000, 32000), (0, 32000)]
    for part, (first, end) in zip(parts, ends, strict=True):
        assert np.array_equal(samples_of(part), sound(32000)[first:end])


@pytest.mark.parametrize(
    "times", [{"duration": 0.5}, {"duration": 1.995}, {"duration": 3.0}, {"offset": 0.25, "duration": 1.0}]
)
def test_a_line_is_the_same_audio_here_and_in_evaluation(times, tmp_path):
    """The first segment of a manifest often has a duration and leaves its offset out."""
    soundfile.write(tmp_path / "a.wav", sound(32000), 16000, subtype="FLOAT")
    write_manifest(tmp_path / "a.json", [{"audio_filepath": "a.wav", "text": "a", **times}])
    layer = AudioToTextDataLayer(str(tmp_path / "a.json"), ["a"], 1, shuffle=False)
    (batch,) = layer.loader(training=False, shard=Shard()).epoch(0)
    (recording,) = recordings_of([str(tmp_path / "a.json")])
    assert np.array_equal(samples_of(recording), batch.values[0][0].numpy())
    assert recording.measured().seconds * 16000 == len(batch.values[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_quiet_ends_are_left_out_and_the_batch_says_how_many_samples_were(num_workers, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.pad(sound(16000), (8192, 16384)), 16000, subtype="FLOAT")
    recordings = [Recording("a", str(tmp_path / "a.wav")), recording_of(np.pad(sound(16000), (4096, 0)), 16000, 1)]
    layer = RecordingsDataLayer(recordings, 16000, 2, num_workers=num_workers, trim_silence=True)
    (batch,) = layer.loader(training=False, shard=Shard()).epoch(0)
    signal, lengths, starts, _ = batch.values
    assert batch.ids == [0, 1]
    assert all(before - 1024 <= start <= before for start, before in zip(starts.tolist(), (8192, 4096), strict=True))
    for row, start, length in zip(signal, starts.tolist(), lengths.tolist(), strict=True):
        assert 16000 <= length <= 18000
        before = (8192, 4096)[start < 4097] - start
        assert np.array_equal(row[before : before + 16000].numpy(), sound(16000))
    assert layer.recordings[0].seconds == 2.536  # its length, not that of its loud part


def test_a_file_is_read_through_integers_where_evaluation_does_so(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.array([0.5, 3.0], np.float32), 16000, subtype="FLOAT")
    recording = Recording("a", str(tmp_path / "a.wav"))
    wanted = read_audio(str(tmp_path / "a.wav"), sample_rate=16000, int_values=True)
    assert samples_of(recording).tolist() == [0.5, 3.0]
    assert samples_of(recording, int_values=True).tolist() == wanted.samples.tolist() != [0.5, 3.0]


def test_content_and_tensors_are_recordings_too(tmp_path):
    soundfile.write(tmp_path / "a.flac", sound(8000), 8000)
    content = Recording("stdin", (tmp_path / "a.flac").read_bytes()).measured()
    assert (content.seconds, len(samples_of(content))) == (1.0, 16000)
    stereo = recording_of(torch.tensor([[1.0, 0.5], [0.0, 0.5]]), 8000, 3)
    assert (stereo.source, samples_of(stereo, 8000).tolist()) == ("audio[3]", [0.5, 0.5])
    assert samples_of(recording_of(np.array([-32768, 16384], np.int16), 16000, 0)).tolist() == [-1.0, 0.5]
    assert len(samples_of(recording_of(sound(8000), 8000, 0))) == 16000


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [-128, 64]),
        ("uint8", [0, 192]),
        ("int16", [-(2**15), 2**14]),
        (">i2", [-(2**15), 2**14]),
        ("uint16", [0, 3 * 2**14]),
        ("int32", [-(2**31), 2**30]),
        ("uint32", [0, 3 * 2**30]),
        ("int64", [-(2**15), 2**14]),
        ("int64", [-(2**31), 2**30]),
        ("float16", [-1, 0.5]),
        ("float32", [-1, 0.5]),
        ("float64", [-1, 0.5]),
        ("longdouble", [-1, 0.5]),
    ],
)
def test_arrays_of_any_kind_of_number_have_full_scale_1(dtype, values):
    assert samples_of(recording_of(np.array(values, dtype), 16000, 0)).tolist() == [-1.0, 0.5]


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_averaged_on_whichever_axis_they_are(channels, tmp_path):
    """soundfile and scipy give (T, channels), torchaudio and librosa (channels, T)."""
    soundfile.write(tmp_path / "a.wav", sound(800 * channels).reshape(-1, channels), 16000, subtype="FLOAT")
    array, rate = soundfile.read(tmp_path / "a.wav", dtype="float32", always_2d=True)
    assert array.shape == (800, channels)
    wanted = samples_of(Recording("a", str(tmp_path / "a.wav")))
    for each in (array, array.T):
        recording = recording_of(each, rate, 0).measured()
        assert recording.seconds == 0.05
        np.testing.assert_allclose(samples_of(recording), wanted, atol=1e-7)


@pytest.mark.parametrize(
    ("array", "rate", "told"),
    [
        (sound(10), None, r"audio\[2\]: an array has no sample rate; give sample_rate=16000"),
        (np.zeros((2, 2, 2)), 16000, r"audio\[2\]: this is no audio: got \(2, 2, 2\) float64, wanted \(T,\), \(c"),
        (np.zeros(0), 16000, r"this is no audio: got \(0,\)"),
        (np.array(["a"]), 16000, "this is no audio"),
        (np.array([np.nan]), 16000, "NaN or infinite"),
        (
            np.array([0, 2**40]),
            16000,
            r"samples are too large: got 0 to 1099511627776, wanted floats of full scale 1, or",
        ),
        (np.array([True, False]), 16000, "this is no audio"),
        (np.array([1j]), 16000, "this is no audio"),
    ],
)
def test_arrays_that_are_no_audio_are_refused(array, rate, told):
    with pytest.raises(UsageError, match=told):
        recording_of(array, rate, 2)
