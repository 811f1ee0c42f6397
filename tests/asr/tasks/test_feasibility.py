"""Transcripts longer than the encoder's output are listed, and not trained on."""

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
    warn_of_infeasible,
)
from nemo_lite import LossNM
from nemo_lite.base.errors import DataError

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


def connected(manifest="train.json", batch_size=2, **arguments):
    """A data layer and the wires of log-probabilities and loss."""
    data_layer = AudioToTextDataLayer(manifest_filepath=manifest, labels=LABELS, batch_size=batch_size, **arguments)
    blocks = [{"filters": 8, "kernel": 3, "stride": 2, **BLOCK}, {"filters": 8, "kernel": 3, "stride": 2, **BLOCK}]
    audio, audio_len, text, text_len = data_layer()
    features, features_len = AudioToMelSpectrogramPreprocessor(features=16)(input_signal=audio, length=audio_len)
    encoder = JasperEncoder(jasper=blocks, activation="relu", feat_in=16)
    encoded, encoded_len = encoder(audio_signal=features, length=features_len)
    log_probs = JasperDecoderForCTC(feat_in=8, num_classes=3)(encoder_output=encoded)
    loss = CTCLossNM(num_classes=3)(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
    return data_layer, log_probs, loss


class OtherLoss(LossNM):
    """A loss that may take more labels than frames."""


def test_only_the_ctc_loss_needs_a_frame_for_each_label(folder, capsys):
    data_layer, log_probs, loss = connected()
    assert leave_out_infeasible(data_layer, log_probs, OtherLoss()) == 0
    assert warn_of_infeasible(data_layer, log_probs, OtherLoss()) == 0
    assert "cannot hold" not in capsys.readouterr().err
    assert warn_of_infeasible(data_layer, log_probs, loss.producer) == 2
    assert leave_out_infeasible(data_layer, log_probs, loss.producer) == 2


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


def test_silence_that_is_trimmed_away_counts_in_the_check(folder, capsys):
    samples = np.zeros(16000)
    samples[:8000] = 0.5
    soundfile.write("one.wav", samples, 16000)
    write("half.json", ["ab" * 8, "ab" * 6])
    data_layer, log_probs, loss = connected("half.json", batch_size=1, trim_silence=True)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    (losses,) = factory.infer([loss])
    assert [bool(torch.isinf(value).all()) for value in losses] == [True, False]
    assert warn_of_infeasible(data_layer, log_probs) == 1
    assert leave_out_infeasible(data_layer, log_probs) == 1
    told = capsys.readouterr().err
    assert "half.json:1: 15 frames without the silence at both ends cannot hold" in told
    assert [data_layer.place_of(item) for item in range(len(data_layer))] == ["half.json:2"]


def test_texts_that_the_fastest_speed_makes_too_long_are_told_and_kept(folder, capsys):
    speed = {"speed": {"prob": 0.5, "sr": 16000, "min_speed_rate": 0.9, "max_speed_rate": 1.25}}
    data_layer, log_probs, _ = connected(augmentor=speed)
    assert leave_out_infeasible(data_layer, log_probs) == 2
    told = capsys.readouterr().err
    assert f'train.json:1: 20 frames after perturbations cannot hold "{TEXTS[0]}", which needs 24' in told
    assert "2 of 4 texts do not always fit their frames: steps that make them too short leave them out" in told
    assert [data_layer.place_of(item) for item in range(len(data_layer))] == ["train.json:1", "train.json:3"]
    never = {"speed": {**speed["speed"], "prob": 0.0}}
    assert "fastest" not in told_of(capsys, *connected(augmentor=never)[:2])


def told_of(capsys, data_layer, log_probs):
    capsys.readouterr()
    leave_out_infeasible(data_layer, log_probs)
    return capsys.readouterr().err


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


def test_an_encoder_that_does_not_say_its_frames_is_told_and_nothing_is_left_out(folder, capsys, monkeypatch):
    monkeypatch.setattr(JasperEncoder, "output_shapes", nemo.NeuralModule.output_shapes)
    data_layer, log_probs, _ = connected()
    assert (leave_out_infeasible(data_layer, log_probs), len(data_layer)) == (0, 4)
    told = capsys.readouterr().err
    assert "Transcripts are not compared with the encoder's output: " in told
    assert "give an output_shapes to JasperEncoder" in told


def test_a_data_layer_that_does_not_know_its_lengths_is_not_looked_at(folder):
    _, log_probs, _ = connected()
    stranger = nemo.DataLayerNM()
    assert leave_out_infeasible(stranger, log_probs) == warn_of_infeasible(stranger, log_probs) == 0
