"""From utterances to batches: samples and labels, stretches of files, copies on machines, plain audio files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from toys.fake_comm import FakeComm
from toys.kaldi_folders import make_folder
from toys.manifests import LABELS, layer_of, make_set
from toys.rank_training import rank_factory
from toys.ranks import on_ranks, results_of
from toys.tar_shards import make_tarred_set, write_shard

import nemo_lite as nemo
from nemo_asr import AudioToTextDataLayer
from nemo_asr.augmentation import AudioAugmentor
from nemo_asr.compat.kaldi import KaldiFeatureDataLayer
from nemo_asr.data.audio_files import AudioFilesDataLayer
from nemo_asr.data.copied import CopiedRecordings
from nemo_asr.data.dataset import JoinedRef, Reading, RepeatedRef, SpeechDataset, collate
from nemo_asr.data.tarred import FileSpans, TarredAudioToTextDataLayer
from nemo_asr.run.manifest import ByteRange, Manifest
from nemo_asr.run.text.parser import make_parser
from nemo_lite.backends.pytorch.data.loaders import Request
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.backends.pytorch.distributed.replicas import CopyComparison
from nemo_lite.base.errors import DataChangedError, DataError, UsageError
from nemo_lite.core.neural_types import AudioSignal, LengthsType, LossType, NeuralType

# What a worker does: a request in, one padded batch out, faults as data instead of raised.


@pytest.fixture
def manifest(tmp_path):
    """Four utterances of 0.1, 0.2, 0.3 and 0.4 s; the third has two channels and 8 kHz."""
    lines = []
    for number, text in enumerate(["a", "ab", "a b", "abc"], start=1):
        rate, path = (8000 if number == 3 else 16000), tmp_path / f"{number}.wav"
        noise = np.random.default_rng(number).uniform(-0.5, 0.5, (number * rate // 10, 2 if number == 3 else 1))
        soundfile.write(path, noise, rate)
        lines.append({"audio_filepath": path.name, "duration": number / 10, "text": text})
    (tmp_path / "train.json").write_text("\n".join(map(json.dumps, lines)))
    return Manifest.open(str(tmp_path / "train.json"))


def dataset_of(manifest, augmentor=None, seed=0, **reading):
    return SpeechDataset(manifest.reader, make_parser(LABELS), Reading(**reading), augmentor, seed)


def load(dataset, manifest, rows, spares=(), **request):
    items, others = (list(zip(some, manifest.refs(list(some)), strict=True)) for some in (rows, spares))
    return dataset[Request(items=items, spares=others, **{"epoch": 0, **request})]


def test_a_batch_is_padded_at_the_end_with_zeros(manifest):
    loaded = load(dataset_of(manifest), manifest, [3, 0, 1])
    audio, audio_lens, labels, label_lens = loaded.values
    assert (audio.dtype, audio.shape) == (torch.float32, (3, 6400))
    assert audio_lens.tolist() == [6400, 1600, 3200]
    assert (audio[1, 1600:] == 0).all()
    assert audio[1, :1600].abs().min() >= 0
    assert audio[1, :1600].abs().max() > 0.4
    assert labels.tolist() == [[1, 2, 3], [1, 0, 0], [1, 2, 0]]
    assert label_lens.tolist() == [3, 1, 2]
    assert loaded.ids == [3, 0, 1]
    assert loaded.amount == pytest.approx(0.4 + 0.1 + 0.2)


def test_begin_end_and_pad_ids_surround_the_labels(manifest):
    loaded = load(dataset_of(manifest, bos_id=7, eos_id=8, pad_id=9), manifest, [0, 3])
    assert loaded.values[2].tolist() == [[7, 1, 8, 9, 9], [7, 1, 2, 3, 8]]
    assert loaded.values[3].tolist() == [3, 5]


def test_an_utterance_is_the_same_alone_and_in_a_batch(manifest):
    dataset = dataset_of(manifest)
    alone, together = load(dataset, manifest, [0]), load(dataset, manifest, [3, 0])
    assert torch.equal(alone.values[0][0], together.values[0][1, :1600])


def test_conversions_are_counted(manifest):
    loaded = load(dataset_of(manifest), manifest, [0, 2])
    assert loaded.counts["resampled"] == {8000: 1}
    assert loaded.counts["mixed_down"] == {2: 1}
    assert loaded.values[1].tolist() == [1600, 4800]


def test_an_utterance_that_is_read_again_behind_another_one_or_in_a_later_turn_is_counted_once(manifest):
    first, second = manifest.refs([0, 2])
    items = [(0, first), (2, JoinedRef(second, (first, second))), (2, RepeatedRef(second, 1))]
    loaded = dataset_of(manifest)[Request(0, items, training=True)]
    assert loaded.counts["resampled"] == {8000: 1}
    assert loaded.counts["mixed_down"] == {2: 1}


def test_a_line_may_name_a_channel_and_then_nothing_is_averaged(manifest, tmp_path):
    lines = (tmp_path / "train.json").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines) if json.loads(line)["audio_filepath"].endswith("3.wav"))
    lines += [json.dumps({**json.loads(lines[number]), "channel": channel}) for channel in (0, 1, 2)]
    (tmp_path / "channels.json").write_text("\n".join(lines) + "\n")
    named = Manifest.open(str(tmp_path / "channels.json"))
    loaded = load(dataset_of(named, sample_rate=8000), named, [len(lines) - 3, len(lines) - 2, len(lines) - 1])
    both = torch.from_numpy(soundfile.read(tmp_path / "3.wav", dtype="float32")[0].T)
    assert torch.equal(loaded.values[0], both)
    assert "mixed_down" not in loaded.counts
    ((_, fault),) = loaded.faults
    assert fault.endswith("3.wav has no channel 2: wanted a channel from 0 to 1, or mix for the average of all")


def test_faults_are_told_with_their_row_and_the_rest_of_the_batch_is_kept(manifest, tmp_path):
    (tmp_path / "2.wav").write_bytes(b"RIFF")
    (tmp_path / "3.wav").unlink()
    loaded = load(dataset_of(manifest), manifest, [1, 2, 3])
    assert loaded.ids == [3]
    assert [row for row, _ in loaded.faults] == [1, 2]
    assert "train.json:2: " in loaded.faults[0][1]
    assert "3.wav cannot be opened" in loaded.faults[1][1]
    assert loaded.values[0].shape == (1, 6400)


def test_a_text_that_the_vocabulary_cannot_write_is_a_fault_in_training(manifest, tmp_path):
    loaded = load(SpeechDataset(manifest.reader, make_parser(["x"]), Reading()), manifest, [0], training=True)
    assert "train.json:1: no character of the text is in the vocabulary: got 'a'" in loaded.faults[0][1]


def test_spares_are_tried_only_when_nothing_else_can_be_used(manifest, tmp_path):
    dataset = dataset_of(manifest)
    assert load(dataset, manifest, [0], spares=[1, 2]).ids == [0]
    (tmp_path / "1.wav").unlink()
    (tmp_path / "2.wav").unlink()
    loaded = load(dataset, manifest, [0], spares=[1, 2, 3])
    assert loaded.ids == [2]
    assert [row for row, _ in loaded.faults] == [0, 1]
    assert load(dataset, manifest, [0, 1]).values == ()


def test_characters_outside_the_vocabulary_are_counted_for_each_batch(manifest):
    dataset = SpeechDataset(manifest.reader, make_parser(["a"]), Reading())
    assert load(dataset, manifest, [2, 3]).counts["unknown"] == {" ": 1, "b": 2, "c": 1}
    assert load(dataset, manifest, [0]).counts["unknown"] == {}


def test_audio_is_left_out_without_load_audio(manifest, tmp_path):
    for path in tmp_path.glob("*.wav"):
        path.unlink()
    audio, audio_lens, labels, _ = load(dataset_of(manifest, load_audio=False), manifest, [0, 1]).values
    assert audio.shape == (2, 0)
    assert audio_lens.tolist() == [0, 0]
    assert labels.tolist() == [[1, 0], [1, 2]]


def test_perturbation_follows_from_seed_epoch_and_row_not_from_the_batch(manifest):
    augmentor = AudioAugmentor.from_config({"white_noise": {"prob": 1.0, "min_level": -30, "max_level": -20}})
    dataset = dataset_of(manifest, augmentor)
    rows = [load(dataset, manifest, [0, 1], training=training).values[0][:, :1600] for training in (True, False)]
    noise = rows[0] - rows[1]
    assert float((noise[0] - noise[1]).abs().max()) > 0.01

    def first(dataset, rows, **request):
        return load(dataset, manifest, rows, **request).values[0][0, :1600]

    alone = first(dataset, [0], training=True)
    assert torch.equal(alone, first(dataset, [0, 3], training=True))
    assert torch.equal(alone, first(pickle.loads(pickle.dumps(dataset)), [0], training=True))
    assert not torch.equal(alone, first(dataset, [0], training=True, epoch=1))
    assert not torch.equal(alone, first(dataset_of(manifest, augmentor, seed=1), [0], training=True))
    assert torch.equal(first(dataset, [0]), first(dataset_of(manifest), [0]))


def test_a_changed_manifest_ends_the_run(manifest, tmp_path):
    dataset = dataset_of(manifest)
    with (tmp_path / "train.json").open("a") as file:
        file.write("\n")
    loaded = load(dataset, manifest, [0])
    assert "the manifest changed while it was in use" in loaded.fatal
    assert not loaded.faults


def test_an_argument_that_does_not_fit_the_audio_ends_the_run(manifest):
    augmentor = AudioAugmentor.from_config({"speed": {"prob": 1.0, "sr": 8000, "min_speed_rate": 0.9}})
    loaded = load(dataset_of(manifest, augmentor), manifest, [0], training=True)
    assert "speed.sr: the audio has another sample rate" in loaded.fatal


def test_the_dataset_stays_small_for_workers(manifest):
    assert len(pickle.dumps(dataset_of(manifest))) < 10000


def test_collating_keeps_every_value():
    rng = np.random.default_rng(0)
    audio = [rng.standard_normal(n).astype(np.float32) for n in (5, 1, 9)]
    labels = [[1], [2, 3, 4], [5, 6]]
    signal, audio_lens, ids, label_lens = collate(audio, labels, pad_id=0)
    for row, (samples, text) in enumerate(zip(audio, labels, strict=True)):
        np.testing.assert_array_equal(signal[row, : audio_lens[row]].numpy(), samples)
        assert ids[row, : label_lens[row]].tolist() == text
    assert float(signal.abs().sum()) == pytest.approx(sum(np.abs(samples).sum() for samples in audio), rel=1e-6)
    assert int(ids.sum()) == 21


# Bytes from their places in large files: each is opened once, few are open, and one that changes ends the run.


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
            assert reader.read(ByteRange(number, BLOCK, 2)) == (b"%d" % number * 3)[:2]
    assert opened == files
    assert len(os.listdir("/proc/self/fd")) == num_open + 8
    another = pickle.loads(pickle.dumps(reader))
    assert another.read(ByteRange(1, BLOCK, 3)) == b"111"
    del reader, another
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_a_file_that_changes_during_the_run_ends_it(files):
    reader = FileSpans(files, "tar shard")
    assert reader.read(ByteRange(0, BLOCK, 3)) == b"000"
    os.truncate(files[0], BLOCK)
    with pytest.raises(DataChangedError, match=r"0\.tar: the tar shard changed while it was in use; start the run"):
        reader.read(ByteRange(0, BLOCK, 3))
    os.remove(files[1])
    with pytest.raises(DataChangedError, match=r"1\.tar: the tar shard cannot be opened any more"):
        reader.read(ByteRange(1, BLOCK, 3))
    assert reader.read(ByteRange(2, BLOCK, 3)) == b"222"
    os.truncate(files[2], BLOCK)
    with pytest.raises(DataChangedError, match=r"2\.tar: the tar shard changed"):
        reader.read(ByteRange(2, BLOCK, 3))


# Copies of audio on several machines: their sizes and contents are compared while a run goes on.


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


# Data layers as scripts read them by themselves.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_batches_are_lists_of_tensors_in_port_order_anew_each_time(folder):
    make_set(folder, 6)
    layer = layer_of(shuffle=False)
    assert layer.dataset is None
    for _ in range(2):
        lengths = []
        for batch in layer.data_iterator:
            audio, audio_lens, tokens, token_lens = batch
            assert type(batch) is list
            assert (audio.shape[0], tokens.shape[1]) == (len(audio_lens), token_lens.max())
            lengths += audio_lens.tolist()
        assert lengths == [3200 + 160 * number for number in range(1, 7)]
    assert (len(layer), len(layer.data_iterator)) == (6, 2)
    assert layer._dataloader is layer.data_iterator


def test_shuffled_batches_come_in_another_order_each_time(folder):
    make_set(folder, 12)
    layer = layer_of(batch_size=1)
    orders = [[batch[1].item() for batch in layer.data_iterator] for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_utterances_without_texts_are_kept(folder):
    make_set(folder, 3, text="todo")
    assert [batch[3].tolist() for batch in layer_of().data_iterator] == [[0, 0, 0]]


@pytest.mark.parametrize("text", ["a", "todo"])
def test_the_last_batch_is_dropped_also_without_shuffling_and_without_texts(folder, text):
    make_set(folder, 6, text=text)
    for shuffle in (False, True):
        batches = layer_of(drop_last=True, shuffle=shuffle).data_iterator
        assert ([len(batch[1]) for batch in batches], len(batches)) == ([4], 1)
    in_order = layer_of(drop_last=True, shuffle=False).data_iterator
    assert [batch[1].tolist() for batch in in_order] == [[3360, 3520, 3680, 3840]]
    assert [len(batch[1]) for batch in layer_of(batch_size=-1, drop_last=True, shuffle=False).data_iterator] == [6]


def test_items_are_read_by_position(folder):
    make_set(folder, 3)
    items = layer_of()._dataset
    audio, audio_len, ids, num_ids = items[1]
    assert (len(items), audio.dtype, audio_len.item(), ids.tolist(), num_ids.item()) == (
        3,
        torch.float32,
        3520,
        [1, 2],
        2,
    )
    assert layer_of()._featurizer.process("1.wav").shape == (3360,)


# Recordings without transcripts as a data layer.


@pytest.fixture
def audio_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rate, channels in (("a.wav", 16000, 1), ("b.flac", 8000, 1), ("c.ogg", 44100, 2)):
        samples = np.random.default_rng(1).uniform(-0.5, 0.5, (rate // 2, channels))
        soundfile.write(tmp_path / name, samples, rate)
    return tmp_path


def batches_of(layer):
    return list(layer.loader(training=False, shard=Shard()).epoch(0))


def test_its_ports_are_audio_at_the_models_rate_and_lengths(audio_folder):
    ports = AudioFilesDataLayer(["a.wav"], sample_rate=8000).output_ports
    assert list(ports) == ["audio_signal", "a_sig_length"]
    assert [type(ntype.elements_type) for ntype in ports.values()] == [AudioSignal, LengthsType]
    sound = ports["audio_signal"].elements_type
    assert isinstance(sound, AudioSignal)
    assert sound.freq == 8000


def test_files_of_any_kind_come_in_the_order_given_as_mono_at_the_models_rate(audio_folder):
    layer = AudioFilesDataLayer(["c.ogg", "a.wav", "b.flac"], batch_size=2)
    assert len(layer) == 3
    assert [layer.place_of(item) for item in range(3)] == ["c.ogg", "a.wav", "b.flac"]
    (audio, lengths), (last, last_length) = (batch.values for batch in batches_of(layer))
    assert audio.shape == (2, 8000)
    assert lengths.tolist() == [8000, 8000]
    assert last.shape == (1, 8000)
    assert last_length.tolist() == [8000]
    assert audio.dtype == torch.float32


def test_over_several_ranks_each_file_comes_once_in_order(audio_folder):
    layer = AudioFilesDataLayer(["c.ogg", "a.wav", "b.flac"], batch_size=2)
    ranks = [list(layer.loader(training=False, shard=Shard(rank, 2)).epoch(0)) for rank in range(2)]
    assert [[(batch.number, batch.ids) for batch in batches] for batches in ranks] == [[(0, [0, 1])], [(1, [2])]]


def test_shorter_files_of_a_batch_are_padded_with_zeros(audio_folder):
    soundfile.write("short.wav", np.full(100, 0.5), 16000)
    ((audio, lengths),) = (batch.values for batch in batches_of(AudioFilesDataLayer(["a.wav", "short.wav"], 2)))
    assert lengths.tolist() == [8000, 100]
    assert audio[1, :100].min() > 0.49
    assert audio[1, 100:].abs().max() == 0


def test_files_that_are_not_there_are_all_named_before_anything_is_read(audio_folder):
    (audio_folder / "folder.wav").mkdir()
    with pytest.raises(
        DataError, match=r"^nope\.wav, folder\.wav: there is no such audio file; .*WAV, FLAC, OGG, .* files$"
    ):
        AudioFilesDataLayer(["nope.wav", "a.wav", "folder.wav"])
    with pytest.raises(DataError, match="no audio file is given"):
        AudioFilesDataLayer([])


def test_a_damaged_file_is_named(audio_folder):
    (audio_folder / "damaged.wav").write_bytes(b"RIFF damaged")
    with pytest.raises(DataError, match=r"damaged\.wav is not a WAV, FLAC, OGG, MP3"):
        batches_of(AudioFilesDataLayer(["a.wav", "damaged.wav"], 2))
