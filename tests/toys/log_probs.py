"""The log-probabilities of a trained model for one signal, without search and batches."""

from __future__ import annotations

from typing import Any

import torch

from nemo_asr.trained.model import TrainedModel


def log_probs_of(model: TrainedModel, signal: torch.Tensor) -> torch.Tensor:
    """(U, labels and blank) of one utterance (T,)."""
    modules: dict[str, Any] = dict(model.modules.modules)
    for module in modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    with torch.no_grad():
        features, lengths = modules["preprocessor"](input_signal=signal[None], length=torch.tensor([len(signal)]))
        encoded, encoded_lengths = modules["encoder"](audio_signal=features, length=lengths)
        log_probs: torch.Tensor = modules["decoder"](encoder_output=encoded)
    return log_probs[0, : int(encoded_lengths[0])]
