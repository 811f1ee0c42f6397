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
