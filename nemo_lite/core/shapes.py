"""Symbolic shapes: what is known of a wire's shape before any data is read, alone and along a DAG. No drawing here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nemo_lite.base.errors import DagError, NemoLiteError, UsageError, with_line
from nemo_lite.core.neural_types import AxisKind, AxisType, NeuralType

if TYPE_CHECKING:
    from nemo_lite.core.dag import Dag
    from nemo_lite.core.neural_types import NmTensor


@dataclass(frozen=True)
class Expr:
    """A size that follows from other sizes.

    Made by :func:`symbol`, :func:`ceil_div`, :func:`floor_div`, :func:`named` and by ``+``, ``-``, ``*`` with sizes.
    """

    text: str
    operation: Callable[..., int] | None = None
    operands: tuple[Expr | int, ...] = ()
    name: str = ""

    def value(self, **symbols: int) -> int:
        """The size in numbers.

        Raises:
            UsageError: a symbol that the expression needs is not given.
        """
        if self.operation is None:
            if self.text not in symbols:
                raise UsageError(f"size {self.text} is not known", remedy=f"give {self.text}=...")
            return symbols[self.text]
        return self.operation(*(o.value(**symbols) if isinstance(o, Expr) else o for o in self.operands))

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, Expr):
            return Expr(f"{self}+{other}", operator.add, (self, other))
        base, so_far = self._split()
        total = so_far + other
        return Expr(f"{base}{total:+d}", operator.add, (base, total)) if total else base

    def __sub__(self, other: Expr | int) -> Expr:
        if isinstance(other, Expr):
            return Expr(f"{self}-{_bracketed(other)}", operator.sub, (self, other))
        return self + -other

    def __mul__(self, other: Expr | int) -> Expr:
        return self if other == 1 else Expr(f"{_bracketed(self)}*{_bracketed(other)}", operator.mul, (self, other))

    __radd__ = __add__
    __rmul__ = __mul__

    def _split(self) -> tuple[Expr, int]:
        """The expression without the number that is added to it, and that number."""
        if self.operation is operator.add and not self.name:
            base, number = self.operands
            if isinstance(base, Expr) and isinstance(number, int):
                return base, number
        return self, 0

    def __str__(self) -> str:
        return self.name or self.text


Size = int | Expr
Shape = tuple[Size, ...]


def symbol(name: str) -> Expr:
    """A size that only the data knows, e.g. ``B`` or ``T``."""
    return Expr(name)


def named(name: str, size: Size) -> Expr:
    """The same size, shown as ``name``; :func:`definitions` gives the legend."""
    if isinstance(size, Expr) and size.operands:
        return replace(size, name=name)
    return Expr(str(size), operator.pos, (size,), name)


def ceil_div(size: Size, divisor: int) -> Size:
    """``size / divisor``, rounded up; written ``T/2``. Nested divisions are one: ceil(ceil(x/a)/b) = ceil(x/(ab))."""
    if isinstance(size, int):
        return _ceil_div(size, divisor)
    if divisor == 1:
        return size
    if size.operation is _ceil_div and not size.name:
        inner, first = size.operands
        assert isinstance(first, int)
        return ceil_div(inner, first * divisor)
    return Expr(f"{_bracketed(size)}/{divisor}", _ceil_div, (size, divisor))


def floor_div(size: Size, divisor: int) -> Size:
    """``size / divisor``, rounded down; written ``T//2``."""
    if isinstance(size, int) or divisor == 1:
        return size // divisor if isinstance(size, int) else size
    return Expr(f"{_bracketed(size)}//{divisor}", operator.floordiv, (size, divisor))


def shape_of(ntype: NeuralType) -> Shape:
    """The sizes that a type alone gives: fixed ones, ``B`` for the batch, and the letter of the axis with a ``?``."""
    return tuple(_size_of(axis) for axis in ntype.axes or ())


def written(shape: Shape) -> str:
    """``B 64 T``; a value without axes is a ``scalar``."""
    return " ".join(str(size) for size in shape) or "scalar"


def symbols_of(size: Size) -> set[str]:
    """The symbols that a size depends on."""
    return {part.text for part in _parts(size) if part.operation is None}


def is_unknown(symbol: str) -> bool:
    """Whether a symbol stands for a size that nothing says: the axis' letter and a ``?``."""
    return symbol.endswith("?")


def definitions(shapes: Iterable[Shape]) -> dict[str, str]:
    """The named sizes among these shapes, and inside them, and what they stand for: ``{"T": "samples/160"}``.

    A name with several meanings gets all of them: ``samples/160 or samples/80``.
    """
    meanings: dict[str, dict[str, None]] = {}
    for part in (part for shape in shapes for size in shape for part in _parts(size)):
        if part.name:
            meanings.setdefault(part.name, {})[part.text] = None
    return {name: " or ".join(texts) for name, texts in meanings.items()}


