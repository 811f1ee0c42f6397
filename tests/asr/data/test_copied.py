"""Copies of audio on several machines: their sizes and contents are compared while a run goes on."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys.fake_comm import FakeComm
from toys.kaldi_folders import make_folder
from toys.manifests import LABELS, layer_of, make_set
from toys.rank_training import rank_factory
from toys.ranks import on_ranks, results_of
from toys.tar_shards import make_tarred_set

import nemo_lite as nemo
from nemo_asr import AudioToTextDataLayer
from nemo_asr.data.kaldi import KaldiFeatureDataLayer
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_asr.data.utterances import AudioFilesDataLayer, CopiedRecordings
from nemo_lite.backends.pytorch.distributed.copies import CopyComparison
from nemo_lite.core.neural_types import AudioSignal, LossType, NeuralType
from nemo_lite.errors import UsageError

# Each rank is the first of its machine.
TWO_MACHINES = {"LOCAL_RANK": "0"}


class Loudness(nemo.LossNM):
    """Something to train on audio alone."""

    input_ports = {"audio": NeuralType("B T", AudioSignal(16000))}
    output_ports = {"loss": NeuralType(None, LossType())}

    def __init__(self) -> None:
        super().__init__(name="loudness")
        self.gain = torch.nn.Parameter(torch.ones(()))

    def _loss_function(self, audio: torch.Tensor) -> torch.Tensor:
        return (self.gain * audio).square().mean()


def layer_in(kind: str) -> Any:
    if kind == "manifest":
        return layer_of()
    if kind == "files":
        return AudioFilesDataLayer([f"{number}.wav" for number in range(1, 13)], batch_size=4)
    if kind == "kaldi":
        return KaldiFeatureDataLayer("kaldi", LABELS, 2)
    return TarredAudioToTextDataLayer("tarred/audio_{0..2}.tar", "tarred/tarred_audio_manifest.json", LABELS, 4)


def using(folders: list[str], kind: str, action: str) -> Any:
    made = rank_factory()
    os.chdir(folders[made.global_rank or 0])
    audio, *_ = layer_in(kind)()
    if action == "infer":
        values = made.infer(tensors=[audio])
        return None if values is None else len(values[0])
    loss = Loudness()(audio=audio)
    made.train([loss], optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 2})
    return None


def two_copies(tmp_path: Path, kind: str) -> list[Path]:
    here = tmp_path / "here"
    here.mkdir()
    if kind == "kaldi":
        make_folder(here / "kaldi")
    elif kind == "tar":
        make_tarred_set(here)
    else:
        make_set(here)
    if kind == "kaldi":  # its paths are absolute
        (here / "kaldi" / "feats.scp").write_text(
            (here / "kaldi" / "feats.scp").read_text().replace(f"{here}/kaldi/", "")
        )
    shutil.copytree(here, tmp_path / "there")
    return [here, tmp_path / "there"]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("action", ["infer", "train"])
def test_one_sample_that_differs_on_one_machine_is_told_with_both(action: str, tmp_path: Path) -> None:
    folders = two_copies(tmp_path, "manifest")
    flip(folders[1] / "7.wav", 2000)
    for rank in on_ranks(2, using, [*map(str, folders)], "manifest", action, env=TWO_MACHINES):
        assert rank.code == 2, rank.err
        assert "the ranks do not agree: train.json:7: rank 0 (" in rank.err
        assert ") has content " in rank.err
        assert rank.err.strip().endswith("; copy the same data to all machines")


def test_sizes_come_first_and_a_missing_file_is_one(tmp_path: Path) -> None:
    folders = two_copies(tmp_path, "files")
    flip(folders[1] / "3.wav", 2000)
    with open(folders[1] / "9.wav", "ab") as file:
        file.write(b"\0\0")
    finished = on_ranks(2, using, [*map(str, folders)], "files", "infer", env=TWO_MACHINES)
    assert [rank.code for rank in finished] == [2, 2]
    size = (folders[0] / "9.wav").stat().st_size
    assert f"9.wav: rank 0 ({os.uname().nodename}) has {size} bytes, rank 1 (" in finished[0].err
    assert f") has {size + 2} bytes; copy the same" in finished[0].err


@pytest.mark.parametrize("kind", ["tar", "kaldi"])
def test_parts_of_archives_are_compared(kind: str, tmp_path: Path) -> None:
    folders = two_copies(tmp_path, kind)
    path = folders[1] / ("tarred/audio_1.tar" if kind == "tar" else "kaldi/feats.ark")
    flip(path, 2000 if kind == "tar" else path.stat().st_size - 2)
    finished = on_ranks(2, using, [*map(str, folders)], kind, "infer", env=TWO_MACHINES)
    assert [rank.code for rank in finished] == [2, 2], finished[0].err
    assert "the ranks do not agree: " in finished[0].err
    assert " has content " in finished[0].err


@pytest.mark.parametrize("kind", ["manifest", "tar"])
def test_equal_copies_are_no_difference_and_one_machine_reads_nothing(kind: str, tmp_path: Path) -> None:
    folders = [*map(str, two_copies(tmp_path, kind))]
    assert results_of(2, using, folders, kind, "infer", env=TWO_MACHINES) == [4, None]
    if kind == "manifest":
        flip(Path(folders[1]) / "7.wav", 2000)
        assert results_of(2, using, folders, kind, "infer") == [4, None]


def test_of_a_large_set_some_contents_are_compared_the_same_on_all_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, num_items=40)
    layer = layer_of()
    found = []
    for _ in range(2):
        copies = CopyComparison(FakeComm(0, 2), layer.copied(), "train.json", layer.place_of, few_bytes=10_000)
        copies.compare(10.0)
        assert copies._found is not None
        found.append(copies._found)
    (sizes, digests), (_, again) = found
    assert sizes.tolist() == [os.stat(f"{number}.wav").st_size for number in range(1, 41)]
    assert len(digests) == 16
    assert digests == again
    os.remove("5.wav")
    assert CopiedRecordings(layer.utterances).sizes()[4] == -1
    assert CopiedRecordings(layer.utterances).digest(4) == ""


class Slow:
    """Files on a drive that does not answer yet."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def seed(self) -> str:
        return ""

    def sizes(self) -> Any:
        self.answers.wait(10.0)
        return np.zeros(3, np.int64)

    def digest(self, item: int) -> str:
        return "a"


def test_nothing_waits_for_a_slow_drive_and_it_is_compared_later() -> None:
    slow, comm = Slow(), FakeComm(0, 2)
    copies = CopyComparison(comm, slow, "train.json", str)
    copies.compare()
    assert not copies._is_over
    slow.answers.set()
    copies.compare(10.0)
    assert copies._is_over


def test_an_error_of_the_thread_is_raised_and_not_lost() -> None:
    class Broken(Slow):
        def sizes(self) -> Any:
            raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        CopyComparison(FakeComm(0, 2), Broken(), "train.json", str).compare(10.0)


def test_a_data_layer_of_ones_own_has_nothing_to_compare() -> None:
    class Own(nemo.DataLayerNM):
        pass

    assert Own().copied() is None
    assert AudioToTextDataLayer.copied is not nemo.DataLayerNM.copied
