"""The run contract, which all ranks must have alike, and what rank 0 says of the ranks. Copies: `replicas`.

Left out is what machines may differ in while the result stays the same: names of hosts, numbers and models of devices,
folders (files count by name and content), how the processes were launched, workers that load data, log levels, and what
rank 0 alone shows and writes.

The contract is everything that makes a run what it is; it is compared between ranks and with checkpoints.
Any: arguments are what a script gives, and what travels between ranks is plain values.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn
from torch.distributed import Store
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.rendezvous import RankIdentity, options_in
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.files import (
    Content,
    Plain,
    digest_of,
    digest_of_files,
    digest_of_package,
    plain_values,
    unused_name,
)
from nemo_lite.core.callbacks.base import Callback, CallbackList
from nemo_lite.core.dag import Dag, Node
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.core.run_options import InferOptions, LrPolicy, RunOptions

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_RANK_LINES = 16
_DEVICE_NUMBER = re.compile(r"^(cuda):[0-9]+")


def rank_table(backend: str, members: Sequence[RankIdentity], devices: Sequence[str]) -> str:
    """A table with a line for each rank: its host, device and network interface.

    With more than 16 ranks, one line for all ranks of a host, without the numbers of devices. Ranks of one host name
    count as two machines where their addresses differ.

    Args:
        backend: what exchanges the gradients: ``nccl``, ``gloo``.
        members: the ranks, in order.
        devices: each rank's: ``cpu``, or ``cuda:3 H200``.
    """
    fold = len(members) > _MOST_RANK_LINES
    machines = {(member.host, member.address) for member in members}
    reached_at = [f"{each.interface} ({each.address})" if each.interface else each.address for each in members]
    lines = grouped(
        ((member.host, address, None if fold else member.rank), (member.rank, device))
        for member, address, device in zip(members, reached_at, devices, strict=True)
    )
    rows = [("rank", "host", "device", "interface")]
    for (host, interface, _), there in lines:
        ranks, devices_there = zip(*there, strict=True)
        kinds = dict.fromkeys(_DEVICE_NUMBER.sub(r"\1", device) if fold else device for device in devices_there)
        rows.append((ranges(ranks), host, ", ".join(kinds), interface))
    title = f"{counted(len(members), 'rank')} on {counted(len(machines), 'machine')}, {backend}"
    return "\n".join([title, *aligned(rows)])


def effective_batch(per_rank: int, world_size: int, accumulated: int, unit: str) -> str:
    """``64 x 4 ranks x 2 accumulated = 512 utterances per step``.

    Args:
        per_rank: items in a batch of one rank.
        world_size: number of ranks.
        accumulated: micro-batches of a rank in a step.
        unit: what is counted: ``items``, ``utterances``.
    """
    factors = [str(per_rank)]
    factors += [f"{world_size} ranks"] if world_size > 1 else []
    factors += [f"{accumulated} accumulated"] if accumulated > 1 else []
    product = f"{per_rank * world_size * accumulated} {unit} per step"
    return f"{' x '.join(factors)} = {product}" if len(factors) > 1 else product


def ranges(numbers: Iterable[int]) -> str:
    """``0-3, 5, 6`` for 0, 1, 2, 3, 5, 6."""
    texts = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda entry: entry[1] - entry[0]):
        row = [number for _, number in run]
        texts.append(f"{row[0]}-{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)))
    return ", ".join(texts)


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-3, 5``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"


def grouped(pairs: Iterable[tuple[K, V]]) -> list[tuple[K, list[V]]]:
    """Values by key, in the order in which the keys first come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


Entries: TypeAlias = Mapping[str, Plain]
"""Readable names, each with a number, a short text or a digest."""
RunContract: TypeAlias = Mapping[str, Entries]
"""Sections of entries by name: what a rank is about to run. A section that is not there is empty."""

