"""Modules and parts of DAGs as files for other programs (ONNX, TorchScript, weights), compared with torch."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.checkpoint.storage import save
from nemo_lite.backends.pytorch.checkpoint.torch_files import own_tensors
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.module_state import evaluating, modules_of
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import check_replaceable, make_writable_folder, refuse_existing, write_atomically
from nemo_lite.core.dag import Dag, slice_between
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.neural_types import AxisKind, AxisKindAbstract, NeuralType, NmTensor
from nemo_lite.core.ports import Ports
from nemo_lite.core.run_options import DeploymentFormat
from nemo_lite.utils import logging

# Any: what the packages onnx and onnxruntime give has no types.

INSTALL = "pip install onnx onnxscript onnxruntime"
_EXPORTERS_LOG = "torch.onnx"
_IR_VERSION = 9  # which came with opset 20; torch's exporter writes a later one, which ONNX Runtime refuses before 1.18
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
        names = [argument.name for argument in self.session.get_inputs()]
        arrays = {name: value.detach().cpu().numpy() for name, value in zip(names, values, strict=True)}
        return tuple(map(torch.from_numpy, self.session.run(None, arrays)))


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
    program.model.ir_version = _IR_VERSION
    program.model.metadata_props.update(metadata or {})
    _multiply_by_masks(program.model.graph)
    _forget_sources(program.model.graph)

    def write(temporary: Path) -> None:
        program.save(temporary, external_data=False)
        logging.info("%s: comparing the file with the model in torch", path.name)
        check(OnnxRun.of(temporary))

    write_atomically(path, write)


def _program(module: nn.Module, arguments: Sequence[Argument], outputs: Sequence[str], place: str) -> Any:
    """torch's ``ONNXProgram`` of a module."""
    recurrent = {type(part).__name__ for part in module.modules() if isinstance(part, nn.RNNBase)}
    slow = f"; torch writes each step of {', '.join(sorted(recurrent))} out, which may take very long" * bool(recurrent)
    logging.info("%s: tracing the model, which may take minutes%s", place, slow)
    shapes: tuple[object, ...] = tuple(dict(argument.axes) for argument in arguments)
    if any(param.kind is param.VAR_POSITIONAL for param in signature(module.forward).parameters.values()):
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


def _forget_sources(graph: Any) -> None:
    """Drop what torch says of where nodes come from: lines of code with the folders of this machine."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(graph):
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for holder in (graph, *graph.inputs, *graph.initializers.values()):
        holder.metadata_props.clear()


def _multiply_by_masks(graph: Any) -> None:
    """Write ``Where(mask, x, 0)`` as ``x`` times the mask, for which ONNX Runtime takes half the time on a CPU.

    Not where ``x`` is an input of the file, which may hold NaN behind its length, or a constant, which may be infinite:
    times 0 both are NaN.
    """
    import onnx_ir as ir

    factors: dict[tuple[Any, bool], Any] = {}
    for node in list(graph):
        if node.op_type != "Where":
            continue
        mask, kept, masked = node.inputs
        is_inverse = _is_zero(kept)
        x = masked if is_inverse else kept
        if not (is_inverse or _is_zero(masked)) or x.is_graph_input() or ir.convenience.get_const_tensor(x) is not None:
            continue
        if (mask, is_inverse) not in factors:
            steps = [ir.node("Not", [mask])] if is_inverse else []
            steps += [ir.node("Cast", [steps[0].outputs[0] if steps else mask], {"to": ir.DataType.FLOAT})]
            graph.insert_before(node, steps)
            factors[mask, is_inverse] = steps[-1].outputs[0]
        product = ir.node("Mul", [x, factors[mask, is_inverse]], name=node.name)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [product], node.outputs, product.outputs)


def _is_zero(value: Any) -> bool:
    """Whether a value of a graph is one float32 that is 0."""
    import onnx_ir as ir

    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape):
        return False
    return bool(tensor.numpy() == 0.0)


def reason_of(error: BaseException) -> str:
    """The reason at the bottom of an error of torch's exporters, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes about packages that it does not need here."""
    logger = getLogger(_EXPORTERS_LOG)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


Run = Callable[..., "tuple[Tensor, ...]"]


