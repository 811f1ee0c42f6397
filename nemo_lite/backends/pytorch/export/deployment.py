"""factory.deployment_export: one trained module as files for other programs. ONNX files are written by `onnx_files`."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.checkpoint.torch_files import own_tensors, write_torch_file
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.backends.pytorch.export.onnx_files import Argument, dynamic_axes, reason_of, write_onnx
from nemo_lite.core.backend import DeploymentFormat
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.ports import Ports
from nemo_lite.errors import FileInTheWayError, UsageError
from nemo_lite.utils import logging
from nemo_lite.utils.files import make_writable_folder, write_atomically

# Any: TorchScript's objects have no types.
Example: TypeAlias = "Tensor | Sequence[Tensor] | None"

TOLERANCE = 1e-3
"""How far a value x of torch and of a written file may be apart: by ``TOLERANCE * (1 + |x|)``."""

# Rows, and times the example's frames, of the batches that a written file is compared on.
_COMPARED = ((1, 1.0), (2, 0.5), (3, 1.7))


class DeploymentExport:
    """The method of actions. They have ``_comm``, the ranks."""

    _comm: Comm

    def deployment_export(
        self,
        module: NeuralModule,
        output: str | Path,
        d_format: DeploymentFormat,
        input_example: Example = None,
        output_example: object = None,
    ) -> None:
        """See :meth:`NeuralModuleFactory.deployment_export`."""
        with self._comm.guarded():
            self._comm.on_first(lambda: export_module(module, output, d_format, input_example))


def export_module(
    module: NeuralModule, output: str | Path, d_format: DeploymentFormat, input_example: Example = None
) -> None:
    """See :meth:`NeuralModuleFactory.deployment_export`. A copy of the module is exported; it stays as it is."""
    path = Path(output).expanduser()
    if d_format not in _WRITERS:
        known = ", ".join(each.name for each in _WRITERS)
        raise UsageError("this format cannot be written", place=str(path), got=str(d_format), wanted=known)
    if not isinstance(module, nn.Module):
        raise UsageError("only modules of torch are exported", place=str(path), got=type(module).__name__)
    make_writable_folder(path.parent)
    if path.exists() and d_format is not DeploymentFormat.JARVIS:
        raise FileInTheWayError("the file exists already", place=str(path), remedy="give another name, or remove it")
    own: nn.Module = copy.deepcopy(module).cpu().eval()
    assert isinstance(own, NeuralModule)
    prepared, _ = own._prepare_for_deployment()
    _WRITERS[d_format](own, path, prepared if input_example is None else input_example)


def _write_state(module: NeuralModule, path: Path, example: Example) -> None:
    """The state dict, as ``torch.save`` writes it, and the constructor's arguments as JSON beside it."""
    assert isinstance(module, nn.Module)
    try:
        arguments = json.dumps(module.init_params, indent=1)
    except (TypeError, ValueError) as error:
        problem = f"the arguments of {type(module).__name__} cannot be written as JSON"
        raise UsageError(problem, place=str(path), got=str(error)) from None
    write_torch_file(path, own_tensors(module.state_dict()))
    write_atomically(Path(f"{path}.json"), lambda file: file.write_text(arguments, encoding="utf-8"))


def _write_torchscript(module: NeuralModule, path: Path, example: Example) -> None:
    """Traced on an example; without one compiled from the source of ``forward``."""
    assert isinstance(module, nn.Module)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch announces the end of TorchScript at each call
            if example is None:
                script: Any = torch.jit.script(_without_ports(module))
            else:
                part = _Part.of(module, example, str(path))
                script = torch.jit.trace(part, part.examples, check_trace=False)  # type: ignore[no-untyped-call]
                _compare(part, script, path)
            write_atomically(path, lambda file: torch.jit.save(script, file))
    except UsageError:
        raise
    except Exception as error:  # of the compiler, many classes
        remedy = "give an input_example" if example is None else "export to ONNX"
        problem = f"torch cannot make TorchScript of {type(module).__name__}"
        raise UsageError(problem, place=str(path), got=reason_of(error), remedy=remedy) from error


def _write_onnx(module: NeuralModule, path: Path, example: Example) -> None:
    """A file that gives torch's values for several sizes of the batch and time axes."""
    if example is None:
        problem, remedy = "ONNX needs an example", "give input_example, a tensor or a tuple in port order"
        raise UsageError(problem, place=str(path), got=f"none for {type(module).__name__}", remedy=remedy)
    part = _Part.of(module, example, str(path))
    named = zip(part.inputs.items(), part.examples, strict=True)
    arguments = [Argument(name, _widened(value, axes), axes) for (name, axes), value in named]
    found: list[float] = []
    write_onnx(part, arguments, part.outputs, path, lambda run: found.append(_compare(part, run, path)))
    logging.info("%s: compared with ONNX Runtime: largest difference %.1e", path, found[0])


def _write_by_itself(module: NeuralModule, path: Path, example: Example) -> None:
    deploy = getattr(module, "deploy_to_jarvis", None)
    if deploy is None:
        problem = f"{type(module).__name__} has no method deploy_to_jarvis"
        raise UsageError(problem, place=str(path), remedy="export to ONNX")
    deploy(output=str(path))


