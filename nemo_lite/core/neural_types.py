"""Types of wires: axes, elements, `NeuralType` and its comparison, wires (`NmTensor`), the tags of NeMo 0.8 and 0.9."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ref

from nemo_lite.base.errors import CanNotInferResultNeuralType as CanNotInferResultNeuralType
from nemo_lite.base.errors import NeuralPortNameMismatchError as NeuralPortNameMismatchError
from nemo_lite.base.errors import NeuralPortNmTensorMismatchError as NeuralPortNmTensorMismatchError
from nemo_lite.base.errors import NeuralTypeError as NeuralTypeError
from nemo_lite.base.errors import TakenKeyError, did_you_mean
from nemo_lite.core.app_state import AppState
from nemo_lite.core.app_state import Connection as Connection
from nemo_lite.core.app_state import StepModulePort as StepModulePort

if TYPE_CHECKING:
    from nemo_lite.core.neural_module import NeuralModule, Recorder


class BaseTag:
    """Root of the tags."""


class BatchTag(BaseTag):
    """Items of a batch."""


class CategoricalTag(BatchTag):
    """Categories, one for each item of a batch."""


class RegressionTag(BatchTag):
    """Real numbers, one for each item of a batch."""


class TimeTag(BaseTag):
    """Time."""


class ProcessedTimeTag(TimeTag):
    """Time after a change of its rate: frames."""


class ChannelTag(BaseTag):
    """Channels: features of any sort."""


class EmbeddedTextTag(ChannelTag):
    """Vectors that stand for text."""


class SpectrogramSignalTag(ChannelTag):
    """Bins of a spectrogram."""


class MelSpectrogramSignalTag(SpectrogramSignalTag):
    """Bins on the mel scale."""


class MFCCSignalTag(SpectrogramSignalTag):
    """Mel-frequency cepstral coefficients."""


class EncodedRepresentationTag(ChannelTag):
    """The output of an encoder."""


class ClassTag(BaseTag):
    """Classes."""


class WidthTag(BaseTag):
    """Width of a picture."""


class HeightTag(BaseTag):
    """Height of a picture."""


class AxisKindAbstract(Enum):
    """Base for a project's own enumeration of axis kinds."""


class AxisKind(AxisKindAbstract):
    """The thing that one axis counts. ``Channel`` is another name of ``Dimension``."""

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
            labels = sorted(_KINDS_BY_LABEL)
            remedy = f'known: {", ".join(labels)}{did_you_mean(label, labels)}, with a size as in "B D=64 T"'
            raise NeuralTypeError(f'axis "{label}" is not known', remedy=remedy)
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
    BatchTag: AxisKind.Batch,
    TimeTag: AxisKind.Time,
    ChannelTag: AxisKind.Dimension,
    ClassTag: AxisKind.Dimension,
    WidthTag: AxisKind.Width,
    HeightTag: AxisKind.Height,
    BaseTag: AxisKind.Any,
}


