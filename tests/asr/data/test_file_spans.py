"""Bytes from their places in large files: each is opened once, few are open, and one that changes ends the run."""

import os
import pickle

import pytest
from toys.tar_shards import write_shard

from nemo_asr.data.utterances import FileSpans, Span
from nemo_lite.backends.pytorch.data.order import DataChangedError

BLOCK = 512


@pytest.fixture
def files(tmp_path):
    return [write_shard(tmp_path / f"{number}.tar", (f"{number}.wav", b"%d" % number * 3)) for number in range(20)]


def test_a_file_is_opened_once_while_it_is_read_and_few_are_open_at_a_time(files, monkeypatch):
    opened = []
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or open_file(path, flags))
    reader = FileSpans(files, "tar shard")
    num_open = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        for _ in range(3):
            assert reader.read(Span(number, BLOCK, 2)) == (b"%d" % number * 3)[:2]
    assert opened == files
    assert len(os.listdir("/proc/self/fd")) == num_open + 8
    another = pickle.loads(pickle.dumps(reader))
    assert another.read(Span(1, BLOCK, 3)) == b"111"
    del reader, another
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_file_that_changes_during_the_run_ends_it(files):
    reader = FileSpans(files, "tar shard")
    assert reader.read(Span(0, BLOCK, 3)) == b"000"
    os.truncate(files[0], BLOCK)
    with pytest.raises(DataChangedError, match=r"0\.tar: the tar shard changed while it was in use; start the run"):
        reader.read(Span(0, BLOCK, 3))
    os.remove(files[1])
    with pytest.raises(DataChangedError, match=r"1\.tar: the tar shard cannot be opened any more"):
        reader.read(Span(1, BLOCK, 3))
    assert reader.read(Span(2, BLOCK, 3)) == b"222"
    os.truncate(files[2], BLOCK)
    with pytest.raises(DataChangedError, match=r"2\.tar: the tar shard changed"):
        reader.read(Span(2, BLOCK, 3))
