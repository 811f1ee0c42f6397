"""The model folder: what is written is read, nothing else is, and a kill between leaves the old model."""

from __future__ import annotations

import json
import re

import pytest
import torch

from nemo_asr.trained import folder as model_folder
from nemo_asr.trained.folder import ModelCard, Rate, about_checkpoint, find_model, read_model, write_model
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.storage import ModuleWeights, save_module
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import write_atomically

CARD = ModelCard(name="Tones", labels=["a", "b"], sample_rate=16000)


def write(folder, value=1.0, config="model: Tones\n", card=CARD):
    folder.mkdir(parents=True, exist_ok=True)
    staged = {"Encoder": folder / ".Encoder.safetensors", "Decoder": folder / ".Decoder.safetensors"}
    for name, path in staged.items():
        save_module(ModuleWeights(name, {"weight": torch.full((2,), value), f"of {name}": torch.zeros(1)}), path)
    return write_model(folder, card, config, staged)


def save_checkpoint(folder, about, evaluations=()):
    weights = {"Encoder": ModuleWeights("Encoder", {"weight": torch.ones(3)})}
    state = {"step": 7, "epoch": 2}
    CheckpointFolder(folder).save(weights, state, kind="STEP", number=7, keep=2, about=about, evaluations=evaluations)


def test_a_model_that_was_written_is_read(tmp_path):
    card = write(tmp_path / "model", 2.0)
    stored = read_model(tmp_path / "model")
    assert (stored.place, stored.card, stored.config) == (str(tmp_path / "model"), card, "model: Tones\n")
    assert {name: sorted(tensors) for name, tensors in stored.weights.items()} == {
        "Encoder": ["of Encoder", "weight"],
        "Decoder": ["of Decoder", "weight"],
    }
    assert stored.weights["Encoder"]["weight"].tolist() == [2.0, 2.0]


def test_each_file_has_the_start_of_its_hash_in_its_name_and_the_hash_is_in_the_card(tmp_path):
    card = write(tmp_path)
    assert sorted(each.name for each in card.files) == sorted(
        path.name for path in tmp_path.iterdir() if path.name != "model.json"
    )
    for each in card.files:
        assert re.fullmatch(rf"\w+-{each.sha256[:8]}\.(safetensors|yaml)", each.name)
        assert each.bytes == (tmp_path / each.name).stat().st_size


def test_the_next_model_replaces_the_one_before_and_leaves_other_files_alone(tmp_path):
    write(tmp_path, 1.0)
    (tmp_path / "README.md").write_text("mine")
    card = write(tmp_path, 2.0, "model: Others\n")
    assert read_model(tmp_path).weights["Decoder"]["weight"].tolist() == [2.0, 2.0]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"README.md", "model.json", *(each.name for each in card.files)}


def test_a_kill_before_the_card_is_replaced_leaves_the_old_model(tmp_path, monkeypatch):
    write(tmp_path, 1.0)

    def killed(path, writer):
        if path.name == "model.json":
            raise KeyboardInterrupt
        return write_atomically(path, writer)

    monkeypatch.setattr(model_folder, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2.0, "model: Others\n")
    stored = read_model(tmp_path)
    assert stored.config == "model: Tones\n"
    assert stored.weights["Encoder"]["weight"].tolist() == [1.0, 1.0]


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """A run that trains writes a better one."""
    write(tmp_path, 1.0)
    read_files = model_folder._read_files

    def replaced(folder, card):
        monkeypatch.undo()
        write(tmp_path, 2.0)
        return read_files(folder, card)

    monkeypatch.setattr(model_folder, "_read_files", replaced)
    assert read_model(tmp_path).weights["Encoder"]["weight"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "other"])
