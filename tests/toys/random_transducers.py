"""Transducers with random weights that say something: RNN-T, TDT and multi-blank, two prediction networks, a hybrid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import nemo_asr
from nemo_asr.trained.model import TrainedModel, describe
from toys.random_models import RATE, noise

FEATURES = "features: 80, window_size: 0.025, pad_to: 0, dither: 0.0"
_CONFIG = """family: {family}
sample_rate: 16000
AudioToMelSpectrogramPreprocessor: {{{features}}}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {{filters: 32, repeat: 1, kernel: [11], stride: [4], dilation: [1], dropout: 0.0, residual: false}}
{prediction}
RNNTJoint: {{jointnet: {{joint_hidden: 24, pred_hidden: 20, activation: relu, dropout: 0.1}}{joint}}}
labels: [" ", "a", "b", "c"]
"""
LSTM = "RNNTDecoder: {prednet: {pred_hidden: 20, pred_rnn_layers: 2}}"
BATCH_NORM, LAYER_NORM = (f"{LSTM[:-1]}, normalization_mode: {mode}}}" for mode in ("batch", "layer"))
STATELESS = "StatelessTransducerDecoder: {prednet: {pred_hidden: 20}, context_size: 2}"
ONE_LABEL = "StatelessTransducerDecoder: {prednet: {pred_hidden: 20}}"  # it has no memory
TDT, BIG_BLANKS = ", durations: [0, 1, 2, 4]", ", big_blank_durations: [2, 4]"


def config_of(joint: str = "", prediction: str = LSTM, family: str = "transducer", features: str = FEATURES) -> str:
    """A configuration in YAML."""
    return _CONFIG.format(family=family, features=features, prediction=prediction, joint=joint)


def random_transducer(folder: Path, text: str) -> TrainedModel:
    """Of a configuration. Its outputs are equally frequent; blanks a little more, big blanks less."""
    (folder / "model.yaml").write_text(text)
    torch.manual_seed(0)
    recipe = nemo_asr.load_recipe(folder / "model.yaml")
    model: Any = recipe.model()
    for module in model.modules.values():
        module.eval()
    joint, prediction = model.others["joint"], model.others["prediction"]
    with torch.no_grad():
        for layer in model.encoder.modules():
            if isinstance(layer, torch.nn.BatchNorm1d):
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.5, 2)
        encoded, _ = model.encoder(*model.preprocessor(torch.from_numpy(noise(5)[None]), torch.tensor([5 * RATE])))
        labels = torch.randint(0, prediction.vocab_size, (1, 60))
        for layer, values in ((joint.enc, joint(encoded)), (joint.pred, joint.pred(prediction(labels, None)))):
            mean = values.mean((0, 1))
            layer.bias -= mean
            for parameter in layer.parameters():
                parameter *= 1.5 / (values - mean).std()
        pairs = joint(encoded)[0, :, None] + joint.pred(prediction(labels, None))[0]
        head = joint.joint_net[-1]
        scores = joint.joint_net(pairs)
        head.weight *= 3 / scores.std((0, 1))[:, None]
        head.bias.copy_(-(joint.joint_net[:-1](pairs) @ head.weight.T).mean((0, 1)))
        head.bias[joint.blank] += 0.0 if joint.durations else 1.0
        head.bias[joint.num_labels : joint.blank] -= 1.5
    return TrainedModel("here", recipe, model, describe(recipe))
