"""Utterances in tar shards: lines, durations and bytes belong together, also after filters and in another process."""

import pickle

import numpy as np
import pytest
from toys.manifests import entry, write
from toys.tar_shards import make_tarred_set, write_shard

from nemo_asr.audio.reading import read_audio
from nemo_asr.data.tarred import TarredUtterances
from nemo_lite.errors import DataError


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
    monkeypatch.setattr("nemo_asr.data.tarred._MOST_BYTES", 2)
    with pytest.raises(DataError, match=r"m\.json:2: .*/s\.tar:b\.wav has 3 bytes, more than 2"):
        reader.audio(full)
