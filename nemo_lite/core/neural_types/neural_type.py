"""NeuralType: axes and elements together, and their comparison with its reason in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from nemo_lite.core.neural_types.axes import AxisKind, AxisKindAbstract, AxisType
from nemo_lite.core.neural_types.comparison import NeuralTypeComparisonResult as Result
from nemo_lite.core.neural_types.elements import ElementType, VoidType
from nemo_lite.errors import NeuralTypeError

Axes = tuple[AxisType, ...]


class Comparison(NamedTuple):
    """A result and the reason for it; ``reason`` is empty when the types fit."""

    result: Result
    reason: str

    @property
    def fits(self) -> bool:
        """Whether a port of the first type takes a wire of the second."""
        return self.result in (Result.SAME, Result.GREATER)


class NeuralType:
    """The type of a port or a wire.

    Args:
        axes: ``"B D T"``, ``("B", "D", "T")``, a sequence of :class:`AxisType`, or ``None`` for a value without axes.
        elements_type: an instance of an :class:`ElementType`.
        optional: for an input port: it may stay unconnected.

    Raises:
        NeuralTypeError: an unknown axis, strings and AxisTypes mixed, a list axis behind a tensor axis, or a class given
            instead of an instance.
    """

    def __init__(
        self,
        axes: str | Iterable[str | AxisType] | None = None,
        elements_type: ElementType | None = None,
        optional: bool = False,
    ) -> None:
        elements_type = VoidType() if elements_type is None else elements_type
        if not isinstance(elements_type, ElementType):
            raise NeuralTypeError(
                "elements_type must be an instance of an element type",
                got=getattr(elements_type, "__name__", repr(elements_type)),
                remedy="add the brackets: SpectrogramType()",
            )
        self.elements_type = elements_type
        self.axes = _read_axes(axes)
        self.optional = optional

    def compare(self, second: NeuralType) -> Result:
        """How ``second`` stands to this type; a port of this type takes it when the result is SAME or GREATER."""
        return self.explain(second).result

    def explain(self, second: NeuralType) -> Comparison:
        """Compare as :meth:`compare` does and say why in words.

        A fixed size on one side fits an unknown size on the other: it can only be checked when the data is there.
        """
        if self.axes is None and isinstance(self.elements_type, VoidType):
            return Comparison(Result.SAME, "")
        elements = self.elements_type.compare(second.elements_type)
        axes, reason = _compare_axes(self.axes, second.axes)
        elements_fit = elements in (Result.SAME, Result.GREATER)
        if axes is Result.SAME:
            return Comparison(elements, "" if elements_fit else self._why_elements_differ(second, elements))
        if elements_fit:
            return Comparison(axes, reason)
        return Comparison(Result.INCOMPATIBLE, f"{self._why_elements_differ(second, elements)}; {reason}")

    def _why_elements_differ(self, second: NeuralType, result: Result) -> str:
        if result is Result.LESS:
            return f"{second.elements_type} is more general than {self.elements_type}"
        if result is Result.SAME_TYPE_INCOMPATIBLE_PARAMS:
            mine, other = self.elements_type.type_parameters, second.elements_type.type_parameters
            differing = [key for key in {**mine, **other} if mine.get(key) != other.get(key)]
            return ", ".join(f"{key} is {other.get(key)}, not {mine.get(key)}" for key in differing) or "other fields"
        return f"{second.elements_type} is not {self.elements_type}"

    def __str__(self) -> str:
        axes = "" if self.axes is None else " ".join(str(axis) for axis in self.axes) + " "
        return f"{axes}{self.elements_type}{' (optional)' if self.optional else ''}"

    def __repr__(self) -> str:
        axes = None if self.axes is None else tuple(str(axis) for axis in self.axes)
        return f"NeuralType({axes!r}, {self.elements_type!r}{', optional=True' if self.optional else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NeuralType) and self.axes == other.axes and self.elements_type == other.elements_type

    def __hash__(self) -> int:
        return hash((self.axes, self.elements_type))


def _read_axes(axes: str | Iterable[str | AxisType] | None) -> Axes | None:
    if axes is None:
        return None
    given = tuple(axes.replace(",", " ").split()) if isinstance(axes, str) else tuple(axes)
    if any(not isinstance(axis, (str, AxisType)) for axis in given):
        raise NeuralTypeError("axes must be names or AxisTypes", got=repr(given))
    if len({isinstance(axis, str) for axis in given}) > 1:
        raise NeuralTypeError("axes are either all names or all AxisTypes", got=repr(given))
    read = tuple(AxisType(AxisKind.from_str(axis)) if isinstance(axis, str) else axis for axis in given)
    for before, axis in zip(read, read[1:], strict=False):
        if axis.is_list and not before.is_list:
            raise NeuralTypeError("a list axis cannot stand behind a tensor axis", got=" ".join(map(str, read)))
    return read


def _compare_axes(first: Axes | None, second: Axes | None) -> tuple[Result, str]:
    """How the axes of ``second`` stand to those of ``first``, each position on its own."""
    if first is None or second is None:
        same = first is second
        return (
            (Result.SAME, "") if same else (Result.DIM_INCOMPATIBLE, f"{_written(second)} instead of {_written(first)}")
        )
    if len(first) != len(second):
        return Result.DIM_INCOMPATIBLE, f"{len(second)} axes instead of {len(first)}"
    pairs = list(zip(first, second, strict=True))
    if all(_kinds_fit(a.kind, b.kind) for a, b in pairs):
        reasons = [_why_containers_differ(a, b) for a, b in pairs]
        reason = ", ".join(reason for reason in reasons if reason)
        return (Result.CONTAINER_SIZE_MISMATCH, reason) if reason else (Result.SAME, "")
    if Counter(a.kind for a in first) == Counter(b.kind for b in second):
        return Result.TRANSPOSE_SAME, f"the axes are {_written(second)}, not {_written(first)}"
    wrong = [f"{b.letter} instead of {a.letter}" for a, b in pairs if not _kinds_fit(a.kind, b.kind)]
    return Result.DIM_INCOMPATIBLE, ", ".join(wrong)


def _kinds_fit(port: AxisKindAbstract, wire: AxisKindAbstract) -> bool:
    return port is AxisKind.Any or port == wire


def _why_containers_differ(port: AxisType, wire: AxisType) -> str:
    if port.is_list != wire.is_list:
        return f"{wire.letter} is a {'list' if wire.is_list else 'tensor'} axis, not a {'list' if port.is_list else 'tensor'} axis"
    if port.size is not None and wire.size is not None and port.size != wire.size:
        return f"{wire.letter} is {wire.size}, not {port.size}"
    return ""


def _written(axes: Axes | None) -> str:
    return "no axes" if axes is None else " ".join(str(axis) for axis in axes)
