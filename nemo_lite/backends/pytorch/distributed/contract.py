"""RunContract: one record of what makes a run what it is; it is compared between ranks and with checkpoints.

All ranks must agree on every entry. ``contract_terms.py`` collects them. Left out is what machines may differ in
while the result stays the same: names of hosts, numbers and models of devices, folders (files count by name and
content), how the processes were launched, workers that load data, log levels, and what rank 0 alone shows and writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from torch.distributed import Store

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.rank_table import grouped, ranges
from nemo_lite.backends.pytorch.distributed.rendezvous import options_in
from nemo_lite.errors import UsageError
from nemo_lite.utils.digests import Plain

Entries: TypeAlias = Mapping[str, Plain]

_SAME_COMMAND = "start every process with the same command"
_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")
_MOST_LINES = 12
# Options that a launcher gives each process its own value of: they explain no difference.
_OF_ONE_PROCESS = ("local_rank", "rank", "node_rank")


def _section(*remedies: str, lasts: bool = True, decides: bool = False, follows: bool = False) -> dict[str, Any]:
    """About a section.

    Args:
        remedies: what to do where ranks differ in it.
        lasts: a run that is resumed says what changed in it.
        decides: where ranks differ in it, all else differs as a consequence.
        follows: it is shown where ranks differ in nothing else, and checkpoints do not hold it: it is long, and
            differences in it are mostly a consequence of others.
    """
    return {"remedies": remedies, "lasts": lasts, "decides": decides, "follows": follows}


_TWO_RUNS = (
    "processes of two runs, or of two attempts at one, have met: end the other, or give each run a port of its own"
)
_RUN = _section(_TWO_RUNS, lasts=False, decides=True)
_ACTION = _section("call the same in every process", lasts=False, decides=True)
_ARGUMENTS = _section(_SAME_COMMAND)
_CALLBACKS = _section(_SAME_COMMAND, "give each the same callbacks", lasts=False)
_WIRING = _section("connect the modules alike in every process")
_CONFIGURATION = _section("copy the same configuration to all machines")
_DATA = _section("copy the same data to all machines")
_CODE = _section("copy the same code to all machines, and install the same versions")
_WEIGHTS = _section("make and freeze the same weights in every process", lasts=False, follows=True)


@dataclass(frozen=True)
class RunContract:
    """What a rank is about to run: sections of entries, each a readable name with a number, a short text or a digest.

    Attributes:
        run: ids of the run and of the attempt.
        action: what was called: ``train``, ``eval``, ``infer``.
        arguments: those of the call and of the factory, with the optimizer and the learning-rate policy.
        callbacks: their classes and frequencies, in order.
        modules: classes and arguments, the vocabulary too.
        wiring: a digest of each DAG.
        configuration: a digest of each file.
        data: digests of manifests and of what was read of them.
        code: digests of packages and of the script, versions of libraries.
        weights: type, shape and whether it is trained, of each weight by name.
    """

    run: Entries = field(default_factory=dict, metadata=_RUN)
    action: Entries = field(default_factory=dict, metadata=_ACTION)
    arguments: Entries = field(default_factory=dict, metadata=_ARGUMENTS)
    callbacks: Entries = field(default_factory=dict, metadata=_CALLBACKS)
    modules: Entries = field(default_factory=dict, metadata=_ARGUMENTS)
    wiring: Entries = field(default_factory=dict, metadata=_WIRING)
    configuration: Entries = field(default_factory=dict, metadata=_CONFIGURATION)
    data: Entries = field(default_factory=dict, metadata=_DATA)
    code: Entries = field(default_factory=dict, metadata=_CODE)
    weights: Entries = field(default_factory=dict, metadata=_WEIGHTS)

    def as_json(self) -> dict[str, dict[str, Plain]]:
        """The sections by name, as they travel between ranks."""
        return {each.name: dict(getattr(self, each.name)) for each in fields(self)}

    def saved(self) -> dict[str, dict[str, Plain]]:
        """The sections by name that checkpoints hold."""
        left_out = {each.name for each in fields(self) if each.metadata["follows"]}
        return {name: entries for name, entries in self.as_json().items() if name not in left_out}

    @classmethod
    def of_json(cls, value: object) -> RunContract:
        """What :meth:`as_json` gave. Sections that this version does not know, or that are none, are passed over."""
        sections = value if isinstance(value, Mapping) else {}
        known = {each.name: sections.get(each.name) for each in fields(cls)}
        return cls(**{name: dict(entries) for name, entries in known.items() if isinstance(entries, Mapping)})


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
    gathered = comm.gather((mine().as_json(), options_of(sys.argv)))
    _refuse(comm.share(None if gathered is None else compare(*zip(*gathered, strict=True))))


def check_equal_exchange(store: Store, rank: int, world_size: int, mine: Entries) -> None:
    """The same for how ranks exchange: before they have a group, which they could not make, through the store.

    Args:
        store: shared by the ranks, each of which calls this once.
        rank, world_size: who this process is.
        mine: arguments by name.

    Raises:
        UsageError: they differ; the same error on every rank.
    """
    store.set(f"exchange/{rank}", json.dumps([RunContract(arguments=mine).as_json(), options_of(sys.argv)]))
    arrived = [json.loads(each) for each in store.multi_get([f"exchange/{each}" for each in range(world_size)])]
    _refuse(compare(*zip(*arrived, strict=True)))


def _refuse(found: tuple[str, str] | None) -> None:
    if found is not None:
        problem, remedy = found
        error = UsageError(problem, place="the ranks do not agree", remedy=remedy)
        error.is_common = True
        raise error


def compare(
    contracts: Sequence[Mapping[str, Entries]], commands: Sequence[Mapping[str, str]] = ()
) -> tuple[str, str] | None:
    """What differs, a line for each entry, and what to do about it; None where nothing differs.

    Args:
        contracts: each rank's, as JSON, in order of the ranks.
        commands: each rank's options on the command line.
    """
    lines: list[str] = []
    remedies: dict[str, None] = {}  # in the order of the sections
    for section in fields(RunContract):
        if lines and section.metadata["follows"]:
            break
        differences = _differences([each.get(section.name, {}) for each in contracts])
        lines += [f"{_labelled(name, values, commands)}: {_told(values)}" for name, values in differences]
        if differences:
            remedies |= dict.fromkeys(section.metadata["remedies"])
            if section.metadata["decides"]:
                break
    if not lines:
        return None
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *more]), "; ".join(remedies)


def changes(before: RunContract, now: RunContract) -> Iterator[str]:
    """What a resumed run does differently from the one that saved its checkpoint, a line each.

    What one of the two does not know (a later version, another class) is left to the entries that both have.
    """
    for section in fields(RunContract):
        if section.metadata["lasts"]:
            old, new = getattr(before, section.name), getattr(now, section.name)
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
    if len({*map(json.dumps, ranks)}) == 1:  # as nearly always; there may be hundreds of entries and of ranks
        return []
    names = dict.fromkeys(name for mine in ranks for name in mine)
    values = [(name, [mine.get(name) for mine in ranks]) for name in names]
    return [(name, found) for name, found in values if len({*map(_key, found)}) > 1]


def _key(value: Plain) -> str:
    return json.dumps(value)  # 1 and True are two values


def _labelled(name: str, values: Sequence[Plain], commands: Sequence[Mapping[str, str]]) -> str:
    """The option of the command line that explains a difference, with the entry's name where it is another; or that."""
    alike = [*_options_like(values, commands)]
    named = [option for option in alike if option == name.rpartition(".")[2]]
    fitting = named or [option for option in alike if _has_values(option, values, commands)]
    if len(fitting) != 1:
        return name
    (option,) = fitting
    return f"--{option}" if option == name else f"--{option} ({name})"


