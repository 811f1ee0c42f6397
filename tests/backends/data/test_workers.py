"""How many processes load batches, what they leave to the parent, and page-locked memory."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from torch.utils import data
from toys.nets import Points

from nemo_lite.backends.pytorch.data import Batching, DatasetLoader, Shard, plans
from nemo_lite.backends.pytorch.data.workers import pins_memory_for, workers_for

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(2, 1, 1), (1, 1, 1), (8, 1, 7), (64, 8, 7), (96, 8, 8), (128, 1, 8), (4, 8, 1)]
)
def test_a_gpu_gets_its_share_of_the_cores(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert workers_for(GPU) == workers
    assert workers_for(CPU) == 0


def test_what_is_said_counts():
    assert (workers_for(GPU, 0), workers_for(CPU, 3)) == (0, 3)
    assert (pins_memory_for(GPU), pins_memory_for(CPU), pins_memory_for(GPU, False)) == (True, False, False)


@pytest.mark.parametrize(
    ("settings", "given"), [({}, (2, True)), ({"num_workers": 0, "pin_memory": False}, (0, False))]
)
def test_the_loaders_of_a_data_layer_follow_its_device(monkeypatch, settings, given):
    made = {}

    class Noted(data.DataLoader):
        def __init__(self, dataset, **options):
            made.update(options)
            super().__init__(dataset, **options | {"num_workers": 0, "persistent_workers": False, "pin_memory": False})

    monkeypatch.setattr("nemo_lite.backends.pytorch.data.loaders.DataLoader", Noted)
    monkeypatch.setattr(
        "nemo_lite.backends.pytorch.data.loaders.workers_for", lambda device, chosen: 2 if chosen is None else chosen
    )
    layer = Points()
    layer._device = GPU
    for name, value in settings.items():
        setattr(layer, name, value)
    layer.loader(training=True, shard=Shard())
    assert (made["num_workers"], made["pin_memory"]) == given


class CollectsGarbage(data.Dataset):
    def __getitem__(self, index):
        return gc.collect()


class Cycle:
    def __init__(self):
        self.itself = self


def test_garbage_of_the_parent_is_not_collected_in_its_workers(tmp_path):
    # Where garbage of the parent holds threads, as a session of ONNX Runtime does, its end in a fork hangs or crashes.
    gc.collect()
    gc.disable()
    try:
        weakref.finalize(Cycle(), lambda: (tmp_path / f"collected_by_{os.getpid()}").touch())
        plan_of = plans(1, Batching(1), Shard(), training=False)
        loader = DatasetLoader(CollectsGarbage(), plan_of, ["index"], Shard(), num_workers=1)
        assert len(list(loader.epoch(0))) == 1
        assert list(tmp_path.iterdir()) == []
        gc.collect()
        assert [path.name for path in tmp_path.iterdir()] == [f"collected_by_{os.getpid()}"]
    finally:
        gc.enable()