_SAME_COMMAND = "start every process with the same command"
_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")
_MOST_LINES = 12
# Options that a launcher gives each process its own value of: they explain no difference.
_OF_ONE_PROCESS = ("local_rank", "rank", "node_rank")


class Section(NamedTuple):
    """What follows where ranks, or a run and its checkpoint, differ in a section of the contract.

    Attributes:
        remedies: what to do where ranks differ in it.
        lasts: a run that is resumed says what changed in it.
        decides: where ranks differ in it, all else differs as a consequence.
        follows: it is shown where ranks differ in nothing else, and checkpoints do not hold it: it is long, and
            differences in it are mostly a consequence of others.
    """

    remedies: Sequence[str]
    lasts: bool = True
    decides: bool = False
    follows: bool = False


_TWO_RUNS = (
    "processes of two runs, or of two attempts at one, have met: end the other, or give each run a port of its own"
)
SECTIONS = {
    # Ids of the run and of the attempt; at the start, where no launcher gives an id, what names the run.
    "run": Section([_TWO_RUNS], lasts=False, decides=True),
    # What was called: train, eval, infer.
    "action": Section(["call the same in every process"], lasts=False, decides=True),
    # Those of the call and of the factory, with the optimizer and the learning-rate policy.
    "arguments": Section([_SAME_COMMAND]),
    # Classes and frequencies, in order.
    "callbacks": Section([_SAME_COMMAND, "give each the same callbacks"], lasts=False),
    # Classes and arguments, the vocabulary too.
    "modules": Section([_SAME_COMMAND]),
    # A digest of each DAG.
    "wiring": Section(["connect the modules alike in every process"]),
    # A digest of each file.
    "configuration": Section(["copy the same configuration to all machines"]),
    # Digests of manifests and of what was read of them.
    "data": Section(["copy the same data to all machines"]),
    # Digests of packages and of the script, versions of libraries.
    "code": Section(["copy the same code to all machines, and install the same versions"]),
    # Type, shape and whether it is trained, of each weight by name.
    "weights": Section(["make and freeze the same weights in every process"], lasts=False, follows=True),
}


def saved(contract: RunContract) -> RunContract:
    """The sections that checkpoints hold."""
    return {name: entries for name, entries in contract.items() if not SECTIONS[name].follows}


def check_equal(comm: Comm, mine: Callable[[], RunContract]) -> None:
    """Compare what all ranks are about to do. The options of ``sys.argv`` give names for the message.

    Args:
        comm: the ranks.
        mine: gives this rank's contract; not called where the process is alone.

    Raises:
        UsageError: they differ; the same error on every rank.
    """
    if comm.world_size == 1:
        return
    gathered = comm.gather((mine(), options_of(sys.argv)))
    _refuse(comm.share(None if gathered is None else compare(*zip(*gathered, strict=True))))


def check_equal_exchange(store: Store, rank: int, world_size: int, mine: RunContract) -> None:
    """The same for how ranks exchange: before they have a group, which they could not make, through the store.

    Args:
        store: shared by the ranks, each of which calls this once.
        rank, world_size: who this process is.
        mine: the names of the run, where no launcher names it, and how this rank would exchange.

    Raises:
        UsageError: they differ; the same error on every rank.
    """
    store.set(f"exchange/{rank}", json.dumps([mine, options_of(sys.argv)]))
    arrived = [json.loads(text) for text in store.multi_get([f"exchange/{number}" for number in range(world_size)])]
    _refuse(compare(*zip(*arrived, strict=True)))


def _refuse(difference: tuple[str, str] | None) -> None:
    if difference is not None:
        problem, remedy = difference
        error = UsageError(problem, place="the ranks do not agree", remedy=remedy)
        error.is_common = True
        raise error


