"""What the callback functions of an evaluation share: values by port, and losses weighed by utterances."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from nemo_lite.errors import UsageError

# Any: evaluated values are tensors, lists or numbers.
# Port name -> the wires from ports of that name, each with its unique name `port~~~module~~~id` and its values.
ValuesByPort: TypeAlias = dict[str, list[tuple[str, Sequence[Any]]]]

EPOCH_LINE = "==========>>>>>>Evaluation"


class ScalarWriter(Protocol):
    """What is needed of a TensorBoard writer."""

    def add_scalar(self, tag: str, scalar_value: float, /) -> object: ...


class LineWriter(Protocol):
    """What is needed of a logger."""

    def info(self, line: str, /) -> object: ...


def by_port(tensors: Mapping[str, Any], known: Mapping[str, str] | None = None) -> ValuesByPort:
    """The values by port name; ``known`` gives wires, by their unique names, the port name to go by."""
    ports: ValuesByPort = {}
    for name, values in tensors.items():
        port = (known or {}).get(name) or name.partition("~~~")[0]
        ports.setdefault(port, []).append((name, values))
    return ports


def take(wires: ValuesByPort, ports: Sequence[str], needed: bool = True) -> Sequence[Any]:
    """The values, one for each worker, of the wire from the first of ``ports`` that was evaluated."""
    port = next((port for port in ports if port in wires), None)
    if port is None:
        if not needed:
            return ()
        raise UsageError(
            f"no evaluated tensor comes from a port called {' or '.join(ports)}",
            got=", ".join(wires),
            remedy="add it to eval_tensors",
        )
    (name, values), *others = wires[port]
    if others:
        raise UsageError(
            f"two evaluated tensors come from ports called {port}",
            got=" and ".join([name, *(other for other, _ in others)]),
            remedy="evaluate one of them, or collect them in a callback of your own",
        )
    return values


def collect_losses(wires: ValuesByPort, sizes: Sequence[int], global_vars: MutableMapping[str, Any]) -> None:
    """Add the losses of one evaluated batch, where a loss was evaluated, each with its number of utterances."""
    if losses := take(wires, ["loss"], needed=False):
        global_vars.setdefault("EvalLoss", []).extend(losses)
        global_vars.setdefault("EvalSize", []).extend(sizes)


def mean_loss(global_vars: Mapping[str, Any]) -> float:
    """The mean over utterances: a small last batch weighs as little as it is, and the order of batches does not."""
    sizes: list[int] = global_vars["EvalSize"]
    weighted = sorted(float(loss) * size for loss, size in zip(global_vars["EvalLoss"], sizes, strict=True))
    return sum(weighted) / sum(sizes)
