"""Element types: what the numbers of a tensor mean, as a tree of classes, and how two compare. No axes here."""

from __future__ import annotations

from enum import Enum
from typing import Any


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
    def type_parameters(self) -> dict[str, Any]:
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
    """What the tags of NeMo 0.8 and 0.9 do not say: it goes to every port, and a port of it takes every element."""


class ChannelType(ElementType):
    """Values of a channel: features of any sort."""


class EmbeddedTextType(ChannelType):
    """Vectors that stand for text."""


class EncodedRepresentation(ChannelType):
    """What an encoder gives."""


class AcousticEncodedRepresentation(EncodedRepresentation):
    """What an acoustic encoder gives."""


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
    def type_parameters(self) -> dict[str, Any]:
        return {"freq": self.freq}


class Index(ElementType):
    """Position of an item in its data set."""


class Target(ElementType):
    """What a model should predict."""


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
