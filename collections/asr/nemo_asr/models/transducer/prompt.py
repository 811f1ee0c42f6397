"""LanguagePrompt: encoded frames and the language that is spoken, to frames of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_asr.models.jasper.layers import frames_type
from nemo_asr.run.arguments import Channels, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.neural_types import AcousticEncodedRepresentation
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

AUTO = "auto"
"""The language that stands for any: the model finds it itself."""


class LanguagePrompt(TrainableNM):
    """Each frame and a vector with a 1 for the language, through two linear layers with a ReLU between them.

    All recordings have the language that is set. Its weights have the names that they have in NVIDIA's files.

    Args:
        feat_in: channels of the encoder's output, and of its own.
        prompt_dictionary: the place of each language in the vector; several names may have one place.
        num_prompts: size of the vector.
        prompt_hidden: size between the two layers; by default twice ``feat_in``.
        language: that is set in the beginning; by default ``auto``, or the first one where there is none of this name.
        name: its name in DAGs, messages and checkpoints.

    Raises:
        UsageError: no language is named, a place is outside the vector, or the language is not among them.
    """

    is_framewise = True
    context_frames = 0

    def __init__(
        self,
        feat_in: Channels,
        prompt_dictionary: Mapping[str, Annotated[int, Between(0, 65_535)]],
        num_prompts: Annotated[int, Between(1, 65_536)] = 128,
        prompt_hidden: Channels | None = None,
        language: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if not prompt_dictionary or max(prompt_dictionary.values()) >= num_prompts:
            got, wanted = str(max(prompt_dictionary.values(), default="none")), f"places from 0 to {num_prompts - 1}"
            problem, place = "a language has no place in the vector", "LanguagePrompt.prompt_dictionary"
            raise UsageError(problem, place=place, got=got, wanted=wanted)
        self._feat_in, self._places = feat_in, dict(prompt_dictionary)
        hidden = prompt_hidden or 2 * feat_in
        refuse_too_large("LanguagePrompt", hidden * (2 * feat_in + num_prompts))
        self.prompt_kernel = nn.Sequential(
            nn.Linear(feat_in + num_prompts, hidden), nn.ReLU(), nn.Linear(hidden, feat_in)
        )
        self.set_language(language or (AUTO if AUTO in self._places else next(iter(self._places))))

    @property
    def languages(self) -> list[str]:
        """Those that can be set."""
        return list(self._places)

    def set_language(self, language: str) -> None:
        """The language of all recordings from now on.

        Raises:
            UsageError: the model does not know it.
        """
        if language not in self._places:
            problem, wanted = "the model does not know this language", f"one of {', '.join(self._places)}"
            raise UsageError(problem, place="LanguagePrompt", got=language, wanted=wanted)
        self.language = language

    @property
    def input_ports(self) -> Ports:
        return {"encoder_output": frames_type(self._feat_in, AcousticEncodedRepresentation())}

    @property
    def output_ports(self) -> Ports:
        return {"frames": frames_type(self._feat_in, AcousticEncodedRepresentation())}

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {"frames": shapes["encoder_output"]}

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, C, T) -> (B, C, T)."""
        first, _, last = self.prompt_kernel
        assert isinstance(first, nn.Linear)
        # The language adds its column to the bias: the vector with a 1 is not made.
        bias = first.bias + first.weight[:, self._feat_in + self._places[self.language]]
        hidden = F.linear(encoder_output.transpose(1, 2), first.weight[:, : self._feat_in], bias)
        frames: Tensor = last(torch.relu(hidden))
        return frames.transpose(1, 2)