@dataclass(frozen=True, init=False)
class AxisType:
    """One axis: its kind, its size where that is fixed, and whether it is a Python list instead of a tensor dimension.

    Args:
        kind: what it counts, or its label, such as ``"D"``; or a tag of NeMo 0.8 and 0.9, whose name for this argument
            is ``semantics``.
        size: its size (``dim``).
        is_list: whether it is a Python list.
        tag: the tag that it was made of.
        descriptor: accepted and not used, as in NeMo 0.9.

    Raises:
        NeuralTypeError: the label is not known, both a size and ``is_list`` are given, or the size is not positive.
    """

    kind: AxisKindAbstract
    size: int | None = None
    is_list: bool = False
    tag: type[BaseTag] | None = None

    def __init__(
        self,
        kind: AxisKindAbstract | type[BaseTag] | str | None = None,
        size: int | None = None,
        is_list: bool | str | None = False,
        tag: type[BaseTag] | None = None,
        *,
        semantics: type[BaseTag] | None = None,
        dim: int | None = None,
        descriptor: str | None = None,
    ) -> None:
        kind = semantics if kind is None else kind
        size = dim if size is None else size
        if isinstance(kind, type) and issubclass(kind, BaseTag):
            tag = kind
            is_list = is_list is True  # the third positional argument of a tagged axis is its descriptor
            kind = next(_KINDS_BY_TAG[base] for base in tag.__mro__ if base in _KINDS_BY_TAG)
        if isinstance(kind, str):
            kind = AxisKind.from_str(kind)
        if not isinstance(kind, AxisKindAbstract):
            wanted = 'an AxisKind, a label such as "D", or a tag such as BatchTag'
            raise NeuralTypeError("an axis needs its kind", got=repr(kind), wanted=wanted)
        if size is not None and is_list:
            raise NeuralTypeError("a list axis cannot have a fixed size", got=f"size {size}", remedy="leave one out")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "is_list", bool(is_list))
        object.__setattr__(self, "tag", tag)
        if size is not None and size < 1:
            raise NeuralTypeError(f"axis {self.letter} has an impossible size", got=str(size), wanted="1 or more")

    @property
    def letter(self) -> str:
        """The short form used in tables: ``B``, ``T``, ``D``, or the kind's own name."""
        return _LETTERS.get(self.kind, self.kind.name) if isinstance(self.kind, AxisKind) else self.kind.name

    def __str__(self) -> str:
        text = self.letter if self.size is None else f"{self.letter}={self.size}"
        return f"[{text}]" if self.is_list else text


class NeuralTypeComparisonResult(Enum):
    """Result of ``first.compare(second)``; a port of type ``first`` takes ``second`` when it is SAME or GREATER."""

    SAME = 0
    LESS = 1  # first is a special case of second
    GREATER = 2  # second is a special case of first
    DIM_INCOMPATIBLE = 3  # the axes are of the same kinds, but a fixed size differs
    TRANSPOSE_SAME = 4  # another order of the axes, or lists instead of tensors
    CONTAINER_SIZE_MISMATCH = 5  # composed elements of one class with different numbers of fields
    INCOMPATIBLE = 6
    SAME_TYPE_INCOMPATIBLE_PARAMS = 7  # e.g. another sample rate


