"""Durations that are not the files': what is measured when, what is told, and what the filters make of it."""

import pytest
from toys.manifests import layer_of, make_set

from nemo_asr.audio.reading import audio_seconds
from nemo_asr.data.manifest import Manifest
from nemo_asr.data.speech_data_layer import lengths_in_samples, with_file_durations


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def headers_read(monkeypatch):
    """The files whose headers are read."""
    paths = []
    monkeypatch.setattr(
        "nemo_asr.data.speech_data_layer.audio_seconds",
        lambda path, *, place: paths.append(path) or audio_seconds(path, place=place),
    )
    return paths


def test_a_duration_beyond_the_end_becomes_the_files(folder, capsys):
    make_set(folder, 3)
    make_set(folder, 3, "wrong.json", duration=2.00275)
    true = Manifest.open("train.json")
    assert with_file_durations(true) is true
    manifest = with_file_durations(Manifest.open("wrong.json"))
    assert lengths_in_samples(manifest, 16000).tolist() == [3360, 3520, 3680]
    told = capsys.readouterr().err
    assert "wrong.json: 3 of 3 durations differ from their files by more than 0.1 s and 1 %: what a file" in told
    assert "wrong.json:1 says 2.003 s, the file has 0.210 s" in told


def test_a_difference_within_the_tolerance_stays_as_written(folder):
    make_set(folder, 3, duration=0.3)
    manifest = Manifest.open("train.json")
    assert with_file_durations(manifest) is manifest


def test_a_duration_that_is_shorter_than_the_file_stays_and_is_told(folder, capsys):
    make_set(folder, 3, duration=0.05)
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.05] * 3)
    told = capsys.readouterr().err
    assert "what a file has of its duration is read (of 3 longer files the rest is not read). The largest" in told


def test_a_part_that_reaches_beyond_the_end_is_as_long_as_the_file_allows(folder):
    make_set(folder, 2, duration=18000, offset=0.1)
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.11, 0.12])


def test_parts_inside_files_and_files_that_cannot_be_read_keep_their_durations(folder):
    make_set(folder, 3, duration=2.0)
    make_set(folder, 3, "parts.json", duration=0.05, offset=0.1)
    (folder / "2.wav").unlink()
    assert with_file_durations(Manifest.open("train.json")).durations.tolist() == pytest.approx([0.21, 2.0, 0.23])
    parts = Manifest.open("parts.json")
    assert with_file_durations(parts) is parts


def test_headers_of_all_files_are_read_only_where_one_of_a_few_differs(folder, headers_read, capsys):
    make_set(folder, 12)
    with_file_durations(Manifest.open("train.json"), limit=3)
    assert len(headers_read) == 3
    make_set(folder, 12, duration=2.0)
    headers_read.clear()
    with_file_durations(Manifest.open("train.json"), limit=3)
    assert len(headers_read) == 15
    captured = capsys.readouterr()
    assert (
        "3 of 3 durations, evenly spread, differ from their files: reading the headers of all 12 files" in captured.out
    )
    assert "train.json: 12 of 12 durations differ" in captured.err


def test_no_header_is_read_where_data_are_strict_or_no_audio_is_wanted(folder, headers_read):
    make_set(folder, 4, duration=2.0)
    layer_of(strict_data=True)
    layer_of(load_audio=False)
    assert headers_read == []
    layer_of()
    assert len(headers_read) == 4


def test_filters_and_buckets_see_the_files_durations(folder):
    make_set(folder, 12, duration=60.0)
    layer = layer_of(min_duration=0.25, max_duration=0.3)
    assert [layer.place_of(row) for row in (0, len(layer) - 1)] == ["train.json:5", "train.json:10"]
    assert layer.durations.max() < 0.31
