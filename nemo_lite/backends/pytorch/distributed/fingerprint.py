"""What is said and checked before the first step: where the ranks run, how large a step is, and that all run the same.

Everything but :func:`check_equal` is a function of plain records. How ranks find each other is in another file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol, TypeVar

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.errors import UsageError
from nemo_lite.utils.digests import digest_of, digest_of_files, digest_of_package, unused_name

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_MOST_LINES = 16
_SHOWN_DIGITS = 8
_NUMBERED_DEVICE = re.compile(r"(?P<kind>[a-z]+):(?P<index>[0-9]+)(?P<more>.*)", re.DOTALL)


class Seat(Protocol):
    """Where a rank runs."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def interface(self) -> str: ...
    @property
    def address(self) -> str: ...


def start_table(backend: str, members: Sequence[Seat], devices: Sequence[str]) -> str:
    """A table with a line for each rank: its host, its device, and the network interface it is reached at.

    More than 16 ranks: a line for those of a host. Ranks of one host name count as two machines where their addresses
    differ.

    Args:
        backend: what the gradients travel by: ``nccl``, ``gloo``.
        members: the ranks, in order; an interface that is not known is "".
        devices: each rank's: ``cpu``, or ``cuda:3`` with what else there is to say.
    """
    fold = len(members) > _MOST_LINES
    seats = zip(members, devices, strict=True)
    machines = {(member.host, member.address) for member in members}
    lines = _grouped(
        ((member.host, _reached(member), None if fold else member.rank), (member.rank, device))
        for member, device in seats
    )
    rows = [("rank", "host", "device", "interface")]
    for (host, interface, _), there in lines:
        ranks, own_devices = zip(*there, strict=True)
        rows.append((ranges(ranks), host, _folded(own_devices), interface))
    title = f"{_counted(len(members), 'rank')} on {_counted(len(machines), 'machine')}, {backend}"
    return "\n".join([title, *_aligned(rows)])


def effective_batch(per_rank: int, world_size: int, accumulated: int, unit: str) -> str:
    """``64 x 4 ranks x 2 accumulated = 512 utterances per step``.

    Args:
        per_rank: items in a batch of one rank.
        world_size: ranks.
        accumulated: batches of a rank in a step.
        unit: what is counted: ``items``, ``utterances``.
    """
    factors = [str(per_rank)]
    factors += [f"{world_size} ranks"] if world_size > 1 else []
    factors += [f"{accumulated} accumulated"] if accumulated > 1 else []
    product = f"{per_rank * world_size * accumulated} {unit} per step"
    return f"{' x '.join(factors)} = {product}" if len(factors) > 1 else product


def fingerprint_of(
    dags: Mapping[str, Dag], files: Iterable[str | Path] = (), modules: Iterable[NeuralModule] = ()
) -> dict[str, str]:
    """What has to be the same on all ranks: readable names, each with a digest. What explains more comes first.

    Code: nemo_lite, the packages that the modules' classes are from, and the running script. Then the files; what each
    module says of itself (its class and arguments; a data layer adds its data); and the wiring of each DAG.

    Args:
        dags: by a name for messages, e.g. ``training DAG``. Their modules count.
        files: configuration files; they count by name and content, not by folder.
        modules: further ones.

    Raises:
        UsageError: a file that cannot be read.
    """
    used = [node.module for dag in dags.values() for node in _nodes(dag)]
    all_modules = list({id(module): module for module in [*used, *modules]}.values())
    prints = dict(_codes(all_modules))
    prints |= digest_of_files([*_script(), *files])
    for module in all_modules:
        for name, digest in module.fingerprint().items():
            prints[unused_name(name, prints)] = digest
    return prints | {name: digest_of(_wiring(dag)) for name, dag in dags.items()}


def compare(prints: Sequence[Mapping[str, str]]) -> str | None:
    """What differs between the ranks' fingerprints, a line for each entry with the ranks; None if nothing does.

    Args:
        prints: each rank's, in order of the ranks.
    """
    names = dict.fromkeys(name for mine in prints for name in mine)
    lines = []
    for name in names:
        found = _grouped((mine.get(name), rank) for rank, mine in enumerate(prints))
        if len(found) > 1:
            lines.append(f"{name} differs: {', '.join(_had(value, ranks) for value, ranks in found)}")
    return "\n".join(lines) or None


def check_equal(comm: Comm, mine: Mapping[str, str]) -> None:
    """Let the fingerprints of all ranks meet.

    Raises:
        UsageError: they differ; the same error on every rank.
    """
    gathered = comm.gather(dict(mine))
    problem = comm.share(compare(gathered) if gathered else None)
    if problem:
        raise UsageError(problem, remedy="copy the same code, configuration and data to all machines")


def ranges(numbers: Iterable[int]) -> str:
    """``0-3, 5, 6`` for 0, 1, 2, 3, 5, 6."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda found: found[1] - found[0])
    return ", ".join(_run([number for _, number in run]) for _, run in runs)


def _run(numbers: list[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 2 else ", ".join(map(str, numbers))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _grouped(pairs: Iterable[tuple[K, T]]) -> list[tuple[K, list[T]]]:
    """Values by key, in the order in which the keys come up."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())


def _reached(member: Seat) -> str:
    return f"{member.interface} ({member.address})" if member.interface else member.address


def _folded(devices: Iterable[str]) -> str:
    """``cuda:0-7 H200`` for ``cuda:0 H200`` to ``cuda:7 H200``; what has no number is named once."""
    numbered = [(_NUMBERED_DEVICE.fullmatch(device), device) for device in devices]
    found = _grouped(
        (f"{match['kind']}:{{}}{match['more']}", int(match["index"])) if match else (device, 0)
        for match, device in numbered
    )
    return ", ".join(text.replace("{}", ranges(set(indices))) for text, indices in found)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


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


def _wiring(dag: Dag) -> list[str]:
    """The DAG in words: a line for each node, with its class, what it takes and what it gives."""
    names = {node.call: node.name for node in _nodes(dag)}
    lines = []
    for node in _nodes(dag):
        taken = ", ".join(f"{port}={names[wire.call]}.{wire.output_port_name}" for port, wire in node.inputs.items())
        given = ", ".join(f"{port}: {wire.ntype}" for port, wire in node.outputs.items())
        lines.append(f"{node.name} = {type(node.module).__qualname__}({taken}) -> {given}")
    return [*lines, *(f"{names[wire.call]}.{wire.output_port_name}" for wire in dag.outputs)]


def _had(value: str | None, ranks: list[int]) -> str:
    """``ranks 0, 1 have 0.1.0 3f2a9b11``"""
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {ranges(ranks)} have"
    *version, digest = (value or "none").split(" ")
    return f"{who} {' '.join([*version, digest[:_SHOWN_DIGITS]])}"
