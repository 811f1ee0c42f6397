"""What a worker does: a request in, one padded batch out, faults as data instead of raised."""

import json
import pickle

import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.audio.augmentation import AudioAugmentor
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.utterances import Reading, SpeechDataset, collate
from nemo_asr.text.parser import make_parser
from nemo_lite.backends.pytorch.data.order import Request

LABELS = [" ", "a", "b", "c"]


@pytest.fixture
def manifest(tmp_path):
    """Four utterances of 0.1, 0.2, 0.3 and 0.4 s; the third has two channels and 8 kHz."""
    lines = []
    for number, text in enumerate(["a", "ab", "a b", "abc"], start=1):
        rate, path = (8000 if number == 3 else 16000), tmp_path / f"{number}.wav"
        noise = np.random.default_rng(number).uniform(-0.5, 0.5, (number * rate // 10, 2 if number == 3 else 1))
        soundfile.write(path, noise, rate)
        lines.append({"audio_filepath": path.name, "duration": number / 10, "text": text})
    (tmp_path / "train.json").write_text("\n".join(map(json.dumps, lines)))
    return Manifest.open(str(tmp_path / "train.json"))


def dataset_of(manifest, augmentor=None, seed=0, **reading):
    return SpeechDataset(manifest.reader, make_parser(LABELS), Reading(**reading), augmentor, seed)


def load(dataset, manifest, rows, spares=(), **request):
    items, others = (list(zip(some, manifest.refs(list(some)), strict=True)) for some in (rows, spares))
    return dataset[Request(items=items, spares=others, **{"epoch": 0, **request})]


def test_a_batch_is_padded_at_the_end_with_zeros(manifest):
    loaded = load(dataset_of(manifest), manifest, [3, 0, 1])
    audio, audio_lens, labels, label_lens = loaded.values
    assert (audio.dtype, audio.shape) == (torch.float32, (3, 6400))
    assert audio_lens.tolist() == [6400, 1600, 3200]
    assert (audio[1, 1600:] == 0).all()
    assert audio[1, :1600].abs().min() >= 0
    assert audio[1, :1600].abs().max() > 0.4
    assert labels.tolist() == [[1, 2, 3], [1, 0, 0], [1, 2, 0]]
    assert label_lens.tolist() == [3, 1, 2]
    assert loaded.ids == [3, 0, 1]
    assert loaded.amount == pytest.approx(0.4 + 0.1 + 0.2)


def test_begin_end_and_pad_ids_surround_the_labels(manifest):
    loaded = load(dataset_of(manifest, bos_id=7, eos_id=8, pad_id=9), manifest, [0, 3])
    assert loaded.values[2].tolist() == [[7, 1, 8, 9, 9], [7, 1, 2, 3, 8]]
    assert loaded.values[3].tolist() == [3, 5]


def test_an_utterance_is_the_same_alone_and_in_a_batch(manifest):
    dataset = dataset_of(manifest)
    alone, together = load(dataset, manifest, [0]), load(dataset, manifest, [3, 0])
    assert torch.equal(alone.values[0][0], together.values[0][1, :1600])


def test_conversions_are_counted(manifest):
    loaded = load(dataset_of(manifest), manifest, [0, 2])
    assert loaded.counts["resampled"] == {8000: 1}
    assert loaded.counts["mixed_down"] == {2: 1}
    assert loaded.values[1].tolist() == [1600, 4800]


def test_faults_are_told_with_their_row_and_the_rest_of_the_batch_is_kept(manifest, tmp_path):
    (tmp_path / "2.wav").write_bytes(b"RIFF")
    (tmp_path / "3.wav").unlink()
    loaded = load(dataset_of(manifest), manifest, [1, 2, 3])
    assert loaded.ids == [3]
    assert [row for row, _ in loaded.faults] == [1, 2]
    assert "train.json:2: " in loaded.faults[0][1]
    assert "3.wav cannot be opened" in loaded.faults[1][1]
    assert loaded.values[0].shape == (1, 6400)


def test_a_text_that_the_vocabulary_cannot_write_is_a_fault_in_training(manifest, tmp_path):
    loaded = load(SpeechDataset(manifest.reader, make_parser(["x"]), Reading()), manifest, [0], training=True)
    assert "train.json:1: no character of the text is in the vocabulary: got 'a'" in loaded.faults[0][1]


def test_spares_are_tried_only_when_nothing_else_can_be_used(manifest, tmp_path):
    dataset = dataset_of(manifest)
    assert load(dataset, manifest, [0], spares=[1, 2]).ids == [0]
    (tmp_path / "1.wav").unlink()
    (tmp_path / "2.wav").unlink()
    loaded = load(dataset, manifest, [0], spares=[1, 2, 3])
    assert loaded.ids == [2]
    assert [row for row, _ in loaded.faults] == [0, 1]
    assert load(dataset, manifest, [0, 1]).values == ()


def test_characters_outside_the_vocabulary_are_counted_for_each_batch(manifest):
    dataset = SpeechDataset(manifest.reader, make_parser(["a"]), Reading())
    assert load(dataset, manifest, [2, 3]).counts["unknown"] == {" ": 1, "b": 2, "c": 1}
    assert load(dataset, manifest, [0]).counts["unknown"] == {}


def test_audio_is_left_out_without_load_audio(manifest, tmp_path):
    for path in tmp_path.glob("*.wav"):
        path.unlink()
    audio, audio_lens, labels, _ = load(dataset_of(manifest, load_audio=False), manifest, [0, 1]).values
    assert audio.shape == (2, 0)
    assert audio_lens.tolist() == [0, 0]
    assert labels.tolist() == [[1, 0], [1, 2]]


def test_perturbation_follows_from_seed_epoch_and_row_not_from_the_batch(manifest):
    augmentor = AudioAugmentor.from_config({"white_noise": {"prob": 1.0, "min_level": -30, "max_level": -20}})
    dataset = dataset_of(manifest, augmentor)
    rows = [load(dataset, manifest, [0, 1], training=training).values[0][:, :1600] for training in (True, False)]
    noise = rows[0] - rows[1]
    assert float((noise[0] - noise[1]).abs().max()) > 0.01

    def first(dataset, rows, **request):
        return load(dataset, manifest, rows, **request).values[0][0, :1600]

    alone = first(dataset, [0], training=True)
    assert torch.equal(alone, first(dataset, [0, 3], training=True))
    assert torch.equal(alone, first(pickle.loads(pickle.dumps(dataset)), [0], training=True))
    assert not torch.equal(alone, first(dataset, [0], training=True, epoch=1))
    assert not torch.equal(alone, first(dataset_of(manifest, augmentor, seed=1), [0], training=True))
    assert torch.equal(first(dataset, [0]), first(dataset_of(manifest), [0]))


def test_a_changed_manifest_ends_the_run(manifest, tmp_path):
    dataset = dataset_of(manifest)
    with (tmp_path / "train.json").open("a") as file:
        file.write("\n")
    loaded = load(dataset, manifest, [0])
    assert "the manifest changed while it was in use" in loaded.fatal
    assert not loaded.faults


def test_an_argument_that_does_not_fit_the_audio_ends_the_run(manifest):
    augmentor = AudioAugmentor.from_config({"speed": {"prob": 1.0, "sr": 8000, "min_speed_rate": 0.9}})
    loaded = load(dataset_of(manifest, augmentor), manifest, [0], training=True)
    assert "speed.sr: the audio has another sample rate" in loaded.fatal


def test_the_dataset_stays_small_for_workers(manifest):
    assert len(pickle.dumps(dataset_of(manifest))) < 10000


def test_collating_keeps_every_value():
    rng = np.random.default_rng(0)
    audio = [rng.standard_normal(n).astype(np.float32) for n in (5, 1, 9)]
    labels = [[1], [2, 3, 4], [5, 6]]
    signal, audio_lens, ids, label_lens = collate(audio, labels, pad_id=0)
    for row, (samples, text) in enumerate(zip(audio, labels, strict=True)):
        np.testing.assert_array_equal(signal[row, : audio_lens[row]].numpy(), samples)
        assert ids[row, : label_lens[row]].tolist() == text
    assert float(signal.abs().sum()) == pytest.approx(sum(np.abs(samples).sum() for samples in audio), rel=1e-6)
    assert int(ids.sum()) == 21