class ElementType:
    """Root of the tree. A subclass is a special case of its base and may go wherever the base may."""

    @property
    def type_parameters(self) -> dict[str, object]:
        """Values that two elements of one class must share to be the same, e.g. a sample rate."""
        return {}

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of the parts of a composed element."""
        return None

    def compare(self, second: ElementType) -> NeuralTypeComparisonResult:
        """How ``second`` stands to ``self``: GREATER means that ``second`` is a special case of ``self``."""
        if isinstance(second, UnstatedType):
            return NeuralTypeComparisonResult.SAME
        if not isinstance(second, type(self)) and not isinstance(self, type(second)):
            return NeuralTypeComparisonResult.INCOMPATIBLE
        mine, other = self.type_parameters, second.type_parameters
        shared = mine.keys() & other.keys() if type(self) is not type(second) else mine.keys() | other.keys()
        if any(mine.get(key) != other.get(key) for key in shared):
            return NeuralTypeComparisonResult.SAME_TYPE_INCOMPATIBLE_PARAMS
        if type(self) is not type(second):
            special = isinstance(second, type(self))
            return NeuralTypeComparisonResult.GREATER if special else NeuralTypeComparisonResult.LESS
        if self.fields == second.fields:
            return NeuralTypeComparisonResult.SAME
        if len(self.fields or ()) != len(second.fields or ()):
            return NeuralTypeComparisonResult.CONTAINER_SIZE_MISMATCH
        return NeuralTypeComparisonResult.INCOMPATIBLE

    def __str__(self) -> str:
        name = type(self).__name__.removesuffix("Type")
        values = ", ".join(str(value) for value in self.type_parameters.values())
        return f"{name}({values})" if values else name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.type_parameters.items())})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ElementType)
            and type(self) is type(other)
            and self.type_parameters == other.type_parameters
            and self.fields == other.fields
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self.type_parameters.items()))))


class VoidType(ElementType):
    """Accepts every element."""

    def compare(self, second: ElementType) -> NeuralTypeComparisonResult:
        return NeuralTypeComparisonResult.SAME


class UnstatedType(VoidType):
    """Elements that the tags of NeMo 0.8 and 0.9 leave open: every port takes them, and a port of them takes all."""


class ChannelType(ElementType):
    """Values of a channel: features of any sort."""


class EmbeddedTextType(ChannelType):
    """Vectors that stand for text."""


class EncodedRepresentation(ChannelType):
    """The output of an encoder."""


class AcousticEncodedRepresentation(EncodedRepresentation):
    """The output of an acoustic encoder."""


class SpectrogramType(ChannelType):
    """A spectrogram of any scale."""


class MelSpectrogramType(SpectrogramType):
    """A spectrogram on the mel scale."""


class MFCCSpectrogramType(SpectrogramType):
    """Mel-frequency cepstral coefficients."""


class LogitsType(ElementType):
    """Scores before a softmax."""


class LogprobsType(ElementType):
    """Logarithms of probabilities."""


class LabelsType(ElementType):
    """Indices of labels."""


class PredictionsType(LabelsType):
    """Labels that a model predicted."""


class RegressionValuesType(PredictionsType):
    """Real numbers that a model predicted."""


class CategoricalValuesType(PredictionsType):
    """Categories that a model predicted."""


class MaskType(PredictionsType):
    """A mask: 1 where a value counts."""


class LengthsType(ElementType):
    """How many entries of a padded axis are real."""


class LossType(ElementType):
    """A scalar to be minimised."""


class AudioSignal(ElementType):
    """Samples of sound.

    Args:
        freq: samples per second (Hz); two signals of different rates are not compatible.
    """

    def __init__(self, freq: int = 16000) -> None:
        self.freq = freq

    @property
    def type_parameters(self) -> dict[str, object]:
        return {"freq": self.freq}


class Index(ElementType):
    """Position of an item in its data set."""


class Target(ElementType):
    """The value that a model should predict."""


class ClassificationTarget(Target):
    """The class a model should predict."""


class ImageValue(ElementType):
    """A pixel's value."""


class NormalizedImageValue(ImageValue):
    """A pixel's value between 0 and 1."""


class ImageFeatureValue(ImageValue):
    """A feature computed from an image."""


class StringType(ElementType):
    """A Python string."""


class StringLabel(StringType):
    """A label written as a string."""


class IntType(ElementType):
    """A whole number."""


class TokenIndex(IntType):
    """Index of a token in a vocabulary."""


class Length(IntType):
    """A length as a whole number."""


Axes = tuple[AxisType, ...]
AxesRead = str | Iterable[str | AxisType] | None

# What the tags of NeMo 0.8 and 0.9 say about the elements; the first base of a tag that is here counts.
_ELEMENTS_BY_TAG: dict[type, type[ElementType]] = {
    EmbeddedTextTag: EmbeddedTextType,
    SpectrogramSignalTag: SpectrogramType,
    MelSpectrogramSignalTag: MelSpectrogramType,
    MFCCSignalTag: MFCCSpectrogramType,
    EncodedRepresentationTag: EncodedRepresentation,
}


class Comparison(NamedTuple):
    """A result and the reason for it; ``reason`` is empty when the types fit."""

    result: NeuralTypeComparisonResult
    reason: str

    @property
    def fits(self) -> bool:
        """Whether a port of the first type takes a wire of the second."""
        return self.result in (NeuralTypeComparisonResult.SAME, NeuralTypeComparisonResult.GREATER)