_WRITERS: dict[DeploymentFormat, Callable[[NeuralModule, Path, Example], None]] = {
    DeploymentFormat.PYTORCH: _write_state,
    DeploymentFormat.TORCHSCRIPT: _write_torchscript,
    DeploymentFormat.ONNX: _write_onnx,
    DeploymentFormat.TRTONNX: _write_onnx,
    DeploymentFormat.JARVIS: _write_by_itself,
}


class _Part(nn.Module):
    """A module with the ports that are exported only, as positional arguments.

    Attributes:
        inputs: the free axes of each input, by port.
        outputs: output ports.
        examples: a value for each input.
    """

    def __init__(self, module: nn.Module, inputs: Mapping[str, Mapping[int, str]], outputs: Sequence[str]) -> None:
        super().__init__()
        self.module, self.inputs, self.outputs = module, inputs, list(outputs)
        self.examples: tuple[Tensor, ...] = ()
        self._taken: list[int] = []

    @classmethod
    def of(cls, module: NeuralModule, example: Example, place: str) -> _Part:
        """With examples by port.

        Raises:
            UsageError: more or fewer values than ports, or something else than tensors.
        """
        enabled = _enabled(module.input_ports, module._disabled_deployment_input_ports)
        given = [example] if isinstance(example, Tensor) else list(example or ())
        named = dict(zip(enabled if len(given) <= len(enabled) else module.input_ports, given, strict=False))
        if named.keys() < enabled.keys() or not all(isinstance(value, Tensor) for value in given):
            wanted = f"tensors for {', '.join(enabled)}"
            got = ", ".join(type(value).__name__ for value in given)
            raise UsageError("the example does not fit the ports", place=place, got=got, wanted=wanted)
        assert isinstance(module, nn.Module)
        outputs = _enabled(module.output_ports, module._disabled_deployment_output_ports)
        part = cls(module, {port: dynamic_axes(ntype) for port, ntype in enabled.items()}, list(outputs))
        part.examples = tuple(named[port].detach().cpu() for port in enabled)
        part._taken = [list(module.output_ports).index(port) for port in outputs]
        return part.eval()

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The value of the exported output, or of each."""
        # Not called: a module that is connected without lengths gives fewer outputs than it has ports.
        found = self.module.forward(**dict(zip(self.inputs, values, strict=True)))
        if isinstance(found, Tensor):
            return found
        taken = [found[index] for index in self._taken] if len(found) > len(self.outputs) else found
        return tuple(taken) if len(taken) > 1 else taken[0]


def _enabled(ports: Ports, disabled: Iterable[str]) -> Ports:
    return {port: ntype for port, ntype in ports.items() if port not in set(disabled)}


def _widened(value: Tensor, axes: Mapping[int, str]) -> Tensor:
    """With two of what it has one of along free axes: exporters take a size of 1 for a constant."""
    for axis in axes:
        value = value.repeat_interleave(2, axis) if value.shape[axis] == 1 else value
    return value


def _compare(part: _Part, run: Callable[..., Tensor | tuple[Tensor, ...]], path: Path) -> float:
    """The largest difference between a module and what was made of it, over batches of several sizes.

    Raises:
        UsageError: another shape, or a value that is too far from torch's.
    """
    differences = []
    for rows, share in _COMPARED:
        examples = zip(part.examples, part.inputs.values(), strict=True)
        values = [_resized(value, axes, rows, share) for value, axes in examples]
        with torch.no_grad():
            pairs = zip(part.outputs, _as_tuple(run(*values)), _as_tuple(part(*values)), strict=True)
        for port, got, wanted in pairs:
            same = got.shape == wanted.shape
            if not same or not ((got - wanted).abs() <= TOLERANCE * (1 + wanted.abs())).all():
                apart = f", {(got - wanted).abs().max().item():.1e} apart" if same else ""
                problem = f"the exported {port} is not torch's, so no file is written"
                shapes = ", ".join(str(tuple(each.shape)) for each in values)
                told = f"{tuple(got.shape)}{apart}, for inputs of {shapes}"
                raise UsageError(problem, place=str(path), got=told, wanted=f"{tuple(wanted.shape)}")
            differences.append((got - wanted).abs().max().item())
    return max(differences)


def _as_tuple(values: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (values,) if isinstance(values, Tensor) else values


def _resized(value: Tensor, axes: Mapping[int, str], rows: int, share: float) -> Tensor:
    """Of ``rows`` rows and so many times the frames, from the values of an example."""
    for axis, name in axes.items():
        size = rows if name == "batch" else max(1, int(share * value.shape[axis]))
        value = torch.cat([value] * (-(-size // value.shape[axis])), axis).narrow(axis, 0, size)
    return value


def _without_ports(module: nn.Module) -> nn.Module:
    """The same with the methods of its class alone: TorchScript cannot compile ports."""
    methods = {name: value for name, value in vars(type(module)).items() if callable(value) and name != "__init__"}
    bare: nn.Module = nn.Module.__new__(type(type(module).__name__, (nn.Module,), methods))
    bare.__dict__.update(module.__dict__)
    return bare
