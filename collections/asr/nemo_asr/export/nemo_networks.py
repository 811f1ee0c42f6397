"""A transducer as the networks that sherpa-onnx and onnx-asr run, with NeMo's names: encoder, decoder, joiner.

These programs begin the memory of the decoder with zeros: two arrays of floats (layers, B, size) of one shape. A
duration is the index of its score. What is otherwise here is written so: see `Decoder` and `by_index`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.export.runner_export import RunnerParts, example_features, write_compared
from nemo_asr.run.search.exported_transducer import JOINT, PREDICTION, MemorySettings, TransducerSettings
from nemo_lite.backends.pytorch.export import Argument, evaluated_part

_NEVER = -1e30  # the score of a duration that the model has not


class Encoder(nn.Module):
    """From features (B, D, T) to frames (B, joint_hidden, U), as the joint network has projected them, and lengths.

    Args:
        rest: from features and lengths to frames (B, U, joint_hidden) and theirs.
    """

    inputs, outputs = ("audio_signal", "length"), ("outputs", "encoded_lengths")

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.rest = rest

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Frames behind a recording are zeros."""
        frames, num_frames = self.rest(audio_signal, length)
        is_valid = torch.arange(frames.shape[1], device=frames.device) < num_frames.unsqueeze(1)
        return (frames * is_valid.unsqueeze(2)).transpose(1, 2), num_frames


