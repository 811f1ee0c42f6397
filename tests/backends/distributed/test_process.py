"""What the training thread is doing: every mark of the loop, and what is read from the thread's stack."""

import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from toys.device_verdict import use_device_verdict
from toys.nets import Net, Points, build

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.distributed import process
from nemo_lite.backends.pytorch.distributed.process import EVALUATION, WRITING_CHECKPOINT, ActivityReader
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.placement import HostCopy
from nemo_lite.backends.pytorch.precision import Precision


@contextmanager
def running(function):
    """The activity of a thread that runs ``function(lock)``; the lock is released at the end."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=function, args=(lock,), daemon=True)
    thread.start()
    try:
        yield ActivityReader(thread.ident).now
    finally:
        lock.release()
        thread.join(30)


def soon(now, text):
    """The activity once it has that text, or after ten seconds."""
    deadline = time.perf_counter() + 10
    while now().text != text and time.perf_counter() < deadline:
        time.sleep(0.01)
    return now()


def one_step(*losses, callbacks=()):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    params = {"lr": 0.1, "max_steps": 1}
    factory.train(list(losses), optimizer="sgd", callbacks=list(callbacks), optimization_params=params)


def blocking(lock, result=None):
    """A function that waits for the lock."""

    def wait(*args, **kwargs):
        with lock:
            return result

    return wait


# The marks of the loop


def infer(data):
    x, _ = data()
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU).infer([Net()(x=x)])


@pytest.mark.parametrize("work", [lambda data: one_step(build(data)[1]), infer], ids=["training", "inference"])
def test_the_loop_marks_that_it_waits_for_data(work):
    class Slow(Points):
        @property
        def dataset(self):
            return SlowItems(lock_of_run[0])

    lock_of_run = []

    def run(lock):
        lock_of_run.append(lock)
        work(Slow())

    with running(run) as now:
        assert soon(now, "waiting for data") == ("waiting for data", False)


class SlowItems(torch.utils.data.Dataset):
    def __init__(self, lock):
        self.lock = lock

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with self.lock:
            return torch.ones(3), torch.ones(1)


class Waiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lock):
        ctx.lock = lock
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        with ctx.lock:
            return grad, None


def test_the_loop_marks_the_backward_pass_in_which_other_ranks_may_be_waited_for():
    class SlowBackward(Net):
        def forward(self, x):
            return Waiting.apply(super().forward(x), lock_of_run[0])

    lock_of_run = []

    def run(lock):
        lock_of_run.append(lock)
        one_step(build(net=SlowBackward())[1])

    with running(run) as now:
        assert soon(now, "backward") == ("backward", True)


def test_reading_the_loss_waits_for_the_backward_pass_of_the_device(monkeypatch):
    def run(lock):
        use_device_verdict(monkeypatch)
        monkeypatch.setattr(HostCopy, "values", blocking(lock, [0.0, 0.0, 0.0]))
        one_step(build()[1])

    with running(run) as now:
        assert soon(now, "backward") == ("backward", True)


def test_evaluation_is_marked(monkeypatch):
    @contextmanager
    def slow(self):
        with lock_of_run[0]:
            yield

    lock_of_run = []

    def run(lock):
        lock_of_run.append(lock)
        monkeypatch.setattr(Precision, "forward", slow)
        infer(Points())

    with running(run) as now:
        assert soon(now, "evaluation") == ("evaluation", False)


@pytest.mark.parametrize(
    ("method", "result", "text"),
    [("prepare", bool, "writing a checkpoint"), ("is_empty", True, "reading a checkpoint")],
)
def test_writing_and_reading_a_checkpoint_are_marked(method, result, text, monkeypatch, tmp_path):
    def run(lock):
        monkeypatch.setattr(CheckpointFolder, method, blocking(lock, result))
        one_step(build()[1], callbacks=[nemo.CheckpointCallback(tmp_path, step_freq=1)])

    with running(run) as now:
        assert soon(now, text) == (text, False)


def test_of_marks_inside_each_other_the_inner_one_counts_and_none_stays():
    now = ActivityReader(threading.get_ident()).now
    with EVALUATION:
        with WRITING_CHECKPOINT, pytest.raises(ValueError, match="x"), EVALUATION:
            raise ValueError("x")
        assert now().text == "evaluation"
    assert "test_process.py" in now().text


def test_an_iterator_is_marked_while_it_makes_an_item_and_not_while_the_item_is_used():
    now = ActivityReader(threading.get_ident()).now
    seen = list(EVALUATION.around(now() for _ in range(2)))
    assert [each.text for each in seen] == ["evaluation"] * 2
    for _ in EVALUATION.around([1, 2]):
        assert "test_process.py" in now().text
        break  # an iterator that is left early leaves no mark
    assert "test_process.py" in now().text


# What the stack says


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


def test_the_module_whose_method_runs_is_named_through_plain_modules_and_decorators():
    with running(lambda lock: Blocking(name="decoder").forward(lock)) as now:
        assert soon(now, "forward of decoder") == ("forward of decoder", False)


def test_the_module_that_runs_is_named_inside_a_mark_too():
    def run(lock):
        with EVALUATION:
            Blocking(name="decoder").forward(lock)

    with running(run) as now:
        assert soon(now, "forward of decoder") == ("forward of decoder", False)


def test_elsewhere_file_line_and_function_are_named():
    def take(lock):
        with lock:
            pass

    with running(take) as now:
        time.sleep(0.05)
        assert re.fullmatch(r"test_process\.py:\d+ in take", now().text)


def test_a_collective_inside_a_module_is_named_because_another_rank_may_be_late():
    class Exchanging(TrainableNM):
        def forward(self, lock=None):
            dist.distributed_c10d._object_to_tensor(Locked(lock), None, None)

    with running(lambda lock: Exchanging(name="encoder").forward(lock)) as now:
        text = "_object_to_tensor in forward of encoder"
        assert soon(now, text) == (text, True)


class Locked:
    """Takes as long to pickle as a lock is held."""

    def __init__(self, lock):
        self.lock = lock

    def __reduce__(self):
        with self.lock:
            return (int, ())


# Errors, after they have left


def test_the_module_that_an_error_came_from_is_named_after_it_left():
    class Failing(TrainableNM):
        def forward(self):
            raise RuntimeError("gloo")

    with pytest.raises(RuntimeError) as caught:
        Failing(name="encoder").forward()
    assert ActivityReader(threading.get_ident()).of(caught.value).text == "forward of encoder"


def test_the_activity_that_an_error_came_from_is_named_after_it_left():
    with pytest.raises(RuntimeError) as caught, WRITING_CHECKPOINT, EVALUATION:
        raise RuntimeError("gloo")
    assert ActivityReader(threading.get_ident()).of(caught.value).text == "evaluation"


def test_a_line_of_ours_is_no_line_of_the_users():
    own = Path(nemo.__file__).parent
    assert process._is_user_code(__file__)
    assert not any(process._is_user_code(str(own / name)) for name in ("factory.py", "backends/pytorch/actions.py"))
