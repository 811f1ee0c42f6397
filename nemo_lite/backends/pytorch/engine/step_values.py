"""The tensors of a training step, for callbacks; other wires are computed from them when asked for."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.distributed import needs_all_ranks
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.graph.dag import Dag, slice_between
from nemo_lite.core.neural_types.nm_tensor import ModuleCall, NmTensor
from nemo_lite.errors import DagError, did_you_mean


class StepValues:
    """The tensors of the step that just ran; wires outside the training DAG are computed from them when asked for."""

    def __init__(self, dag: Dag, precision: Precision) -> None:
        self._dag, self._precision = dag, precision
        self._names = dag.wires_by_name()
        self._values: dict[NmTensor, Any] = {}  # Any: values of wires are tensors, lists of texts or numbers
        self._fresh: tuple[Sequence[NmTensor], Sequence[object]] = ((), ())
        self._loss: torch.Tensor | None = None
        self._calls: Set[ModuleCall] = frozenset()
        self._continuations: dict[tuple[NmTensor, int], tuple[tuple[NmTensor, ...], nn.Module]] = {}

    def wire(self, name: str) -> NmTensor:
        """The wire of that name.

        Raises:
            DagError: no wire was renamed so.
        """
        if name not in self._names:
            known = ["loss", *self._names]
            raise DagError(
                f'no wire of this DAG is named "{name}"',
                remedy=f'known: {", ".join(known)}{did_you_mean(name, known)}; name one with wire.rename("{name}")',
            )
        return self._names[name]

    def extra_wires(self, wires: Sequence[NmTensor]) -> list[NmTensor]:
        """The wires of the training DAG that must be kept to give ``wires`` and all renamed ones."""
        wanted = list(dict.fromkeys([*wires, *self._names.values()]))
        return list(dict.fromkeys(wire for one in wanted for wire in self._dag.continuation([one]).inputs))

    def set(
        self, loss: torch.Tensor, calls: Set[ModuleCall], wires: Sequence[NmTensor], values: Sequence[object]
    ) -> None:
        """Take the values of a step that made ``calls``. Runs at every step: nothing is looked at before that."""
        self._loss, self._calls, self._fresh = loss, calls, (wires, values)

    def clear(self) -> None:
        """Let the step's tensors go."""
        self._loss = None
        self._fresh = ((), ())
        if self._values:
            self._values = {}

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """See :class:`nemo_lite.core.action_state.StepTensors`."""
        if isinstance(wire, str):
            if wire == "loss" and wire not in self._names:
                return None if self._loss is None else self._loss.detach()
            wire = self.wire(wire)
        if not self._values:
            wires, values = self._fresh
            self._values = {
                w: v.detach() if isinstance(v, torch.Tensor) else v for w, v in zip(wires, values, strict=True)
            }
        if wire not in self._values and compute:
            self._values[wire] = self._continue_to(wire)
        return self._values.get(wire)

    def _continue_to(self, wire: NmTensor) -> Any:
        """Compute a wire from what the step has. What the step computed is not repeated: dropout would differ."""
        key = (wire, id(self._calls))
        if key not in self._continuations:
            part = slice_between(self._fresh[0], [wire])
            if needs_all_ranks(m for m in (node.module for node in part.nodes) if isinstance(m, nn.Module)):
                raise DagError(
                    f"{wire.place} cannot be computed by one process alone",
                    got="a module on the way to it that exchanges statistics or weights with other processes",
                    remedy="make it part of what is trained, or evaluate it",
                )
            again = [node.name for node in part.nodes if node.call in self._calls]
            if again:
                raise DagError(
                    f"{wire.place} was not kept in this step",
                    got=f"it needs what {again[-1]} gave",
                    remedy='name the wire before training starts: wire.rename("...") keeps it',
                )
            self._continuations[key] = (part.inputs, lower(part, "Continuation").to(self._precision.device))
        inputs, module = self._continuations[key]
        with self._precision.prepared(module.children()), torch.no_grad(), self._precision.forward():
            return module(*(self._values[taken] for taken in inputs))[0]


class NoValues:
    """In place of :class:`StepValues` where nothing is trained."""

    def get_tensor(self, wire: str | NmTensor, compute: bool = True) -> Any:
        """Raises DagError: there was no step."""
        raise DagError("there is no training step to read tensors of", got=str(wire))