def symbolic_shapes(dag: Dag) -> dict[NmTensor, Shape]:
    """The shape of every wire of the DAG, node after node by the modules' ``output_shapes``.

    Raises:
        UsageError: a module's rule fails, leaves out an output port, or gives a shape of another number of axes.
    """
    shapes: dict[NmTensor, Shape] = {}
    for node in (dag.data_node, *dag.nodes):
        inputs = {port: shapes[wire] for port, wire in node.inputs.items()}
        try:
            outputs = node.module.output_shapes(inputs)
        except NemoLiteError:
            raise
        except Exception as error:  # a rule of a user's own may raise anything
            kind = type(node.module)
            raise UsageError("output_shapes fails", place=kind.__name__, got=with_line(error, kind)) from error
        if not isinstance(outputs, Mapping):
            got, wanted = type(outputs).__name__, "a dictionary of shapes"
            raise UsageError("output_shapes gives no shapes", place=type(node.module).__name__, got=got, wanted=wanted)
        for port, wire in node.outputs.items():
            if port not in outputs or len(outputs[port]) != len(wire.ntype.axes or ()):
                raise UsageError(
                    "output_shapes does not follow the ports",
                    place=f"{type(node.module).__name__}.{port}",
                    got=written(outputs[port]) if port in outputs else "nothing",
                    wanted=wire.ntype.brief,
                )
            shapes[wire] = outputs[port]
    return shapes


@dataclass(frozen=True)
class AxisLength:
    """How long an axis is for an input of a certain length.

    Attributes:
        size: of the axis.
        symbol: the one that ``size`` depends on: the length of the input.
    """

    size: Size
    symbol: str

    def __call__(self, length: int) -> int:
        """The length of the axis."""
        return self.size if isinstance(self.size, int) else self.size.value(**{self.symbol: length})

    def of_all(self, lengths: Any) -> object:
        """(N,) the length of the axis for each of (N,) lengths of inputs, NumPy arrays of integers."""
        return lengths * 0 + (self.size if isinstance(self.size, int) else self.size.value(**{self.symbol: lengths}))

    @property
    def formula(self) -> str:
        """The size in full, without names for parts of it: equal where two are computed alike."""
        return _formula(self.size)


def frames_of(dag: Dag, wire: NmTensor, axis: AxisKind = AxisKind.Time) -> AxisLength:
    """How long an axis of a wire is for an input of a certain length: a function of the data layer's own size.

    For speech: from samples of audio to frames behind the encoder. Lengths are valid lengths, without padding.

    Args:
        dag: the DAG.
        wire: the wire whose axis is asked for.
        axis: which axis; the wire has one of this kind.

    Raises:
        DagError: the wire is not in the DAG.
        UsageError: there is no such axis, or its size does not follow from exactly one size of the data.
    """
    if wire not in dag:
        raise DagError(f"{wire.place} is not in this DAG")
    kinds = [axis_type.kind for axis_type in wire.ntype.axes or ()]
    if kinds.count(axis) != 1:
        raise UsageError(f"{wire.place} does not have one {axis} axis", got=wire.ntype.brief)
    shapes = symbolic_shapes(dag)
    size = shapes[wire][kinds.index(axis)]
    if isinstance(size, int):
        return AxisLength(size, "")
    symbols = symbols_of(size)
    from_data = {name for wire_of_data in dag.inputs for part in shapes[wire_of_data] for name in symbols_of(part)}
    if len(symbols) != 1 or not symbols <= from_data or any(map(is_unknown, symbols)):
        unknown = (
            type(node.module).__name__
            for node in (dag.data_node, *dag.nodes)
            for of_node in node.outputs.values()
            if any(is_unknown(name) for part in shapes[of_node] for name in symbols_of(part))
        )
        raise UsageError(
            f"the {axis} axis of {wire.place} does not follow from one size of the data",
            got=written(shapes[wire]),
            remedy=f"give an output_shapes to {next(unknown, 'the modules')}",
        )
    return AxisLength(size, next(iter(symbols)))


def _parts(size: Size) -> Iterable[Expr]:
    """The expressions inside a size, innermost first."""
    if isinstance(size, Expr):
        for operand in size.operands:
            yield from _parts(operand)
        yield size


def _size_of(axis: AxisType) -> Size:
    if axis.size is not None:
        return axis.size
    return symbol("B" if axis.kind is AxisKind.Batch else f"{axis.letter}?")


def _ceil_div(size: int, divisor: int) -> int:
    return -(-size // divisor)


def _bracketed(size: Size) -> str:
    text = str(size)
    return f"({text})" if isinstance(size, Expr) and not size.name and any(sign in text for sign in "+-*/") else text


def _formula(size: Size) -> str:
    if isinstance(size, int) or size.operation is None:
        return str(size) if isinstance(size, int) else size.text
    operands = ", ".join(map(_formula, size.operands))
    return f"{size.operation.__module__}.{size.operation.__qualname__}({operands})"
