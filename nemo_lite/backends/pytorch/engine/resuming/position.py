"""Position: where a run stands beside its weights and counters. It reads no batch and writes no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from nemo_lite.backends.pytorch.checkpoint.state_check import as_count, misfits_told
from nemo_lite.backends.pytorch.data import Stretch, UnusableItems
from nemo_lite.backends.pytorch.distributed import Comm
from nemo_lite.backends.pytorch.engine.generators import generator_states, set_generator_states
from nemo_lite.backends.pytorch.engine.resuming.buffers import own_buffers, set_own_buffers
from nemo_lite.backends.pytorch.engine.resuming.stacking import stacked, unstacked
from nemo_lite.backends.pytorch.engine.resuming.world_size import Pace, told
from nemo_lite.errors import counted
from nemo_lite.utils import logging

# Any: a training state is a tree of tensors, numbers and texts.


class SavedPart(Protocol):
    """Something whose state is part of the training state, under keys of its own."""

    def state_dict(self) -> dict[str, Any]:
        """Its keys. All ranks call it; rank 0's is saved."""

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Go on from a training state, which lacks the keys if an older version made it.

        Raises:
            CheckpointError: the state does not fit.
        """


class Position:
    """The rounds of the epoch that are done; each rank's generators and buffers; the seed of the epochs.

    Args:
        comm: the ranks.
        device: on which the run computes.
        modules: of the run, by name.

    Attributes:
        done: the rounds of the epoch that are done, in stretches; empty before its first step is done.
        seed: from which the generators are seeded before each epoch; ``None``: they are not.
        is_seed_drawn: the seed was drawn for this start of the run, so a checkpoint's takes its place.
        digest: of rounds of the epoch, see ``data.digest_of``.
        account: the items that could not be used, where the data layer counts them.
        pace: how many batches make a step and an epoch.
        changes: what another number of ranks than that which saved the checkpoint changes, a line each.
    """

    def __init__(self, comm: Comm, device: torch.device, modules: Mapping[str, object]) -> None:
        self._comm, self._device, self._modules = comm, device, modules
        self.done: Sequence[Stretch] = ()
        self.seed: int | None = None
        self.is_seed_drawn = False
        self.digest: Callable[[Sequence[Stretch]], str] = lambda done: ""
        self.account: UnusableItems | None = None
        self.pace = Pace(comm.world_size)
        self.changes: Sequence[str] = ()
        self._at_epoch_start: Mapping[str, Any] | None = None
        self._saved: Mapping[str, Any] | None = None  # what a checkpoint says of this rank, until it is put back
        self._saved_digest = ""

    def state_dict(self) -> dict[str, Any]:
        """What of a training state is of here. All ranks call it; rank 0 gets what belongs to the ranks."""
        done = self.done
        return {
            "pace": list(self.pace),
            "seed": self.seed,
            "done": [list(stretch) for stretch in done],
            "plan": self._comm.on_first(lambda: self.digest(done)) or "",
            "ranks": self._of_ranks(),
        }

    def load_state_dict(self, state: Mapping[str, Any], place: str = "") -> None:
        """Take over what :meth:`state_dict` gave: buffers at once, generators when the next epoch starts.

        States of older versions, and of NeMo, have none of it: such a run goes on at the start of its epoch, and the
        log says so.

        Raises:
            CheckpointError: a buffer that does not fit.
        """
        self.done = tuple(
            Stretch(*(as_count(each, "done", place) for each in stretch)) for stretch in state.get("done", ())
        )
        if "done" not in state:
            problem = "%s does not say where in its epoch it was saved: going on at the start of epoch %d"
            about = (place or "the training state", 1 + as_count(state.get("epoch", 0), "epoch", place))
            self._comm.on_first(lambda: logging.warning(problem, *about))
        self._saved_digest = state.get("plan", "")
        self.changes = [*told(Pace(*state.get("pace", self.pace)), self.pace)]
        if self.is_seed_drawn and state.get("seed") is not None:
            self.seed = state["seed"]
        world_size, of_rank = _states_of_ranks(state.get("ranks"), place)
        ranks: Sequence[int] = range(world_size)
        if world_size == self._comm.world_size:
            ranks = [self._comm.rank]
            self._saved = {key: of_rank(self._comm.rank, key) for key in ("generators", "at_epoch_start")}
            set_own_buffers(self._modules, of_rank(self._comm.rank, "buffers") or {}, place)
        if self.account is not None and (noted := [*filter(None, (of_rank(rank, "unusable") for rank in ranks))]):
            self.account.load_state_dict(noted)

    def _of_ranks(self) -> dict[str, Any]:
        """What the ranks have of their own, on rank 0; nothing on the others."""
        mine: dict[str, Any] = {
            "generators": generator_states(self._device, self._modules),
            "at_epoch_start": self._at_epoch_start,
            "buffers": own_buffers(self._modules, self._comm),
            "unusable": None if self.account is None else self.account.state_dict(),
        }
        gathered = self._comm.gather(mine)
        if gathered is None:
            return {}
        return {"world_size": len(gathered), **{key: stacked([state[key] for state in gathered]) for key in mine}}

    def close(self) -> None:
        """At the end of the run: its loader is no more, and its state may still be saved."""
        plan = self._comm.on_first(lambda: self.digest(self.done)) or ""
        self.digest = lambda done: plan

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
        digest = self._comm.from_first(lambda: self.digest(done))
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


def _states_of_ranks(ranks: Any, place: str) -> tuple[int, Callable[[int, str], Any]]:
    """How many ranks saved what a training state has of the ranks; and a part of it, by rank and name."""
    if isinstance(ranks, Mapping):
        num_ranks = as_count(ranks.get("world_size", 0), "ranks.world_size", place)
        return num_ranks, lambda rank, key: unstacked(ranks[key], rank)
    by_rank: Sequence[Mapping[str, Any]] = ranks or ()  # of older versions: a mapping for each rank
    return len(by_rank), lambda rank, key: by_rank[rank].get(key)