def export_wires(
    outputs: Mapping[str, NmTensor],
    examples: Mapping[str, Tensor],
    path: str | Path,
    check: Callable[[Run, OnnxRun], object],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write what computes some wires from a batch of their data layer, in evaluation mode, as one ONNX file.

    The modules are the user's own, and are left as they were. Batch and time axes of the data layer's ports have any
    size in the file.

    Args:
        outputs: wires of one DAG by their names in the file, in order.
        examples: a value for each port of the data layer, in port order, by its name in the file.
        path: the file.
        check: compares the module in torch with the file; an error that it raises leaves no file.
        metadata: texts by name that the file carries.

    Raises:
        DagError: wires that do not form one DAG with one data layer.
        UsageError: see :func:`write_onnx`.
    """
    ntypes = Dag(list(outputs.values())).data_layer.output_ports.values()
    arguments = [
        Argument(name, value, dynamic_axes(ntype))
        for (name, value), ntype in zip(examples.items(), ntypes, strict=True)
    ]
    with evaluated_part(list(outputs.values())) as lowered:
        write_onnx(lowered, arguments, list(outputs), path, lambda run: check(lowered, run), metadata)


@contextmanager
def evaluated_part(outputs: Sequence[NmTensor], inputs: Sequence[NmTensor] = ()) -> Iterator[nn.Module]:
    """What computes some wires, with its modules in evaluation mode and without gradients; they are left as they were.

    Args:
        outputs: wires of one DAG.
        inputs: the wires from which they are computed; none: those of the data layer.

    Raises:
        DagError: wires that do not form one DAG, or outputs that need more than the inputs.
    """
    dag = Dag(list(outputs))
    part = slice_between(inputs, outputs) if inputs else dag.slice()
    with evaluating(modules_of(dag)), torch.no_grad():
        yield lower(part)


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
        formats = ", ".join(written.name for written in _WRITERS)
        raise UsageError("this format cannot be written", place=str(path), got=str(d_format), wanted=formats)
    if not isinstance(module, nn.Module):
        raise UsageError("only modules of torch are exported", place=str(path), got=type(module).__name__)
    make_writable_folder(path.parent)
    if d_format is not DeploymentFormat.JARVIS:
        refuse_existing(path)
    exported: nn.Module = copy.deepcopy(module).cpu().eval()
    assert isinstance(exported, NeuralModule)
    prepared, _ = exported._prepare_for_deployment()
    _WRITERS[d_format](exported, path, prepared if input_example is None else input_example)


def _write_state(module: NeuralModule, path: Path, example: Example) -> None:
    """The state dict, as ``torch.save`` writes it, and the constructor's arguments as JSON beside it."""
    assert isinstance(module, nn.Module)
    try:
        arguments = json.dumps(module.init_params, indent=1)
    except (TypeError, ValueError) as error:
        problem = f"the arguments of {type(module).__name__} cannot be written as JSON"
        raise UsageError(problem, place=str(path), got=str(error)) from None
    refuse_existing(Path(f"{path}.json"))
    save(own_tensors(module.state_dict()), path)
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
                part = _ExportedPart.of(module, example, str(path))
                script = torch.jit.trace(part, part.examples, check_trace=False)
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
    part = _ExportedPart.of(module, example, str(path))
    named = zip(part.inputs.items(), part.examples, strict=True)
    arguments = [Argument(name, _widened(value, axes), axes) for (name, axes), value in named]

    def check(run: OnnxRun) -> None:
        difference = _compare(part, run, path)
        logging.info("%s: compared with ONNX Runtime: largest difference %.1e", path, difference)

    write_onnx(part, arguments, part.outputs, path, check)


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


class _ExportedPart(nn.Module):
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
    def of(cls, module: NeuralModule, example: Example, place: str) -> _ExportedPart:
        """With examples by port.

        Raises:
            UsageError: more or fewer values than ports, or something else than tensors.
        """
        enabled = _enabled(module.input_ports, module._disabled_deployment_input_ports)
        values = [example] if isinstance(example, Tensor) else list(example or ())
        named = dict(zip(enabled if len(values) <= len(enabled) else module.input_ports, values, strict=False))
        if named.keys() < enabled.keys() or not all(isinstance(value, Tensor) for value in values):
            wanted = f"tensors for {', '.join(enabled)}"
            got = ", ".join(type(value).__name__ for value in values)
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
        outputs = self.module.forward(**dict(zip(self.inputs, values, strict=True)))
        if isinstance(outputs, Tensor):
            return outputs
        taken = [outputs[index] for index in self._taken] if len(outputs) > len(self.outputs) else outputs
        return tuple(taken) if len(taken) > 1 else taken[0]


def _enabled(ports: Ports, disabled: Iterable[str]) -> Ports:
    return {port: ntype for port, ntype in ports.items() if port not in set(disabled)}


def _widened(value: Tensor, axes: Mapping[int, str]) -> Tensor:
    """With two of what it has one of along free axes: exporters take a size of 1 for a constant."""
    for axis in axes:
        value = value.repeat_interleave(2, axis) if value.shape[axis] == 1 else value
    return value


def _compare(part: _ExportedPart, run: Callable[..., Tensor | tuple[Tensor, ...]], path: Path) -> float:
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
                shapes = ", ".join(str(tuple(value.shape)) for value in values)
                details = f"{tuple(got.shape)}{apart}, for inputs of {shapes}"
                raise UsageError(problem, place=str(path), got=details, wanted=f"{tuple(wanted.shape)}")
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
