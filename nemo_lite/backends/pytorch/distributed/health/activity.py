"""Where a thread is, read off its stack from outside: it costs that thread nothing. Nothing is sent or judged here."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from nemo_lite.core.graph.neural_module import NeuralModule, subclasses

_TORCH = os.path.dirname(torch.__file__) + os.sep
_AUTOGRAD = os.path.join(_TORCH, "autograd")
_DATA = os.path.join(_TORCH, "utils", "data", "")
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = "site-packages"
_BACKEND = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_ENGINE, _CHECKPOINT = os.path.join(_BACKEND, "engine"), os.path.join(_BACKEND, "checkpoint")

_EXCHANGES = tuple(
    os.path.join(_TORCH, "distributed", name) for name in ("distributed_c10d.py", "_functional_collectives.py", "fsdp/")
)
_BACKWARD = "backward"


class Spot(NamedTuple):
    """Where a thread is.

    Attributes:
        text: in the words of a user.
        waits: other ranks may be waited for there: in an exchange, or in a backward pass, which exchanges gradients.
    """

    text: str
    waits: bool


class Whereabouts:
    """Says in the words of a user what a thread is doing.

    Args:
        thread_id: of the thread that is looked at, as ``threading.get_ident`` gives it.
    """

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._is_module_code: dict[CodeType, bool] = {}

    def now(self) -> Spot:
        """Where it is."""
        return self._spot(sys._current_frames().get(self._thread_id))

    def of(self, error: BaseException) -> Spot:
        """Where an error came from."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return self._spot(traceback.tb_frame if traceback else None)

    def _spot(self, innermost: FrameType | None) -> Spot:
        """``forward of encoder``, ``backward``, ``waiting for data``, ``writing a checkpoint``, ``evaluation``, or
        file, line and function of the innermost frame that is neither torch's nor of the standard library; in an
        exchange, its name before that: ``all_reduce in forward of encoder``."""
        known = own = exchange = ""
        for frame in _outward(innermost):
            code = frame.f_code
            known = self._module(frame) or _known(code)
            if known:
                break
            if not exchange and code.co_filename.startswith(_EXCHANGES):
                exchange = code.co_name
            if not own and not code.co_filename.startswith((_TORCH, _HERE, "<")) and not _is_standard(code.co_filename):
                own = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        text = known or own or "an unknown place"
        return Spot(f"{exchange} in {text}" if exchange else text, bool(exchange) or text == _BACKWARD)

    def _module(self, frame: FrameType) -> str:
        """``<method> of <module>`` if a method of a neural module runs in the frame."""
        code = frame.f_code
        if not self._belongs_to_module(code):
            return ""
        # Before Python 3.13 this makes a copy of the frame's variables that lives as long as the call does. Only
        # frames of modules are asked, not those of loops, which would keep the tensors of a whole epoch.
        module = frame.f_locals.get(code.co_varnames[0])
        if not isinstance(module, NeuralModule):
            return ""
        return f"{code.co_name} of {module.name}"

    def _belongs_to_module(self, code: CodeType) -> bool:
        if code.co_argcount == 0 or code.co_filename.startswith(_TORCH):
            return False
        if code not in self._is_module_code:
            self._is_module_code[code] = any(code is method for method in _methods(code.co_name))
        return self._is_module_code[code]


def _methods(name: str) -> Iterator[CodeType]:
    """The code of every method of that name that a neural module has, under its decorators."""
    for cls in subclasses(NeuralModule):
        for base in cls.__mro__:
            function = inspect.unwrap(vars(base)[name]) if callable(vars(base).get(name)) else None
            if inspect.isfunction(function):
                yield function.__code__


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_standard(path: str) -> bool:
    return path.startswith(_STANDARD_LIBRARY) and _PACKAGES not in path


def _known(code: CodeType) -> str:
    folder, name = os.path.split(code.co_filename)
    if folder == _AUTOGRAD and name == "graph.py":
        return _BACKWARD
    if code.co_filename.startswith(_DATA):
        return "waiting for data"
    if folder == _ENGINE:
        if name == "training.py" and code.co_name == "_all_finite":
            return _BACKWARD  # where a CPU waits for what its GPU does
        if name == "evaluation.py":
            return "evaluation"
    if folder == _CHECKPOINT:
        return "writing a checkpoint"
    return ""
