"""Features that Kaldi computed: matrices, folders, and the data layer."""

import base64
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from toys.kaldi_folders import TEXTS, make_folder
from toys.manifests import LABELS

import nemo_asr
from nemo_asr import KaldiFeatureDataLayer
from nemo_asr.compat.kaldi import HEADER_BYTES, KaldiUtterances, header_of, matrix_of
from nemo_lite import logging
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import DataError, UsageError

# Kaldi's matrices: the values that Kaldi's own code reads from the same bytes, and every kind of damage.


PLAIN = [
    [1.3823, 3.2865, 1.3217],
    [-5.2126, 3.6214, 1.7855],
    [-2.1478, 2.3245, 1.4583],
    [1.1765, 0.1137, 2.1869],
    [-2.9458, -0.6516, -1.9285],
]
# Written by kaldiio 2.18.1, read by kaldi-native-io 1.23.0, which is Kaldi's code: the bytes, and the values.
MATRICES = {
    "FM": (
        "AEJGTSAEBQAAAAQDAAAAafCwP5FVUkAML6k/282mwGfFZ0A1i+Q/xHUJwCjEFEA8qbo/iZiWP8PV6D1i9QtAQYg8wN7RJr9Y2Pa/",
        PLAIN,
    ),
    "DM": (
        "AEJETSAEBQAAAAQDAAAAAAAAIA0e9j8AAAAgskoKQAAAAIDhJfU/AAAAYLvZFMAAAADgrPgMQAAAAKBmkfw/AAAAgLguAcAAAAAAhZgCQAAA"
        "AIAnVfc/AAAAIBHT8j8AAABguBq9PwAAAECsfgFAAAAAIAiRB8AAAADAO9rkvwAAAAAL2/6/",
        PLAIN,
    ),
    "CM": (
        "AEJDTSDbzabAR1gNQQUAAAADAAAAAACwQSa5HL8rhFmaSvb//ytfW73Lym3W/wBZwEDA/5lAAEDAZv8A",
        [
            [1.3823, 3.2864, 1.3218],
            [-5.2126, 3.6214, 1.7855],
            [-2.1407, 2.3197, 1.4594],
            [1.1766, 0.1137, 2.1869],
            [-2.9458, -0.6517, -1.9285],
        ],
    ),
    "CM2": (
        "AEJDTTIg282mwEdYDUEFAAAAAwAAABy/SvZbvQAA///LytBYatpQwSa5WZpt1rBBK4QrXw==",
        [
            [1.3823, 3.2864, 1.3218],
            [-5.2126, 3.6214, 1.7855],
            [-2.1478, 2.3245, 1.4583],
            [1.1766, 0.1137, 2.1869],
            [-2.9458, -0.6517, -1.9285],
        ],
    ),
    "CM3": (
        "AEJDTTMg282mwEdYDUEFAAAAAwAAAL71vQD/yljawbia1kGEXw==",
        [
            [1.3696, 3.275, 1.335],
            [-5.2126, 3.6214, 1.7853],
            [-2.164, 2.3396, 1.4735],
            [1.1617, 0.1224, 2.201],
            [-2.9608, -0.6397, -1.9215],
        ],
    ),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_values_are_those_of_kaldis_own_code(kind):
    written, values = MATRICES[kind]
    content = base64.b64decode(written)
    header = header_of(content[:HEADER_BYTES])
    assert (header.kind.decode(), header.num_rows, header.num_columns, header.size) == (kind, 5, 3, len(content))
    for surplus in (b"", b"the next matrix"):
        matrix = matrix_of(content + surplus)
        assert matrix.dtype == np.float32
        np.testing.assert_allclose(matrix, values, atol=6e-5)


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_that_ends_early_is_refused_wherever_it_ends(kind):
    content = base64.b64decode(MATRICES[kind][0])
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"no binary Kaldi matrix|ends within its header|the matrix ends early"):
            matrix_of(content[:length])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b" [\n 1 2 ]\n", r"there is no binary Kaldi matrix: got ' \[.*copy-feats"),
        (b"\0BFV \x04\x03\0\0\0", "there is no binary Kaldi matrix"),
        (b"", "there is no binary Kaldi matrix"),
        (b"\0BFM " + struct.pack("<bibi", 4, 0, 4, 3), "the matrix has no usable size: got 0 x 3"),
        (
            b"\0BCM " + struct.pack("<ffii", 0, 1, -1, 3),
            "no usable size: got -1 x 3, wanted at most 33554432 values, 128 MiB",
        ),
        (b"\0BFM " + struct.pack("<bibi", 4, 1 << 30, 4, 1 << 30), "no usable size: got 1073741824 x 1073741824"),
        (b"\0BCM " + struct.pack("<ffii", 0, 1, 1 << 13, (1 << 13) + 1), "no usable size: got 8192 x 8193"),
        (b"\0BCM " + struct.pack("<ffii", 0, 1, 1, (1 << 15) + 1), "no usable size: got 1 x 32769"),
        (b"\0BDM " + struct.pack("<bibi", 4, 1 << 12, 4, (1 << 12) + 1), "no usable size: got 4096 x 4097"),
        (b"\0BFM " + struct.pack("<bibif", 4, 1, 4, 1, np.nan), "values that are NaN or infinite"),
        (b"\0BCM3 " + struct.pack("<ffiib", np.inf, 1, 1, 1, 5), "values that are NaN or infinite"),
    ],
)
def test_what_is_no_usable_matrix_is_said(content, problem):
    with pytest.raises(DataError, match=problem):
        matrix_of(content)


