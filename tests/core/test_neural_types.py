"""Neural types: axes, the tree of elements, the eight results of a comparison and their reasons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_lite.base.errors import NeuralPortNmTensorMismatchError, NeuralTypeError
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AudioSignal,
    AxisKind,
    AxisKindAbstract,
    AxisType,
    BaseTag,
    BatchTag,
    ChannelTag,
    ChannelType,
    ElementType,
    EncodedRepresentation,
    LabelsType,
    LengthsType,
    LogitsType,
    LogprobsType,
    LossType,
    MaskType,
    MelSpectrogramSignalTag,
    MelSpectrogramType,
    MFCCSpectrogramType,
    NeuralType,
    PredictionsType,
    ProcessedTimeTag,
    SpectrogramSignalTag,
    SpectrogramType,
    TimeTag,
    VoidType,
)
from nemo_lite.core.neural_types import NeuralTypeComparisonResult as Result

B, D, T = (AxisType(AxisKind.from_str(letter)) for letter in "BDT")


def listed(*kinds: AxisKind) -> tuple[AxisType, ...]:
    return tuple(AxisType(kind, is_list=True) for kind in kinds)


# Axes


@pytest.mark.parametrize(
    "axes", ["B D T", "B,D,T", ("B", "D", "T"), ["batch", "dimension", "time"], (B, D, T), "N C t"]
)
def test_axes_read_the_same_in_every_spelling(axes: Any) -> None:
    assert NeuralType(axes, ChannelType()) == NeuralType((B, D, T), ChannelType())


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        *[(label, AxisKind.Batch) for label in ("b", "n", "Batch")],
        *[(label, AxisKind.Time) for label in ("t", "TIME")],
        *[(label, AxisKind.Dimension) for label in ("d", "c", "channel", "dimension")],
        *[("w", AxisKind.Width), ("height", AxisKind.Height), ("Any", AxisKind.Any), ("sequence", AxisKind.Sequence)],
    ],
)
def test_every_label_of_an_axis_is_known(label: str, kind: AxisKind) -> None:
    assert AxisKind.from_str(label) is kind


def test_channel_is_another_name_of_dimension() -> None:
    assert AxisKind.from_str("channel") is AxisKind["Channel"] is AxisKind.Dimension


def test_an_unknown_axis_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(NeuralTypeError, match=r'axis "tme" is not known; known: .*\(did you mean time\?\)'):
        NeuralType("B tme")


def test_the_notation_of_messages_makes_the_type_that_they_show() -> None:
    axes = (AxisType(AxisKind.Batch, is_list=True), B, AxisType(AxisKind.Dimension, 64), AxisType(AxisKind.Any), T)
    written = " ".join(map(str, axes))
    assert written == "[B] B D=64 Any T"
    assert NeuralType(written).axes == NeuralType(written.split()).axes == axes


def test_axes_may_be_labels_and_axis_types_and_kinds_may_be_labels() -> None:
    wanted = NeuralType("B D=64 T")
    assert NeuralType(("B", AxisType(AxisKind.Dimension, 64), "T")) == wanted
    assert NeuralType((B, AxisType("D", 64), AxisType("time"))) == wanted


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ("B D=x T", r"axis \"D=x\" has no size: got 'x', wanted a whole number, as in \"D=64\""),
        ("B D= T", r"axis \"D=\" has no size: got ''"),
        ("B D=0 T", "axis D has an impossible size: got 0, wanted 1 or more"),
        ("B D(64) T", r'axis "D\(64\)" is not known; .*, with a size as in "B D=64 T"'),
        ("[B=2] T", "a list axis cannot have a fixed size: got size 2"),
    ],
)
def test_a_size_that_cannot_be_read_is_refused_with_how_it_is_written(axes: str, told: str) -> None:
    with pytest.raises(NeuralTypeError, match=told):
        NeuralType(axes)


def test_an_axis_that_is_neither_name_nor_axis_type_is_refused() -> None:
    with pytest.raises(NeuralTypeError, match=r"axes must be names or AxisTypes: got \('B', 3\)"):
        NeuralType(("B", 3))  # type: ignore[arg-type]  # the mistake under test


def test_a_list_axis_behind_a_tensor_axis_is_refused() -> None:
    with pytest.raises(NeuralTypeError, match=r"a list axis cannot stand behind a tensor axis: got B \[T\]"):
        NeuralType((B, *listed(AxisKind.Time)))


def test_a_list_axis_has_no_fixed_size() -> None:
    with pytest.raises(NeuralTypeError, match="a list axis cannot have a fixed size: got size 3"):
        AxisType(AxisKind.Batch, 3, is_list=True)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(NeuralTypeError, match="axis D has an impossible size: got 0, wanted 1 or more"):
        AxisType(AxisKind.Dimension, 0)


def test_a_class_instead_of_an_element_is_refused_with_the_remedy() -> None:
    with pytest.raises(NeuralTypeError, match=r"got SpectrogramType; add the brackets: SpectrogramType\(\)"):
        NeuralType("B D T", SpectrogramType)  # type: ignore[arg-type]  # the mistake under test


def test_the_error_is_a_value_error_as_in_nemo() -> None:
    with pytest.raises(ValueError, match="not known"):
        NeuralType("X")


@pytest.mark.parametrize(
    ("ntype", "text"),
    [
        (NeuralType("B D T", MelSpectrogramType()), "B D T MelSpectrogram"),
        (NeuralType("B T", AudioSignal(8000)), "B T AudioSignal(8000)"),
        (NeuralType((B, AxisType(AxisKind.Dimension, 64)), LengthsType(), optional=True), "B D=64 Lengths (optional)"),
        (NeuralType(elements_type=LossType()), "Loss"),
        (NeuralType((*listed(AxisKind.Batch), T), LabelsType()), "[B] T Labels"),
        (NeuralType(), "Void"),
    ],
)
def test_a_type_reads_as_axes_then_element(ntype: NeuralType, text: str) -> None:
    assert ntype.brief == text


def test_repr_names_the_parameters_of_the_element() -> None:
    assert repr(NeuralType("B T", AudioSignal(8000))) == "NeuralType(('B', 'T'), AudioSignal(freq=8000))"


# Elements


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (SpectrogramType(), SpectrogramType(), Result.SAME),
        (SpectrogramType(), MelSpectrogramType(), Result.GREATER),
        (ChannelType(), MFCCSpectrogramType(), Result.GREATER),
        (EncodedRepresentation(), AcousticEncodedRepresentation(), Result.GREATER),
        (LabelsType(), MaskType(), Result.GREATER),
        (MelSpectrogramType(), SpectrogramType(), Result.LESS),
        (PredictionsType(), LabelsType(), Result.LESS),
        (MelSpectrogramType(), MFCCSpectrogramType(), Result.INCOMPATIBLE),
        (AudioSignal(16000), AudioSignal(16000), Result.SAME),
        (AudioSignal(16000), AudioSignal(8000), Result.SAME_TYPE_INCOMPATIBLE_PARAMS),
        (VoidType(), SpectrogramType(), Result.SAME),
        (SpectrogramType(), VoidType(), Result.INCOMPATIBLE),
        (ElementType(), VoidType(), Result.GREATER),
    ],
)
def test_elements_compare_along_the_tree(first: ElementType, second: ElementType, result: Result) -> None:
    assert first.compare(second) is result


class Telephone(AudioSignal):
    """A special case of AudioSignal that has the parameter of its base."""


class Box(ElementType):
    def __init__(self, *names: str) -> None:
        self._names = names

    @property
    def fields(self) -> tuple[str, ...]:
        return self._names


def test_a_special_case_with_another_sample_rate_does_not_fit_its_base() -> None:
    assert AudioSignal(16000).compare(Telephone(16000)) is Result.GREATER
    assert AudioSignal(16000).compare(Telephone(8000)) is Result.SAME_TYPE_INCOMPATIBLE_PARAMS
    assert Telephone(8000).compare(AudioSignal(16000)) is Result.SAME_TYPE_INCOMPATIBLE_PARAMS


def test_composed_elements_compare_by_their_fields() -> None:
    assert Box("x", "y").compare(Box("x", "y")) is Result.SAME
    assert Box("x", "y").compare(Box("x", "w")) is Result.INCOMPATIBLE
    assert Box("x", "y").compare(Box("x", "y", "w")) is Result.CONTAINER_SIZE_MISMATCH
    assert Box("x", "y") != Box("x", "w")


# The eight results, with the axes


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (NeuralType("B D T", SpectrogramType()), NeuralType("B D T", SpectrogramType()), Result.SAME),
        (NeuralType("B D T", SpectrogramType()), NeuralType("B D T", MelSpectrogramType()), Result.GREATER),
        (NeuralType("B D T", MelSpectrogramType()), NeuralType("B D T", SpectrogramType()), Result.LESS),
        (NeuralType((B, AxisType(D.kind, 64))), NeuralType((B, AxisType(D.kind, 80))), Result.DIM_INCOMPATIBLE),
        (NeuralType("B D T", SpectrogramType()), NeuralType("B T D", SpectrogramType()), Result.TRANSPOSE_SAME),
        (NeuralType("B", Box("x", "y")), NeuralType("B", Box("x")), Result.CONTAINER_SIZE_MISMATCH),
        (NeuralType("B D T", LogitsType()), NeuralType("B D T", LabelsType()), Result.INCOMPATIBLE),
        (NeuralType("B T", AudioSignal(16000)), NeuralType("B T", AudioSignal(8000)), Result(7)),
    ],
)
def test_each_of_the_eight_results_is_given(first: NeuralType, second: NeuralType, result: Result) -> None:
    assert first.compare(second) is result


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        # NeMo 0.11: an Any axis takes every axis, and is taken by no other kind.
        (NeuralType("B Any Any"), NeuralType("B Any Any", SpectrogramType()), Result.SAME),
        (NeuralType("B Any Any"), NeuralType("B T C", SpectrogramType()), Result.SAME),
        (NeuralType("B Any Any", SpectrogramType()), NeuralType("B T C", SpectrogramType()), Result.SAME),
        (NeuralType("B T C", SpectrogramType()), NeuralType("B Any Any", SpectrogramType()), Result.INCOMPATIBLE),
        (NeuralType("B Any Any", SpectrogramType()), NeuralType("B Any Any"), Result.INCOMPATIBLE),
        # An Any axis says nothing about the other axes.
        (NeuralType("B Any"), NeuralType("T D"), Result.INCOMPATIBLE),
        (NeuralType("Any B"), NeuralType("D T"), Result.INCOMPATIBLE),
        (NeuralType("B D Any"), NeuralType("B T T"), Result.INCOMPATIBLE),
        (
            NeuralType((AxisType(B.kind, 4), AxisType(AxisKind.Any))),
            NeuralType((AxisType(B.kind, 8), T)),
            Result.DIM_INCOMPATIBLE,
        ),
        # nor is it without a size of its own
        (NeuralType((B, AxisType(AxisKind.Any, 3))), NeuralType((B, AxisType(D.kind, 4))), Result.DIM_INCOMPATIBLE),
    ],
)
def test_an_any_axis_never_hides_a_mismatch(first: NeuralType, second: NeuralType, result: Result) -> None:
    assert first.compare(second) is result


def test_a_void_port_without_axes_takes_everything() -> None:
    wires = [
        NeuralType("B T C", SpectrogramType()),
        NeuralType("B T", SpectrogramType()),
        NeuralType((*listed(AxisKind.Batch, AxisKind.Time), AxisType(D.kind, 32)), ChannelType()),
        NeuralType(elements_type=LossType()),
        NeuralType(),
    ]
    for port in (NeuralType(), NeuralType(elements_type=VoidType())):
        assert [port.compare(wire) for wire in wires] == [Result.SAME] * 5


def test_a_void_port_with_axes_takes_every_element_of_these_axes_only() -> None:
    void, spectrogram = NeuralType("B T C"), NeuralType("B T C", SpectrogramType())
    assert void.compare(spectrogram) is Result.SAME
    assert spectrogram.compare(void) is Result.INCOMPATIBLE
    assert void.compare(NeuralType("B T", SpectrogramType())) is Result.INCOMPATIBLE


def test_a_port_without_axes_takes_no_wire_with_axes() -> None:
    scalar, vector = NeuralType(elements_type=LossType()), NeuralType("B", LossType())
    assert scalar.explain(vector) == (Result.INCOMPATIBLE, "B instead of no axes")
    assert vector.explain(scalar) == (Result.INCOMPATIBLE, "no axes instead of B")
    assert scalar.compare(NeuralType(elements_type=LossType())) is Result.SAME


def test_lists_and_tensors_differ_by_a_conversion() -> None:
    lists, tensors = NeuralType((*listed(AxisKind.Batch), T), LabelsType()), NeuralType("B T", LabelsType())
    assert tensors.explain(lists) == (Result.TRANSPOSE_SAME, "B is a list axis, not a tensor axis")
    assert lists.explain(tensors) == (Result.TRANSPOSE_SAME, "B is a tensor axis, not a list axis")


def test_a_fixed_size_is_taken_where_any_size_is() -> None:
    fixed = NeuralType((B, AxisType(D.kind, 128)), SpectrogramType())
    assert NeuralType("B D", SpectrogramType()).compare(fixed) is Result.SAME


def test_an_unknown_size_is_not_a_fixed_size_but_a_port_takes_it() -> None:
    port, wire = NeuralType((B, AxisType(D.kind, 64), T), SpectrogramType()), NeuralType("B D T", MelSpectrogramType())
    assert port.explain(wire) == (Result.DIM_INCOMPATIBLE, "D is of unknown size, not 64")
    assert port.takes(wire) == (Result.GREATER, "")
    assert not port.takes(NeuralType((B, AxisType(D.kind, 80), T), SpectrogramType())).fits
    assert not port.takes(NeuralType("T D B", SpectrogramType())).fits
    assert not port.takes(NeuralType("B D", SpectrogramType())).fits


def test_a_transposition_must_bring_the_sizes_together() -> None:
    wide, high = AxisType(D.kind, 3), AxisType(D.kind, 4)
    port = NeuralType((B, wide, high), ChannelType())
    assert port.compare(NeuralType((B, high, wide), ChannelType())) is Result.TRANSPOSE_SAME
    assert port.compare(NeuralType((wide, high, B), ChannelType())) is Result.TRANSPOSE_SAME
    assert port.compare(NeuralType((wide, D, B), ChannelType())) is Result.TRANSPOSE_SAME
    assert port.compare(NeuralType((high, high, B), ChannelType())) is Result.DIM_INCOMPATIBLE


def test_own_axis_kinds_are_axes_like_the_others() -> None:
    class Kind(AxisKindAbstract):
        Speaker = 0

    port = NeuralType((B, AxisType(Kind.Speaker)), ChannelType())
    assert port.brief == "B Speaker Channel"
    assert port.compare(NeuralType((B, AxisType(Kind.Speaker)), ChannelType())) is Result.SAME
    # A kind of another enumeration with the same number is another kind.
    assert port.compare(NeuralType("B B", ChannelType())) is Result.INCOMPATIBLE


# Reasons


@pytest.mark.parametrize(
    ("port", "wire", "reason"),
    [
        (
            NeuralType("B D T", SpectrogramType()),
            NeuralType("B T D", SpectrogramType()),
            "the axes are B T D, not B D T",
        ),
        (NeuralType("B D T", SpectrogramType()), NeuralType("B T", SpectrogramType()), "2 axes instead of 3"),
        (NeuralType("B D", ChannelType()), NeuralType("B T", ChannelType()), "T instead of D"),
        (NeuralType("B T", AudioSignal(16000)), NeuralType("B T", AudioSignal(8000)), "freq is 8000, not 16000"),
        (NeuralType("B", MaskType()), NeuralType("B", LabelsType()), "Labels is more general than Mask"),
        (NeuralType("B", LogitsType()), NeuralType("B", LabelsType()), "Labels is not Logits"),
        (NeuralType("B", Box("x", "y")), NeuralType("B", Box("x")), "the fields are ('x',), not ('x', 'y')"),
        (
            NeuralType("B D T", SpectrogramType()),
            NeuralType("B T", AudioSignal()),
            "AudioSignal(16000) is not Spectrogram; 2 axes instead of 3",
        ),
    ],
)
def test_a_refusal_gives_its_reason_in_words(port: NeuralType, wire: NeuralType, reason: str) -> None:
    comparison = port.explain(wire)
    assert not comparison.fits
    assert comparison.reason == reason


# Properties

KINDS = st.sampled_from([kind for kind in AxisKind if kind is not AxisKind.Any])
AXES = st.lists(st.builds(AxisType, KINDS, st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=4)
ELEMENTS = st.sampled_from([VoidType(), ChannelType(), SpectrogramType(), AudioSignal(8000), AudioSignal(16000)])


@given(AXES, ELEMENTS)
def test_every_type_is_the_same_as_itself(axes: list[AxisType], element: ElementType) -> None:
    assert NeuralType(axes, element).explain(NeuralType(axes, element)) == (Result.SAME, "")


@given(AXES, AXES, st.integers(0, 3))
def test_opening_one_axis_of_a_port_to_any_never_opens_the_others(
    port: list[AxisType], wire: list[AxisType], position: int
) -> None:
    opened = [AxisType(AxisKind.Any) if index == position else axis for index, axis in enumerate(port)]
    fits = NeuralType(opened, ChannelType()).explain(NeuralType(wire, ChannelType())).fits
    rest_fits = len(port) == len(wire) and all(
        a.kind is b.kind and a.size in (None, b.size)
        for index, (a, b) in enumerate(zip(port, wire, strict=True))
        if index != position
    )
    assert fits == rest_fits


@given(AXES, AXES, ELEMENTS, ELEMENTS)
@example(  # sizes that fit at each position, but not once each kind is at its place
    [AxisType(AxisKind.Batch), AxisType(AxisKind.Time, 1), AxisType(AxisKind.Batch), AxisType(AxisKind.Time, 1)],
    [AxisType(AxisKind.Time, 2), AxisType(AxisKind.Batch, 1), AxisType(AxisKind.Batch), AxisType(AxisKind.Time, 1)],
    VoidType(),
    VoidType(),
)
def test_a_reason_is_given_exactly_when_types_do_not_fit(
    first: list[AxisType], second: list[AxisType], mine: ElementType, other: ElementType
) -> None:
    comparison = NeuralType(first, mine).explain(NeuralType(second, other))
    assert bool(comparison.reason) is not comparison.fits


@given(st.permutations(["B", "D", "T"]))
def test_every_other_order_of_the_axes_is_a_transposition(order: list[str]) -> None:
    result = NeuralType("B D T", ChannelType()).compare(NeuralType(order, ChannelType()))
    assert result is (Result.SAME if order == ["B", "D", "T"] else Result.TRANSPOSE_SAME)


# NeMo's text, and what its older versions had


@pytest.mark.parametrize(
    ("ntype", "text"),
    [
        (NeuralType(("B", "T"), LabelsType()), "axes: (batch, time); elements_type: LabelsType"),
        (NeuralType("B", LengthsType()), "axes: (batch,); elements_type: LengthsType"),
        (NeuralType(None, LossType()), "axes: None; elements_type: LossType"),
        (
            NeuralType((AxisType(AxisKind.Batch, is_list=True), AxisType(AxisKind.Channel, 64)), ChannelType()),
            "axes: (batch_listdim, dimension:64); elements_type: ChannelType",
        ),
    ],
)
def test_str_is_the_text_of_nemos_graph_files(ntype: NeuralType, text: str) -> None:
    assert str(ntype) == text


def test_comparing_may_raise_with_the_names_of_module_and_port() -> None:
    port = NeuralType("B T", LabelsType())
    port.compare_and_raise_error("Loss", "targets", NeuralType("B T", PredictionsType()))
    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"Loss\.targets cannot take this type"):
        port.compare_and_raise_error("Loss", "targets", NeuralType("T B", LabelsType()))


def tagged(*axis_tags: type[BaseTag]) -> NeuralType:
    return NeuralType({index: AxisType(tag) for index, tag in enumerate(axis_tags)})


def test_tags_of_the_first_nemo_say_axes_and_some_elements() -> None:
    spectrogram = tagged(BatchTag, MelSpectrogramSignalTag, ProcessedTimeTag)
    assert spectrogram.brief == "B D T MelSpectrogram"
    assert NeuralType({0: AxisType(semantics=BatchTag, dim=4, descriptor="x")}).axes[0].size == 4
    assert NeuralType({}).compare(spectrogram) is Result.SAME
    assert NeuralType(None).axes is None


def test_a_port_of_a_base_tag_takes_the_derived_one_and_not_the_reverse() -> None:
    channels, mels = tagged(BatchTag, ChannelTag, TimeTag), tagged(BatchTag, MelSpectrogramSignalTag, ProcessedTimeTag)
    assert channels.compare(mels) is Result.GREATER
    assert mels.compare(channels) is Result.LESS
    assert mels.explain(channels).reason == (
        "ChannelTag is not MelSpectrogramSignalTag, TimeTag is not ProcessedTimeTag"
    )
    assert tagged(BatchTag, TimeTag).compare(tagged(BatchTag, ChannelTag)) is Result.INCOMPATIBLE


def test_tagged_types_and_later_ones_fit_by_what_the_tags_say() -> None:
    later = NeuralType("B D T", MelSpectrogramType())
    assert tagged(BatchTag, SpectrogramSignalTag, ProcessedTimeTag).explain(later).fits
    assert later.explain(tagged(BatchTag, MelSpectrogramSignalTag, ProcessedTimeTag)).fits
    assert NeuralType("B T D", LogprobsType()).explain(tagged(BatchTag, TimeTag, ChannelTag)).fits
    assert not later.explain(tagged(BatchTag, TimeTag)).fits
