"""A data layer as scripts read it: batches as lists of tensors, items by position. Training has loaders of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from nemo_asr.data.dataset import SpeechDataset
from nemo_asr.data.utterances import Utterances
from nemo_lite.backends.pytorch.data import PlannedLoader, Request


class BatchLists:
    """The batches of a loader, each a list of tensors in port order; every reading is another epoch."""

    def __init__(self, loader: PlannedLoader) -> None:
        self._loader, self._epoch = loader, 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return (list(batch.values) for batch in self._loader.epoch(epoch))


class ItemTensors(Dataset[tuple[Tensor, ...]]):
    """Audio (T,), its length (), ids (U,) and their number () of each utterance, unperturbed."""

    def __init__(self, utterances: Utterances[Any], dataset: SpeechDataset[Any]) -> None:
        self._utterances, self._items = utterances, dataset

    def __len__(self) -> int:
        return len(self._utterances)

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        (ref,) = self._utterances.refs([position])
        request: Request[Any] = Request(epoch=0, items=[(position, ref)])
        samples, ids = self._items.read(position, ref, request, defaultdict(Counter))
        audio, labels = torch.from_numpy(samples), torch.tensor(ids, dtype=torch.long)
        return audio, torch.tensor(len(audio)), labels, torch.tensor(len(labels))
