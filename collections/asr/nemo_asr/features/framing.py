"""Which frames there are of an utterance, and which samples and frames belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch

Count = TypeVar("Count", int, torch.Tensor)


def frame_count(num_samples: Count, hop: int) -> Count:
    """Frames of so many samples: one at the beginning and one after each further hop, ceil(samples / hop)."""
    return (num_samples + hop - 1) // hop


Generation: TypeAlias = Literal["nemo_lite", "nemo_0.11", "nemo_1.0", "nemo_2.5"]


class Framing(NamedTuple):
    """Which frames a generation of NeMo computes, and what they see beyond the ends of an utterance.

    Attributes:
        extra: frames of a whole number of hops beyond one for each hop.
        valid: the frames that count as the utterance's: ``ceil(samples / hop)``, ``floor(samples / hop)``, or
            ``floor + 1``.
        mirrors_start: the samples before the first are the first ones mirrored; else zeros.
        mirrors_end: those behind the last are the last ones mirrored; else zeros.
        is_masked: pre-emphasis leaves nothing behind the last sample.
        files: the versions of NeMo whose files were trained with it.
    """

    extra: int
    valid: Literal["ceil", "floor", "floor + 1"]
    mirrors_start: bool
    mirrors_end: bool
    is_masked: bool
    files: str

    def valid_frames(self, num_samples: Count, hop: int) -> Count:
        """The frames that belong to so many samples."""
        if self.valid == "ceil":
            return frame_count(num_samples, hop)
        floor = num_samples // hop
        return floor if self.valid == "floor" else (floor + 1) * (num_samples > 0)

    def num_frames(self, num_samples: int, hop: int) -> int:
        """The frames that are computed of so many samples."""
        return frame_count(num_samples + self.extra, hop)


# NeMo's changes of its featurizer: since 1.0 one frame more counts; since 2.5 (its pull request 13827) zeros stand at
# both ends, and the last frame does not count.
FRAMINGS: Mapping[Generation, Framing] = {
    "nemo_lite": Framing(0, "ceil", mirrors_start=True, mirrors_end=False, is_masked=False, files="nemo_lite"),
    "nemo_0.11": Framing(0, "ceil", mirrors_start=True, mirrors_end=True, is_masked=False, files="NeMo up to 0.11"),
    "nemo_1.0": Framing(1, "floor + 1", mirrors_start=True, mirrors_end=True, is_masked=False, files="NeMo 1.0 to 2.4"),
    "nemo_2.5": Framing(1, "floor", mirrors_start=False, mirrors_end=False, is_masked=True, files="NeMo 2.5 and later"),
}
OWN_FRAMING = FRAMINGS["nemo_lite"]


def generation_of(nemo_version: str) -> Generation:
    """The features with which files of a version of NeMo were trained; of no version, those of the first files.

    Raises:
        ValueError: it is no version.
    """
    major, minor = (int(number) for number in f"{nemo_version or '0.11'}.0".split(".")[:2])
    if major == 0:
        return "nemo_0.11"
    return "nemo_1.0" if (major, minor) < (2, 5) else "nemo_2.5"


def reads_sizes(device: torch.device) -> bool:
    """Whether sizes may follow from the values of tensors: on a CPU, and not in a graph that is exported."""
    return device.type == "cpu" and not torch.compiler.is_exporting()


def shortest(length: torch.Tensor) -> int:
    """A length that no row falls short of: the smallest one, where reading it costs nothing, else 0 (on a GPU)."""
    return int(length.min()) if reads_sizes(length.device) else 0


def longest(length: torch.Tensor, limit: int) -> int:
    """A length that no row exceeds: the largest one, where reading it costs nothing, else ``limit`` (on a GPU)."""
    return min(limit, int(length.max())) if reads_sizes(length.device) else limit


def fill_beyond_(values: torch.Tensor, length: torch.Tensor, fill: float) -> torch.Tensor:
    """Set what lies beyond each row's length to ``fill``, in place: (B, ..., T), lengths (B,) along the last axis."""
    first, num_columns = shortest(length), values.shape[-1]
    if first < num_columns:
        columns = torch.arange(first, num_columns, device=values.device)
        last_columns = values[..., first:] if first else values
        last_columns.masked_fill_(columns >= length.view(-1, *[1] * (values.dim() - 1)), fill)
    return values


def splice_frames(features: torch.Tensor, factor: int) -> torch.Tensor:
    """Stack each ``factor`` neighbouring frames into one: (B, D, T) -> (B, factor * D, T / factor).

    Row j * D + d of output frame t is feature d of frame t * factor + j.

    Args:
        features: T is a multiple of ``factor``.
        factor: frames in one.
    """
    num_rows, num_features, num_frames = features.shape
    grouped = features.view(num_rows, num_features, num_frames // factor, factor)
    return grouped.permute(0, 3, 1, 2).reshape(num_rows, factor * num_features, num_frames // factor)
