"""A transducer whose weights are divided among ranks trains and is evaluated as one whose weights are not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from toys.ranks import on_ranks
from toys.tone_corpus import CONFIG, make_corpus

from nemo_lite.base import dispatch

NETWORKS = """RNNTDecoder: {prednet: {pred_hidden: 32}}
RNNTJoint: {jointnet: {joint_hidden: 32, pred_hidden: 32}, durations: [0, 1, 2, 3, 4]}
"""


def _train(folder: Path, name: str, *options: str) -> None:
    data = ["--train_dataset", f"{folder}/train.json", "--eval_datasets", f"{folder}/dev.json"]
    model = ["--model_config", f"{folder}/model.yaml", "--work_dir", f"{folder}/runs", "--exp_name", name]
    steps = ["--num_epochs", "2", "--batch_size", "3", "--eval_freq", "2", "--log_freq", "1", "--log_style", "plain"]
    sys.argv = ["nemo-lite", "train", *model, *data, *steps, "--optimizer", "adam_w", "--lr", "0.01", *options]
    dispatch.main()


@pytest.mark.slow
@pytest.mark.long
def test_losses_and_error_rates_are_those_without_sharding(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    (tmp_path / "model.yaml").write_text(f"family: hybrid\n{CONFIG}{NETWORKS}")
    said = {}
    for name, *options in (
        ("whole",),
        ("sharded", "--shard_weights"),
        ("half", "--shard_weights", "--amp_dtype=bfloat16"),
    ):
        first, *_ = ranks = on_ranks(2, _train, tmp_path, name, *options)
        assert [rank.code for rank in ranks] == [0, 0], first.err
        said[name] = re.findall(r"loss \S+ \(.*\)|dev +WER.*CER \S+", first.out)
    assert len(said["whole"]) > 5
    assert said["sharded"] == said["whole"]
    assert len(said["half"]) == len(said["whole"])
