"""Ranges and checks of arguments that several modules share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias, TypeVar

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.base.ranges import Between

# Each range is far beyond any real model, and keeps what a file asks for within memory and time.
SampleRate: TypeAlias = Annotated[int, Between(1, 768_000)]  # Hz; converters of audio end there
FrameSeconds: TypeAlias = Annotated[float, Between(0, 10, above=True)]  # speech has 0.005 to 0.05
FrameSamples: TypeAlias = Annotated[int, Between(1, 65_536)]  # 4 s at 16 kHz
Features: TypeAlias = Annotated[int, Between(1, 1_024)]  # of a frame; speech has 40 to 128
Splicing: TypeAlias = Annotated[int, Between(1, 64)]  # frames in one
Channels: TypeAlias = Annotated[int, Between(1, 65_536)]  # encoders of speech have up to 4,096
Classes: TypeAlias = Annotated[int, Between(1, 1_000_000)]
Duration: TypeAlias = Annotated[float, Between(0, 1_000_000)]  # seconds; that is 11 days
LabelRate: TypeAlias = Annotated[float, Between(0, 1_000, above=True)]  # labels a second
BatchSeconds: TypeAlias = Annotated[float, Between(0, 1_000_000, above=True)]
BatchSize: TypeAlias = Annotated[int, Between(1, 1_000_000, also=(-1,))]
WORKERS = Between(0, 1_024)  # processes; the largest machines have as many cores
Workers: TypeAlias = Annotated[int, WORKERS]
Unusable: TypeAlias = Annotated[float, Between(0, 1_000_000_000)]  # utterances, or below 1 a share
Rates: TypeAlias = Annotated[int, Between(-1_000, 1_000)]  # how many rates to choose from
SpeedRate: TypeAlias = Annotated[float, Between(0.1, 10)]
# One, several with commas between them, or a list.
ManyPaths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# As many as the largest published encoders of speech have (2.0e9); in float32, 8.6 GB.
MOST_WEIGHTS = 2**31

_MOST_COMMAS = 16  # in one path


def paths_in(text: str | os.PathLike[str]) -> list[str]:
    """The paths of a list with commas between them. A comma stays in a name that is a file: ``corpus,2/train.json``."""
    parts, paths = os.fspath(text).split(","), []
    while parts:
        candidates = (",".join(parts[:count]) for count in range(1, 2 + min(len(parts) - 1, _MOST_COMMAS)))
        path = next(filter(_is_file, candidates), parts[0])
        paths.append(path)
        parts = parts[1 + path.count(",") :]
    return paths


def _is_file(path: str) -> bool:
    """Whether it is one, perhaps with the weight of a set behind it."""
    path = os.path.expanduser(path.strip())
    return os.path.isfile(path) or os.path.isfile(path.rpartition(":")[0])


V = TypeVar("V")

# A recipe fills these in, so none of them can be the source of the data.
_FILLED_IN = ("labels", "vocabulary", "num_classes", "sample_rate", "batch_size")


def refuse_too_large(place: str, num_weights: int) -> None:
    """Refuse a module before memory is taken for its weights.

    Raises:
        UsageError: it has more than :data:`MOST_WEIGHTS`.
    """
    if num_weights > MOST_WEIGHTS:
        raise UsageError(
            "the module is too large", place=place, got=f"{num_weights} weights", wanted=f"at most {MOST_WEIGHTS}"
        )


def refuse_remainder(place: str, argument: str, number: int, divisor_argument: str, divisor: int) -> None:
    """Raise UsageError for a divisor, such as heads, that does not divide a number, such as channels."""
    if number % divisor:
        got = f"{argument} {number}, {divisor_argument} {divisor}"
        raise UsageError(f"{divisor_argument} must divide {argument}", place=place, got=got)


def refuse_even(place: str, argument: str, num_frames: int) -> None:
    """Raise UsageError for a convolution that does not see as many frames before its own as behind it."""
    if num_frames % 2 == 0:
        raise UsageError(f"{argument} is even", place=place, got=str(num_frames), wanted="an odd number of frames")


def look_up(kind: str, name: str, table: Mapping[str, V], place: str = "") -> V:
    """What stands under a name.

    Raises:
        UnknownNameError: nothing does; names the ``kind``, the nearest name and all known ones.
    """
    if name not in table:
        raise UnknownNameError(kind, name, table, place=place)
    return table[name]


def parameters_of(target: type) -> list[str]:
    """The names of a constructor's parameters."""
    return list(inspect.signature(target.__init__).parameters)[1:]  # type: ignore[misc]  # of the class itself


def source_argument(data_layer: type) -> str:
    """The name of a data layer's source: always the first argument of its constructor, a manifest or an archive.

    Raises:
        UsageError: there is no argument, or the first is one that a recipe fills in otherwise.
    """
    first = next(iter(parameters_of(data_layer)), "none")
    if first in ("none", *_FILLED_IN):
        raise UsageError("its first argument must be the source of the data", place=data_layer.__name__, got=first)
    return first
