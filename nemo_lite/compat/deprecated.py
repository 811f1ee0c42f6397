"""``deprecated`` and ``add_port_docs``: decorators for warnings and docstrings. None changes what a call does."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nemo_lite.base.nemo_logging import logging

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(
    wrapped: F | None = None, version: str | float | None = None, explanation: str | None = None
) -> F | Callable[[F], F]:
    """Warn at the first call of the decorated function or class, naming the caller's line.

    In the log's style "nemo" the line is NeMo's: its head names this file, and not the caller.

    Works as ``@deprecated``, ``@deprecated()`` and with keywords.

    Args:
        wrapped: the function or class, where the decorator is used without brackets.
        version: the version that will remove it.
        explanation: what to use instead.
    """

    def decorate(target: F) -> F:
        if inspect.isclass(target):
            constructor = _warning_once(target.__init__, "Class", target.__name__, version, explanation)
            target.__init__ = constructor  # type: ignore[method-assign]
            return target
        return _warning_once(target, "Function", target.__name__, version, explanation)

    if wrapped is None or callable(wrapped):
        return decorate if wrapped is None else decorate(wrapped)
    return deprecated(version=wrapped, explanation=None if version is None else str(version))


def _warning_once(call: F, kind: str, name: str, version: str | float | None, explanation: str | None) -> F:
    text = f"{kind} ``{name}`` is deprecated."
    if version is not None:
        text += f" It is going to be removed in the {version} version."
    if explanation:
        text += f" {explanation}"
    warned = False

    @functools.wraps(call)
    def warning_once(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            caller = sys._getframe(1)
            if logging.style == "nemo":
                logging.warning("%s", text)
                return call(*args, **kwargs)
            logging.warning("%s:%d: %s", Path(caller.f_code.co_filename).name, caller.f_lineno, text, stacklevel=2)
        return call(*args, **kwargs)

    return warning_once  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type variable


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
