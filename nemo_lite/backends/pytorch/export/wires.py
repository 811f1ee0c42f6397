"""Part of a DAG as one ONNX file: from the ports of its data layer to some wires. No files are written in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.engine.module_state import evaluating, modules_of
from nemo_lite.backends.pytorch.export.onnx_files import Argument, OnnxRun, dynamic_axes, write_onnx
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.core.graph.dag import Dag
from nemo_lite.core.neural_types.nm_tensor import NmTensor

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
    dag = Dag(list(outputs.values()))
    lowered: nn.Module = lower(dag.slice())
    ntypes = dag.data_layer.output_ports.values()
    arguments = [
        Argument(name, value, dynamic_axes(ntype))
        for (name, value), ntype in zip(examples.items(), ntypes, strict=True)
    ]
    with evaluating(modules_of(dag)), torch.no_grad():
        write_onnx(lowered, arguments, list(outputs), path, lambda run: check(lowered, run), metadata)
