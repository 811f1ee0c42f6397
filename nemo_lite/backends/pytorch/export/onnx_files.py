"""One module as one ONNX file, compared with torch before it gets its name. Which module and how, others decide."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nemo_lite.core.neural_types import AxisKind, AxisKindAbstract, NeuralType
from nemo_lite.errors import UsageError
from nemo_lite.utils.files import check_replaceable, write_atomically

# Any: what the packages onnx and onnxruntime give has no types.

INSTALL = "pip install onnx onnxscript onnxruntime"
_EXPORTERS_LOG = "torch.onnx"
_DYNAMIC: dict[AxisKindAbstract, str] = {AxisKind.Batch: "batch", AxisKind.Time: "time"}


class Argument(NamedTuple):
    """An input of an exported module.

    Attributes:
        name: in the file.
        example: a value, with at least two entries in each free axis: torch takes a size of 1 for a constant.
        axes: names of the axes whose sizes are free, by position.
    """

    name: str
    example: Tensor
    axes: Mapping[int, str]


def dynamic_axes(ntype: NeuralType) -> dict[int, str]:
    """The batch and time axes of a port, by position."""
    named = {index: _DYNAMIC.get(axis.kind) for index, axis in enumerate(ntype.axes or ())}
    return {index: name for index, name in named.items() if name}


@dataclass(frozen=True)
class OnnxRun:
    """A written file in ONNX Runtime, on the CPU.

    Attributes:
        path: the file.
        session: ONNX Runtime's.
    """

    path: Path
    session: Any = field(repr=False)

    @classmethod
    def of(cls, path: Path) -> OnnxRun:
        """Load a file.

        Raises:
            UsageError: onnxruntime is not installed.
        """
        require("onnxruntime")
        import onnxruntime

        return cls(path, onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]))

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The outputs for inputs in their order."""
        names = [each.name for each in self.session.get_inputs()]
        given = {name: value.detach().cpu().numpy() for name, value in zip(names, values, strict=True)}
        return tuple(map(torch.from_numpy, self.session.run(None, given)))


def require(*packages: str) -> None:
    """See that packages of the extra ``onnx`` are there.

    Raises:
        UsageError: one is not installed.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be installed for ONNX", remedy=INSTALL)


def write_onnx(
    module: nn.Module,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    path: str | Path,
    check: Callable[[OnnxRun], object],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one ONNX file with the weights in it; it gets its name only if ``check`` passes.

    Args:
        module: in the mode in which it is to be exported, on the CPU.
        arguments: its inputs in their order.
        outputs: names of its outputs in their order.
        path: the file.
        check: gets the written file, ready to run; an error that it raises is the export's, and no file is left.
        metadata: texts by name that the file carries.

    Raises:
        UsageError: a package is missing, torch's exporter cannot express the module, or the file cannot be written.
        ValueError: an example has a free axis of size 1.
    """
    path = Path(path)
    for name, example, axes in arguments:
        if any(example.shape[axis] < 2 for axis in axes):
            raise ValueError(f"the free axes of {name} must have at least 2 entries, got {tuple(example.shape)}")
    require("onnx", "onnxscript", "onnxruntime")
    check_replaceable(path)
    program = _program(module, arguments, outputs, path.name)
    program.model.producer_name = "nemo_lite"
    program.model.metadata_props.update(metadata or {})

    def write(temporary: Path) -> None:
        program.save(temporary, external_data=False)
        check(OnnxRun.of(temporary))

    write_atomically(path, write)


def _program(module: nn.Module, arguments: Sequence[Argument], outputs: Sequence[str], place: str) -> Any:
    """torch's ``ONNXProgram`` of a module."""
    shapes: tuple[object, ...] = tuple(dict(argument.axes) for argument in arguments)
    if any(each.kind is each.VAR_POSITIONAL for each in signature(module.forward).parameters.values()):
        shapes = (shapes,)  # of ``*values``, which is one parameter
    try:
        with _quiet(), torch.no_grad():
            return torch.onnx.export(
                module,
                tuple(argument.example for argument in arguments),
                input_names=[argument.name for argument in arguments],
                output_names=list(outputs),
                dynamic_shapes=shapes,
                dynamo=True,
                optimize=True,
                verbose=False,
            )
    except Exception as error:  # of torch.export and of the translation to ONNX, many classes of each
        got = reason_of(error)
        problem = f"torch cannot export {type(module).__name__} to ONNX"
        remedy = "write its forward without branches that depend on values of tensors"
        raise UsageError(problem, place=place, got=got, remedy=remedy) from error


def reason_of(error: BaseException) -> str:
    """What went wrong at the bottom of an error of torch's exporters, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes about packages that it does not need here."""
    logger = logging.getLogger(_EXPORTERS_LOG)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
