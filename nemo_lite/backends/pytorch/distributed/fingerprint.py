"""Fingerprint: digests of code, configuration and data, which must be equal on all ranks before training starts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.rank_table import grouped, ranges
from nemo_lite.core.graph.dag import Dag, Node
from nemo_lite.core.graph.neural_module import NeuralModule
from nemo_lite.errors import UsageError
from nemo_lite.utils.digests import digest_of, digest_of_files, digest_of_package, unused_name

_SHOWN_DIGITS = 8


def fingerprint_of(dags: Mapping[str, Dag], files: Iterable[str | Path] = ()) -> dict[str, str]:
    """What has to be the same on all ranks: readable names, each with a digest, the most likely causes first.

    Code: nemo_lite, the packages that the modules' classes are from, and the running script. Then the files; what each
    module says of itself (its class and arguments; a data layer adds its data); and the wiring of each DAG.

    Args:
        dags: by a name for messages, e.g. ``training DAG``. Their modules count.
        files: configuration files; they count by name and content, not by folder.

    Raises:
        UsageError: a file that cannot be read.
    """
    used = [node.module for dag in dags.values() for node in _nodes(dag)]
    modules = list({id(module): module for module in used}.values())
    prints = dict(_codes(modules)) | digest_of_files([*_script(), *files])
    for module in modules:
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
        found = grouped((mine.get(name), rank) for rank, mine in enumerate(prints))
        if len(found) > 1:
            lines.append(f"{name} differs: {', '.join(_had(value, ranks) for value, ranks in found)}")
    return "\n".join(lines) or None


def check_equal(comm: Comm, mine: Mapping[str, str]) -> None:
    """Compare the fingerprints of all ranks.

    Raises:
        UsageError: they differ; the same error on every rank.
    """
    gathered = comm.gather(dict(mine))
    problem = comm.share(compare(gathered) if gathered else None)
    if problem:
        raise UsageError(problem, remedy="copy the same code, configuration and data to all machines")


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
