"""Weights of sets in training: ``a.json:3,b.json:1``, in a configuration, resumed, and where they are refused."""

import json
from collections import Counter

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import CONFIG, make_corpus, read_manifest, run_subcommand, write_manifest

from nemo_asr import AudioToTextDataLayer
from nemo_asr.argparse import AsrArgParser
from nemo_asr.run.manifest import Manifest
from nemo_lite.backends.pytorch.data.order import Shard, Stretch
from nemo_lite.base.errors import ConfigError, DataError, UsageError

LABELS = [" ", "a", "b"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in (("a", 4), ("b", 12)):
        lines = []
        for number in range(count):
            soundfile.write(f"{name}{number}.wav", np.full(4000, 0.1), 16000)
            lines.append({"audio_filepath": f"{name}{number}.wav", "duration": 0.25, "text": "ab"})
        (tmp_path / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def layer(paths, **settings):
    return AudioToTextDataLayer(paths, LABELS, batch_size=2, **settings)


def sources(loader, data, epoch):
    return Counter(data.utterance_of(item).audio_path[0] for batch in loader.epoch(epoch) for item in batch.ids)


def test_each_epoch_has_the_share_of_each_set(folder):
    data = layer("a.json:3,b.json")
    assert data.manifest.weights == (3.0, 1.0)
    loader = data.loader(training=True, shard=Shard(seed=1))
    assert [sources(loader, data, epoch) for epoch in range(3)] == [{"a": 12, "b": 4}] * 3
    assert len({item for epoch in range(3) for batch in loader.epoch(epoch) for item in batch.ids}) == 16
    assert sources(data.loader(training=False, shard=Shard()), data, 0) == {"a": 4, "b": 12}, "each once"


def test_ranks_share_the_items_and_a_rest_is_what_was_left(folder):
    data = layer("a.json:1,b.json:1")
    alone = data.loader(training=True, shard=Shard(seed=2))
    both = [data.loader(training=True, shard=Shard(rank, 2, 2)) for rank in range(2)]
    whole = [list(batch.ids) for batch in alone.epoch(1)]
    shared = Counter(item for loader in both for batch in loader.epoch(1) for item in batch.ids)
    assert shared == Counter(item for batch in whole for item in batch)
    again = data.loader(training=True, shard=Shard(seed=2))
    assert [list(batch.ids) for batch in again.rest_of_epoch(1, (Stretch(1, 3),))] == whole[3:]


def test_an_utterance_that_comes_again_in_an_epoch_is_perturbed_anew(folder):
    white = {"white_noise": {"prob": 1.0, "min_level": -60, "max_level": -20}}
    data = layer("a.json:3,b.json:1", augmentor=white)
    heard: dict[int, list[bytes]] = {}
    for batch in data.loader(training=True, shard=Shard(seed=1)).epoch(0):
        for item, samples in zip(batch.ids, batch.values[0], strict=True):
            heard.setdefault(item, []).append(samples.numpy().tobytes())
    assert all(len(each) == len(set(each)) == 3 for item, each in heard.items() if item < 4)


def test_weights_are_numbers_above_zero_and_files_may_have_colons(folder):
    with pytest.raises(
        UsageError, match=r"a\.json:0: a set's weight, behind the colon, is out of range: got '0', wanted a number"
    ):
        Manifest.open("a.json:0,b.json")
    with pytest.raises(UsageError, match=r"a\.json:x: a set's weight, behind the colon, is out of range: got 'x'"):
        Manifest.open("a.json:x")
    with pytest.raises(DataError, match=r"^aa\.json: the manifest does not exist \(did you mean a\.json\?\)"):
        Manifest.open("aa.json:2")
    (folder / "a:3").write_text((folder / "a.json").read_text())
    assert Manifest.open("a:3").weights == ()
    with pytest.raises(UsageError, match=r"a\.json,b\.json: set 2 would never come: got 12 items, 0 of the 16 places"):
        layer("a.json:999,b.json").loader(training=True, shard=Shard())


def test_weights_count_for_resuming(folder):
    one, other, none = (layer(paths).fingerprint() for paths in ("a.json:3,b.json", "a.json:2,b.json", "a.json,b.json"))
    (weights,) = [key for key in one if one[key] != other[key]]
    assert weights.startswith("weights of")
    assert not [key for key in none if key.startswith("weights of")]


@pytest.mark.parametrize(
    "written", ["[a.json:3, b.json]", "{a.json: 3, b.json: 1}", "[a.json: 3, b.json: 1]", '"a.json:3,b.json"']
)
def test_a_configuration_names_sets_with_weights(folder, written):
    (folder / "m.yaml").write_text(f"{CONFIG}\ntrain_dataset: {written}\n")
    parsed = AsrArgParser().parse_args(["--model_config", "m.yaml", "--num_epochs", "1"])
    assert Manifest.open(parsed.train_dataset).weights == (3.0, 1.0)
    given = AsrArgParser().parse_args(["--model_config", "m.yaml", "--num_epochs", "1", "--train_dataset", "b.json"])
    assert given.train_dataset == "b.json", "the command line wins"


def test_what_names_no_sets_is_refused_with_its_place(folder):
    (folder / "m.yaml").write_text(f"{CONFIG}\ntrain_dataset: [1]\n")
    with pytest.raises(ConfigError, match=r"m\.yaml:\d+:1: train_dataset: wanted a manifest, a list of them, or"):
        AsrArgParser().parse_args(["--model_config", "m.yaml", "--num_epochs", "1"])


@pytest.mark.slow
def test_a_run_with_weights_resumes_to_the_bit_and_evaluation_refuses_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path)
    lines = read_manifest(tmp_path / "train.json")
    write_manifest(tmp_path / "few.json", lines[:3])
    words = ["--model_config", "tones.yaml", "--train_dataset", "few.json:1,train.json:1", "--batch_size", "4"]
    refused = run_subcommand("train", *words, "--num_epochs", "1", "--eval_datasets", "dev.json:2")
    assert "--eval_datasets: an evaluation set has weights: got dev.json:2" in refused.err
    schedule = ["--lr_policy", "warmuplr", "--warmup_steps", "2"]  # does not depend on the number of steps

    def losses(name, steps):
        where = ["--work_dir", "runs", "--exp_name", name, "--max_steps", steps, "--log_freq", "1"]
        done = run_subcommand("train", *words, *schedule, *where, "--placement", "CPU")
        assert done.code == 0, done.err
        return done.losses

    whole = losses("whole", 14)
    assert len(whole) == 14
    assert losses("halves", 6) + losses("halves", 14) == whole  # an epoch has four steps
