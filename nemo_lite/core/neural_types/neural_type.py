"""NeuralType: axes and elements together, and their comparison with its reason in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from nemo_lite.core.neural_types import tags
from nemo_lite.core.neural_types.axes import AxisKind, AxisKindAbstract, AxisType
from nemo_lite.core.neural_types.elements import (
    ElementType,
    EmbeddedTextType,
    EncodedRepresentation,
    MelSpectrogramType,
    MFCCSpectrogramType,
    SpectrogramType,
    UnstatedType,
    VoidType,
)
from nemo_lite.core.neural_types.elements import NeuralTypeComparisonResult as Result
from nemo_lite.errors import NeuralPortNmTensorMismatchError, NeuralTypeError

Axes = tuple[AxisType, ...]
AxesRead = str | Iterable[str | AxisType] | None

# What the tags of NeMo 0.8 and 0.9 say about the elements; the first base of a tag that is here counts.
_ELEMENTS_BY_TAG: dict[type, type[ElementType]] = {
    tags.EmbeddedTextTag: EmbeddedTextType,
    tags.SpectrogramSignalTag: SpectrogramType,
    tags.MelSpectrogramSignalTag: MelSpectrogramType,
    tags.MFCCSignalTag: MFCCSpectrogramType,
    tags.EncodedRepresentationTag: EncodedRepresentation,
}


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
        axes: ``"B D T"``, ``("B", "D", "T")``, a sequence of :class:`AxisType`, or ``None`` for a value without axes;
            in the style of NeMo 0.8 and 0.9 ``{0: AxisType(BatchTag), 1: AxisType(TimeTag)}``, and ``{}`` takes all.
        elements_type: an instance of an :class:`ElementType`.
        optional: for an input port: it may stay unconnected.

    Raises:
        NeuralTypeError: an unknown axis, strings and AxisTypes mixed, a list axis behind a tensor axis, or a class
            instead of an instance.
    """

    def __init__(
        self,
        axes: AxesRead | Mapping[int, AxisType] = None,
        elements_type: ElementType | None = None,
        optional: bool = False,
    ) -> None:
        if isinstance(axes, Mapping):
            tagged = [axes[index] for index in sorted(axes)]
            axes, elements_type = tagged or None, elements_type or _elements_of(tagged)
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
        """How ``second`` stands to this type."""
        return self.explain(second).result

    def explain(self, second: NeuralType) -> Comparison:
        """Compare as :meth:`compare` does and say why in words."""
        if self.axes is None and isinstance(self.elements_type, VoidType):
            return Comparison(Result.SAME, "")
        elements = self.elements_type.compare(second.elements_type)
        axes, reason = _compare_axes(self.axes, second.axes)
        elements_fit = elements in (Result.SAME, Result.GREATER)
        if axes is Result.SAME and elements_fit:
            tagged, reason = _compare_tags(self.axes or (), second.axes or ())
            return Comparison(elements if tagged is Result.SAME else tagged, reason)
        if axes is Result.SAME:
            return Comparison(elements, self._why_elements_differ(second, elements))
        if elements_fit:
            return Comparison(axes, reason)
        return Comparison(Result.INCOMPATIBLE, f"{self._why_elements_differ(second, elements)}; {reason}")

    def compare_and_raise_error(self, parent_type_name: str, port_name: str, second: NeuralType) -> None:
        """Refuse what a port of this type does not take.

        Args:
            parent_type_name: the class of the port's module, for the message.
            port_name: the port, for the message.
            second: the type of the wire.

        Raises:
            NeuralPortNmTensorMismatchError: ``second`` is neither the same nor a special case.
        """
        comparison = self.explain(second)
        if not comparison.fits:
            problem, types = f"{parent_type_name}.{port_name} cannot take this type", (second.brief, self.brief)
            raise NeuralPortNmTensorMismatchError(problem, got=types[0], wanted=types[1], remedy=comparison.reason)

    def takes(self, wire: NeuralType) -> Comparison:
        """Whether a port of this type takes a wire: :meth:`explain`, with the wire's unknown sizes assumed to be right.

        A module that keeps the size of an axis as it comes cannot name it in its ports; the data will show it.
        """
        mine, other = self.axes or (), wire.axes or ()
        if len(mine) != len(other) or all(axis.size is None for axis in mine):
            return self.explain(wire)
        open_to = [b.size is None and not b.is_list and a.kind == b.kind for a, b in zip(mine, other, strict=True)]
        assumed = [replace(b, size=a.size) if o else b for a, b, o in zip(mine, other, open_to, strict=True)]
        return self.explain(NeuralType(assumed, wire.elements_type))

    def _why_elements_differ(self, second: NeuralType, result: Result) -> str:
        if result is Result.LESS:
            return f"{second.elements_type} is more general than {self.elements_type}"
        if result is Result.SAME_TYPE_INCOMPATIBLE_PARAMS:
            mine, other = self.elements_type.type_parameters, second.elements_type.type_parameters
            differing = [key for key in {**mine, **other} if mine.get(key) != other.get(key)]
            return ", ".join(f"{key} is {other.get(key)}, not {mine.get(key)}" for key in differing)
        if type(self.elements_type) is type(second.elements_type):
            return f"the fields are {second.elements_type.fields}, not {self.elements_type.fields}"
        return f"{second.elements_type} is not {self.elements_type}"

    def __str__(self) -> str:
        """NeMo's text, which is also in its graph files: ``axes: (batch, time); elements_type: LabelsType``."""
        axes = None if self.axes is None else f"({', '.join(map(_spelt_out, self.axes))}{',' * (len(self.axes) == 1)})"
        return f"axes: {axes}; elements_type: {type(self.elements_type).__name__}"

    @property
    def brief(self) -> str:
        """The type in messages and tables: ``B T Labels``."""
        axes = [str(axis) for axis in self.axes or ()]
        return " ".join([*axes, str(self.elements_type), *(["(optional)"] if self.optional else [])])

    def __repr__(self) -> str:
        axes = None if self.axes is None else tuple(str(axis) for axis in self.axes)
        return f"NeuralType({axes!r}, {self.elements_type!r}{', optional=True' if self.optional else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NeuralType) and self.axes == other.axes and self.elements_type == other.elements_type

    def __hash__(self) -> int:
        return hash((self.axes, self.elements_type))


