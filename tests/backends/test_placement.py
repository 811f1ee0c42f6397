"""Choosing a device, and moving values to it and back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from nemo_lite.backends.pytorch import placement
from nemo_lite.backends.pytorch.placement import (
    AheadOfUse,
    HostCopy,
    ReadBeside,
    choose_device,
    describe,
    place,
    to_cpu,
    to_device,
)
from nemo_lite.base.errors import DeviceError
from nemo_lite.core.run_options import DeviceType


def test_a_local_rank_without_a_gpu_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Volta")
    monkeypatch.setattr(placement, "_let_segments_expand", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    got = r"got cuda:0 Volta \(CUDA_VISIBLE_DEVICES=3\), wanted at most 1 .*\(--gpus-per-node\)"
    with pytest.raises(DeviceError, match=rf"{re.escape(socket.gethostname())}: .* local_rank 5 has none: {got}"):
        choose_device(None, local_rank=5)
    assert choose_device(None, local_rank=0) == torch.device("cuda", 0)


def test_a_task_of_slurm_that_sees_its_own_gpus_only_takes_its_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(placement, "_let_segments_expand", lambda: None)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert [choose_device(DeviceType.AllGpu, rank).index for rank in (0, 1, 7)] == [0, 0, 0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)  # without binding it sees those of all tasks
    assert [choose_device(DeviceType.AllGpu, rank).index for rank in (0, 1, 7)] == [0, 1, 7]


@pytest.mark.parametrize("variable", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_of_gpu_memory_expand_unless_the_user_has_set_the_allocator(monkeypatch, variable):
    settings = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    choose_device(DeviceType.CPU)
    assert settings == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    if variable is not None:
        monkeypatch.setenv(variable, "max_split_size_mb:128")
    choose_device(None)
    assert settings == ([] if variable else ["expandable_segments:True"])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    choose_device(None)
    assert len(settings) == (0 if variable else 1)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)


KERNELS_OF_MANY_LENGTHS = """
import torch
import nemo_lite
from nemo_lite.backends.pytorch.placement import choose_device