class NeuralType:
    """The type of a port or a wire.

    Args:
        axes: ``"B D T"``, with a size ``"B D=64 T"``, for lists ``"[B] T"``; a sequence of such labels, of
            :class:`AxisType` or of both; or ``None`` for a value without axes. In the style of NeMo 0.8 and 0.9
            ``{0: AxisType(BatchTag), 1: AxisType(TimeTag)}``, and ``{}`` takes all.
        elements_type: an instance of an :class:`ElementType`.
        optional: for an input port: it may stay unconnected.

    Raises:
        NeuralTypeError: an unknown axis or size, a list axis behind a tensor axis, or a class instead of an instance.
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

    def compare(self, second: NeuralType) -> NeuralTypeComparisonResult:
        """How ``second`` stands to this type."""
        return self.explain(second).result

    def explain(self, second: NeuralType) -> Comparison:
        """Compare as :meth:`compare` does and say why in words."""
        if self.axes is None and isinstance(self.elements_type, VoidType):
            return Comparison(NeuralTypeComparisonResult.SAME, "")
        elements = self.elements_type.compare(second.elements_type)
        axes, reason = _compare_axes(self.axes, second.axes)
        elements_fit = elements in (NeuralTypeComparisonResult.SAME, NeuralTypeComparisonResult.GREATER)
        if axes is NeuralTypeComparisonResult.SAME and elements_fit:
            tagged, reason = _compare_tags(self.axes or (), second.axes or ())
            return Comparison(elements if tagged is NeuralTypeComparisonResult.SAME else tagged, reason)
        if axes is NeuralTypeComparisonResult.SAME:
            return Comparison(elements, self._why_elements_differ(second, elements))
        if elements_fit:
            return Comparison(axes, reason)
        return Comparison(
            NeuralTypeComparisonResult.INCOMPATIBLE, f"{self._why_elements_differ(second, elements)}; {reason}"
        )

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
            problem = f"{parent_type_name}.{port_name} cannot take this type"
            got, wanted = second.brief, self.brief
            raise NeuralPortNmTensorMismatchError(problem, got=got, wanted=wanted, remedy=comparison.reason)

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

    def _why_elements_differ(self, second: NeuralType, result: NeuralTypeComparisonResult) -> str:
        if result is NeuralTypeComparisonResult.LESS:
            return f"{second.elements_type} is more general than {self.elements_type}"
        if result is NeuralTypeComparisonResult.SAME_TYPE_INCOMPATIBLE_PARAMS:
            mine, other = self.elements_type.type_parameters, second.elements_type.type_parameters
            differing = [key for key in {**mine, **other} if mine.get(key) != other.get(key)]
            return ", ".join(f"{key} is {other.get(key)}, not {mine.get(key)}" for key in differing)
        if type(self.elements_type) is type(second.elements_type):
            return f"the fields are {second.elements_type.fields}, not {self.elements_type.fields}"
        return f"{second.elements_type} is not {self.elements_type}"

    def __str__(self) -> str:
        """NeMo's text, which is also in its graph files: ``axes: (batch, time); elements_type: LabelsType``."""
        spelt_out = []
        for axis in self.axes or ():  # ``time``, ``dimension:64``, ``batch_listdim``
            size = "" if axis.size is None else f":{axis.size}"
            spelt_out.append(f"{axis.kind.name.lower()}{size}{'_listdim' if axis.is_list else ''}")
        axes = None if self.axes is None else f"({', '.join(spelt_out)}{',' * (len(spelt_out) == 1)})"
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
    axes = tuple(axes.replace(",", " ").split()) if isinstance(axes, str) else tuple(axes)
    if any(not isinstance(axis, (str, AxisType)) for axis in axes):
        raise NeuralTypeError("axes must be names or AxisTypes", got=repr(axes))
    types = tuple(_axis_of(axis) if isinstance(axis, str) else axis for axis in axes)
    for before, axis in pairwise(types):
        if axis.is_list and not before.is_list:
            raise NeuralTypeError("a list axis cannot stand behind a tensor axis", got=" ".join(map(str, types)))
    return types