class Decoder(nn.Module):
    """A label and the memory before it to a state (B, joint_hidden, 1) and the memory.

    Args:
        step: `PredictionStep`.
        memory: its arrays. They travel in two rows of floats, less what they begin with.
    """

    inputs = ("targets", "target_length", "input_states_1", "input_states_2")
    outputs = ("outputs", "prednet_lengths", "output_states_1", "output_states_2")

    def __init__(self, step: nn.Module, memory: Sequence[MemorySettings]) -> None:
        super().__init__()
        self.step, self.memory = step, memory
        self.size = max(1, -(-sum(math.prod(each.shape) for each in memory) // 2))  # the programs want some memory

    def examples(self) -> list[tuple[Tensor, ...]]:
        """Inputs for two hypotheses and for one."""
        return [
            (
                torch.arange(number, dtype=torch.int32)[:, None],
                torch.ones(number, dtype=torch.int32),
                *(torch.zeros(1, number, self.size) for _ in range(2)),
            )
            for number in (2, 1)
        ]

    def forward(
        self, targets: Tensor, target_length: Tensor, input_states_1: Tensor, input_states_2: Tensor
    ) -> tuple[Tensor, ...]:
        """(B, 1) and (B,), which holds 1, as integers of 32 bits; twice (1, B, size)."""
        row, first, memory = torch.cat([input_states_1[0], input_states_2[0]], 1), 0, []
        for each in self.memory:
            end = first + math.prod(each.shape)
            values = row[:, first:end].reshape(-1, *each.shape) + each.fill
            memory.append(values.round().long() if each.is_labels else values)
            first = end
        state, *after = self.step(targets[:, 0].long(), *memory)
        rows = [(new - each.fill).flatten(1).float() for new, each in zip(after, self.memory, strict=True)]
        new_row = torch.cat([*rows, row[:, first:]], 1)
        new_states = (new_row[None, :, place : place + self.size] for place in (0, self.size))
        return state.unsqueeze(2), target_length + 0, *new_states


class Joiner(nn.Module):
    """A frame and a state (B, joint_hidden, 1) to scores (B, 1, 1, outputs) as `by_index` gives them.

    Args:
        step: `JointStep`.
        settings: of the model.
        num_labels: the vocabulary.
    """

    inputs, outputs = ("encoder_outputs", "decoder_outputs"), ("outputs",)

    def __init__(self, step: nn.Module, settings: TransducerSettings, num_labels: int) -> None:
        super().__init__()
        self.step, self.settings, self.num_labels = step, settings, num_labels

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        """As the class says."""
        (scores,) = self.step(encoder_outputs[:, :, 0], decoder_outputs[:, :, 0])
        return by_index(scores, self.settings, self.num_labels)[:, None, None]


class DecoderJoiner(nn.Module):
    """`Decoder` and `Joiner` in one, as onnx-asr takes them."""

    inputs, outputs = ("encoder_outputs", *Decoder.inputs), Decoder.outputs

    def __init__(self, decoder: Decoder, joiner: Joiner) -> None:
        super().__init__()
        self.decoder, self.joiner = decoder, joiner

    def forward(
        self, encoder_outputs: Tensor, targets: Tensor, target_length: Tensor, states_1: Tensor, states_2: Tensor
    ) -> tuple[Tensor, ...]:
        """A frame (B, joint_hidden, 1), and what the decoder takes."""
        state, *others = self.decoder(targets, target_length, states_1, states_2)
        return self.joiner(encoder_outputs, state), *others


def has_durations(settings: TransducerSettings) -> bool:
    """Whether the scores of a `Joiner` are those of TDT."""
    return bool(settings.durations or settings.big_blank_durations)


def by_index(scores: Tensor, settings: TransducerSettings, num_labels: int) -> Tensor:
    """Scores (B, outputs) of the joint network as labels, the blank, and of TDT a score of each duration from 0 on.

    Durations that the model has not are never the best. Big blanks become durations: all blanks are one, which goes on
    by as much as the most probable output does.
    """
    if settings.big_blank_durations:
        leads = torch.tensor([*[0] * num_labels, *reversed(settings.big_blank_durations), 1])
        steps = F.one_hot(leads[scores.argmax(1)], max(settings.big_blank_durations) + 1)
        return torch.cat([scores[:, :num_labels], scores[:, num_labels:].amax(1, keepdim=True), steps.float()], 1)
    if not settings.durations:
        return scores
    tokens, durations = scores[:, : num_labels + 1], scores[:, num_labels + 1 :].unbind(1)
    of_duration = dict(zip(settings.durations, durations, strict=True))
    never = torch.full_like(durations[0], _NEVER)
    by_duration = [of_duration.get(number, never) for number in range(max(settings.durations) + 1)]
    return torch.cat([tokens, torch.stack(by_duration, 1)], 1)


@contextmanager
def steps_of(parts: RunnerParts) -> Iterator[tuple[Decoder, Joiner]]:
    """The networks behind the encoder of a transducer, in evaluation mode."""
    settings = settings_of(parts)
    prediction, joint = (list(parts.others[name].outputs.values()) for name in (PREDICTION, JOINT))
    with evaluated_part(prediction) as step, evaluated_part(joint) as of_joint:
        yield Decoder(step, settings.memory), Joiner(of_joint, settings, len(parts.model.card.labels))


def settings_of(parts: RunnerParts) -> TransducerSettings:
    """What the first file of a transducer says beside its labels."""
    return msgspec.convert(parts.file.settings, TransducerSettings)


def write_encoder(rest: nn.Module, num_features: int, path: Path, metadata: Mapping[str, str]) -> float:
    """Write an `Encoder`; the largest difference of a value to torch."""
    arguments, compared = example_features(num_features)
    return write_compared(Encoder(rest), arguments, Encoder.outputs, path, compared, metadata)


def write_step(module: Decoder | Joiner | DecoderJoiner, examples: Sequence[Sequence[Tensor]], path: Path) -> float:
    """Write one of the others; the largest difference of a value to torch.

    Args:
        module: the network.
        examples: inputs for two hypotheses, no tensor twice, and others on which it is compared.
        path: the file.
    """
    arguments = [
        Argument(name, value, {int("states" in name): "batch"})
        for name, value in zip(module.inputs, examples[0], strict=True)
    ]
    return write_compared(module, arguments, module.outputs, path, examples, {})
