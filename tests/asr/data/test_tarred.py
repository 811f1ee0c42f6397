"""Tar shards: which there are, what is in them, the data layer, and making them."""

import bz2
import gzip
import json
import os
import pickle
import shutil
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch.utils.data import DataLoader
from toys.manifests import LABELS, damage, entry, layer_of, make_set, write
from toys.tar_members import member
from toys.tar_shards import make_tarred_set, write_shard

import nemo_asr
from nemo_asr import TarredAudioToTextDataLayer
from nemo_asr.commands.cli.data import main
from nemo_asr.data.made_shards import make_shards
from nemo_asr.data.tar_shards import expanded, match, members_of
from nemo_asr.data.tarred import FileSpans, TarredUtterances
from nemo_asr.run.audio.reading import read_audio
from nemo_asr.run.manifest import Manifest
from nemo_lite import logging
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import DataError, UsageError

# The paths of tar shards: patterns with braces, lists, and shards that are not there.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        write_shard(f"audio_{number}.tar")
        write_shard(f"a_{number:02}.tar")
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "shards"),
    [
        ("audio_0.tar", ["audio_0.tar"]),
        ("audio_{0..2}.tar", ["audio_0.tar", "audio_1.tar", "audio_2.tar"]),
        ("audio_{9..11}.tar", ["audio_9.tar", "audio_10.tar", "audio_11.tar"]),
        ("a_{09..11}.tar", ["a_09.tar", "a_10.tar", "a_11.tar"]),
        ("a_{0{8,9},11}.tar", ["a_08.tar", "a_09.tar", "a_11.tar"]),
        ("audio__OP_0..1_CL_.tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_(0..1).tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_[0..1].tar", ["audio_0.tar", "audio_1.tar"]),
        ("audio_<0..1>.tar", ["audio_0.tar", "audio_1.tar"]),
        (["audio_3.tar", "a_0{1,0}.tar"], ["audio_3.tar", "a_01.tar", "a_00.tar"]),
    ],
)
def test_braces_mean_what_they_mean_in_bash_and_in_nemo(paths, shards, folder):
    assert expanded(paths) == shards


def test_a_path_that_is_there_is_taken_as_it_is_written(folder):
    write_shard(folder / "set_(0..1).tar")
    write_shard(folder / "a{1,2}.tar")
    assert expanded(["set_(0..1).tar", "a{1,2}.tar"]) == ["set_(0..1).tar", "a{1,2}.tar"]


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        ("audio_{11..12}.tar", r"^audio_12\.tar: the tar shard does not exist; mend the list of tar shards$"),
        ("audio_{10..13}.tar", r"^audio_12\.tar: the tar shard does not exist \(2 of 4 are missing\)"),
        (["audio_0.tar", "audio_{0..1}.tar"], r"^audio_0\.tar: the tar shard is given 2 times; name it once$"),
        (["audio_0.tar", ""], "^the list of tar shards is empty or has an empty part"),
        ([], "^the list of tar shards is empty"),
        (".", r"^\.: the tar shard is a folder: wanted a tar file$"),
    ],
)
def test_shards_that_are_not_there_are_named(paths, problem, folder):
    with pytest.raises(DataError, match=problem):
        expanded(paths)


def test_a_pattern_of_too_many_shards_is_refused():
    with pytest.raises(UsageError, match=r"too many tar shards: got a\{0\.\.9999999\}\.tar, wanted 100000 or fewer"):
        expanded("a{0..9999999}.tar")


# What is in a tar shard, whatever its format; and damage of every kind, which must not be taken for the end.


BLOCK = 512


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_by_their_headers_whatever_the_format(kind, tmp_path):
    long = f"{'folder/' * 20}ünïcode.wav" if kind != tarfile.USTAR_FORMAT else "folder/a.wav"
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"one"), (long, b"x" * 700), ("3.wav", b""), kind=kind)
    members = list(members_of(path))
    with tarfile.open(path) as archive:
        assert members == [(member.name, member.offset_data, member.size) for member in archive]
    assert [member.name for member in members] == ["1.wav", long, "3.wav"]
    content = (tmp_path / "s.tar").read_bytes()
    assert [content[first : first + size] for _, first, size in members] == [b"one", b"x" * 700, b""]


