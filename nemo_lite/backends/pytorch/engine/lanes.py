"""Lanes: objectives that read one stream of batches, and where each lane is in its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_lite.backends.pytorch.checkpoint.fitting import as_count
from nemo_lite.backends.pytorch.data.loaders import BatchLoader
from nemo_lite.backends.pytorch.data.order import Stretch
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.engine.batches import StepBatches, StepBatchLoader
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective
from nemo_lite.backends.pytorch.engine.resuming import stacked, states_of_ranks
from nemo_lite.backends.pytorch.engine.state import StepValues
from nemo_lite.backends.pytorch.nm import DataLayerNM
from nemo_lite.backends.pytorch.placement import AheadOfUse
from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.run_options import Uneven
from nemo_lite.utils import logging


class Lane:
    """Objectives that read one stream of batches. A run has one, or one for each `Objective` with data of its own.

    The epochs of the first lane are those of the run. The others read their data again and again.

    Args:
        comm: the ranks.
        objectives: taken in turn, one a step.
        loader: the batches of this rank.
        data_layer: gives them.
        tensors: of its DAG.
        every: it is updated at every so many steps.
        batches_per_step: micro-batches of a rank in an update.
        uneven: what becomes of items that do not fill a batch on every rank.
        ahead: copies batches to the device.

    Attributes:
        next: the batches of its next update, once it has begun.
        epoch, done: of a lane behind the first: the epoch of its data, and the rounds of it that are done.
    """

    def __init__(
        self,
        comm: Comm,
        objectives: Sequence[LoweredObjective],
        loader: BatchLoader,
        data_layer: DataLayerNM,
        tensors: StepValues,
        every: int,
        batches_per_step: int,
        uneven: Uneven,
        ahead: AheadOfUse,
    ) -> None:
        self.objectives, self.loader, self.data_layer, self.tensors = objectives, loader, data_layer, tensors
        self.every, self.batches_per_step = every, batches_per_step
        self.batches = StepBatchLoader(loader, comm, batches_per_step, uneven, ahead)
        self.next, self.has_begun = StepBatches(), False
        self.epoch = 0
        self.done: Sequence[Stretch] = ()

    def begin(self) -> None:
        """Take the batches of the first update of a run, or of the rest of the epoch that a checkpoint was made in."""
        self.next, self.has_begun = self.batches.first(self.epoch, done=self.done), True
        if self.next.is_over and self.done:  # other numbers of ranks have left fewer items than ranks
            self.epoch, self.done = self.epoch + 1, ()
            self.next = self.batches.first(self.epoch)
        refuse_no_batch(self.next, self.epoch)

    def go_on(self, following: StepBatches) -> None:
        """Take the batches of the next update; where the epoch is over, those of another one."""
        self.next, self.done = following, self.batches.done
        if following.is_over:
            self.batches.settle()
            self.batches.report()
            self.epoch, self.done = self.epoch + 1, ()
            self.begin()


class PlacesOfLanes:
    """Where the lanes behind the first are in their data, and what of it is unusable: a part of the training state."""

    def __init__(self, comm: Comm, lanes: Sequence[Lane]) -> None:
        self._comm, self._lanes = comm, lanes
        self._digests: Sequence[str] = ()

    def state_dict(self) -> dict[str, object]:
        """For each lane epoch, rounds that are done, a hash of them and the ranks' unusable items; all ranks call it.

        Nothing where there are no such lanes.
        """
        places = [
            {
                "epoch": lane.epoch,
                "done": [list(stretch) for stretch in lane.done],
                "plan": self._digest(lane),
                "ranks": self._of_ranks(lane),
            }
            for lane in self._lanes
        ]
        return {"lanes": places} if places else {}

    def load_state_dict(self, state: Mapping[str, Tree], place: str = "") -> None:
        """Go on where a state was saved; without such a part from the start of the data."""
        places = state.get("lanes", ())
        if self._lanes and len(places) != len(self._lanes):
            problem = "the number of objectives with data of their own differs"
            got, expected = f"{1 + len(places)} saved", f"{1 + len(self._lanes)} of this run"
            raise CheckpointError(problem, place=place, got=got, wanted=expected)
        for lane, saved in zip(self._lanes, places, strict=False):
            lane.epoch = as_count(saved["epoch"], "lanes.epoch", place)
            lane.done = [Stretch(*(as_count(number, "lanes.done", place) for number in each)) for each in saved["done"]]
            world_size, of_rank = states_of_ranks(saved["ranks"], place)
            ranks: Sequence[int] = [self._comm.rank] if world_size == self._comm.world_size else range(world_size)
            noted = [*filter(None, (of_rank(rank, "unusable") for rank in ranks))]
            if lane.loader.account is not None and noted:
                lane.loader.account.load_state_dict(noted)
        self._digests = [str(saved["plan"]) for saved in places]

    def check(self) -> None:
        """See that the rounds that are done are those of this run's data; else an epoch of a lane starts anew."""
        for lane, digest in zip(self._lanes, self._digests, strict=False):
            if lane.done and self._comm.share(self._digest(lane)) != digest:
                if self._comm.on_first(lambda: True):
                    logging.warning("%s: the data changed: its epoch starts anew", lane.data_layer.label)
                lane.done = ()

    def _of_ranks(self, lane: Lane) -> dict[str, object]:
        account = lane.loader.account
        gathered = self._comm.gather(None if account is None else account.state_dict())
        return {} if gathered is None else {"world_size": len(gathered), "unusable": stacked(gathered)}

    def _digest(self, lane: Lane) -> str:
        return self._comm.on_first(lambda: lane.batches.digest(lane.epoch, lane.done)) or ""


def refuse_no_batch(first: StepBatches, epoch: int) -> None:
    """Raise UsageError where an epoch has no batch."""
    if first.is_over:
        raise UsageError(
            f"the data layer gave no batch in epoch {epoch}",
            remedy="it has no items, fewer than a batch with drop_last, or an iterator that is used up: "
            "data_iterator must give a new one for each epoch",
        )