@pytest.mark.parametrize(("kind", "content_bytes"), [("CM", 1), ("CM2", 2), ("FM", 4), ("DM", 8)])
def test_decoding_a_matrix_takes_little_more_memory_than_its_values(kind, content_bytes):
    rows, columns = 20_000, 80
    token = f"\0B{kind} ".encode()
    sizes = struct.pack("<ffii", 0, 1, rows, columns) if "C" in kind else struct.pack("<bibi", 4, rows, 4, columns)
    content = token + sizes + bytes(8 * columns * (kind == "CM") + content_bytes * rows * columns)
    tracemalloc.start()
    try:
        assert matrix_of(content).shape == (rows, columns)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.2 * 4 * rows * columns


# A Kaldi data folder: which utterances it has, and what is wrong with one, told by file and line.


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


# The data layer over a Kaldi folder: ports, batches, order, and damaged features.


@pytest.fixture
def folder(tmp_path):
    make_folder(tmp_path / "kaldi")
    return tmp_path / "kaldi"


def epoch_of(layer, training=False, **shard):
    return list(layer.loader(training=training, shard=Shard(**shard)).epoch(0))


def test_a_batch_is_padded_features_and_labels_with_their_lengths(folder):
    layer = KaldiFeatureDataLayer(folder, LABELS, 3, eos_id=3, pad_id=9)
    assert len(layer) == 5
    first, second = epoch_of(layer)
    features, lengths, labels, label_lens = first.values
    assert features.shape == (3, 4, 22)
    assert lengths.tolist() == [20, 21, 22]
    for number, length in enumerate(lengths):
        assert torch.equal(features[number, :, :length], torch.full((4, length), float(number)))
        assert not features[number, :, length:].any()
    assert labels.tolist() == [[1, 3, 9, 9], [1, 2, 3, 9], [2, 0, 1, 3]]
    assert label_lens.tolist() == [2, 3, 4]
    assert (second.ids, second.amount) == ([3, 4], 47.0)


@pytest.mark.slow
def test_the_order_is_that_of_other_data_layers_on_any_number_of_ranks_and_workers(folder):
    layer = KaldiFeatureDataLayer(folder, LABELS, 1, num_workers=1, bucketing=True)
    batches = [epoch_of(layer, True, rank=rank, world_size=2, uneven="join") for rank in range(2)]
    assert sorted(item for rank in batches for batch in rank for item in batch.ids) == list(range(5))
    evaluated = [batch.ids for batch in epoch_of(layer)]
    assert evaluated == [[row] for row in range(5)] != [batch.ids for batch in epoch_of(layer, True)]


def test_limits_in_seconds_need_utt2dur(folder):
    assert len(KaldiFeatureDataLayer(str(folder), LABELS, 2, min_duration=0.215, max_duration=0.235)) == 2
    (folder / "utt2dur").unlink()
    assert len(KaldiFeatureDataLayer(folder, LABELS, 2, min_duration=0.0)) == 5
    with pytest.raises(UsageError, match="need the durations") as error:
        KaldiFeatureDataLayer(folder, LABELS, 2, max_duration=16.7)
    assert isinstance(error.value, ValueError)


def test_it_connects_to_an_encoder_of_its_number_of_features_and_texts_are_compared_with_frames(folder):
    (folder / "text").write_text("utt0 aaaaaaaaaaaaaaaa\nutt1 a\nutt2 a\nutt3 a\nutt4 a\n")
    layer = KaldiFeatureDataLayer(folder, LABELS, 2)
    block = {"filters": 8, "repeat": 1, "kernel": [3], "dilation": [1], "dropout": 0.0, "residual": False}
    encoder = nemo_asr.JasperEncoder(feat_in=4, activation="relu", jasper=[{**block, "stride": [2]}])
    decoder = nemo_asr.JasperDecoderForCTC(feat_in=8, num_classes=len(LABELS))
    features, lengths, _, _ = layer()
    encoded, _ = encoder(audio_signal=features, length=lengths)
    assert nemo_asr.leave_out_infeasible(layer, decoder(encoder_output=encoded)) == 1
    assert len(layer) == 4
    wrong = nemo_asr.JasperEncoder(feat_in=5, activation="relu", jasper=[{**block, "stride": [1]}])
    with pytest.raises(ValueError, match="audio_signal cannot take"):
        wrong(audio_signal=features, length=lengths)


def test_damaged_features_are_skipped_in_training_and_an_error_in_evaluation(folder):
    layer = KaldiFeatureDataLayer(folder, LABELS, 2, max_corrupt=1)
    span = layer.utterances.refs([1])[0].span
    content = bytearray((folder / "feats.ark").read_bytes())
    content[span.first + 15 : span.first + 19] = np.float32(np.nan).tobytes()
    (folder / "feats.ark").write_bytes(content)
    layer = KaldiFeatureDataLayer(folder, LABELS, -1, max_corrupt=1)
    assert sorted(item for batch in epoch_of(layer, True) for item in batch.ids) == [0, 2, 3, 4]
    with pytest.raises(DataError, match=r"feats\.scp:2: .*feats\.ark:\d+: the matrix has values that are NaN"):
        epoch_of(KaldiFeatureDataLayer(folder, LABELS, 2))
