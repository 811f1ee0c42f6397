"""NeMo's data sets of torch and their collate functions."""

import json

import pytest
import torch
from toys.kaldi_folders import make_folder
from toys.manifests import LABELS, make_set

from nemo_asr.audio.augmentation import WaveformFeaturizer
from nemo_asr.parts.dataset import (
    AudioDataset,
    AudioLabelDataset,
    KaldiFeatureDataset,
    TranscriptDataset,
    fixed_seq_collate_fn,
    seq_collate_fn,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 4)
    return tmp_path


def test_recordings_and_texts_are_items_and_a_batch_is_padded(folder):
    items = AudioDataset("train.json,train.json", LABELS, WaveformFeaturizer(), max_utts=6, bos_id=8, eos_id=9)
    assert len(items) == 6
    audio, audio_len, tokens, num_tokens = items[1]
    assert (audio.shape, audio_len.item(), tokens.tolist(), num_tokens.item()) == ((3520,), 3520, [8, 1, 2, 9], 4)
    audio, audio_lens, tokens, _ = seq_collate_fn([items[0], items[1]], token_pad_value=7)
    assert (audio.shape, audio_lens.tolist()) == ((2, 3520), [3360, 3520])
    assert tokens.tolist() == [[8, 1, 9, 7], [8, 1, 2, 9]]


def test_an_item_may_tell_where_it_is_from_and_have_no_audio(folder):
    items = AudioDataset("train.json", LABELS, WaveformFeaturizer(), add_misc=True, load_audio=False)
    (audio, _, tokens, _), misc = items[2]
    assert (audio, tokens.tolist()) == (None, [1])
    assert misc == {"id": 2, "text_raw": "a", "speaker": None}
    assert seq_collate_fn([items[0][0], items[1][0]])[0] is None


def test_at_most_the_duration_is_read(folder):
    line = {"audio_filepath": "1.wav", "offset": 0.1, "duration": 18000, "text": "a"}
    (folder / "long.json").write_text(json.dumps(line) + "\n" + json.dumps({**line, "duration": 0.05}))
    items = AudioDataset("long.json", LABELS, WaveformFeaturizer())
    assert [len(items[row][0]) for row in (0, 1)] == [1760, 800]


def test_classes_have_numbers(folder):
    make_set(folder, 3, "commands.json", command="go")
    items = AudioLabelDataset("commands.json", WaveformFeaturizer(), labels=["stop", "go"])
    assert (items.label2id, items.id2label, items.num_commands) == ({"stop": 0, "go": 1}, {0: "stop", 1: "go"}, 2)
    assert [value.item() for value in items[0][1:]] == [3360, 1, 1]
    assert AudioLabelDataset("commands.json", WaveformFeaturizer()).labels == ["go"]
    with pytest.raises(KeyError):
        AudioLabelDataset("commands.json", WaveformFeaturizer(), labels=["stop"])[0]


def test_audio_is_brought_to_one_length():
    one, ids = torch.arange(1.0, 6.0), torch.tensor([1])
    batch = [(one, torch.tensor(5), ids, torch.tensor(1)), (torch.ones(20), torch.tensor(20), ids, torch.tensor(1))]
    audio, lengths, *_ = fixed_seq_collate_fn(batch, fixed_length=12)
    assert audio[0].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 4, 5]
    assert (audio.shape, lengths.tolist()) == ((2, 12), [5, 20])
    assert fixed_seq_collate_fn(batch[:1], fixed_length=12)[0].shape == (1, 5)


def test_texts_alone_are_a_data_set(folder):
    (folder / "t.txt").write_text("A b\nc\n")
    items = TranscriptDataset("t.txt", LABELS, bos_id=8)
    assert [(ids.tolist(), number.item()) for ids, number in (items[0], items[1])] == [([8, 1, 0, 2], 4), ([8, 3], 2)]


def test_features_of_kaldi_are_items_with_features_first(tmp_path):
    matrices = make_folder(tmp_path / "kaldi")
    items = KaldiFeatureDataset(str(tmp_path / "kaldi"), LABELS, min_duration=0.21, max_utts=3, eos_id=9)
    features, length, ids, num_ids = items[0]
    assert (len(items), length.item(), ids.tolist(), num_ids.item()) == (3, 21, [1, 2, 9], 3)
    assert torch.equal(features, torch.from_numpy(matrices[1]).T)
    with pytest.raises(IndexError):
        items[3]
