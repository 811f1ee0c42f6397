"""The state that lets a run go on exactly: place in the epoch, generators and buffers of each rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.checkpoint.fitting import as_count, misfits_told
from nemo_lite.backends.pytorch.data.loaders import UnusableItems
from nemo_lite.backends.pytorch.data.order import Stretch
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.generators import generator_states, set_generator_states
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import CheckpointError, counted
from nemo_lite.utils import logging


def stacked(states: Sequence[Tree]) -> dict[str, Tree]:
    """The states of all ranks, in order of the ranks, as one tree, whose tensors have the ranks as their first axis.

    A node of the tree is a dictionary with one key::

        {"same": VALUE}           equal on all ranks
        {"fields": {KEY: NODE}}   dictionaries with the same keys
        {"items": [NODE, ...]}    lists of the same length
        {"stack": TENSOR}         tensors of the same shape and type: (W, ...)
        {"numbers": TENSOR}       integers, or floats: (W,)
        {"each": [VALUE, ...]}    anything else, rank by rank

    So the number of tensors and the text around them do not grow with the ranks, where these have states alike.
    """
    first = states[0]
    if all(_are_equal(state, first) for state in states):
        return {"same": first}
    if all(isinstance(state, dict) and isinstance(first, dict) and state.keys() == first.keys() for state in states):
        return {"fields": {key: stacked([state[key] for state in states]) for key in first}}
    if all(isinstance(state, list) and isinstance(first, list) and len(state) == len(first) for state in states):
        return {"items": [stacked(items) for items in zip(*states, strict=True)]}
    if all(_are_alike(state, first) for state in states):
        return {"stack": torch.stack(list(states))}
    if all(type(state) is int and -(2**63) <= state < 2**63 for state in states):
        return {"numbers": torch.tensor(states, dtype=torch.int64)}
    if all(type(state) is float for state in states):
        return {"numbers": torch.tensor(states, dtype=torch.float64)}
    return {"each": list(states)}


def unstacked(tree: Mapping[str, Tree], rank: int) -> Any:
    """The state of one rank.

    Raises:
        ValueError: a node that :func:`stacked` does not make.
    """
    ((kind, content),) = tree.items()
    match kind:
        case "same":
            return content
        case "fields":
            return {key: unstacked(node, rank) for key, node in content.items()}
        case "items":
            return [unstacked(node, rank) for node in content]
        case "stack":
            return content[rank].clone()
        case "numbers":
            return content[rank].item()
        case "each":
            return content[rank]
    raise ValueError(f"a state of ranks of the kind {kind!r}")


def _are_equal(one: Tree, other: Tree) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return _are_alike(one, other) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(one == other)


def _are_alike(one: Tree, other: Tree) -> bool:
    are_tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return are_tensors and (one.shape, one.dtype) == (other.shape, other.dtype)


def own_buffers(modules: Mapping[str, object], comm: Comm) -> dict[str, Tensor]:
    """Copies, on the CPU, of the buffers that checkpoints hold and that differ between the ranks, by module and name.

    What is equal on all ranks is left to the weights: they hold rank 0's buffers, and of statistics the mean over the
    ranks, which for equal numbers is that number. All ranks call it, and get the same names.
    """
    buffers: dict[str, Tensor] = {}
    is_rounded: dict[str, bool] = {}
    for name, part, buffer in _buffers(modules):
        buffers[name] = buffer.detach().to("cpu", copy=True)
        # The mean over the ranks is computed in float64, where that of equal float64 numbers may be rounded.
        is_rounded[name] = isinstance(part, _NormBase) and buffer.dtype == torch.float64
    if not buffers:
        return {}
    of_first = comm.share(buffers)
    differs = [is_rounded[name] or not torch.equal(buffer, of_first[name]) for name, buffer in buffers.items()]
    num_differing = comm.sum([float(each) for each in differs])
    return {name: buffer for (name, buffer), count in zip(buffers.items(), num_differing, strict=True) if count}


def set_own_buffers(modules: Mapping[str, object], saved: Mapping[str, Tensor], place: str) -> None:
    """Fill buffers with what :func:`own_buffers` gave. Names that the modules do not have are passed over.

    Raises:
        CheckpointError: a buffer of another shape, or integers for floats; nothing is filled then.
    """
    pairs = [(name, buffer, saved[name]) for name, _, buffer in _buffers(modules) if name in saved]
    for name, buffer, value in pairs:
        # Floating types differ between levels of precision, and are converted as weights are.
        if (buffer.shape, buffer.is_floating_point()) != (value.shape, value.is_floating_point()):
            got, expected = f"{tuple(value.shape)} {value.dtype}", f"{tuple(buffer.shape)} {buffer.dtype}"
            raise CheckpointError(f"a rank's own {name} does not fit", place=place, got=got, wanted=expected)
    for _, buffer, value in pairs:
        buffer.copy_(value)


def _buffers(modules: Mapping[str, object]) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The buffers that a ``state_dict`` holds, each with its name and the part it belongs to."""
    for name, module in modules.items():
        for path, part in module.named_modules() if isinstance(module, nn.Module) else ():
            for own, buffer in part.named_buffers(recurse=False):
                if own not in part._non_persistent_buffers_set:
                    yield ".".join(filter(None, (name, path, own))), part, buffer


