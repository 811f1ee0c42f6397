"""Symbolic sizes: what can be said about a wire's shape before any data is read. No modules and no drawing here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nemo_lite.core.neural_types import AxisKind, AxisType, NeuralType
from nemo_lite.errors import UsageError


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
    operation, operands = (
        (size.operation, size.operands) if isinstance(size, Expr) and size.operands else (_same, (size,))
    )
    return Expr(size.text if isinstance(size, Expr) else str(size), operation, operands, name)


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
    """What a type alone says: fixed sizes, ``B`` for the batch, and the axis' letter with a ``?`` for the rest."""
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


def _same(size: int) -> int:
    return size


def _ceil_div(size: int, divisor: int) -> int:
    return -(-size // divisor)


def _bracketed(size: Size) -> str:
    text = str(size)
    return f"({text})" if isinstance(size, Expr) and not size.name and any(sign in text for sign in "+-*/") else text
