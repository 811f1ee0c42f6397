"""``deprecated`` and ``add_port_docs``: decorators for warnings and docstrings. None changes what a call does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from nemo_lite.utils.deprecated import deprecated as deprecated

F = TypeVar("F", bound=Callable[..., Any])


def add_port_docs(wrapped: F | str | None = None, instance: object = None, value: str = "") -> F | Callable[[F], F]:
    """List the ports of an ``input_ports`` or ``output_ports`` property in its docstring.

    Write it below ``@property``, with brackets or without. Ports that depend on the instance are not known when the
    class is made: their docstring stays as it is.

    Args:
        wrapped: the property's function, where the decorator is used without brackets.
        instance: accepted and not used, as in NeMo.
        value: a line to put before the list.
    """

    def decorate(ports_of: F) -> F:
        try:
            entries = [f"* *{name}* : {neural_type}" for name, neural_type in ports_of(None).items()]
        except Exception:  # the body may do anything with the missing instance
            entries = []
        parts = [inspect.getdoc(ports_of) or "", value, "\n".join(entries)]
        ports_of.__doc__ = "\n\n".join(part for part in parts if part) or None
        return ports_of

    if wrapped is None or isinstance(wrapped, str):
        value = wrapped or value
        return decorate
    return decorate(wrapped)
