"""The data layer over tar shards: counts, order, ranks and workers, equality with loose files, and what it refuses."""

import json
import os
import shutil

import numpy as np
import pytest
import soundfile
import torch
from torch.utils.data import DataLoader
from toys.manifests import LABELS, layer_of
from toys.tar_shards import make_tarred_set, write_shard

import nemo_asr
from nemo_asr import TarredAudioToTextDataLayer
from nemo_asr.data.utterances import FileSpans
from nemo_lite import logging
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.errors import DataError, UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def source(folder):
    """13 utterances in 3 shards, in a random order: the first two arguments of the data layer."""
    return make_tarred_set(folder, 13, shuffle=True, seed=1)


def tarred(source, batch_size=4, **arguments):
    return TarredAudioToTextDataLayer(source[0], source[1], LABELS, batch_size, **arguments)


def epoch_of(layer, training=True, rank=0, world_size=1, epoch=0, uneven="pad"):
    return list(layer.loader(training=training, shard=Shard(rank, world_size, 7, uneven)).epoch(epoch))


def ids_of(batches):
    return [batch.ids for batch in batches]


def items_of(batches):
    return sorted(item for ids in ids_of(batches) for item in ids)


@pytest.mark.parametrize("shuffle_n", [0, 6])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_utterance_comes_once_an_epoch_on_any_number_of_ranks(source, world_size, shuffle_n):
    layer = tarred(source, batch_size=2, shuffle_n=shuffle_n)
    assert len(layer) == 13
    of_ranks = [epoch_of(layer, rank=rank, world_size=world_size, uneven="join") for rank in range(world_size)]
    assert sorted(item for batches in of_ranks for item in items_of(batches)) == list(range(13))
    assert len(layer.loader(training=True, shard=Shard(0, world_size))) == -(-13 // world_size // 2)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_evaluation_scores_each_utterance_once_in_the_order_of_the_shards(source, world_size):
    layer = tarred(source, shuffle_n=6)
    batches = [batch for rank in range(world_size) for batch in epoch_of(layer, False, rank, world_size)]
    in_order = sorted(batches, key=lambda batch: batch.number)
    assert [item for batch in in_order for item in batch.ids] == list(range(13))


def test_the_order_does_not_depend_on_the_number_of_workers_and_changes_with_the_epoch(source):
    alone, with_workers = (tarred(source, shuffle_n=6, num_workers=number) for number in (0, 2))
    loader = with_workers.loader(training=True, shard=Shard(1, 2, 7))
    for epoch in (0, 1):
        wanted = epoch_of(alone, rank=1, world_size=2, epoch=epoch)
        found = list(loader.epoch(epoch))
        assert ids_of(found) == ids_of(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert all(map(torch.equal, mine.values, theirs.values))
    assert ids_of(epoch_of(alone)) != ids_of(epoch_of(alone, epoch=1))


def test_audio_and_labels_are_those_of_the_loose_files(source):
    layer, loose = tarred(source, sample_rate=8000), layer_of(sample_rate=8000, shuffle=False)
    of_file = {f"{row + 1}.wav": row for row in range(13)}
    rows = [of_file[layer.utterance_of(item).audio_path.rpartition(":")[2]] for item in range(13)]
    assert sorted(rows) == list(range(13)) != rows
    one, other = (next(iter(epoch_of(each, training=False))) for each in (tarred(source, 13, sample_rate=8000), loose))
    assert one.values[0].shape[0] == 13
    for position, row in enumerate(rows):
        if row < 4:
            for mine, theirs in zip(one.values[::2], other.values[::2], strict=True):
                length = other.values[1][row] if mine.dtype == torch.float32 else other.values[3][row]
                assert torch.equal(mine[position, :length], theirs[row, :length])
            assert all(one.values[port][position] == other.values[port][row] for port in (1, 3))


def test_scripts_read_batches_and_single_utterances_as_in_nemo(source):
    layer = tarred(source, pad_id=7, shuffle=False, sample_rate=8000)
    (first, *_), wanted = list(layer.data_iterator), epoch_of(layer, training=False)[0]
    items = DataLoader(layer.dataset, batch_size=4, collate_fn=layer.collate_fn)
    for batch in (first, next(iter(items))):
        assert all(map(torch.equal, batch, wanted.values))


def read_spans(layer, monkeypatch, **arguments):
    spans = []
    read = FileSpans.read
    with monkeypatch.context() as context:
        context.setattr(FileSpans, "read", lambda self, span: spans.append(span) or read(self, span))
        epoch_of(layer, **arguments)
    return spans


@pytest.mark.parametrize("training", [True, False])
def test_a_shard_is_read_once_from_front_to_back_and_opened_once(source, training, monkeypatch):
    opened = []
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or open_file(path, flags))
    layer = tarred(source)
    opened.clear()  # the lists of their members have been read
    spans = read_spans(layer, monkeypatch, training=training)
    assert len(spans) == len(set(spans)) == 13
    assert [shard for shard in opened if str(shard).endswith(".tar")] == [
        layer.utterances.reader.shards.paths[number] for number in dict.fromkeys(span.file for span in spans)
    ]
    assert len([shard for shard in opened if str(shard).endswith(".tar")]) == 3
    for number in range(3):
        firsts = [span.first for span in spans if span.file == number]
        assert firsts == sorted(firsts)


def test_nothing_is_written_to_disk(source, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    epoch_of(tarred(source, num_workers=1))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_utterances_that_are_left_out_change_the_count_and_nothing_else(source):
    layer = tarred(source, min_duration=0.225, shuffle_n=3)
    assert len(layer) == 11
    layer.leave_out([0, 10], "for a reason")
    assert items_of(epoch_of(layer)) == list(range(9))
    with pytest.raises(DataError, match=r"no utterance is left: 13 shorter than min_duration 9 s"):
        tarred(source, min_duration=9)


def test_a_damaged_member_is_skipped_in_training_and_told_with_its_line_and_shard(source, folder, capsys):
    layer = tarred(source, max_corrupt=1)
    span = layer.utterances.refs([5])[0].span
    with open(folder / f"tarred/audio_{span.file}.tar", "r+b") as file:
        file.seek(span.first)
        file.write(b"nothing that is audio")
    layer = tarred(source, max_corrupt=1)
    loader = layer.loader(training=True, shard=Shard())
    assert items_of(loader.epoch(0)) == [*range(5), *range(6, 13)]
    with pytest.raises(DataError) as error:
        epoch_of(tarred(source), training=False)
    name = layer.utterance_of(5).audio_path
    assert str(error.value).startswith(f"{source[1]}:6: {name} is not ")
    assert "make the tar shards again without the damaged files, or raise max_corrupt" in str(error.value)


def test_bad_shards_end_it_with_one_line(source, folder):
    def refusal(shards, manifest, **arguments):
        with pytest.raises((DataError, UsageError)) as error:
            TarredAudioToTextDataLayer(shards, manifest, LABELS, 4, **arguments)
        assert "\n" not in str(error.value)
        assert error.value.exit_code == 2
        return str(error.value)

    shards, manifest = source
    assert "audio_3.tar: the tar shard does not exist" in refusal(shards.replace("2}", "3}"), manifest)
    os.truncate(folder / "tarred/audio_1.tar", 20000)
    assert "audio_1.tar: the tar shard ends early, within " in refusal(shards, manifest)
    assert (
        refusal(shards, manifest, shuffle_n=-1)
        == "TarredAudioToTextDataLayer.shuffle_n is -1, wanted int from 0 to 1000000000"
    )
    assert "none.json: the manifest does not exist" in refusal(shards.replace("2}", "0}"), "none.json")


def test_a_member_without_a_line_is_counted_and_not_part_of_the_set(source, folder, capsys):
    write_shard(folder / "more.tar", ("x.wav", b"x"))
    with logging.temp_verbosity(logging.WARNING):
        layer = tarred(([source[0], "more.tar"], source[1]))
    assert len(layer) == 13
    assert "1 recording (more.tar:x.wav) in the tar shards without a manifest line: not used" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"more\.tar:x\.wav.* without a manifest line; make the tar shards again"):
        tarred(([source[0], "more.tar"], source[1]), strict_data=True)


def test_ranks_compare_what_is_in_the_shards_and_not_where_they_are(source, folder):
    shutil.copytree("tarred", "elsewhere")
    other = source[0].replace("/tarred/", "/elsewhere/"), source[1].replace("/tarred/", "/elsewhere/")
    shutil.copy("elsewhere/audio_2.tar", "elsewhere/audio_x.tar")
    renamed = [*(f"elsewhere/audio_{number}.tar" for number in "01"), "elsewhere/audio_x.tar"], other[1]
    # One after the other: names of modules that are alive differ.
    here, there, changed = (tarred(each, num_workers=3, name="data").fingerprint() for each in (source, other, renamed))
    assert here == there
    assert {key for key in here if here[key] != changed[key]} == {"tar shards of data"}


def test_parts_of_one_recording_come_from_one_member(folder):
    soundfile.write("long.wav", np.linspace(-0.5, 0.5, 16000), 16000, subtype="FLOAT")
    parts = [{"audio_filepath": "long.wav", "offset": n / 4, "duration": 0.25, "text": "a"} for n in range(4)]
    (folder / "m.json").write_text("".join(json.dumps(part) + "\n" for part in parts))
    write_shard(folder / "s.tar", ("long.wav", (folder / "long.wav").read_bytes()))
    (batch,) = epoch_of(TarredAudioToTextDataLayer("s.tar", "m.json", LABELS, -1), training=False)
    assert torch.equal(batch.values[0].ravel(), torch.linspace(-0.5, 0.5, 16000, dtype=torch.float64).float())


def test_a_configuration_trains_from_shards_and_evaluates_from_files(source):
    recipe = nemo_asr.recipe_from_text(
        f"""
data_train:
  header: {{full_spec: nemo_asr.TarredAudioToTextDataLayer}}
  init_params: {{manifest_filepath: {source[1]}, shuffle_n: 100}}
data_eval:
  header: {{full_spec: nemo_asr.AudioToTextDataLayer}}
  init_params: {{}}
AudioToMelSpectrogramPreprocessor: {{features: 8}}
JasperEncoder:
  activation: relu
  jasper:
    - {{filters: 8, repeat: 1, kernel: [3], stride: [1], dilation: [1], dropout: 0.0, residual: false}}
labels: [" ", a, b, c]
""",
        "tarred.yaml",
    )
    train = recipe.data_layer(source[0], training=True, batch_size=2)
    dev = recipe.data_layer("train.json", training=False, batch_size=2)
    assert [type(layer).__name__ for layer in (train, dev)] == ["TarredAudioToTextDataLayer", "AudioToTextDataLayer"]
    assert len(train) == len(dev) == 13