def _options_like(values: Sequence[Plain], commands: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The options in which the same ranks differ as in these values."""
    ranks = [own for _, own in grouped((_key(value), rank) for rank, value in enumerate(values))]
    for option in dict.fromkeys(option for command in commands for option in command):
        given = grouped((command.get(option), rank) for rank, command in enumerate(commands))
        if [own for _, own in given] == ranks and option not in _OF_ONE_PROCESS:
            yield option


def _has_values(option: str, values: Sequence[Plain], commands: Sequence[Mapping[str, str]]) -> bool:
    """Whether the option has these values, where it is given; without it a default holds."""
    given = [(command[option], value) for command, value in zip(commands, values, strict=True) if option in command]
    return all(text == str(value) or _number(text) == _number(str(value)) is not None for text, value in given)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _told(values: Sequence[Plain]) -> str:
    """``rank 1 has 0.5, the others 0.02``"""
    groups = grouped((_shown(value), rank) for rank, value in enumerate(values))
    most, of_most = max(groups, key=lambda group: len(group[1]))
    if len(of_most) > max(1, len(values) / 2):
        few = [_had(text, ranks) for text, ranks in groups if text != most]
        return f"{', '.join(few)}, the others {most}"
    return ", ".join(_had(text, ranks) for text, ranks in groups)


def _had(text: str, ranks: list[int]) -> str:
    return f"rank {ranks[0]} has {text}" if len(ranks) == 1 else f"ranks {ranges(ranks)} have {text}"


def _shown(value: Plain) -> str:
    return "none" if value in (None, "") else _DIGEST.sub(r"\1", str(value))