def compare(contracts: Sequence[RunContract], commands: Sequence[Mapping[str, str]] = ()) -> tuple[str, str] | None:
    """What differs, a line for each entry, and what to do about it; None where nothing differs.

    Args:
        contracts: each rank's, in order of the ranks.
        commands: each rank's options on the command line.
    """
    lines: list[str] = []
    remedies: dict[str, None] = {}  # in the order of the sections
    for name, section in SECTIONS.items():
        if lines and section.follows:
            break
        differences = _differences([contract.get(name, {}) for contract in contracts])
        lines += [f"{_labelled(entry, values, commands)}: {_told(values)}" for entry, values in differences]
        if differences:
            remedies |= dict.fromkeys(section.remedies)
            if section.decides:
                break
    if not lines:
        return None
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *more]), "; ".join(remedies)


def changes(before: Mapping[str, object], now: RunContract) -> Iterator[str]:
    """What a resumed run does differently from the one that saved its checkpoint, a line each.

    What one of the two does not know (a later version, another class) is left to the entries that both have.
    """
    for section in (name for name, section in SECTIONS.items() if section.lasts):
        old, new = before.get(section), now.get(section, {})
        if not isinstance(old, Mapping):
            continue
        for name in (name for name in old if name in new and old[name] != new[name]):
            was, is_now = _shown(old[name]), _shown(new[name])
            if _DIGEST.search(f"{old[name]} {new[name]}"):
                yield f"resuming with another {name} than the checkpoint was made with"
            else:
                yield f"resuming with {name} {is_now}, the checkpoint was made with {was}"


def options_of(command: Sequence[str]) -> dict[str, str]:
    """The options of a command line by name; a flag is ``True``, several values are one text."""
    return {name: " ".join(values) or "True" for name, values in options_in(command).items() if name}


def _differences(ranks: Sequence[Entries]) -> list[tuple[str, list[Plain]]]:
    """The entries in which ranks differ, with the value of each rank."""
    if len({*map(json.dumps, ranks)}) == 1:  # as nearly always; there may be hundreds of entries and of ranks
        return []
    names = dict.fromkeys(name for entries in ranks for name in entries)
    by_name = [(name, [entries.get(name) for entries in ranks]) for name in names]
    # As JSON, because 1 and True are two values.
    return [(name, values) for name, values in by_name if len({*map(json.dumps, values)}) > 1]


def _labelled(name: str, values: Sequence[Plain], commands: Sequence[Mapping[str, str]]) -> str:
    """The option of the command line that explains a difference, with the entry's name where it is another; or that.

    It has the entry's name, or it alone has these values.
    """
    options = dict.fromkeys(option for command in commands for option in command if option not in _OF_ONE_PROCESS)
    differing = [option for option in options if len({command.get(option) for command in commands}) > 1]
    fitting = [option for option in differing if option == name.rpartition(".")[2]] or [
        option for option in differing if _has_values(option, values, commands)
    ]
    if len(fitting) != 1:
        return name
    return f"--{name}" if fitting == [name] else f"--{fitting[0]} ({name})"


def _has_values(option: str, values: Sequence[Plain], commands: Sequence[Mapping[str, str]]) -> bool:
    """Whether the option has these values, where it is given; without it a default holds."""
    pairs = [(command[option], value) for command, value in zip(commands, values, strict=True) if option in command]
    return all(text == str(value) or _number(text) == _number(str(value)) is not None for text, value in pairs)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _told(values: Sequence[Plain]) -> str:
    """``rank 1 has 0.5, the others 0.02``"""
    groups = grouped((_shown(value), rank) for rank, value in enumerate(values))
    most, ranks_of_most = max(groups, key=lambda group: len(group[1]))
    has_others = len(ranks_of_most) > max(1, len(values) / 2)
    parts = [
        f"{named_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {text}"
        for text, ranks in groups
        if text != most or not has_others
    ]
    return ", ".join([*parts, f"the others {most}"] if has_others else parts)


def _shown(value: Plain) -> str:
    return "none" if value in (None, "") else _DIGEST.sub(r"\1", str(value))