class Pace(NamedTuple):
    """How many batches make a step and an epoch.

    Attributes:
        world_size: number of ranks.
        batches_per_step: of a rank.
        rounds_per_epoch: batches of a rank in an epoch; ``None`` where that is not known.
    """

    world_size: int = 1
    batches_per_step: int = 1
    rounds_per_epoch: int | None = None

    @property
    def step_batches(self) -> int:
        """Batches of all ranks in a step."""
        return self.world_size * self.batches_per_step

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch; ``None`` where that is not known."""
        return None if self.rounds_per_epoch is None else math.ceil(self.rounds_per_epoch / self.batches_per_step)


def told(before: Pace, now: Pace) -> Iterator[str]:
    """The effects of another number of ranks, and what can be done about them, a line each."""
    if before.world_size == now.world_size:
        return
    saved = counted(before.world_size, "process", "processes")
    yield f"{saved} saved the checkpoint, {now.world_size} will go on with it"
    factor = now.step_batches / before.step_batches
    if factor == 1.0:
        yield "the effective batch, the learning rate and the steps of an epoch stay what they were"
        return
    of_now, of_before = (f"{pace.world_size} x {pace.batches_per_step}" for pace in (now, before))
    kept = before.step_batches / now.world_size
    keeping = f"batches_per_step={kept:.0f} (--iter_per_step) keeps it" if kept >= 1 and kept == int(kept) else ""
    keeping = keeping or f"{1 / factor:.3g} times the batch_size keeps it"
    counts = f"{of_now} batches a step instead of {of_before}, {factor:.3g} times as many items"
    yield f"effective batch: {counts}; {keeping}"
    yield (
        f"learning rate: it stays as it is given; for such a batch usual are {factor:.3g} times of it, or "
        f"{math.sqrt(factor):.3g} times with Adam and its like"
    )
    steps, steps_before = now.steps_per_epoch, before.steps_per_epoch
    counts = f": an epoch has {counted(steps, 'step')} instead of {steps_before}" if steps and steps_before else ""
    yield (
        f"warm-up and schedule: they count steps{counts}; to keep their lengths in epochs, give {1 / factor:.3g} times "
        "the steps of each (--warmup_steps, --hold_steps, --max_steps)"
    )


class Position:
    """The rounds of the epoch that are done; each rank's generators and buffers; the seed of the epochs.

    Args:
        comm: the ranks.
        device: on which the run computes.
        modules: of the run, by name.
        pace: how many batches make a step and an epoch.
        digest: of rounds of the epoch, see ``BatchLoader.digest``.
        account: the items that could not be used, where the data layer counts them.
        seed: from which the generators are seeded before each epoch; ``None``: one is drawn for several ranks, and a
            single process seeds nothing. A checkpoint's takes the place of one that was drawn.

    Attributes:
        done: the rounds of the epoch that are done, in stretches; empty before its first step is done.
        seed: as above, or the one that was drawn.
        changes: what another number of ranks than that which saved the checkpoint changes, a line each.
    """

    def __init__(
        self,
        comm: Comm,
        device: torch.device,
        modules: Mapping[str, object],
        pace: Pace | None = None,
        digest: Callable[[Sequence[Stretch]], str] = lambda done: "",
        account: UnusableItems | None = None,
        seed: int | None = None,
    ) -> None:
        self._comm, self._device, self._modules = comm, device, modules
        self._pace, self._digest, self._account = pace or Pace(comm.world_size), digest, account
        self._is_seed_drawn = seed is None
        self.done: Sequence[Stretch] = ()
        self.seed = comm.random_seed() if seed is None else seed
        self.changes: Sequence[str] = ()
        self._at_epoch_start: Mapping[str, Tree] | None = None
        self._saved: Mapping[str, Tree] | None = None  # what a checkpoint says of this rank, until it is put back
        self._saved_digest = ""

    def state_dict(self) -> dict[str, object]:
        """Its part of a training state. All ranks call it; rank 0 gets what belongs to the ranks."""
        done = self.done
        return {
            "pace": list(self._pace),
            "seed": self.seed,
            "done": [list(stretch) for stretch in done],
            "plan": self._comm.on_first(lambda: self._digest(done)) or "",
            "ranks": self._of_ranks(),
        }

    def load_state_dict(self, state: Mapping[str, Tree], place: str = "") -> None:
        """Take over what :meth:`state_dict` gave: buffers at once, generators when the next epoch starts.

        States of NeMo have none of it: such a run goes on at the start of its epoch, and the
        log says so.

        Raises:
            CheckpointError: a buffer that does not fit.
        """
        self.done = tuple(
            Stretch(*(as_count(each, "done", place) for each in stretch)) for stretch in state.get("done", ())
        )
        if "done" not in state:
            problem = "%s does not say where in its epoch it was saved: going on at the start of epoch %d"
            place_and_epoch = (place or "the training state", 1 + as_count(state.get("epoch", 0), "epoch", place))
            self._comm.on_first(lambda: logging.warning(problem, *place_and_epoch))
        self._saved_digest = state.get("plan", "")
        self.changes = [*told(Pace(*state.get("pace", self._pace)), self._pace)]
        if self._is_seed_drawn and state.get("seed") is not None:
            self.seed = state["seed"]
        world_size, of_rank = states_of_ranks(state.get("ranks"), place)
        ranks: Sequence[int] = range(world_size)
        if world_size == self._comm.world_size:
            ranks = [self._comm.rank]
            self._saved = {key: of_rank(self._comm.rank, key) for key in ("generators", "at_epoch_start")}
            set_own_buffers(self._modules, of_rank(self._comm.rank, "buffers") or {}, place)
        if self._account is not None and (noted := [*filter(None, (of_rank(rank, "unusable") for rank in ranks))]):
            self._account.load_state_dict(noted)

    def _of_ranks(self) -> dict[str, object]:
        """The states of single ranks, on rank 0; nothing on the others."""
        mine: dict[str, Tree] = {
            "generators": generator_states(self._device, self._modules),
            "at_epoch_start": self._at_epoch_start,
            "buffers": own_buffers(self._modules, self._comm),
            "unusable": None if self._account is None else self._account.state_dict(),
        }
        gathered = self._comm.gather(mine)
        if gathered is None:
            return {}
        return {"world_size": len(gathered), **{key: stacked([state[key] for state in gathered]) for key in mine}}

    def close(self) -> None:
        """At the end of the run: its loader is no more, and its state may still be saved."""
        plan = self._comm.on_first(lambda: self._digest(self.done)) or ""
        self._digest = lambda done: plan

    def words(self, epoch: int) -> str:
        """Where in the epoch, which is counted from 1 as in the lines of the terminal."""
        if not self.done:
            return f"at the start of epoch {epoch + 1}"
        stretches = [
            f"{counted(num_rounds, 'batch', 'batches')} with {counted(size, 'process', 'processes')}"
            for size, num_rounds in self.done
        ]
        if len(self.done) == 1 and self.done[0].world_size == self._comm.world_size:
            stretches = [counted(self.done[0].num_rounds, "batch", "batches")]
        return f"in epoch {epoch + 1} after {' and '.join(stretches)}"

    # The start of a resumed run

    def check(self, epoch: int) -> None:
        """See that the rounds that are done are those of this run's data; else the epoch starts anew.

        All ranks call it.
        """
        done = self.done
        if not done:
            return
        is_of_others = any(stretch.world_size != self._comm.world_size for stretch in done)
        digest = self._comm.from_first(lambda: self._digest(done))
        if digest != self._saved_digest:
            problem = "the data or how they make batches changed"
        elif is_of_others and not digest:
            problem = "the data layer cannot say what other ranks have left"
        else:
            return
        self._comm.on_first(lambda: logging.warning("%s: going on at the start of epoch %d", problem, epoch + 1))
        self.done, self._saved = (), None

    def before_epoch(self, reseed: Callable[[], None]) -> None:
        """Before the callbacks hear of an epoch. The generators of a resumed run are as they were when it was saved."""
        self._put_back("generators")
        if not (self._saved and self.done):
            reseed()

    def before_first_batch(self) -> None:
        """Before an epoch's batches are asked for: a loader that has to read it from its start draws what it drew."""
        if self._saved and self.done:
            self._put_back("at_epoch_start")
        self._at_epoch_start = generator_states(self._device, self._modules)

    def after_first_batch(self) -> None:
        """Before the first step of an epoch, also if it is not the epoch's first."""
        if self.done:
            self._put_back("generators")
        self._saved = None

    def _put_back(self, which: str) -> None:
        states = (self._saved or {}).get(which)
        if states is not None:
            with misfits_told("the generators of the checkpoint"):
                set_generator_states(states, self._device, self._modules)


def states_of_ranks(ranks: Tree, place: str) -> tuple[int, Callable[[int, str], Tree]]:
    """How many ranks saved what a training state has of the ranks; and a part of it, by rank and name."""
    num_ranks = as_count(ranks.get("world_size", 0), "ranks.world_size", place) if ranks else 0
    return num_ranks, lambda rank, key: unstacked(ranks[key], rank)
