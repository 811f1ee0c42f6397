"""Data layers as scripts read them by themselves."""

import pytest
import torch
from toys.manifests import layer_of, make_set


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_batches_are_lists_of_tensors_in_port_order_anew_each_time(folder):
    make_set(folder, 6)
    layer = layer_of(shuffle=False)
    assert layer.dataset is None
    for _ in range(2):
        lengths = []
        for batch in layer.data_iterator:
            audio, audio_lens, tokens, token_lens = batch
            assert type(batch) is list
            assert (audio.shape[0], tokens.shape[1]) == (len(audio_lens), token_lens.max())
            lengths += audio_lens.tolist()
        assert lengths == [3200 + 160 * number for number in range(1, 7)]
    assert (len(layer), len(layer.data_iterator)) == (6, 2)
    assert layer._dataloader is layer.data_iterator


def test_shuffled_batches_come_in_another_order_each_time(folder):
    make_set(folder, 12)
    layer = layer_of(batch_size=1)
    orders = [[batch[1].item() for batch in layer.data_iterator] for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_utterances_without_texts_are_kept(folder):
    make_set(folder, 3, text="todo")
    assert [batch[3].tolist() for batch in layer_of().data_iterator] == [[0, 0, 0]]


def test_items_are_read_by_position(folder):
    make_set(folder, 3)
    items = layer_of()._dataset
    audio, audio_len, ids, num_ids = items[1]
    assert (len(items), audio.dtype, audio_len.item(), ids.tolist(), num_ids.item()) == (
        3,
        torch.float32,
        3520,
        [1, 2],
        2,
    )
    assert layer_of()._featurizer.process("1.wav").shape == (3360,)