class Agreement:
    """What the actions of a factory share with those of the other ranks.

    Args:
        comm: the ranks.
        settings: arguments of the factory, by name.
        files: configuration files; they count by name and content, not by folder.
    """

    def __init__(self, comm: Comm, settings: Mapping[str, object], files: Iterable[str | Path] = ()) -> None:
        self._comm, self._files = comm, files
        self._settings = {**settings, "number of ranks": comm.world_size}

    def reached_on(
        self, action: str, arguments: Mapping[str, object], dags: Mapping[str, Dag], called: CallbackList | None = None
    ) -> Callable[[], RunContract]:
        """See that all ranks are about to do the same. Gives the contract, which is made when it is first asked for.

        Args:
            action: what was called: ``train``, ``eval``, ``infer``.
            arguments: those of the call by name; mappings of them become an entry for each key.
            dags: by a name for messages, e.g. ``training DAG``. Their modules count.
            called: the callbacks; what they evaluate counts as a DAG.

        Raises:
            UsageError: ranks differ, or a file cannot be read.
        """
        contract = cache(lambda: self._contract(action, arguments, dags, called or CallbackList([])))
        check_equal(self._comm, contract)
        return contract

    def _contract(
        self, action: str, arguments: Mapping[str, object], dags: Mapping[str, Dag], called: CallbackList
    ) -> RunContract:
        evaluated = {f"evaluation DAG {number}": Dag(wires) for number, wires in enumerate(called.eval_wires, 1)}
        all_dags = {**dags, **evaluated}
        cudnn = torch.backends.cudnn
        of_cudnn = {"cudnn_benchmark": cudnn.benchmark, "cudnn_deterministic": cudnn.deterministic}
        settings = {**self._settings, **of_cudnn}
        # What is not given to an action is as the factory has it.
        of_call = {name: value for name, value in arguments.items() if value is not None or name not in self._settings}
        modules = list({id(node.module): node.module for dag in all_dags.values() for node in _nodes(dag)}.values())
        of_modules, of_data = _fingerprints(modules)
        script = getattr(sys.modules["__main__"], "__file__", None)  # a notebook has none
        return {
            "run": {"run id": self._comm.run_id, "attempt id": self._comm.attempt_id},
            "action": {"action": action},
            "arguments": _plain(of_call | {name: value for name, value in settings.items() if name not in of_call}),
            "callbacks": _of_callbacks(called),
            "modules": of_modules,
            "wiring": {name: digest_of(_wiring(dag)) for name, dag in all_dags.items()},
            "configuration": digest_of_files(self._files),
            "data": of_data,
            "code": dict(_codes(modules)) | digest_of_files([script] if script else []) | _versions(),
            "weights": _weights(modules),
        }


def training_arguments(
    pairs: Iterable[tuple[str | Optimizer, object]],
    params: Mapping[str, object],
    lr_policy: LrPolicy | None,
    options: RunOptions,
) -> dict[str, object]:
    """The arguments of ``train``; ``pairs`` are optimizers with their losses."""
    arguments: dict[str, Any] = {}
    for optimizer in dict.fromkeys(optimizer for optimizer, _ in pairs):
        name = unused_name("optimizer", arguments)
        arguments[name] = optimizer if isinstance(optimizer, str) else type(optimizer).__qualname__
        if isinstance(optimizer, Optimizer):
            arguments |= _named(name, _settings_of(optimizer))
    of_options = {option.name: getattr(options, option.name) for option in fields(options)}
    of_policy = {"lr_policy": lr_policy, **_named("lr_policy", getattr(lr_policy, "__dict__", {}))}
    return {**arguments, **params, **of_options, **of_policy}


def inference_arguments(options: InferOptions) -> dict[str, object]:
    """The arguments of ``infer``; rank 0 alone shows progress and reads the folder of checkpoints."""
    restored = None if options.modules_to_restore is None else [module.label for module in options.modules_to_restore]
    of_rank_0 = ("verbose", "ckpt_pattern", "checkpoint_dir", "modules_to_restore")
    of_all = {option.name: getattr(options, option.name) for option in fields(options) if option.name not in of_rank_0}
    return {**of_all, "restores a checkpoint": options.checkpoint_dir is not None, "modules_to_restore": restored}


