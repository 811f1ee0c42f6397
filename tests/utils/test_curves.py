"""Curves: TensorBoard reads them, and a disk that is full costs points and not the run."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from nemo_lite.utils.exp_logging import curve_writer


def curves_in(folder):
    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(each.step, each.value) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.fixture
def told():
    return []


def test_tensorboard_reads_what_was_written_and_no_thread_is_needed(tmp_path, told):
    before = threading.active_count()
    writer = curve_writer(tmp_path, told.append)
    assert isinstance(writer, SummaryWriter)
    for step in range(30):
        writer.add_scalar("loss", step / 2, step)
    writer.add_text("about", "a text", 0)
    assert threading.active_count() == before
    writer.flush()
    assert curves_in(tmp_path) == {"loss": [(step, step / 2) for step in range(30)]}
    writer.close()
    writer.add_scalar("loss", 1.0, 30)  # as with torch's own: into a further file
    writer.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert told == []


def test_a_full_disk_is_told_once_and_leaves_a_gap_that_tensorboard_reads_over(tmp_path, told, monkeypatch):
    writer, write = curve_writer(tmp_path, told.append), os.write
    writer.add_scalar("loss", 1.0, 1)
    writer.flush()

    def fill_up(descriptor, data):
        if len(data) <= 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        for step in (2, 3):
            writer.add_scalar("loss", 2.0, step)
            writer.flush()
    writer.add_scalar("loss", 4.0, 4)
    writer.close()
    assert curves_in(tmp_path) == {"loss": [(1, 1.0), (4, 4.0)]}
    assert len(told) == 1
    assert "No space left on device; the run goes on" in told[0]
