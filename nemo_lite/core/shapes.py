"""Symbolic sizes: what can be said about a wire's shape before any data is read. No modules and no drawing in this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nemo_lite.core.neural_types import AxisKind, AxisType, NeuralType
from nemo_lite.errors import UsageError


@dataclass(frozen=True)
class Expr:
    """A size that follows from other sizes. Build one with :func:`symbol`, :func:`ceil_div`, :func:`named` and ``+ - *``."""

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
        return self if other == 0 else Expr(f"{self}+{other}", int.__add__, (self, other))

    def __sub__(self, other: Expr | int) -> Expr:
        return self if other == 0 else Expr(f"{self}-{_bracketed(other)}", int.__sub__, (self, other))

    def __mul__(self, other: Expr | int) -> Expr:
        return self if other == 1 else Expr(f"{_bracketed(self)}*{_bracketed(other)}", int.__mul__, (self, other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        return self.name or self.text


Size = int | Expr
Shape = tuple[Size, ...]


def symbol(name: str) -> Expr:
    """A size that only the data knows, e.g. ``B`` or ``T``."""
    return Expr(name)


def named(name: str, size: Size) -> Expr:
    """The same size, shown as ``name``; :func:`definitions` gives the legend."""
    expr = size if isinstance(size, Expr) else Expr(str(size), lambda: size)
    return Expr(expr.text, expr.operation or _same, expr.operands or (expr,), name)


def ceil_div(size: Size, divisor: int) -> Size:
    """``size / divisor``, rounded up; written ``T/2``. Nested divisions become one: ceil(ceil(x/a)/b) = ceil(x/(ab))."""
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
    return Expr(f"{_bracketed(size)}//{divisor}", int.__floordiv__, (size, divisor))


def shape_of(ntype: NeuralType) -> Shape:
    """What a type alone says: fixed sizes, ``B`` for the batch, and the axis' letter with a ``?`` for the rest."""
    return tuple(_size_of(axis) for axis in ntype.axes or ())


def written(shape: Shape) -> str:
    """``B 64 T``; a value without axes is a ``scalar``."""
    return " ".join(str(size) for size in shape) or "scalar"


def definitions(shapes: Mapping[str, Shape]) -> dict[str, str]:
    """The named sizes among these shapes and what they stand for: ``{"T": "samples/160"}``."""
    sizes = [size for shape in shapes.values() for size in shape]
    return {size.name: size.text for size in sizes if isinstance(size, Expr) and size.name}


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