def _axis_of(text: str) -> AxisType:
    """The axis that a text such as ``T``, ``D=64`` or ``[B]`` stands for: what ``str`` gives for it."""
    inner = text.strip()
    is_list = inner.startswith("[") and inner.endswith("]")
    label, equals, size = (inner[1:-1] if is_list else inner).partition("=")
    kind = AxisKind.from_str(label)
    if equals and not size.isdecimal():
        wanted = 'a whole number, as in "D=64"'
        raise NeuralTypeError(f'axis "{text}" has no size', got=repr(size), wanted=wanted)
    return AxisType(kind, int(size) if equals else None, is_list)


def _elements_of(axes: Sequence[AxisType]) -> ElementType:
    """The elements that the tags of axes stand for."""
    if not axes:
        return VoidType()
    bases = (base for axis in axes if axis.tag for base in axis.tag.__mro__)
    return next((_ELEMENTS_BY_TAG[base]() for base in bases if base in _ELEMENTS_BY_TAG), UnstatedType())


def _compare_tags(first: Axes, second: Axes) -> tuple[NeuralTypeComparisonResult, str]:
    """How tags stand to each other, where both axes have one; the axes themselves are the same."""
    pairs = [(a.tag, b.tag) for a, b in zip(first, second, strict=False) if a.tag and b.tag and a.tag is not b.tag]
    if not pairs:
        return NeuralTypeComparisonResult.SAME, ""
    if all(issubclass(theirs, mine) for mine, theirs in pairs):
        return NeuralTypeComparisonResult.GREATER, ""
    reason = ", ".join(f"{theirs.__name__} is not {mine.__name__}" for mine, theirs in pairs)
    if all(issubclass(mine, theirs) for mine, theirs in pairs):
        return NeuralTypeComparisonResult.LESS, reason
    return NeuralTypeComparisonResult.INCOMPATIBLE, reason


def _compare_axes(first: Axes | None, second: Axes | None) -> tuple[NeuralTypeComparisonResult, str]:
    """How the axes of ``second`` stand to those of ``first``: each position is looked at, whatever the others gave."""
    if first is None and second is None:
        return NeuralTypeComparisonResult.SAME, ""
    if first is None or second is None:
        return NeuralTypeComparisonResult.INCOMPATIBLE, f"{_written(second)} instead of {_written(first)}"
    if len(first) != len(second):
        return NeuralTypeComparisonResult.INCOMPATIBLE, f"{len(second)} axes instead of {len(first)}"
    pairs = list(zip(first, second, strict=True))
    kinds = [f"{b.letter} instead of {a.letter}" for a, b in pairs if a.kind not in (AxisKind.Any, b.kind)]
    containers = [f"{b.letter} is {_container(b)}, not {_container(a)}" for a, b in pairs if a.is_list != b.is_list]
    sizes = [
        f"{b.letter} is {b.size or 'of unknown size'}, not {a.size}" for a, b in pairs if a.size not in (None, b.size)
    ]
    if not kinds and not sizes and containers:
        return NeuralTypeComparisonResult.TRANSPOSE_SAME, ", ".join(containers)
    if not kinds and not sizes:
        return NeuralTypeComparisonResult.SAME, ""
    if kinds and Counter(axis.kind for axis in first) != Counter(axis.kind for axis in second):
        return NeuralTypeComparisonResult.INCOMPATIBLE, ", ".join(kinds)
    unknown = any(a.size is not None and b.size is None for a, b in pairs)
    if (kinds or not unknown) and _sizes_fit_in_some_order(first, second):
        return NeuralTypeComparisonResult.TRANSPOSE_SAME, f"the axes are {_written(second)}, not {_written(first)}"
    return NeuralTypeComparisonResult.DIM_INCOMPATIBLE, ", ".join(sizes or kinds)


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


# A wire's place in the order in which calls were recorded; only differences count.
_serials = count()


@dataclass(frozen=True, eq=False)
class NestedUse:
    """One use of a graph inside another: pictures draw a box with this name around its calls."""

    name: str