choose_device(nemo_lite.DeviceType.CPU)
conv = torch.nn.Conv1d(8, 8, 3)
for length in 2 * list(range(300, 400)):
    conv(torch.zeros(2, 8, length))
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(
    "given", [{}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024"}, {"DNNL_PRIMITIVE_CACHE_CAPACITY": "1024"}]
)
def test_on_a_cpu_few_kernels_are_kept_unless_the_user_says_how_many(given):
    others = {name: value for name, value in os.environ.items() if "PRIMITIVE_CACHE" not in name}
    environment = {**others, **given, "ONEDNN_VERBOSE": "profile_create"}
    command = [sys.executable, "-c", KERNELS_OF_MANY_LENGTHS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.count("create:cache_miss,cpu,convolution") == (100 if given else 200)


PRODUCTS_OF_MANY_LENGTHS = """
from pathlib import Path
import torch
import nemo_lite
from nemo_lite.backends.pytorch.placement import choose_device

choose_device(nemo_lite.DeviceType.CPU)
right, kib = torch.zeros(96, 34, dtype=torch.bfloat16), []
for lengths in range(300, 600), range(600, 700):
    for length in lengths:
        torch.zeros(length, 96, dtype=torch.bfloat16) @ right
    kib.append(int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]))
print(kib[1] - kib[0])
"""


@pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="this CPU has no kernels for bfloat16",
)
@pytest.mark.parametrize("given", [{}, {"LRU_CACHE_CAPACITY": "1024"}])
def test_on_a_cpu_few_descriptions_of_bfloat16_products_are_kept_unless_the_user_says_how_many(given):
    others = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    command = [sys.executable, "-c", PRODUCTS_OF_MANY_LENGTHS]
    ended = subprocess.run(command, env={**others, **given}, capture_output=True, text=True, check=True)
    grown_by = int(ended.stdout) >> 10
    assert grown_by > 25 if given else grown_by < 8  # MiB


def test_several_processes_that_ask_for_gpus_rehearse_on_the_cpu_where_there_are_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(DeviceType.AllGpu, local_rank=1) == choose_device(None) == torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe(torch.device("cpu")) == "CPU (1 thread)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe(torch.device("cpu")) == "CPU (2 threads)"
    with pytest.raises(DeviceError, match="placement AllGpu asks for a GPU, and there is none"):
        choose_device(DeviceType.AllGpu)


def test_tensors_move_and_other_values_stay():
    values = [torch.ones(2, requires_grad=True), "text", 3]
    meta, *rest = to_device(values, torch.device("meta"))
    assert (meta.device.type, rest) == ("meta", ["text", 3])
    back = to_cpu(values)
    assert (back[0].requires_grad, back[1:]) == (False, ["text", 3])


def test_numbers_on_their_way_to_the_host_are_read_when_they_are_wanted():
    assert HostCopy(torch.tensor([1.0, 0.0])).values() == [1.0, 0.0]


def test_batches_are_moved_ahead_and_on_a_cpu_stay_the_tensors_they_are():
    values = (torch.ones(2), "text")
    ahead = AheadOfUse(torch.device("cpu"))
    assert ahead.start(values) is values
    ahead.arrive(values)
    moved, text = AheadOfUse(torch.device("meta")).start(values)
    assert (moved.device.type, text) == ("meta", "text")


class FakeStream:
    """A stream that notes what it is asked to wait for."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


class FakeTensor:
    """Notes its moves, and which streams use its memory."""

    def __init__(self, log):
        self.log = log

    def to(self, device, non_blocking):
        self.log.append(f"copied to {device}, {'not ' if non_blocking else ''}waiting, in {self.log.current}")
        return self

    def record_stream(self, stream):
        self.log.append(f"memory kept for {stream.name}")


class Log(list):
    current = "computing"


def test_copies_to_a_gpu_are_made_on_a_stream_of_their_own_and_waited_for_there(monkeypatch):
    log, device = Log(), torch.device("cuda", 0)

    @contextmanager
    def entered(stream):
        log.current = stream.name
        yield
        log.current = "computing"

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("copying", log))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("computing", log))
    monkeypatch.setattr(torch, "Tensor", FakeTensor)
    ahead = AheadOfUse(device)
    ahead.arrive(ahead.start([FakeTensor(log), 3]))
    assert log == [
        "copied to cuda:0, not waiting, in copying",
        "computing waits for copying",
        "memory kept for computing",
    ]


class FakeCuda:
    """Streams and events that note what is asked of them."""

    def __init__(self):
        self.log, self.current = [], "computing"

    def patch(self, monkeypatch):
        cuda = self

        class Stream:
            def __init__(self, device=None, name="beside"):
                self.name = name

            def wait_event(self, event):
                cuda.log.append(f"{self.name} waits for {event.place}")

            def wait_stream(self, other):
                cuda.log.append(f"{self.name} waits for {other.name}")

        class Event:
            def record(self, stream):
                self.place = f"mark on {stream.name}"

        @contextmanager
        def stream(entered):
            before, cuda.current = cuda.current, entered.name
            yield
            cuda.current = before

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name=self.current))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda value, on: self.log.append(f"{value} on {on.name}"))


def test_reads_beside_wait_for_their_mark_and_what_is_queued_later_waits_for_them(monkeypatch):
    cuda = FakeCuda()
    cuda.patch(monkeypatch)
    reads = ReadBeside(torch.device("cuda", 0))
    mark = reads.mark()
    values = [torch.tensor(1), ["text", [torch.tensor(2)]], 3]
    with reads.reading(values, mark):
        cuda.log.append(f"reading on {cuda.current}")
    uses = ["1 on beside", "2 on beside"]
    expected = ["beside waits for mark on computing", *uses, "reading on beside", "computing waits for beside"]
    assert [line.replace("tensor(", "").replace(")", "") for line in cuda.log] == expected


def test_on_a_cpu_there_is_nothing_to_read_beside():
    reads = ReadBeside(torch.device("cpu"))
    assert (reads.is_of_use, reads.mark()) == (False, None)
    with reads.reading([torch.ones(1)], None):
        """Nothing to wait for."""


def test_a_module_is_moved_only_where_something_of_it_is_elsewhere(monkeypatch):
    moved = []
    monkeypatch.setattr(nn.Module, "to", lambda module, device: moved.append(device))
    module = nn.BatchNorm1d(2)
    place(module, torch.device("cpu"))
    assert moved == []
    module.running_mean = module.running_mean.new_zeros(2, device="meta")
    place(module, torch.device("cpu"))
    place(nn.Identity(), torch.device("cpu"))  # it may have what torch does not know of
    assert len(moved) == 2
