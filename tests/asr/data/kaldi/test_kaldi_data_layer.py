"""The data layer over a Kaldi folder: ports, batches, order, and damaged features."""

import numpy as np
import pytest
import torch
from toys.kaldi_folders import make_folder
from toys.manifests import LABELS

import nemo_asr
from nemo_asr import KaldiFeatureDataLayer
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.errors import DataError, UsageError


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
