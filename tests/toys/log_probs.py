"""The log-probabilities of a trained model for one signal, or what a transducer's search reads: without batches."""

from __future__ import annotations

from typing import Any

import torch

from nemo_asr.trained.model import TrainedModel


def log_probs_of(model: TrainedModel, signal: torch.Tensor) -> torch.Tensor:
    """(U, labels and blank) of one utterance (T,)."""
    return _behind(model, "decoder", signal)


def frames_of(model: TrainedModel, signal: torch.Tensor) -> torch.Tensor:
    """Frames as the joint network projects them, (U, joint_hidden), of one utterance (T,)."""
    return _behind(model, "joint", signal)


def _behind(model: TrainedModel, role: str, signal: torch.Tensor) -> torch.Tensor:
    modules: dict[str, Any] = dict(model.modules.modules)
    for module in modules.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    with torch.no_grad():
        features, lengths = modules["preprocessor"](input_signal=signal[None], length=torch.tensor([len(signal)]))
        encoded, encoded_lengths = modules["encoder"](audio_signal=features, length=lengths)
        if "prompt" in modules:
            encoded = modules["prompt"](encoder_output=encoded)
        outputs: torch.Tensor = modules[role](encoder_output=encoded)
    return outputs[0, : int(encoded_lengths[0])]