def test_a_file_that_is_not_the_one_that_was_written_is_named(damage, tmp_path):
    card = write(tmp_path)
    path = tmp_path / card.weights["Decoder"].name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-1]), "other": b""}[damage])
    difference = {"gone": "lacks ", "cut": r".* were written; copy the whole folder", "flip": r".*SHA-256 differs"}
    told = rf"a file of the model is missing or damaged: got {difference.get(damage, '')}"
    with pytest.raises(CheckpointError, match=told) as caught:
        read_model(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../Encoder-0a1b2c3d.safetensors", "/etc/passwd", "Encoder.safetensors", ".x-0a1b2c3d.yaml"]
)
def test_a_card_leads_to_no_file_outside_and_to_no_other_name(name, tmp_path):
    write(tmp_path / "model")
    content = json.loads((tmp_path / "model/model.json").read_text())
    content["weights"]["Encoder"]["name"] = name
    del content["sha256"]
    (tmp_path / "model/model.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the card lists a name that no model file has"):
        read_model(tmp_path / "model")
    (tmp_path / "Encoder-0a1b2c3d.safetensors").write_text("mine")
    write(tmp_path / "model", 2.0)
    assert (tmp_path / "Encoder-0a1b2c3d.safetensors").read_text() == "mine"


def test_a_run_stands_for_its_model_and_without_one_for_its_checkpoints(tmp_path):
    save_checkpoint(tmp_path / "run/checkpoints", None)
    assert find_model(tmp_path / "run") == tmp_path / "run/checkpoints"
    assert find_model(tmp_path / "run/checkpoints") == tmp_path / "run/checkpoints"
    write(tmp_path / "run/model")
    assert find_model(tmp_path / "run") == tmp_path / "run/model"
    assert find_model(tmp_path / "run/checkpoints") == tmp_path / "run/checkpoints"


def test_a_checkpoint_carries_labels_and_configuration(tmp_path):
    save_checkpoint(tmp_path, about_checkpoint(CARD, "model: Tones\n"))
    stored = read_model(tmp_path)
    assert (stored.card.labels, stored.card.sample_rate, stored.config) == (["a", "b"], 16000, "model: Tones\n")
    assert (stored.card.step, stored.card.epoch) == (7, 2)
    assert stored.weights["Encoder"]["weight"].tolist() == [1.0, 1.0, 1.0]


def test_a_checkpoint_has_the_rates_that_were_measured_with_its_weights(tmp_path):
    values = {"loss": 2.0, "wer": 0.25, "cer": 0.125, "note": "x"}
    evaluations = [
        {"name": "dev", "step": 7, "values": values, "num_items": 4, "digest": "ab", "seconds": 1.0},
        {"name": "other", "step": 5, "values": values, "num_items": 4, "digest": "ab", "seconds": 1.0},
    ]
    save_checkpoint(tmp_path, about_checkpoint(CARD, "model: Tones\n"), evaluations)
    (rate,) = read_model(tmp_path).card.rates
    assert rate == Rate(set="dev", wer=0.25, cer=0.125, loss=2.0, utterances=4, digest="ab")


def test_a_checkpoint_of_a_script_has_weights_and_no_configuration(tmp_path):
    save_checkpoint(tmp_path, None)
    stored = read_model(tmp_path)
    assert (stored.card.labels, stored.config, list(stored.weights)) == ([], "", ["Encoder"])


WANTED = "wanted a run's folder, a model folder, a folder of checkpoints, a .nemo file"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("empty", f"there is no model in this folder: {WANTED}"),
        ("begun", "this run has not saved a model yet; let it train until its first checkpoint"),
        ("none", "this is no model: got the name of nothing that is here"),
        ("file", "this is no model: got a file"),
    ],
)
def test_where_there_is_no_model_one_line_says_so(path, told, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        read_model(tmp_path / path)
    assert str(caught.value).startswith(f"{tmp_path / path}: {told}")


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not writable"):
        write_model(tmp_path / "file" / "model", CARD, "", {})


@pytest.mark.parametrize("name", ["QuartzNet15x5Base-En", "openai/whisper-tiny"])
def test_a_name_that_is_not_known_is_told_how_models_are_downloaded(name):
    with pytest.raises(CheckpointError, match=r"; nemo-lite models list names models that are .*; hf:OWNER/NAME"):
        read_model(name)
