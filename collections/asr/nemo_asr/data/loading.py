"""The batches of an audio data layer, epoch by epoch, and the account of what could not be used. No decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from nemo_asr.data.dataset import AudioTextDataset, Loaded, Request
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.manifest_lines import listed
from nemo_lite.backends.pytorch.data import Asking, Batch, Comm, Leftover, Plan, Seeded
from nemo_lite.errors import DataError
from nemo_lite.utils import logging

_NUM_SPARES = 4
_FAULTS = "faults"
# By rate; by number of channels afterwards; by character.
_COUNTED = ("resampled", "mixed_down", "unknown")


class Account:
    """What could not be used, against a budget, and what was converted on the way: in all epochs of a data layer.

    On several ranks each notes what it read itself, until they settle: then every rank knows what all have noted.

    Args:
        manifest: the utterances.
        sample_rate: the wanted rate, for messages.
        budget: how many utterances may be unusable, on all ranks together, before the run ends.

    Attributes:
        faults: why utterances could not be used, by their positions.
    """

    def __init__(self, manifest: Manifest, sample_rate: int, budget: int) -> None:
        self.faults: dict[int, str] = {}
        self._manifest, self._sample_rate, self._budget = manifest, sample_rate, budget
        self._name = ",".join(manifest.paths)
        self._num_settled = self._num_told = 0
        # Of each kind: settled, and what this rank has counted since then.
        self._counts, self._unsettled = _no_counts(), _no_counts()
        self._conversions_told = False

    def note(self, loaded: Loaded) -> None:
        """Take notice of a batch.

        Raises:
            DataError: the manifest changed, or more utterances are unusable than the budget allows (all are listed).
        """
        if loaded.fatal:
            raise DataError(loaded.fatal)
        self.faults.update(loaded.faults)
        self._check_budget()
        counts: tuple[Mapping[Any, int], ...] = (loaded.resampled, {1: loaded.num_mixed_down}, loaded.unknown)
        for kind, count in zip(_COUNTED, counts, strict=True):
            self._unsettled[kind].update(count)

    def settle(self, comm: Comm) -> None:
        """Bring together what the ranks have noted since they last settled. All ranks call it.

        Raises:
            DataError: more utterances are unusable on all ranks than the budget allows; the same error on all.
        """
        new = dict(islice(self.faults.items(), self._num_settled, None))
        gathered = comm.gather({_FAULTS: new, **{kind: dict(count) for kind, count in self._unsettled.items()}})
        of_all = comm.share(_together(gathered or ()))
        for kind, count in self._counts.items():
            count.update(of_all[kind])
        settled = dict(islice(self.faults.items(), self._num_settled))
        self.faults, self._unsettled = settled | of_all[_FAULTS], _no_counts()
        self._num_settled = len(self.faults)
        self._check_budget()

    def _check_budget(self) -> None:
        if len(self.faults) > self._budget:
            raise DataError(self._over_budget())

    def _over_budget(self) -> str:
        faults, count = list(self.faults.values()), len(self.faults)
        self._num_told = count  # here: a report would list them a second time
        verdict = f"{_utterances(count)} cannot be used and max_corrupt allows {self._budget}"
        remedy = "mend the files, delete their lines, or raise max_corrupt"
        if count == 1:
            return f"{faults[0]}; {verdict}: {remedy}"
        return f"{self._name}: {verdict}; {remedy}\n{listed(faults, count)}"

    def report(self, count_unknown: bool) -> None:
        """Say what is new since the last report; conversions are the same in each epoch and are said once."""
        if len(self.faults) > self._num_told:
            self._num_told = len(self.faults)
            lines = "\n".join(f"  {fault}" for fault in self.faults.values())
            skipped = f"{_utterances(len(self.faults))} skipped so far (max_corrupt {self._budget})"
            logging.warning(f"{self._name}: {skipped}:\n{lines}")
        if self._conversions_told:
            return
        self._conversions_told = True
        resampled, mixed_down, unknown = (self._counts[kind] + self._unsettled[kind] for kind in _COUNTED)
        for rate, count in sorted(resampled.items()):
            logging.info(f"{self._name}: {_utterances(count)} resampled from {rate} Hz to {self._sample_rate} Hz")
        if mixed_down[1]:
            logging.info(f"{self._name}: {_utterances(mixed_down[1])} of several channels averaged to one")
        if count_unknown and unknown:
            shown = " ".join(f'"{symbol}" x{count}' for symbol, count in unknown.most_common(10))
            logging.warning(f"{self._name}: {len(unknown)} characters outside the vocabulary: {shown}")


class AudioTextLoader:
    """Batches of one rank through torch's DataLoader; its workers live as long as the loader.

    Args:
        manifest: the utterances; stays in this process.
        dataset: loads what a request describes; goes to the workers.
        plan_of: the batches of this rank in an epoch.
        account: takes notice of every batch.
        training: perturb the audio, and never give an empty batch (other ranks wait at the same step). In evaluation a
            batch of which nothing can be used does not come; its number is missing among those of the others.
        num_workers: processes that load batches; with 0 they are loaded when asked for.
        pin_memory: page-locked tensors, which go to a GPU faster.
        count_unknown: report the characters outside the vocabulary.
        rank: ours; part of the workers' seeds.
    """

    def __init__(
        self,
        manifest: Manifest,
        dataset: AudioTextDataset,
        plan_of: Callable[[int], Plan],
        account: Account,
        *,
        training: bool,
        num_workers: int = 0,
        pin_memory: bool = False,
        count_unknown: bool = False,
        rank: int = 0,
    ) -> None:
        self._plan_of, self._account, self._training = lru_cache(maxsize=1)(plan_of), account, training
        self._sample_rate, self._count_unknown = dataset.reading.sample_rate, count_unknown
        self._manifest, self._asking = manifest, Asking()
        self._loader: DataLoader[Loaded] = DataLoader(
            Seeded(dataset, dataset.seed, rank),
            batch_size=None,
            sampler=self._asking,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # its own: the global one stays where the user left it
        )

    def __len__(self) -> int:
        return self.plan(self._asking.epoch).num_steps

    def plan(self, epoch: int) -> Plan:
        """The batches of that epoch on this rank."""
        return self._plan_of(epoch)

    def leftover(self, epoch: int) -> Leftover:
        """What becomes of the utterances that do not fill the steps of that epoch."""
        return self.plan(epoch).leftover

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of that epoch from number ``first`` on.

        Raises:
            DataError: more utterances are unusable than the budget allows, a manifest changed, or no utterance of a
                training batch could be used.
        """
        plan = self.plan(epoch)
        self._asking.choose(epoch, _Requests(self._manifest, plan, epoch, first, self._training))
        try:
            for index, loaded in enumerate(self._loader, first):
                self._account.note(loaded)
                if loaded.rows:
                    seconds = loaded.num_samples / self._sample_rate
                    yield Batch(loaded.values, loaded.rows, seconds, plan.number(index))
                elif self._training:
                    problems = [text for _, text in loaded.faults]
                    raise DataError(f"nothing of a batch can be used:\n{listed(problems, len(problems))}")
        except BaseException:
            self._account.report(self._count_unknown)  # nobody may come to settle it
            raise

    def settle(self, comm: Comm) -> None:
        """Bring together what could not be used on any rank, and say it. All ranks call it, at the end of an epoch.

        Raises:
            DataError: on all ranks together it is more than the budget allows; the same error on all.
        """
        self._account.settle(comm)
        self._account.report(self._count_unknown)