class NotCopied(dict[Any, Any]):
    """What an object keeps in an attribute, and copies and files of it begin without."""

    def __deepcopy__(self, memo: dict[int, object]) -> NotCopied:
        return type(self)()

    def __reduce__(self) -> tuple[type[NotCopied], tuple[()]]:
        return type(self), ()


class ModuleCall:
    """One use of a module on wires. A module that is called twice has two of them and one set of weights.

    Attributes:
        inputs: the wires that it takes, by port.
        outputs: the wires that it gives, by port.
        step_number: its number in the graph that recorded it, or ``None``.
        nested_in: the uses of graphs that it belongs to, the outermost first.
    """

    __slots__ = ("__weakref__", "_module", "_serial", "inputs", "nested_in", "outputs", "step_number")

    def __init__(
        self,
        module: NeuralModule,
        inputs: Mapping[str, NmTensor],
        output_types: Mapping[str, NeuralType],
        nested_in: tuple[NestedUse, ...] = (),
    ) -> None:
        self._module: NeuralModule | ref[NeuralModule] = module
        self.nested_in = nested_in
        self.inputs = dict(inputs)
        self.step_number: int | None = None
        self._serial = next(_serials)
        self.outputs = {
            port: NmTensor(module, self.inputs, port, ntype, call=self) for port, ntype in output_types.items()
        }
        for port, wire in self.inputs.items():
            wire._readers.append((ref(self), port))

    @property
    def module(self) -> NeuralModule:
        """The module that is called. None, where a graph kept it that is gone."""
        return self._module() if isinstance(self._module, ref) else self._module  # type: ignore[return-value]  # see above

    def leave_module_to_graph(self) -> None:
        """Keep the module alive no longer: the graph that recorded the call does. Its wires may outlive the graph."""
        self._module = ref(self.module)

    @property
    def step(self) -> int:
        """Its step: that of its graph, or its place among the calls that wires connect to it, in order of recording."""
        if self.step_number is not None:
            return self.step_number
        connected = {self}
        pending = [self]
        while pending:
            call = pending.pop()
            near = [wire.call for wire in call.inputs.values()]
            near += [reader for wire in call.outputs.values() for reader, _ in wire.readers]
            pending += [other for other in dict.fromkeys(near) if other not in connected]
            connected.update(near)
        return sorted(call._serial for call in connected).index(self._serial)


Value: TypeAlias = Any
"""What a wire carries while a DAG runs: a tensor, a list of texts or a number, as its module returns it."""


