"""What is said before training: the plan, and the texts that their frames cannot hold."""

import json

import numpy as np
import pytest
import soundfile
import torch

import nemo_lite as nemo
from nemo_asr import (
    AudioToMelSpectrogramPreprocessor,
    AudioToTextDataLayer,
    CTCLossNM,
    JasperDecoderForCTC,
    JasperEncoder,
    leave_out_infeasible,
    show_plan,
    warn_of_infeasible,
    without_weights,
)
from nemo_lite.errors import DataError, UsageError
from nemo_lite.utils.lr_policies import CosineAnnealing

LABELS = [" ", "a", "b"]
# 16000 samples are 100 frames of features and, at stride 4, 25 frames of log-probabilities.
TEXTS = ["ab" * 12, "ab" * 13, "a" * 13, "a" * 14]
BLOCK = {"repeat": 1, "dilation": 1, "dropout": 0.0, "residual": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("one.wav", np.zeros(16000), 16000)
    write("train.json", TEXTS)
    return tmp_path


def write(name, texts):
    lines = [{"audio_filepath": "one.wav", "duration": 1.0, "text": text} for text in texts]
    with open(name, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def connected(manifest="train.json", batch_size=2):
    """A data layer and the wires of log-probabilities and loss."""
    data_layer = AudioToTextDataLayer(manifest_filepath=manifest, labels=LABELS, batch_size=batch_size)
    blocks = [{"filters": 8, "kernel": 3, "stride": 2, **BLOCK}, {"filters": 8, "kernel": 3, "stride": 2, **BLOCK}]
    audio, audio_len, text, text_len = data_layer()
    features, features_len = AudioToMelSpectrogramPreprocessor(features=16)(input_signal=audio, length=audio_len)
    encoder = JasperEncoder(jasper=blocks, activation="relu", feat_in=16)
    encoded, encoded_len = encoder(audio_signal=features, length=features_len)
    log_probs = JasperDecoderForCTC(feat_in=8, num_classes=3)(encoder_output=encoded)
    loss = CTCLossNM(num_classes=3)(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
    return data_layer, log_probs, loss


def test_texts_that_do_not_fit_are_listed_by_line_and_left_out_of_training(folder, capsys):
    data_layer, log_probs, _ = connected()
    assert leave_out_infeasible(data_layer, log_probs) == 2
    told = capsys.readouterr().err
    assert f'train.json:2: 25 frames cannot hold "{TEXTS[1]}", which needs 26' in told
    assert f'train.json:4: 25 frames cannot hold "{TEXTS[3]}", which needs 27' in told
    assert "train.json: 2 of 4 texts do not fit their frames: they are left out of training" in told
    assert [data_layer.place_of(item) for item in range(len(data_layer))] == ["train.json:1", "train.json:3"]
    assert leave_out_infeasible(data_layer, log_probs) == 0
    assert capsys.readouterr().err == ""


def test_what_is_left_out_is_what_makes_the_loss_infinite(folder):
    _, _, loss = connected(batch_size=1)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    (losses,) = factory.infer([loss])
    assert [bool(torch.isinf(value).all()) for value in losses] == [False, True, False, True]


def test_nothing_is_left_when_no_text_fits(folder):
    write("long.json", ["ab" * 20])
    data_layer, log_probs, _ = connected("long.json")
    with pytest.raises(DataError, match=r"long\.json: no utterance is left: 1 with a text that does not fit"):
        leave_out_infeasible(data_layer, log_probs)


def test_evaluation_sets_keep_what_does_not_fit_and_say_so(folder, capsys):
    data_layer, log_probs, _ = connected()
    assert warn_of_infeasible(data_layer, log_probs) == 2
    assert len(data_layer) == 4
    assert "2 of 4 texts do not fit their frames: they count as they are recognised" in capsys.readouterr().err


def test_of_many_texts_the_first_are_listed_and_long_ones_are_cut(folder, capsys):
    write("many.json", ["ab" * 500] * 30)
    data_layer, log_probs, _ = connected("many.json")
    warn_of_infeasible(data_layer, log_probs)
    told = capsys.readouterr().err
    assert told.count("frames cannot hold") == 20
    assert "30 of 30 texts do not fit their frames (10 more are not listed)" in told
    assert max(map(len, told.splitlines())) < 250


def test_the_plan_shows_shapes_parameters_and_the_schedule_and_is_saved(folder, capsys):
    _, _, loss = connected()
    policy = CosineAnnealing(total_steps=100)
    show_plan({"training": nemo.Dag([loss])}, policy, 0.5, 25, 100, folder / "runs" / "one")
    printed = capsys.readouterr().out
    assert "training: 5 steps" in printed
    assert "B samples -> B 16 T" in printed
    assert "B 16 T -> B 8 T/4" in printed
    assert "25 steps an epoch, 100 steps in all" in printed
    points = ", ".join(f"{policy(0.5, step, 0):.3g} at step {step}" for step in (0, 33, 66, 99))
    assert f"learning rate {points}\n" in printed
    saved = folder / "runs" / "one"
    assert (saved / "plan.txt").read_text().rstrip() in printed
    assert (saved / "training.svg").read_text().startswith("<svg")
    assert f"Saved plan.txt and training.svg in {saved}" in printed


def test_a_plan_that_cannot_be_saved_names_the_folder(folder):
    _, _, loss = connected()
    with pytest.raises(UsageError, match=r"one\.wav/run: the folder is not writable"):
        show_plan({"training": nemo.Dag([loss])}, CosineAnnealing(total_steps=4), 0.5, 2, 4, folder / "one.wav" / "run")


def test_a_plan_of_one_step_names_it_once(folder, capsys):
    _, _, loss = connected()
    show_plan({"training": nemo.Dag([loss])}, CosineAnnealing(total_steps=1), 0.5, 1, 1)
    assert "learning rate 0.5 at step 0\n" in capsys.readouterr().out


def test_modules_without_weights_count_their_parameters_and_hold_none():
    blocks = [{"filters": 64, "kernel": 9, "stride": 1, **BLOCK}]
    with without_weights():
        shown = JasperEncoder(jasper=blocks, activation="relu", feat_in=64)
    with without_weights(False):
        run = JasperEncoder(jasper=blocks, activation="relu", feat_in=64)
    assert shown.num_weights == run.num_weights > 64 * 64 * 9
    assert {parameter.device.type for parameter in shown.parameters()} == {"meta"}
    assert {parameter.device.type for parameter in run.parameters()} == {"cpu"}