def _plain(values: Mapping[str, object]) -> dict[str, Plain]:
    # Options in an object count by their values; a policy is such an object too, but it has an entry for its class.
    options = {key: asdict(value) for key, value in values.items() if is_dataclass(value) and not callable(value)}
    return {name: plain for key, value in {**values, **options}.items() for name, plain in plain_values(key, value)}


def _named(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


def _settings_of(optimizer: Optimizer) -> dict[str, object]:
    """An optimizer's options; those in which its groups of parameters differ as a list."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {key: groups[0][key] if len(groups) == 1 else [group.get(key) for group in groups] for key in groups[0]}


def _of_callbacks(callbacks: Iterable[Callback]) -> Entries:
    """The place of each in the list, what it says of itself, and what it reads of a step."""
    entries: dict[str, Any] = {}
    for index, callback in enumerate(callbacks):
        name = unused_name(type(callback).__qualname__, entries)
        read = [*(wire.place for wire in callback.wanted_wires()), *callback.wanted_names()]
        entries |= {name: f"callbacks[{index}]", **_named(name, callback.fingerprint()), f"{name} reads": read}
    return _plain(entries)


def _fingerprints(modules: Iterable[NeuralModule]) -> tuple[Entries, Entries]:
    """What the modules say of themselves, and of the data that they read."""
    entries: dict[str, Any] = {}
    for module in modules:
        for name, value in module.fingerprint().items():
            entries[unused_name(name, entries)] = value
    data = {name: str(value) for name, value in entries.items() if isinstance(value, Content)}
    return _plain({name: value for name, value in entries.items() if name not in data}), data


def _weights(modules: Iterable[NeuralModule]) -> Entries:
    """``encoder.0.weight: float32 (256, 64), trained``"""
    entries: dict[str, Plain] = {}
    for module in modules:
        for name, weight in module.named_parameters() if isinstance(module, nn.Module) else ():
            shape = "no shape yet" if nn.parameter.is_lazy(weight) else tuple(weight.shape)
            use = "trained" if weight.requires_grad else "frozen"
            key = unused_name(f"{module.label}.{name}", entries)
            entries[key] = f"{str(weight.dtype).removeprefix('torch.')} {shape}, {use}"
    return entries


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
        yield f"code of {name}", f"{getattr(package, '__version__', '')} {_digest_of_code(Path(file))}".strip()


@cache  # what was imported stays what it was; reading all of it takes 40 ms, in each of the runs of a process
def _digest_of_code(path: Path) -> str:
    return digest_of_package(path.parent) if path.name == "__init__.py" else digest_of_files([path])[path.name]


def _versions() -> dict[str, Plain]:
    """Those of torch, and on a machine with GPUs those of what computes and exchanges there."""
    versions: dict[str, Plain] = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        nccl = torch.cuda.nccl.version()
        versions |= {"CUDA": torch.version.cuda, "nccl": ".".join(map(str, nccl))}
    return versions


def _wiring(dag: Dag) -> list[str]:
    """The DAG in words: a line for each node, with its class, what it takes and what it gives."""
    names = {node.call: node.name for node in _nodes(dag)}
    lines = []
    for node in _nodes(dag):
        taken = ", ".join(f"{port}={names[wire.call]}.{wire.output_port_name}" for port, wire in node.inputs.items())
        outputs = ", ".join(f"{port}: {wire.ntype.brief}" for port, wire in node.outputs.items())
        lines.append(f"{node.name} = {type(node.module).__qualname__}({taken}) -> {outputs}")
    return [*lines, *(f"{names[wire.call]}.{wire.output_port_name}" for wire in dag.outputs)]
