"""Utterances joined in training: which ones, their texts, batches of equal cost, ranks, workers and resuming."""

import json

import numpy as np
import pytest
import torch
from toys.manifests import damage, layer_of, make_set

from nemo_asr import AudioToSpeechLabelDataLayer, TarredAudioToTextDataLayer
from nemo_asr.augmentation import JoinPerturbation
from nemo_asr.data.dataset import JoinedRows
from nemo_asr.data.made_shards import make_shards
from nemo_asr.run.text.parser import make_parser
from nemo_lite.backends.pytorch.data.order import Shard, Stretch
from nemo_lite.base.errors import UsageError

JOIN = {"join": {"prob": 0.7, "max_utterances": 3, "max_duration": 2.0, "min_gap": 0.1, "max_gap": 0.3}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path)
    return tmp_path


def items_of(layer, epoch=0, world_size=1, training=True):
    """Samples and label ids of each utterance by its position, over all ranks."""
    found = {}
    for rank in range(world_size):
        loader = layer.loader(training=training, shard=Shard(rank, world_size, seed=3))
        for batch in loader.epoch(epoch):
            audio, audio_lens, ids, id_lens = batch.values
            for row, item in enumerate(batch.ids):
                found[item] = audio[row, : audio_lens[row]].numpy(), ids[row, : id_lens[row]].tolist()
    return found


def same(items, others):
    return items.keys() == others.keys() and all(
        np.array_equal(items[item][0], others[item][0]) and items[item][1] == others[item][1] for item in items
    )


def rows_of(durations, epoch=0, seed=0, reach=None, max_duration=None, probability=0.7, **settings):
    join = JoinPerturbation(**{"max_utterances": 4, **settings})
    return JoinedRows(probability, join, np.asarray(durations, np.float32), seed, reach, max_duration)(epoch)


def test_joined_texts_are_those_of_the_utterances_with_a_space_between_them(folder):
    items = items_of(layer_of(augmentor=JOIN))
    for item, (samples, ids) in items.items():
        words = "".join("_abc"[i] for i in ids).split("_")
        assert words[0] == ("ab" if item % 2 else "a")
        assert set(words) <= {"a", "ab"}
        alone = 3200 + 160 * (item + 1)
        assert (len(samples) > alone) == (len(words) > 1)
    assert {sum(i == 0 for i in ids) for _, ids in items.values()} == {0, 1, 2}


def test_labels_without_a_space_join_texts_without_one():
    assert make_parser(["a", "b"]).joined([[0], [1, 0], [1]]) == [0, 1, 0, 1]
    assert make_parser([" ", "a", "b"]).joined([[1], [2, 1], [2]]) == [1, 0, 2, 1, 0, 2]


@pytest.mark.parametrize("arguments", [{"num_workers": 2}, {"bucketing": True}, {"batch_size": 2}])
def test_a_row_does_not_depend_on_workers_or_batches(folder, arguments):
    alone = items_of(layer_of(augmentor=JOIN), epoch=1)
    assert same(alone, items_of(layer_of(augmentor=JOIN, **arguments), epoch=1))
    assert not same(alone, items_of(layer_of(augmentor=JOIN), epoch=2))


def test_a_row_does_not_depend_on_the_number_of_ranks(folder):
    layer = layer_of(augmentor=JOIN)
    assert same(items_of(layer), items_of(layer, world_size=3))


def test_a_resumed_epoch_gives_the_batches_of_the_uninterrupted_one(folder):
    whole = list(layer_of(augmentor=JOIN).loader(training=True, shard=Shard(seed=3)).epoch(5))
    rest = list(layer_of(augmentor=JOIN).loader(training=True, shard=Shard(seed=3)).rest_of_epoch(5, [Stretch(1, 1)]))
    for batch, again in zip(whole[1:], rest, strict=True):
        assert list(batch.ids) == list(again.ids)
        assert all(torch.equal(value, other) for value, other in zip(batch.values, again.values, strict=True))


def test_evaluation_joins_nothing(folder):
    layer = layer_of(augmentor=JOIN)
    assert all(0 not in ids for _, ids in items_of(layer, training=False).values())


def test_rows_are_drawn_anew_by_epoch_and_seed_and_are_the_same_for_the_same():
    durations = np.ones(200)
    others = rows_of(durations, epoch=1, seed=3).others
    assert np.array_equal(others, rows_of(durations, epoch=1, seed=3).others)
    assert not np.array_equal(others, rows_of(durations, epoch=2, seed=3).others)
    assert not np.array_equal(others, rows_of(durations, epoch=1, seed=4).others)


def test_no_row_is_longer_than_the_limit():
    durations = np.random.default_rng(0).uniform(1, 12, 2000)
    rows = rows_of(durations, max_duration=16.7, max_gap=0.5)
    joined = (rows.others >= 0).any(0)
    assert 0.3 < joined.mean() < 0.7
    assert rows.durations[joined].max() <= 16.7
    for item in np.flatnonzero(joined)[:50]:
        others = rows.others[rows.others[:, item] >= 0, item]
        length = durations[item] + (durations[others] + 0.5).sum()
        assert rows.durations[item] == pytest.approx(length, rel=1e-5)


def test_the_limit_of_a_batch_is_one_of_rows_too(folder):
    layer = layer_of(augmentor=JOIN, bucketing=True, max_batch_seconds=0.9)
    for epoch in range(3):
        for batch in layer.loader(training=True, shard=Shard()).epoch(epoch):
            assert batch.values[0].numel() <= 0.9 * 16000


def test_batches_of_equal_cost_count_the_whole_row(folder):
    layer = layer_of(augmentor=JOIN, bucketing=True, batch_size=3, shuffle=False)
    longest = [int(batch.values[1].max()) for batch in layer.loader(training=True, shard=Shard()).epoch(0)]
    assert longest[0] - longest[-1] > 0.4 * 16000, "rows are not with rows"


def test_those_behind_an_utterance_are_within_reach():
    rows = rows_of(np.ones(1000), reach=10, max_duration=100.0)
    for others in rows.others:
        behind = (others - np.arange(1000))[others >= 0] % 1000
        assert behind.min() >= 1
        assert behind.max() == 10


@pytest.mark.parametrize("num_items", [1, 2])
def test_a_set_of_one_is_joined_with_nothing(num_items):
    assert (rows_of(np.ones(num_items), probability=1.0).others >= 0).any() == (num_items > 1)


def test_a_damaged_utterance_is_left_out_of_rows_and_told_once(folder):
    damage(folder, 5)
    layer = layer_of(augmentor={"join": {**JOIN["join"], "prob": 1.0}}, max_corrupt=1)
    items = items_of(layer)
    assert sorted(items) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert list(layer.unusable) == [4]


def test_utterances_of_tar_shards_are_joined(folder):
    made = make_shards("train.json", folder / "shards", num_shards=2)
    layer = TarredAudioToTextDataLayer(
        [str(path) for path in made.shards], str(made.manifest), [" ", "a", "b", "c"], 4, augmentor=JOIN
    )
    items = items_of(layer)
    assert same(items, items_of(layer, world_size=2))
    assert any(0 in ids for _, ids in items.values())


def test_recordings_with_a_class_are_not_joined(folder):
    lines = [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]
    (folder / "classes.json").write_text("".join(json.dumps({**line, "command": "a"}) + "\n" for line in lines))
    message = r"augmentor\.join: join joins texts: got recordings with a class each; delete join"
    with pytest.raises(UsageError, match=message):
        AudioToSpeechLabelDataLayer(manifest_filepath="classes.json", batch_size=2, augmentor=JOIN)