def test_folders_and_links_are_no_members(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(b"a")
    (tmp_path / "in/link.wav").symlink_to("a.wav")
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        archive.add(tmp_path / "in", "in")
    assert [member.name for member in members_of(str(tmp_path / "s.tar"))] == ["in/a.wav"]


def test_a_shard_without_members_is_a_shard(tmp_path):
    assert list(members_of(write_shard(tmp_path / "s.tar"))) == []


@pytest.mark.parametrize(
    ("num_bytes", "problem"),
    [
        (0, r"the tar shard is empty \(0 bytes\); copy it or make it again$"),
        (100, "this is no tar file, or a damaged one"),
        (2 * BLOCK + 100, r"ends early, within 1\.wav: got 1124 bytes, wanted at least 2048; copy it or make it again"),
        (4 * BLOCK, r"ends early, after 1\.wav, without the blocks of zeros that end it: got 2048 bytes"),
        (4 * BLOCK + 100, r"ends early, after 1\.wav, without the blocks of zeros"),
        (6 * BLOCK, r"ends early, within 2\.wav: got 3072 bytes, wanted at least 4096"),
    ],
)
def test_a_shard_that_ends_early_is_refused_wherever_it_ends(num_bytes, problem, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1" * 3 * BLOCK), ("2.wav", b"2" * 3 * BLOCK))
    os.truncate(path, num_bytes)
    with pytest.raises(DataError, match=problem) as error:
        list(members_of(path))
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("position", "problem"),
    [(0, "this is no tar file, or a damaged one"), (2 * BLOCK, r"is damaged at byte 1024, after 1\.wav")],
)
def test_a_damaged_header_is_not_taken_for_the_end(position, problem, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1"), ("2.wav", b"2"))
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(b"damage")
    with pytest.raises(DataError, match=problem):
        list(members_of(path))


def test_a_size_below_0_is_not_taken_for_the_end(tmp_path):
    below = member("pax", b"14 size=-9999\n", tarfile.XHDTYPE) + member("2.wav", b"2")
    (tmp_path / "s.tar").write_bytes(member("1.wav", b"1") + below + member("3.wav", b"3") + bytes(1024))
    with pytest.raises(DataError, match=r"s\.tar: "):
        list(members_of(str(tmp_path / "s.tar")))


@pytest.mark.parametrize(("compress", "kind"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2")])
def test_a_compressed_shard_is_refused_with_the_reason(compress, kind, tmp_path):
    path = write_shard(tmp_path / "s.tar", ("1.wav", b"1"))
    (tmp_path / "c.tar").write_bytes(compress((tmp_path / "s.tar").read_bytes()))
    with pytest.raises(DataError, match=rf"c\.tar: the tar shard is compressed \({kind}\): wanted a plain tar file"):
        list(members_of(str(tmp_path / "c.tar")))
    assert len(list(members_of(path))) == 1


# Which recording in the tar shards belongs to which manifest line, and what is told of those that belong to none.


@pytest.fixture
def matched(tmp_path, capsys):
    """A function from the shards' members, and the paths in the lines: (row, shard) of each utterance, and the log."""

    def run(shards, *paths, strict=False):
        lines = [path if isinstance(path, dict) else entry(audio_filepath=path) for path in paths]
        manifest = Manifest.open(write(tmp_path / "m.json", *lines), strict=True)
        members = [
            [(name, size if isinstance(size, bytes) else b"x" * size) for name, size in shard.items()]
            for shard in shards
        ]
        written = [write_shard(tmp_path / f"{number}.tar", *each) for number, each in enumerate(members)]
        with logging.temp_verbosity(logging.WARNING):
            found = match(manifest, written, strict=strict)
        told = capsys.readouterr().err.replace(f"{tmp_path}/", "")
        return list(zip(found["rows"].tolist(), found["shards"].tolist(), strict=True)), told

    return run


def test_a_member_belongs_to_the_line_of_its_path_in_the_order_of_the_shards(matched):
    shards = [{"c.flac": 1, "./b.wav": 2}, {"any/a.wav": 3}]
    assert matched(shards, "x/any/a.wav", "/data/b.wav", "c.wav") == ([(2, 0), (1, 0), (0, 1)], "")


@pytest.mark.parametrize(
    ("member", "line"),
    [
        ("yes/abc.wav", "yes/abc.wav"),
        ("./yes/abc.wav", "/data/clips/yes/abc.wav"),
        ("clips/yes/abc.flac", "yes/abc.wav"),
        ("yes/abc.wav", "../clips/./yes/abc.wav"),
        ("yes/abc.wav", "~/yes//abc"),
        ("/data/yes/abc.wav", "yes/abc.wav"),
        ("a/yes/abc.wav", "abc.wav"),
        ("abc.wav", "yes/abc.wav"),
    ],
)
def test_a_line_and_its_member_may_begin_with_other_folders(member, line, matched):
    assert matched([{member: 1, "other.wav": 1}], line, "other.wav") == ([(0, 0), (1, 0)], "")


def test_a_part_of_a_corpus_gets_its_own_recordings_out_of_all_shards(matched):
    shards = [{"no/abc.wav": 9, "yes/abc.wav": 9}, {"up/abc.wav": 9}]
    rows, told = matched(shards, "yes/abc.wav")
    assert rows == [(0, 0)]
    assert "2 recordings (0.tar:no/abc.wav, 1.tar:up/abc.wav) in the tar shards without a manifest line" in told
    rows, told = matched([{"no/abc.wav": 9}, {"b.wav": 1}], "yes/abc.wav", "b.wav")
    assert rows == [(1, 1)]
    assert "1 of 2 lines whose recording is in no tar shard (m.json:1; of another folder is" in told
    assert "of another folder is 0.tar:no/abc.wav, not yes/abc.wav): not used" in told


def test_the_nearest_path_is_taken_and_then_the_same_ending(matched):
    shards = [{"abc.wav": 9, "yes/abc.wav": 9, "yes/abc.flac": 9, "a/yes/abc.wav": 9}]
    assert matched(shards, "yes/abc.flac", "abc.wav", "/b/yes/abc.wav")[0] == [(1, 0), (2, 0), (0, 0)]


def test_recordings_that_all_have_one_name_are_found_in_linear_time(matched):
    paths = [f"{number}/audio.wav" for number in range(6_000)]
    start = time.process_time()
    rows, told = matched([dict.fromkeys(paths, 1)], *(f"/data/{path}" for path in reversed(paths)))
    assert time.process_time() - start < 4.0
    assert rows == [(5_999 - number, 0) for number in range(6_000)]
    assert told == ""


def test_a_line_that_two_recordings_fit_is_an_error_with_both(matched):
    with pytest.raises(
        DataError, match=r"m\.json:2: two recordings may be meant by abc\.wav: got .*0\.tar:no/abc\.wav and"
    ):
        matched([{"b.wav": 1, "no/abc.wav": 9}, {"yes/abc.wav": 9}], "b.wav", "abc.wav")
    with pytest.raises(
        DataError, match=r"may be meant by a\.mp3: got .*0\.tar:a\.wav and .*0\.tar:a\.flac; write the paths"
    ):
        matched([{"a.wav": 9, "a.flac": 9}], "a.mp3")


def test_a_recording_that_lines_of_two_folders_mean_is_an_error_with_both(matched):
    got = r"got bob/1\.wav, and ann/1\.wav in .*m\.json:1; write the paths of the manifest"
    with pytest.raises(DataError, match=rf"m\.json:3: two lines mean one recording, .*0\.tar:1\.wav: {got}"):
        matched([{"1.wav": 5}], "ann/1.wav", "/data/ann/1.wav", "bob/1.wav")


def test_members_without_a_line_and_lines_without_a_member_are_counted(matched):
    shards = [{"a.wav": 1, "b.wav": 1}, {f"{number}.wav": 1 for number in range(7)}]
    rows, told = matched(shards, "c.wav", "a.wav")
    assert rows == [(1, 0)]
    assert "m.json: 1 of 2 lines whose recording is in no tar shard (m.json:1): not used" in told
    assert "m.json: 8 recordings (0.tar:b.wav, 1.tar:0.wav, 1.tar:1.wav, 1.tar:2.wav, 1.tar:3.wav, ...) in the" in told
    assert "in the tar shards without a manifest line: not used" in told


def test_with_strict_they_are_errors(matched):
    with pytest.raises(DataError, match=r"m\.json: 1 of 2 lines whose recording is in no tar shard .*1 recording \("):
        matched([{"a.wav": 1, "b.wav": 1}], "a.wav", "c.wav", strict=True)
    assert matched([{"a.wav": 1}], "a.wav", strict=True) == ([(0, 0)], "")


def test_texts_beside_the_recordings_are_not_taken_for_recordings(matched):
    assert matched([{"a.txt": 5, "a.wav": 1, "a.json": 3, "README.md": 9}], "a.wav") == ([(0, 0)], "")


def test_several_lines_are_parts_of_one_recording(matched):
    parts = [entry(audio_filepath="long.wav", offset=float(start)) for start in range(3)]
    assert matched([{"long.wav": 9}, {"b.wav": 1}], *parts, "b.wav") == ([(0, 0), (1, 0), (2, 0), (3, 1)], "")


def test_recordings_of_one_name_in_two_folders_are_told_apart_by_their_whole_path(matched):
    shards = [{"ann/1.wav": 5, "./bob/1.wav": 6}]
    assert matched(shards, "bob/1.wav", "ann/1.wav") == ([(1, 0), (0, 0)], "")
    rows, told = matched([{"x/1.wav": 5}], "bob/1.wav", "ann/1.wav")
    assert rows == []
    assert "2 of 2 lines whose recording is in no tar shard" in told


def test_a_repeated_recording_is_not_used_and_another_one_of_the_same_name_is_an_error(matched):
    rows, told = matched([{"a.wav": 7}, {"./a.wav": 7}], "a.wav")
    assert rows == [(0, 0)]
    assert "1 recording (1.tar:./a.wav) in the tar shards with the name and content of another one: not used" in told
    for other in (8, b"yyyyyyy"):
        with pytest.raises(
            DataError, match=r"1\.tar:a\.wav: two recordings have one name: the other is .*0\.tar:a\.wav"
        ):
            matched([{"a.wav": 7}, {"a.wav": other}], "a.wav")


# Utterances in tar shards: lines, durations and bytes belong together, also after filters and in another process.


def test_line_duration_and_recording_belong_together_in_the_order_of_the_shards(tmp_path):
    utterances = TarredUtterances.open(*make_tarred_set(tmp_path, shuffle=True))
    assert utterances.starts.tolist() == [0, 4, 8, 12]
    reader = pickle.loads(pickle.dumps(utterances.reader))
    for row, ref in enumerate(utterances.refs(np.arange(12))):
        utterance = reader.utterance(ref)
        assert utterance == utterances.utterance(row)
        seconds = len(read_audio(reader.audio(utterance), sample_rate=16000).samples) / 16000
        assert seconds == pytest.approx(utterance.duration) == pytest.approx(utterances.durations[row])
        assert utterance.audio_path == f"{tmp_path}/tarred/audio_{row // 4}.tar:{round(seconds * 100 - 20)}.wav"
        assert utterances.place(row) == utterance.place == f"{tmp_path}/tarred/tarred_audio_manifest.json:{row + 1}"


def test_filters_keep_the_shards_apart(tmp_path):
    utterances = TarredUtterances.open(*make_tarred_set(tmp_path, num_shards=4)).between(0.225, 0.285)
    assert utterances.starts.tolist() == [0, 1, 4, 6, 6]
    kept = [utterances.utterance(row) for row in range(6)]
    assert [utterance.duration for utterance in kept] == [0.23, 0.24, 0.25, 0.26, 0.27, 0.28]
    contents = [utterances.reader.audio(utterance) for utterance in kept]
    assert contents == [(tmp_path / f"{number}.wav").read_bytes() for number in range(3, 9)]
    assert [dropped.count for dropped in utterances.dropped] == [2, 4]


def test_lines_without_a_recording_are_dropped_and_counted(tmp_path):
    shards, manifest = make_tarred_set(tmp_path)
    utterances = TarredUtterances.open(shards.replace("..2", "..1"), manifest)
    assert len(utterances) == 8
    assert f"4 whose recording is in no tar shard (0.00 h: {manifest}:9, {manifest}:10" in utterances.summary()
    write_shard(tmp_path / "others.tar", ("x.wav", b"x"))
    with pytest.raises(DataError, match=r"no utterance is left: 12 whose recording is in no tar shard"):
        TarredUtterances.open(tmp_path / "others.tar", manifest)


def test_an_empty_or_a_huge_member_is_named_with_its_line(tmp_path, monkeypatch):
    manifest = write(tmp_path / "m.json", entry(audio_filepath="a.wav"), entry(audio_filepath="b.wav"))
    utterances = TarredUtterances.open(write_shard(tmp_path / "s.tar", ("a.wav", b""), ("b.wav", b"123")), manifest)
    reader, (empty, full) = utterances.reader, (utterances.utterance(row) for row in range(2))
    with pytest.raises(DataError, match=r"m\.json:1: .*/s\.tar:a\.wav is empty \(0 bytes\); make the tar shard again"):
        reader.check_audio(empty)
    assert reader.audio(full) == b"123"
    monkeypatch.setattr("nemo_asr.data.tarred.MAX_CONTENT_BYTES", 2)
    with pytest.raises(DataError, match=r"m\.json:2: .*/s\.tar:b\.wav has 3 bytes, more than 2"):
        reader.audio(full)


# The data layer over tar shards: counts, order, ranks and workers, equality with loose files, and what it refuses.


@pytest.fixture
def shard_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def source(shard_folder):
    """13 utterances in 3 shards, in a random order: the first two arguments of the data layer."""
    return make_tarred_set(shard_folder, 13, shuffle=True, seed=1)


def tarred(source, batch_size=4, **arguments):
    return TarredAudioToTextDataLayer(source[0], source[1], LABELS, batch_size, **arguments)


def epoch_of(layer, training=True, rank=0, world_size=1, epoch=0, uneven="pad"):
    return list(layer.loader(training=training, shard=Shard(rank, world_size, 7, uneven)).epoch(epoch))


def ids_of(batches):
    return [batch.ids for batch in batches]


def items_of(batches):
    return sorted(item for ids in ids_of(batches) for item in ids)


@pytest.mark.parametrize("shuffle_n", [0, 6])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_utterance_comes_once_an_epoch_on_any_number_of_ranks(source, world_size, shuffle_n):
    layer = tarred(source, batch_size=2, shuffle_n=shuffle_n)
    assert len(layer) == 13
    of_ranks = [epoch_of(layer, rank=rank, world_size=world_size, uneven="join") for rank in range(world_size)]
    assert sorted(item for batches in of_ranks for item in items_of(batches)) == list(range(13))
    assert len(layer.loader(training=True, shard=Shard(0, world_size))) == -(-13 // world_size // 2)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_evaluation_scores_each_utterance_once_in_the_order_of_the_shards(source, world_size):
    layer = tarred(source, shuffle_n=6)
    batches = [batch for rank in range(world_size) for batch in epoch_of(layer, False, rank, world_size)]
    in_order = sorted(batches, key=lambda batch: batch.number)
    assert [item for batch in in_order for item in batch.ids] == list(range(13))


def test_the_order_does_not_depend_on_the_number_of_workers_and_changes_with_the_epoch(source):
    alone, with_workers = (tarred(source, shuffle_n=6, num_workers=number) for number in (0, 2))
    loader = with_workers.loader(training=True, shard=Shard(1, 2, 7))
    for epoch in (0, 1):
        wanted = epoch_of(alone, rank=1, world_size=2, epoch=epoch)
        found = list(loader.epoch(epoch))
        assert ids_of(found) == ids_of(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert all(map(torch.equal, mine.values, theirs.values))
    assert ids_of(epoch_of(alone)) != ids_of(epoch_of(alone, epoch=1))


def test_audio_and_labels_are_those_of_the_loose_files(source):
    layer, loose = tarred(source, sample_rate=8000), layer_of(sample_rate=8000, shuffle=False)
    of_file = {f"{row + 1}.wav": row for row in range(13)}
    rows = [of_file[layer.utterance_of(item).audio_path.rpartition(":")[2]] for item in range(13)]
    assert sorted(rows) == list(range(13)) != rows
    one, other = (next(iter(epoch_of(each, training=False))) for each in (tarred(source, 13, sample_rate=8000), loose))
    assert one.values[0].shape[0] == 13
    for position, row in enumerate(rows):
        if row < 4:
            for mine, theirs in zip(one.values[::2], other.values[::2], strict=True):
                length = other.values[1][row] if mine.dtype == torch.float32 else other.values[3][row]
                assert torch.equal(mine[position, :length], theirs[row, :length])
            assert all(one.values[port][position] == other.values[port][row] for port in (1, 3))


def test_scripts_read_batches_and_single_utterances_as_in_nemo(source):
    layer = tarred(source, pad_id=7, shuffle=False, sample_rate=8000)
    (first, *_), wanted = list(layer.data_iterator), epoch_of(layer, training=False)[0]
    items = DataLoader(layer.dataset, batch_size=4, collate_fn=layer.collate_fn)
    for batch in (first, next(iter(items))):
        assert all(map(torch.equal, batch, wanted.values))


def read_spans(layer, monkeypatch, **arguments):
    spans = []
    read = FileSpans.read
    with monkeypatch.context() as context:
        context.setattr(FileSpans, "read", lambda self, span: spans.append(span) or read(self, span))
        epoch_of(layer, **arguments)
    return spans


@pytest.mark.parametrize("training", [True, False])
def test_a_shard_is_read_once_from_front_to_back_and_opened_once(source, training, monkeypatch):
    opened = []
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or open_file(path, flags))
    layer = tarred(source)
    opened.clear()  # the lists of their members have been read
    spans = read_spans(layer, monkeypatch, training=training)
    assert len(spans) == len(set(spans)) == 13
    assert [shard for shard in opened if str(shard).endswith(".tar")] == [
        layer.utterances.reader.shards.paths[number] for number in dict.fromkeys(span.file for span in spans)
    ]
    assert len([shard for shard in opened if str(shard).endswith(".tar")]) == 3
    for number in range(3):
        firsts = [span.first for span in spans if span.file == number]
        assert firsts == sorted(firsts)


def test_nothing_is_written_to_disk(source, shard_folder):
    before = {path: path.stat().st_mtime_ns for path in shard_folder.rglob("*")}
    epoch_of(tarred(source, num_workers=1))
    assert {path: path.stat().st_mtime_ns for path in shard_folder.rglob("*")} == before


def test_utterances_that_are_left_out_change_the_count_and_nothing_else(source):
    layer = tarred(source, min_duration=0.225, shuffle_n=3)
    assert len(layer) == 11
    layer.leave_out([0, 10], "for a reason")
    assert items_of(epoch_of(layer)) == list(range(9))
    with pytest.raises(DataError, match=r"no utterance is left: 13 shorter than min_duration 9 s"):
        tarred(source, min_duration=9)


def test_a_damaged_member_is_skipped_in_training_and_told_with_its_line_and_shard(source, shard_folder, capsys):
    layer = tarred(source, max_corrupt=1)
    span = layer.utterances.refs([5])[0].span
    with open(shard_folder / f"tarred/audio_{span.file}.tar", "r+b") as file:
        file.seek(span.first)
        file.write(b"nothing that is audio")
    layer = tarred(source, max_corrupt=1)
    loader = layer.loader(training=True, shard=Shard())
    assert items_of(loader.epoch(0)) == [*range(5), *range(6, 13)]
    with pytest.raises(DataError) as error:
        epoch_of(tarred(source), training=False)
    name = layer.utterance_of(5).audio_path
    assert str(error.value).startswith(f"{source[1]}:6: {name} is not ")
    assert "make the tar shards again without the damaged files, or raise max_corrupt" in str(error.value)


def test_bad_shards_end_it_with_one_line(source, shard_folder):
    def refusal(shards, manifest, **arguments):
        with pytest.raises((DataError, UsageError)) as error:
            TarredAudioToTextDataLayer(shards, manifest, LABELS, 4, **arguments)
        assert "\n" not in str(error.value)
        assert error.value.exit_code == 2
        return str(error.value)

    shards, manifest = source
    assert "audio_3.tar: the tar shard does not exist" in refusal(shards.replace("2}", "3}"), manifest)
    os.truncate(shard_folder / "tarred/audio_1.tar", 20000)
    assert "audio_1.tar: the tar shard ends early, within " in refusal(shards, manifest)
    assert (
        refusal(shards, manifest, shuffle_n=-1)
        == "TarredAudioToTextDataLayer.shuffle_n is -1, wanted int from 0 to 1000000000"
    )
    assert "none.json: the manifest does not exist" in refusal(shards.replace("2}", "0}"), "none.json")


def test_a_member_without_a_line_is_counted_and_not_part_of_the_set(source, shard_folder, capsys):
    write_shard(shard_folder / "more.tar", ("x.wav", b"x"))
    with logging.temp_verbosity(logging.WARNING):
        layer = tarred(([source[0], "more.tar"], source[1]))
    assert len(layer) == 13
    assert "1 recording (more.tar:x.wav) in the tar shards without a manifest line: not used" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"more\.tar:x\.wav.* without a manifest line; make the tar shards again"):
        tarred(([source[0], "more.tar"], source[1]), strict_data=True)


def test_ranks_compare_what_is_in_the_shards_and_not_where_they_are(source, shard_folder):
    shutil.copytree("tarred", "elsewhere")
    other = source[0].replace("/tarred/", "/elsewhere/"), source[1].replace("/tarred/", "/elsewhere/")
    shutil.copy("elsewhere/audio_2.tar", "elsewhere/audio_x.tar")
    renamed = [*(f"elsewhere/audio_{number}.tar" for number in "01"), "elsewhere/audio_x.tar"], other[1]
    # One after the other: names of modules that are alive differ.
    here, there, changed = (tarred(each, num_workers=3, name="data").fingerprint() for each in (source, other, renamed))
    assert here == there
    assert {key for key in here if here[key] != changed[key]} == {"tar shards of data"}


def test_parts_of_one_recording_come_from_one_member(shard_folder):
    soundfile.write("long.wav", np.linspace(-0.5, 0.5, 16000), 16000, subtype="FLOAT")
    parts = [{"audio_filepath": "long.wav", "offset": n / 4, "duration": 0.25, "text": "a"} for n in range(4)]
    (shard_folder / "m.json").write_text("".join(json.dumps(part) + "\n" for part in parts))
    write_shard(shard_folder / "s.tar", ("long.wav", (shard_folder / "long.wav").read_bytes()))
    (batch,) = epoch_of(TarredAudioToTextDataLayer("s.tar", "m.json", LABELS, -1), training=False)
    assert torch.equal(batch.values[0].ravel(), torch.linspace(-0.5, 0.5, 16000, dtype=torch.float64).float())


def test_a_configuration_trains_from_shards_and_evaluates_from_files(source):
    recipe = nemo_asr.recipe_from_text(
        f"""
data_train:
  header: {{full_spec: nemo_asr.TarredAudioToTextDataLayer}}
  init_params: {{manifest_filepath: {source[1]}, shuffle_n: 100}}
data_eval:
  header: {{full_spec: nemo_asr.AudioToTextDataLayer}}
  init_params: {{}}
AudioToMelSpectrogramPreprocessor: {{features: 8}}
JasperEncoder:
  activation: relu
  jasper:
    - {{filters: 8, repeat: 1, kernel: [3], stride: [1], dilation: [1], dropout: 0.0, residual: false}}
labels: [" ", a, b, c]
""",
        "tarred.yaml",
    )
    train = recipe.data_layer(source[0], training=True, batch_size=2)
    dev = recipe.data_layer("train.json", training=False, batch_size=2)
    assert [type(layer).__name__ for layer in (train, dev)] == ["TarredAudioToTextDataLayer", "AudioToTextDataLayer"]
    assert len(train) == len(dev) == 13


# The maker of tar shards: names, lines, equal shards, equal files from equal input, and what it refuses.


def members(path):
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def lines_of(manifest):
    return [json.loads(line) for line in Path(manifest).read_text().splitlines()]


@pytest.fixture
def set_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 7)
    return tmp_path


def test_recordings_are_taken_over_in_shards_of_equal_numbers(set_folder):
    made = make_shards("train.json", "tarred", num_shards=3)
    assert [path.name for path in made.shards] == ["audio_0.tar", "audio_1.tar", "audio_2.tar"]
    contents = [members(path) for path in made.shards]
    assert [list(each) for each in contents] == [["1.wav", "2.wav", "3.wav"], ["4.wav", "5.wav"], ["6.wav", "7.wav"]]
    assert contents[1]["5.wav"] == (set_folder / "5.wav").read_bytes()
    lines = lines_of(made.manifest)
    assert lines[4] == {"audio_filepath": "5.wav", "duration": 0.25, "text": "a", "shard_id": 1}
    assert (made.num_lines, made.num_recordings, len(lines)) == (7, 7, 7)
    assert made.seconds == pytest.approx(1.68)


def test_equal_input_gives_equal_files_and_shuffling_another_order(set_folder):
    first, again, shuffled = (
        make_shards("train.json", name, num_shards=2, shuffle=name == "c", seed=3) for name in ("a", "b", "c")
    )
    assert [path.read_bytes() for path in first.shards] == [path.read_bytes() for path in again.shards]
    names = [name for path in shuffled.shards for name in members(path)]
    assert sorted(names) == [f"{number}.wav" for number in range(1, 8)] != names
    assert [line["audio_filepath"] for line in lines_of(shuffled.manifest)] == names


def test_lines_keep_their_keys_and_get_true_durations_and_texts(set_folder):
    (set_folder / "t.txt").write_text("from a file")
    write(
        set_folder / "m.json",
        entry(audio_filepath="1.wav", duration=2.0, speaker=5, lang="en"),
        entry(audio_filepath="2.wav", duration=0.1, offset=0.05),
        entry(audio_filepath="2.wav", duration=0.02, offset=0.15, text=None, text_filepath="t.txt"),
        entry(audio_filepath="3.wav", duration=0.2299),
    )
    made = make_shards("m.json", "tarred", max_duration=2.5)
    assert lines_of(made.manifest) == [
        {"audio_filepath": "1.wav", "duration": 0.21, "text": "one two", "speaker": 5, "lang": "en", "shard_id": 0},
        {"audio_filepath": "2.wav", "duration": 0.1, "text": "one two", "offset": 0.05, "shard_id": 0},
        {"audio_filepath": "2.wav", "duration": 0.02, "text": "from a file", "offset": 0.15, "shard_id": 0},
        {"audio_filepath": "3.wav", "duration": 0.2299, "text": "one two", "shard_id": 0},
    ]
    assert (made.num_lines, made.num_recordings) == (4, 3)
    assert list(members(made.shards[0])) == ["1.wav", "2.wav", "3.wav"]


def test_names_have_no_folder_and_one_dot_and_are_different(set_folder):
    paths = ["x/1.v2.wav", "x/y/1.wav", "x/y_1.wav", "x/1_v2.flac"]
    for path in paths:
        (set_folder / path).parent.mkdir(parents=True, exist_ok=True)
        (set_folder / path).write_bytes((set_folder / "1.wav").read_bytes())
    write(set_folder / "m.json", *(entry(audio_filepath=path, duration=0.21) for path in paths))
    made = make_shards("m.json", "tarred")
    assert list(members(made.shards[0])) == ["1_v2.wav", "y_1.wav", "y_1 (2).wav", "1_v2 (2).flac"]


def test_what_cannot_be_made_is_refused_before_anything_is_written(set_folder):
    with pytest.raises(UsageError, match=r"more shards than recordings: got 8, wanted at most 7"):
        make_shards("train.json", "tarred", num_shards=8)
    (set_folder / "2.wav").unlink()
    with pytest.raises(DataError, match=r"train\.json:2: the audio file 2\.wav cannot be opened \(No such file"):
        make_shards("train.json", "tarred")
    assert not (set_folder / "tarred").exists()


def test_a_damaged_recording_ends_it_without_a_manifest(set_folder):
    damage(set_folder, 6)
    with pytest.raises(DataError, match=r"train\.json:6: 6\.wav is not a WAV"):
        make_shards("train.json", "tarred", num_shards=2)
    assert [path.name for path in (set_folder / "tarred").iterdir()] == ["audio_0.tar"]
    with pytest.raises(UsageError, match=r"tarred: the folder holds tar shards already: got audio_0\.tar; choose"):
        make_shards("train.json", "tarred")


def test_the_command_prints_the_arguments_of_the_data_layer(set_folder, capsys):
    assert main(["tar", "train.json", "--num_shards", "3", "--shuffle", "--target_dir", "t"]) == 0
    assert capsys.readouterr().out == (
        "audio_tar_filepaths: t/audio_{0..2}.tar  (7 recordings, 0.1 MB)\n"
        "manifest_filepath: t/tarred_audio_manifest.json  (7 utterances, 0.00 h)\n"
    )
    assert main(["tar", "train.json"]) == 0
    assert capsys.readouterr().out.startswith("audio_tar_filepaths: tarred/audio_0.tar  (")
