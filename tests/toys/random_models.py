"""Models with random weights that say something, and noise for them to hear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import nemo_asr
from nemo_asr.trained.model import TrainedModel, describe

RATE = 16000
CONFORMER = """model: Tones
sample_rate: 16000
AudioToTextDataLayer:
  train: {shuffle: true}
  eval: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {normalize: null, pad_to: 0, features: 32, dither: 0.0, generation: nemo_2.5}
ConformerEncoder:
  n_layers: 2
  d_model: 16
  n_heads: 2
  conv_kernel_size: 5
  subsampling: dw_striding
  subsampling_factor: 8
  subsampling_conv_channels: 8
  causal_downsampling: true
  att_context_style: chunked_limited
  att_context_size: [8, 1]
  conv_context_size: causal
  conv_norm_type: layer_norm
labels: [" ", "a", "b", "c"]
"""


def noise(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """Louder and softer, (T,) at 16 kHz."""
    loudness = np.repeat(np.random.RandomState(seed).rand(int(seconds * 10) + 1), RATE // 10)[: int(seconds * RATE)]
    samples = loudness * np.random.RandomState(seed).standard_normal(len(loudness)) * 0.3
    return samples.astype(np.float32)


def model_of(folder: Path, text: str) -> TrainedModel:
    """Of a configuration, with random weights."""
    (folder / "model.yaml").write_text(text)
    torch.manual_seed(0)
    recipe = nemo_asr.load_recipe(folder / "model.yaml")
    modules: Any = recipe.model()
    for layer in modules.encoder.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    for module in modules.modules.values():
        module.eval()
    with torch.no_grad():  # random weights are to say something: each label as often as the others
        encoded, _ = modules.encoder(*modules.preprocessor(torch.from_numpy(noise(5)[None]), torch.tensor([5 * RATE])))
        layer = modules.decoder.decoder_layers[0]
        scores = layer(encoded)[0, :, 8:]
        layer.weight /= scores.std(1)[:, None, None] / 3
        layer.bias -= scores.mean(1) / scores.std(1) * 3
    return TrainedModel("here", recipe, modules, describe(recipe))


TRANSDUCER = """family: {family}
AudioToTextDataLayer:
  train: {{shuffle: true}}
  eval: {{shuffle: false}}
sample_rate: 16000
AudioToMelSpectrogramPreprocessor: {{normalize: null, pad_to: 0, features: 32, dither: 0.0, generation: nemo_2.5}}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {{filters: 32, repeat: 1, kernel: [11], stride: [4], dilation: [1], dropout: 0.0, residual: false}}
    - {{filters: 32, repeat: 1, kernel: [1], stride: [2], dilation: [1], dropout: 0.0, residual: false}}
RNNTDecoder: {{prednet: {{pred_hidden: 16, pred_rnn_layers: 1}}}}
RNNTJoint: {{jointnet: {{joint_hidden: 16, pred_hidden: 16}}{joint}}}
{search}
labels: [" ", "a", "b", "c"]
"""
JOINTS = {
    "RNN-T": "",
    "TDT": ", durations: [0, 1, 2, 3, 4]",
    "big blanks": ", big_blank_durations: [2, 4]",
}


def transducer_of(
    folder: Path, kind: str = "TDT", family: str = "transducer", search: str = "TransducerSearch: {max_symbols: 2}"
) -> TrainedModel:
    """A transducer with random weights that says something; its folder can be loaded."""
    (folder / "model.yaml").write_text(TRANSDUCER.format(family=family, search=search, joint=JOINTS[kind]))
    torch.manual_seed(0)
    recipe = nemo_asr.load_recipe(folder / "model.yaml")
    modules: Any = recipe.model()
    for module in modules.modules.values():
        module.eval()
    joint, prediction = modules.others["joint"], modules.others["prediction"]
    with torch.no_grad():
        encoded, _ = modules.encoder(*modules.preprocessor(torch.from_numpy(noise(5)[None]), torch.tensor([5 * RATE])))
        frames = joint.enc(encoded.transpose(1, 2))
        joint.enc.weight *= 2 / frames.std((0, 1))[:, None]
        joint.enc.bias -= joint.enc(encoded.transpose(1, 2)).mean((0, 1))
        for parameter in prediction.parameters():
            parameter *= 2
        states = prediction(torch.tensor([[1, 2, 3, 1, 0, 2]]), torch.tensor([6]))
        sums = joint(encoded)[0, :, None] + joint.pred(states)
        head = joint.joint_net[-1]
        head.weight *= 4
        head.bias -= joint.joint_net(sums).mean((0, 1))  # each output is said
        scores = joint.joint_net(sums)
        behind = scores[..., : joint.num_labels].max(-1).values - scores[..., joint.blank]
        head.bias[joint.blank] += behind.quantile(0.7)
    model = TrainedModel(str(folder), recipe, modules, describe(recipe))
    model.save(folder)
    return model