class NmTensor(NeuralType):
    """A wire between modules: what will be a tensor when the DAG runs. It is also its type, and can be compared as one.

    Scripts get wires from calls of modules. One made by hand belongs to no DAG.

    Args:
        producer: the module that gives it, or ``None``.
        producer_args: the wires that the producing call takes, by port.
        output_port_name: the producing module's output port.
        ntype: its type.
        call: the call that produces it, which knows the two above.

    Attributes:
        call: the call that produces it.
        output_port_name: the producing module's output port.
        ntype: its :class:`NeuralType`.
    """

    is_graph_input = False
    """Whether it is the input of a graph, which only calls in that graph take."""

    def __init__(
        self,
        producer: NeuralModule | None,
        producer_args: Mapping[str, NmTensor] | None,
        output_port_name: str,
        ntype: NeuralType,
        call: ModuleCall | None = None,
    ) -> None:
        self.axes, self.elements_type, self.optional = ntype.axes, ntype.elements_type, ntype.optional
        if call is None:
            call = ModuleCall(producer, {}, {})  # type: ignore[arg-type]  # by hand: lowering refuses what is no module
            call.inputs.update(producer_args or {})
            call.outputs[output_port_name] = self
        self.call = call
        self.output_port_name = output_port_name
        self.ntype = ntype
        self._readers: list[tuple[ref[ModuleCall], str]] = []
        self._more_consumers: list[StepModulePort] = []
        self._new_name = ""
        self._unique_name = ""
        AppState().tensor_names.register(self)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def readers(self) -> list[tuple[ModuleCall, str]]:
        """The calls that take it and are alive, with the port each takes it at.

        A wire keeps no call behind it alive: of several models on the wires of one data layer, those that nobody holds
        leave memory.
        """
        calls = [(of_call(), port) for of_call, port in self._readers]
        readers = [(call, port) for call, port in calls if call is not None and call.module is not None]
        if len(readers) < len(self._readers):
            self._readers = [(ref(call), port) for call, port in readers]
        return readers

    @property
    def graph(self) -> Recorder | None:
        """The graph whose input it is, or None."""
        return None

    @property
    def producer(self) -> NeuralModule:
        """The module that produces it."""
        return self.call.module

    @property
    def producer_name(self) -> str:
        """The producing module's name."""
        return str(self.producer and self.producer.name)

    @property
    def producer_args(self) -> dict[str, NmTensor]:
        """The wires that the producing call takes, by port."""
        return dict(self.call.inputs)

    @property
    def producer_step_number(self) -> int:
        """The step in which it is produced: that of its graph, or its place among the calls connected to it."""
        return self.call.step

    @property
    def producer_step_module_port(self) -> StepModulePort:
        """Step, module and port that produce it."""
        return StepModulePort(self.call.step, self.producer_name, self.output_port_name)

    @property
    def consumers(self) -> list[StepModulePort]:
        """Steps, modules and ports that take it, in the order of connection."""
        readers = [StepModulePort(call.step, call.module.name, port) for call, port in self.readers]
        return readers + self._more_consumers

    def add_consumer(self, step_module_port: StepModulePort) -> None:
        """Note one more that takes it; a call of a module on the wire does so by itself."""
        self._more_consumers.append(step_module_port)

    def connections(self) -> list[Connection]:
        """A connection for each of :attr:`consumers`."""
        return [Connection(self.producer_step_module_port, consumer, self.ntype) for consumer in self.consumers]

    @property
    def name(self) -> str:
        """Its name: that given to :meth:`rename`, or the output port's."""
        return self._new_name or self.output_port_name

    @property
    def is_renamed(self) -> bool:
        """Whether a script gave it a name; such wires can be asked for by name while a DAG runs."""
        return bool(self._new_name)

    def rename(self, new_name: str) -> None:
        """Give it a name for callbacks: ``state["tensors"].get_tensor(new_name)``.

        Its module keeps it from then on, so that it can be asked for as long as there is the module.

        Raises:
            TakenKeyError: another wire that is alive has this name, or it is "loss". One that only its module keeps
                gives the name away.
        """
        names = AppState().tensor_names
        before = names.wire_named(new_name)
        if before is not None:
            before._named_in_module.pop(new_name, None)
            del before
        try:
            names.rename_NmTensor(self, new_name)
        except TakenKeyError:
            if (before := names.wire_named(new_name)) is not None:
                before._named_in_module[new_name] = before
            raise
        self._named_in_module.pop(self._new_name, None)
        self._new_name = new_name
        self._named_in_module[new_name] = self

    @property
    def _named_in_module(self) -> dict[str, NmTensor]:
        """The renamed wires that its module keeps, by name; of a wire made by hand, without a module, an empty one."""
        attributes: dict[str, Any] = getattr(self.producer, "__dict__", {})
        named: dict[str, NmTensor] = attributes.setdefault("_named_wires", NotCopied())
        return named

    @property
    def unique_name(self) -> str:
        """``port~~~module~~~id``: different for every wire of a process."""
        if not self._unique_name:
            self._unique_name = f"{self.output_port_name}~~~{self.producer_name}~~~{uuid.uuid4().hex}"
        return self._unique_name

    @property
    def place(self) -> str:
        """``module.port``, for messages."""
        return f"{self.producer and self.producer.label}.{self.output_port_name}"

    def __repr__(self) -> str:
        return f"NmTensor({self.place}: {self.ntype.brief})"
