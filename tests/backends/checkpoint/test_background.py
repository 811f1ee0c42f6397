"""The thread that writes checkpoints: order, errors, forks; copies that training may not change."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch

from nemo_lite.backends.pytorch.checkpoint.storage import BackgroundWriter, Weights, copied_to_host, num_bytes_of


def test_jobs_run_one_after_the_other_while_the_caller_goes_on():
    writer, may_end, done = BackgroundWriter(), threading.Event(), []
    writer.start(lambda: (may_end.wait(10), done.append(1)))
    writer.start(lambda: done.append(2))
    assert (writer.is_idle(), done) == (False, [])
    may_end.set()
    writer.finish()
    assert (writer.is_idle(), done) == (True, [1, 2])


def test_an_error_is_raised_once_and_what_came_after_it_is_dropped():
    writer, done = BackgroundWriter(), []
    writer.start(lambda: 1 / 0)
    writer.start(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        writer.finish()
    assert (writer.is_idle(), done) == (True, [])
    writer.start(lambda: done.append(2))
    writer.finish()
    assert done == [2]


def test_a_process_forked_meanwhile_ends_as_usual_and_has_no_thread():
    writer, may_end = BackgroundWriter(), threading.Event()
    writer.start(lambda: may_end.wait(10))
    child = os.fork()
    if not child:
        code = 0
        try:
            vars(threading)["_shutdown"]()  # waits for all threads, as a worker does that ends
            writer.finish()
        except BaseException:
            code = 1
        os._exit(code)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    may_end.set()
    writer.finish()
    assert ended == (child, 0)


def test_a_copy_stays_as_it_was_and_tied_tensors_stay_one():
    weight = torch.arange(4.0)
    tree = {"a": [weight, (weight[:2], 3)], "b": Weights("E", {"one": weight, "two": weight})}
    copy: Any = copied_to_host(tree)
    assert num_bytes_of(copy) == 16 + 8 + 2 * 16
    weight.add_(1)
    whole, (part, number) = copy["a"]
    assert (whole.tolist(), part.tolist(), number) == ([0, 1, 2, 3], [0, 1], 3)
    assert isinstance(copy["b"], Weights)
    assert len({*map(id, copy["b"].tensors.values())}) == 1
