"""A Kaldi data folder: which utterances it has, and what is wrong with one, told by file and line."""

import os
import pickle

import numpy as np
import pytest
from toys.kaldi_folders import TEXTS, make_folder

from nemo_asr.data.kaldi import KaldiUtterances, matrix_of
from nemo_lite import logging
from nemo_lite.errors import DataError, UsageError


def test_text_duration_and_features_belong_together(tmp_path):
    matrices = make_folder(tmp_path)
    utterances = KaldiUtterances.open(tmp_path)
    assert utterances.num_frames.tolist() == [20, 21, 22, 23, 24]
    assert utterances.num_features == 4
    reader = pickle.loads(pickle.dumps(utterances.reader))
    for row, ref in enumerate(utterances.refs(np.arange(5))):
        utterance = reader.utterance(ref)
        assert (utterance.text, utterance.place) == (TEXTS[row], f"{tmp_path}/feats.scp:{row + 1}")
        assert utterance.duration == pytest.approx((20 + row) / 100)
        assert np.array_equal(matrix_of(reader.audio(utterance)), matrices[row])
    kept = utterances.between(0.215, 0.235)
    assert [kept.utterance(row).text for row in range(len(kept))] == ["b a", "c"]
    assert kept.num_frames.tolist() == [22, 23]


def test_without_durations_a_frame_is_10_ms_and_limits_are_refused(tmp_path):
    make_folder(tmp_path, with_durations=False)
    assert KaldiUtterances.open(tmp_path).durations.tolist() == pytest.approx([0.2, 0.21, 0.22, 0.23, 0.24])
    with pytest.raises(UsageError, match=r"utt2dur: min_duration and max_duration need the durations; write it"):
        KaldiUtterances.open(tmp_path, with_durations=True)
    (tmp_path / "utt2dur").write_text("utt0 1.0\nutt2 1\n")
    assert KaldiUtterances.open(tmp_path).durations.tolist() == pytest.approx([1.0, 0.21, 1.0, 0.23, 0.24])
    with pytest.raises(DataError, match=r"utt2dur: utt1 has no duration: wanted one for each utterance"):
        KaldiUtterances.open(tmp_path, with_durations=True)


def test_texts_without_features_are_counted_and_features_without_a_text_have_an_empty_one(tmp_path, capsys):
    make_folder(tmp_path)
    (tmp_path / "text").write_text("utt0\ta  b \n\nutt1\nother x\nmore y\n")
    with logging.temp_verbosity(logging.WARNING):
        utterances = KaldiUtterances.open(tmp_path)
    assert [utterances.utterance(row).text for row in range(5)] == ["a  b", "", "", "", ""]
    assert "text: 2 of 4 texts belong to no utterance of" in capsys.readouterr().err


def test_paths_start_at_the_working_directory_or_at_the_folder(tmp_path, monkeypatch):
    make_folder(tmp_path / "data")
    scp = tmp_path / "data/feats.scp"
    for start, written in ((tmp_path, "data/feats.ark"), ("/", "feats.ark")):
        monkeypatch.chdir(start)
        lines = [f"{line.split()[0]} {written}:{line.rpartition(':')[2]}" for line in scp.read_text().splitlines()]
        scp.write_text("\n".join(lines))
        assert len(KaldiUtterances.open(tmp_path / "data")) == 5


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("touch harm; cat f.ark |", "the features are a command's output, and no command is run: got touch harm"),
        ("| tee f.ark", "the features are a command's output"),
        ("feats.ark:5[0:3]", "parts of matrices are not read: got feats.ark:5"),
        ("none.ark:5", r"the ark file none\.ark cannot be opened \(No such file or directory\)"),
        ("feats.ark:6", "there is no binary Kaldi matrix"),
        ("feats.ark", "there is no binary Kaldi matrix"),
        ("", "no file is named: wanted NAME FILE:BYTE"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named_with_its_line(entry, problem, tmp_path, monkeypatch):
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    scp = (tmp_path / "feats.scp").read_text().splitlines()
    (tmp_path / "feats.scp").write_text("\n".join([*scp[:2], f"utt2 {entry}", *scp[3:]]))
    with pytest.raises(DataError, match=rf"feats\.scp:3: {problem}") as error:
        KaldiUtterances.open(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "harm").exists()


def test_an_ark_file_that_ends_early_is_named_for_each_of_its_first_lines(tmp_path):
    make_folder(tmp_path)
    os.truncate(tmp_path / "feats.ark", 500)
    with pytest.raises(DataError, match=r"feats\.scp:2: the ark file .*ends early: got 1\d\d bytes from byte") as error:
        KaldiUtterances.open(tmp_path)
    assert len(str(error.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("text", None, r"text: the file cannot be opened \(No such file or directory\)"),
        ("feats.scp", "\n", r"feats\.scp: the file is empty; it needs a line for each utterance"),
        ("text", "utt0 a\nutt1 b\nutt0 c\n", r"text:3: utt0 occurs a second time, after line 1"),
        (
            "utt2dur",
            "utt0 1.0\nutt1 long\n",
            r"utt2dur:2: the duration of utt1 is no number of seconds: got long, wanted seconds",
        ),
    ],
)
def test_a_file_of_the_folder_that_cannot_be_used_is_named(name, content, problem, tmp_path):
    make_folder(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=problem):
        KaldiUtterances.open(tmp_path)


def test_frames_of_different_sizes_are_refused(tmp_path):
    make_folder(tmp_path)
    make_folder(tmp_path / "other", num_features=5)
    other = (tmp_path / "other/feats.scp").read_text().splitlines()[1].replace("utt1", "x")
    (tmp_path / "feats.scp").write_text((tmp_path / "feats.scp").read_text() + other)
    with pytest.raises(DataError, match=r"feats\.scp:6: frames differ in size: got 5 features a frame, wanted 4"):
        KaldiUtterances.open(tmp_path)
