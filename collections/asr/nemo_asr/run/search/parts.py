"""Parts: what an exported file holds for its search beside the labels. Which runtime computes it, is not known here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt

# Any: arrays of floats or of label ids; values of JSON.

Network: TypeAlias = "Callable[..., Sequence[npt.NDArray[Any]]]"
"""From the inputs of a part of a model to its outputs, both in their order."""


class Parts(NamedTuple):
    """What a family's search needs of a file, as ``Family.exported`` says it.

    Attributes:
        networks: what computes each further part, by name.
        settings: ``Exported.settings`` of the first part.
    """

    networks: Mapping[str, Network] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})


NO_PARTS = Parts()
"""Of a file that holds all of its model."""
