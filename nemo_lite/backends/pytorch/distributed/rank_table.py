"""Texts about the ranks of a run: the table that rank 0 prints at start-up, the effective batch, ranges of ranks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import counted

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_LINES = 16
_NUMBERED_DEVICE = re.compile(r"(?P<kind>[a-z]+):(?P<index>[0-9]+)(?P<more>.*)", re.DOTALL)


def rank_table(backend: str, members: Sequence[Member], devices: Sequence[str]) -> str:
    """A table with a line for each rank: its host, device and network interface.

    With more than 16 ranks, one line for all ranks of a host. Ranks of one host name count as two machines where their
    addresses differ.

    Args:
        backend: what exchanges the gradients: ``nccl``, ``gloo``.
        members: the ranks, in order.
        devices: each rank's: ``cpu``, or ``cuda:3 H200``.
    """
    fold = len(members) > _MOST_LINES
    machines = {(member.host, member.address) for member in members}
    lines = grouped(
        ((member.host, _reached_at(member), None if fold else member.rank), (member.rank, device))
        for member, device in zip(members, devices, strict=True)
    )
    rows = [("rank", "host", "device", "interface")]
    for (host, interface, _), there in lines:
        ranks, own_devices = zip(*there, strict=True)
        rows.append((ranges(ranks), host, _folded(own_devices), interface))
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
    runs = groupby(enumerate(sorted(numbers)), key=lambda found: found[1] - found[0])
    return ", ".join(_run([number for _, number in run]) for _, run in runs)


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


def _run(numbers: list[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 2 else ", ".join(map(str, numbers))


def _reached_at(member: Member) -> str:
    return f"{member.interface} ({member.address})" if member.interface else member.address


def _folded(devices: Iterable[str]) -> str:
    """``cuda:0-7 H200`` for ``cuda:0 H200`` to ``cuda:7 H200``; devices without a number are named once."""
    numbered = [(_NUMBERED_DEVICE.fullmatch(device), device) for device in devices]
    found = grouped(
        (f"{match['kind']}:{{}}{match['more']}", int(match["index"])) if match else (device, 0)
        for match, device in numbered
    )
    return ", ".join(text.replace("{}", ranges(set(indices))) for text, indices in found)