def _read_axes(axes: AxesRead) -> Axes | None:
    if axes is None:
        return None
    given = tuple(axes.replace(",", " ").split()) if isinstance(axes, str) else tuple(axes)
    if any(not isinstance(axis, (str, AxisType)) for axis in given):
        raise NeuralTypeError("axes must be names or AxisTypes", got=repr(given))
    if len({isinstance(axis, str) for axis in given}) > 1:
        raise NeuralTypeError("axes are either all names or all AxisTypes", got=repr(given))
    read = tuple(AxisType(AxisKind.from_str(axis)) if isinstance(axis, str) else axis for axis in given)
    for before, axis in pairwise(read):
        if axis.is_list and not before.is_list:
            raise NeuralTypeError("a list axis cannot stand behind a tensor axis", got=" ".join(map(str, read)))
    return read


def _elements_of(axes: Sequence[AxisType]) -> ElementType:
    """What the tags of axes say about the elements."""
    if not axes:
        return VoidType()
    bases = (base for axis in axes if axis.tag for base in axis.tag.__mro__)
    return next((_ELEMENTS_BY_TAG[base]() for base in bases if base in _ELEMENTS_BY_TAG), UnstatedType())


def _compare_tags(first: Axes, second: Axes) -> tuple[Result, str]:
    """How tags stand to each other, where both axes have one; the axes themselves are the same."""
    pairs = [(a.tag, b.tag) for a, b in zip(first, second, strict=False) if a.tag and b.tag and a.tag is not b.tag]
    if not pairs:
        return Result.SAME, ""
    if all(issubclass(theirs, mine) for mine, theirs in pairs):
        return Result.GREATER, ""
    reason = ", ".join(f"{theirs.__name__} is not {mine.__name__}" for mine, theirs in pairs)
    return (Result.LESS if all(issubclass(mine, theirs) for mine, theirs in pairs) else Result.INCOMPATIBLE), reason


def _spelt_out(axis: AxisType) -> str:
    """An axis as NeMo prints it: ``time``, ``dimension:64``, ``batch_listdim``."""
    size = "" if axis.size is None else f":{axis.size}"
    return f"{axis.kind.name.lower()}{size}{'_listdim' if axis.is_list else ''}"


def _compare_axes(first: Axes | None, second: Axes | None) -> tuple[Result, str]:
    """How the axes of ``second`` stand to those of ``first``: each position is looked at, whatever the others gave."""
    if first is None or second is None:
        differ = first is not second
        reason = f"{_written(second)} instead of {_written(first)}" if differ else ""
        return (Result.INCOMPATIBLE if differ else Result.SAME), reason
    if len(first) != len(second):
        return Result.INCOMPATIBLE, f"{len(second)} axes instead of {len(first)}"
    pairs = list(zip(first, second, strict=True))
    kinds = [f"{b.letter} instead of {a.letter}" for a, b in pairs if a.kind not in (AxisKind.Any, b.kind)]
    containers = [f"{b.letter} is {_container(b)}, not {_container(a)}" for a, b in pairs if a.is_list != b.is_list]
    sizes = [
        f"{b.letter} is {b.size or 'of unknown size'}, not {a.size}" for a, b in pairs if a.size not in (None, b.size)
    ]
    if not kinds and not sizes:
        return (Result.TRANSPOSE_SAME, ", ".join(containers)) if containers else (Result.SAME, "")
    if kinds and Counter(axis.kind for axis in first) != Counter(axis.kind for axis in second):
        return Result.INCOMPATIBLE, ", ".join(kinds)
    unknown = any(a.size is not None and b.size is None for a, b in pairs)
    if (kinds or not unknown) and _sizes_fit_in_some_order(first, second):
        return Result.TRANSPOSE_SAME, f"the axes are {_written(second)}, not {_written(first)}"
    return Result.DIM_INCOMPATIBLE, ", ".join(sizes or kinds)


def _sizes_fit_in_some_order(first: Axes, second: Axes) -> bool:
    """Whether each fixed size of ``first`` finds an axis of its kind in ``second``, of that or of unknown size."""
    wanted = Counter[tuple[AxisKindAbstract, int | None]](
        (axis.kind, axis.size) for axis in first if axis.size is not None
    )
    there = Counter((axis.kind, axis.size) for axis in second)
    missing = Counter(kind for kind, _ in (wanted - there).elements())
    return all(number <= there[kind, None] for kind, number in missing.items())


def _container(axis: AxisType) -> str:
    return "a list axis" if axis.is_list else "a tensor axis"


def _written(axes: Axes | None) -> str:
    return "no axes" if axes is None else " ".join(str(axis) for axis in axes)
