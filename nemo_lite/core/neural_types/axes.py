"""Axes of a tensor: what each dimension means. No element types and no comparison in this file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nemo_lite.core.neural_types import tags
from nemo_lite.errors import NeuralTypeError, did_you_mean


class AxisKindAbstract(Enum):
    """Base for a project's own enumeration of axis kinds."""


class AxisKind(AxisKindAbstract):
    """What one axis counts. ``Channel`` is another name of ``Dimension``."""

    Batch = 0
    Time = 1
    Dimension = 2
    Channel = 2
    Width = 3
    Height = 4
    Any = 5
    Sequence = 6

    def __str__(self) -> str:
        return self.name.lower()

    @staticmethod
    def from_str(label: str) -> AxisKind:
        """The kind a label such as ``"B"``, ``"t"`` or ``"channel"`` stands for.

        Raises:
            NeuralTypeError: the label is not known.
        """
        kind = _KINDS_BY_LABEL.get(label.lower().strip())
        if kind is None:
            known = sorted(_KINDS_BY_LABEL)
            raise NeuralTypeError(
                f'axis "{label}" is not known', remedy=f"known: {', '.join(known)}{did_you_mean(label, known)}"
            )
        return kind


_KINDS_BY_LABEL = {
    **dict.fromkeys(("b", "n", "batch"), AxisKind.Batch),
    **dict.fromkeys(("t", "time"), AxisKind.Time),
    **dict.fromkeys(("d", "dimension", "c", "channel"), AxisKind.Dimension),
    **dict.fromkeys(("w", "width"), AxisKind.Width),
    **dict.fromkeys(("h", "height"), AxisKind.Height),
    "any": AxisKind.Any,
    "sequence": AxisKind.Sequence,
}
_LETTERS = {AxisKind.Batch: "B", AxisKind.Time: "T", AxisKind.Dimension: "D", AxisKind.Width: "W", AxisKind.Height: "H"}


# The first base of a tag that is here says what its axis counts.
_KINDS_BY_TAG: dict[type, AxisKind] = {
    tags.BatchTag: AxisKind.Batch,
    tags.TimeTag: AxisKind.Time,
    tags.ChannelTag: AxisKind.Dimension,
    tags.ClassTag: AxisKind.Dimension,
    tags.WidthTag: AxisKind.Width,
    tags.HeightTag: AxisKind.Height,
    tags.BaseTag: AxisKind.Any,
}


@dataclass(frozen=True, init=False)
class AxisType:
    """One axis: its kind, its size where that is fixed, and whether it is a Python list instead of a tensor dimension.

    Args:
        kind: what it counts; or a tag of NeMo 0.8 and 0.9, whose name for this argument is ``semantics``.
        size: its size (``dim``).
        is_list: whether it is a Python list.
        tag: the tag that it was made of.
        descriptor: accepted and not used, as in NeMo 0.9.

    Raises:
        NeuralTypeError: both a size and ``is_list`` are given, or the size is not positive.
    """

    kind: AxisKindAbstract
    size: int | None = None
    is_list: bool = False
    tag: type[tags.BaseTag] | None = None

    def __init__(
        self,
        kind: AxisKindAbstract | type[tags.BaseTag] | None = None,
        size: int | None = None,
        is_list: bool | str | None = False,
        tag: type[tags.BaseTag] | None = None,
        *,
        semantics: type[tags.BaseTag] | None = None,
        dim: int | None = None,
        descriptor: str | None = None,
    ) -> None:
        given = semantics if kind is None else kind
        if isinstance(given, type) and issubclass(given, tags.BaseTag):
            # The third positional argument of a tagged axis is its descriptor.
            tag, is_list = given, is_list is True
            given = next(_KINDS_BY_TAG[base] for base in given.__mro__ if base in _KINDS_BY_TAG)
        if not isinstance(given, AxisKindAbstract):
            wanted = "an AxisKind, or a tag such as BatchTag"
            raise NeuralTypeError("an axis needs its kind", got=repr(given), wanted=wanted)
        found = {"kind": given, "size": dim if size is None else size, "is_list": bool(is_list), "tag": tag}
        for name, value in found.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if self.size is not None and self.is_list:
            raise NeuralTypeError(
                "a list axis cannot have a fixed size", got=f"size {self.size}", remedy="leave one out"
            )
        if self.size is not None and self.size < 1:
            raise NeuralTypeError(f"axis {self.letter} has an impossible size", got=str(self.size), wanted="1 or more")

    @property
    def letter(self) -> str:
        """The short form used in tables: ``B``, ``T``, ``D``, or the kind's own name."""
        return _LETTERS.get(self.kind, self.kind.name) if isinstance(self.kind, AxisKind) else self.kind.name

    def __str__(self) -> str:
        text = self.letter if self.size is None else f"{self.letter}={self.size}"
        return f"[{text}]" if self.is_list else text
