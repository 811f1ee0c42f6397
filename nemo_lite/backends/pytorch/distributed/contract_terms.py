"""Agreement: collects what an action is about to run, as a contract, and sees that all ranks have the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import Entries, RunContract, check_equal
from nemo_lite.core.callbacks.base import Callback, CallbackList
from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.core.run_options import InferOptions, LrPolicy, RunOptions
from nemo_lite.utils.digests import (
    Content,
    Plain,
    digest_of,
    digest_of_files,
    digest_of_package,
    plain_values,
    unused_name,
)

# Any: arguments are what a script gives.


class Agreement:
    """What the actions of a factory share with those of the other ranks.

    Args:
        comm: the ranks.
        settings: arguments of the factory, by name.
        files: configuration files; they count by name and content, not by folder.
    """

    def __init__(self, comm: Comm, settings: Mapping[str, Any], files: Iterable[str | Path] = ()) -> None:
        self._comm, self._files = comm, files
        self._settings = {**settings, "number of ranks": comm.world_size}

    def reached_on(
        self, action: str, given: Mapping[str, Any], dags: Mapping[str, Dag], called: CallbackList | None = None
    ) -> Callable[[], RunContract]:
        """See that all ranks are about to do the same. Gives the contract, which is made when it is first asked for.

        Args:
            action: what was called: ``train``, ``eval``, ``infer``.
            given: its arguments by name; mappings of them become an entry for each key.
            dags: by a name for messages, e.g. ``training DAG``. Their modules count.
            called: the callbacks; what they evaluate counts as a DAG.

        Raises:
            UsageError: ranks differ, or a file cannot be read.
        """
        contract = cache(lambda: self._contract(action, given, dags, called or CallbackList([])))
        check_equal(self._comm, contract)
        return contract

    def _contract(
        self, action: str, given: Mapping[str, Any], dags: Mapping[str, Dag], called: CallbackList
    ) -> RunContract:
        evaluated = {f"evaluation DAG {number}": Dag(wires) for number, wires in enumerate(called.eval_wires, 1)}
        all_dags = {**dags, **evaluated}
        settings = {**self._settings, **_of_cudnn()}
        # What is not given to an action is as the factory has it.
        asked = {name: value for name, value in given.items() if value is not None or name not in self._settings}
        used = [node.module for dag in all_dags.values() for node in _nodes(dag)]
        modules = list({id(module): module for module in used}.values())
        of_modules, of_data = _fingerprints(modules)
        return RunContract(
            run={"run id": self._comm.run_id, "attempt id": self._comm.attempt_id},
            action={"action": action},
            arguments=_plain(asked | {name: each for name, each in settings.items() if name not in asked}),
            callbacks=_of_callbacks(called),
            modules=of_modules,
            wiring={name: digest_of(_wiring(dag)) for name, dag in all_dags.items()},
            configuration=digest_of_files(self._files),
            data=of_data,
            code=dict(_codes(modules)) | digest_of_files(_script()) | _versions(),
            weights=_weights(modules),
        )


def training_arguments(
    pairs: Iterable[tuple[str | Optimizer, Any]],
    params: Mapping[str, Any],
    lr_policy: LrPolicy | None,
    options: RunOptions,
) -> dict[str, Any]:
    """The arguments of ``train``; ``pairs`` are optimizers with their losses."""
    found: dict[str, Any] = {}
    for optimizer in dict.fromkeys(optimizer for optimizer, _ in pairs):
        name = unused_name("optimizer", found)
        found[name] = optimizer if isinstance(optimizer, str) else type(optimizer).__qualname__
        if isinstance(optimizer, Optimizer):
            found |= {f"{name}.{key}": value for key, value in _settings_of(optimizer).items()}
    found |= {**params, **{each.name: getattr(options, each.name) for each in fields(options)}}
    return found | {"lr_policy": lr_policy, **_named("lr_policy", getattr(lr_policy, "__dict__", {}))}


def inference_arguments(options: InferOptions) -> dict[str, Any]:
    """The arguments of ``infer``; rank 0 alone shows progress and reads the folder of checkpoints."""
    restored = None if options.modules_to_restore is None else [module.label for module in options.modules_to_restore]
    of_rank_0 = ("verbose", "ckpt_pattern", "checkpoint_dir", "modules_to_restore")
    plain = {each.name: getattr(options, each.name) for each in fields(options) if each.name not in of_rank_0}
    return {**plain, "restores a checkpoint": options.checkpoint_dir is not None, "modules_to_restore": restored}


def _plain(values: Mapping[str, Any]) -> dict[str, Plain]:
    # Options in an object count by their values; a policy is such an object too, but it has an entry for its class.
    options = {key: asdict(each) for key, each in values.items() if is_dataclass(each) and not callable(each)}
    return {name: each for key, value in {**values, **options}.items() for name, each in plain_values(key, value)}


def _of_cudnn() -> dict[str, bool]:
    cudnn = torch.backends.cudnn
    return {"cudnn_benchmark": cudnn.benchmark, "cudnn_deterministic": cudnn.deterministic}


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


def _settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's options; those in which its groups of parameters differ as a list."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {key: groups[0][key] if len(groups) == 1 else [group.get(key) for group in groups] for key in groups[0]}


def _of_callbacks(callbacks: Iterable[Callback]) -> Entries:
    """The place of each in the list, what it says of itself, and what it reads of a step."""
    found: dict[str, Any] = {}
    for index, callback in enumerate(callbacks):
        name = unused_name(type(callback).__qualname__, found)
        read = [*(wire.place for wire in callback.wanted_wires()), *callback.wanted_names()]
        found |= {name: f"callbacks[{index}]", **_named(name, callback.fingerprint()), f"{name} reads": read}
    return _plain(found)


def _fingerprints(modules: Iterable[NeuralModule]) -> tuple[Entries, Entries]:
    """What the modules say of themselves, and of the data that they read."""
    found: dict[str, Any] = {}
    for module in modules:
        for name, value in module.fingerprint().items():
            found[unused_name(name, found)] = value
    data = {name: str(value) for name, value in found.items() if isinstance(value, Content)}
    return _plain({name: value for name, value in found.items() if name not in data}), data


def _weights(modules: Iterable[NeuralModule]) -> Entries:
    """``encoder.0.weight: float32 (256, 64), trained``"""
    found: dict[str, Plain] = {}
    for module in modules:
        for name, weight in module.named_parameters() if isinstance(module, nn.Module) else ():
            shape = "no shape yet" if nn.parameter.is_lazy(weight) else tuple(weight.shape)
            use = "trained" if weight.requires_grad else "frozen"
            key = unused_name(f"{module.label}.{name}", found)
            found[key] = f"{str(weight.dtype).removeprefix('torch.')} {shape}, {use}"
    return found


def _nodes(dag: Dag) -> tuple[Node, ...]:
    return (dag.data_node, *dag.nodes)


def _codes(modules: Iterable[NeuralModule]) -> Iterator[tuple[str, str]]:
    """``code of <package>`` with its version, where it has one, and the digest of its source."""
    packages = (type(module).__module__.partition(".")[0] for module in modules)
    for name in dict.fromkeys([__name__.partition(".")[0], *packages]):
        package = sys.modules.get(name)
        file = getattr(package, "__file__", None)
        if name == "__main__" or file is None:
            continue
        path = Path(file)
        digest = digest_of_package(path.parent) if path.name == "__init__.py" else digest_of_files([path])[path.name]
        yield f"code of {name}", f"{getattr(package, '__version__', '')} {digest}".strip()


def _script() -> list[str]:
    """The running script, if there is one: a notebook has none."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return [file] if file else []


def _versions() -> dict[str, Plain]:
    """Those of torch, and on a machine with GPUs those of what computes and exchanges there."""
    found: dict[str, Plain] = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch's
        found |= {"CUDA": torch.version.cuda, "nccl": ".".join(map(str, nccl))}
    return found


def _wiring(dag: Dag) -> list[str]:
    """The DAG in words: a line for each node, with its class, what it takes and what it gives."""
    names = {node.call: node.name for node in _nodes(dag)}
    lines = []
    for node in _nodes(dag):
        taken = ", ".join(f"{port}={names[wire.call]}.{wire.output_port_name}" for port, wire in node.inputs.items())
        given = ", ".join(f"{port}: {wire.ntype.brief}" for port, wire in node.outputs.items())
        lines.append(f"{node.name} = {type(node.module).__qualname__}({taken}) -> {given}")
    return [*lines, *(f"{names[wire.call]}.{wire.output_port_name}" for wire in dag.outputs)]