class _Requests:
    """What torch's DataLoader asks the data set for: one request a batch. Stays in the main process."""

    def __init__(self, manifest: Manifest, plan: Plan, epoch: int, first: int, training: bool) -> None:
        self._manifest, self._plan, self._epoch, self._first = manifest, plan, epoch, first
        self._training = training

    def __len__(self) -> int:
        return len(self._plan) - self._first

    def __iter__(self) -> Iterator[Request]:
        for number in range(self._first, len(self._plan)):
            refs = self._manifest.refs(self._plan.batches[number])
            spares = self._spares(number) if self._training else []
            yield Request(self._epoch, refs, self._manifest.refs(spares), augment=self._training)

    def _spares(self, number: int) -> list[int]:
        """Utterances of a neighbouring batch: of similar duration when there is bucketing."""
        neighbour = self._plan.batches[number - 1 if number else len(self._plan) - 1]
        spares: list[int] = neighbour[:_NUM_SPARES].tolist()
        return spares


def _no_counts() -> dict[str, Counter[Any]]:
    return {kind: Counter() for kind in _COUNTED}


def _together(gathered: Sequence[Mapping[str, Mapping[Any, Any]]]) -> dict[str, dict[Any, Any]]:
    """What all ranks have noted: reasons by position, in order, and counts of each kind."""
    faults = {row: fault for noted in gathered for row, fault in noted[_FAULTS].items()}
    counts = _no_counts()
    for kind, count in counts.items():
        for noted in gathered:
            count.update(noted[kind])
    return {_FAULTS: dict(sorted(faults.items())), **{kind: dict(count) for kind, count in counts.items()}}


def _utterances(count: int) -> str:
    return "1 utterance" if count == 1 else f"{count} utterances"


def _as_it_is(loaded: Any) -> Any:
    return loaded
