"""Whereabouts: what a thread is doing, in the words of a user, read off its stack."""

import re
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from nemo_lite.backends.pytorch.distributed.health.activity import Whereabouts
from nemo_lite.backends.pytorch.engine import training
from nemo_lite.backends.pytorch.nm import TrainableNM


@contextmanager
def running(function):
    """The whereabouts of a thread that runs the function until a lock is given back."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=function, args=(lock,), daemon=True)
    thread.start()
    time.sleep(0.1)
    yield Whereabouts(thread.ident).now
    lock.release()
    thread.join()


class Waiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lock):
        ctx.lock = lock
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        with ctx.lock:
            return grad, None


class Blocking(TrainableNM):
    """Waits for a lock, under a decorator and inside a plain module."""

    @torch.no_grad()
    def forward(self, lock=None):
        torch.nn.Sequential(Plain(lock))(1)


class Plain(torch.nn.Module):
    def __init__(self, lock):
        super().__init__()
        self.lock = lock

    def forward(self, _):
        with self.lock:
            pass


class Slow(torch.utils.data.Dataset):
    def __init__(self, lock):
        self.lock = lock

    def __len__(self):
        return 1

    def __getitem__(self, index):
        with self.lock:
            return index


def test_the_module_whose_method_runs_is_named_through_plain_modules_and_decorators():
    with running(lambda lock: Blocking(name="decoder").forward(lock)) as now:
        assert now() == ("forward of decoder", False)


def test_a_backward_pass_is_told():
    with running(lambda lock: Waiting.apply(torch.ones(1, requires_grad=True), lock).backward()) as now:
        assert now() == ("backward", True)


def test_waiting_for_data_is_told():
    with running(lambda lock: next(iter(torch.utils.data.DataLoader(Slow(lock))))) as now:
        assert now() == ("waiting for data", False)


def test_elsewhere_file_line_and_function_are_told():
    def take(lock):
        with lock:
            pass

    with running(take) as now:
        assert re.fullmatch(r"test_whereabouts\.py:\d+ in take", now().text)


def test_an_exchange_inside_a_module_is_told_as_one_for_another_rank_may_be_late():
    class Exchanging(TrainableNM):
        def forward(self, lock=None):
            dist.distributed_c10d._object_to_tensor(Locked(lock), None, None)

    with running(lambda lock: Exchanging(name="encoder").forward(lock)) as now:
        assert now() == ("_object_to_tensor in forward of encoder", True)


class Locked:
    """Takes as long to pickle as a lock is held."""

    def __init__(self, lock):
        self.lock = lock

    def __reduce__(self):
        with self.lock:
            return (int, ())


def test_the_function_of_the_engine_that_waits_for_the_device_is_where_it_is_looked_for():
    assert callable(training._all_finite)


def test_where_an_error_came_from_is_told_after_it_left():
    class Failing(TrainableNM):
        def forward(self):
            raise RuntimeError("gloo")

    with pytest.raises(RuntimeError) as caught:
        Failing(name="encoder").forward()
    assert Whereabouts(threading.get_ident()).of(caught.value).text == "forward of encoder"
