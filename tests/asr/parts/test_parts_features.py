"""NeMo's featurizers: the features of the preprocessor, without ports."""

import torch

from nemo_asr import AudioToMelSpectrogramPreprocessor
from nemo_asr.parts.features import CONSTANT, FeaturizerFactory, FilterbankFeatures, normalize_batch, splice_frames

LENGTHS = torch.tensor([8000, 4000])


def test_filterbank_features_are_those_of_the_preprocessor():
    signal = torch.randn(2, 8000)
    features = FilterbankFeatures(dither=0.0, nfilt=40, pad_to=0).eval()
    expected, _ = AudioToMelSpectrogramPreprocessor(features=40, pad_to=0).eval()(signal, LENGTHS)
    torch.testing.assert_close(features(signal, LENGTHS), expected)
    assert features.preprocessor.std_floor == 0.0  # NeMo's numbers in bands without signal too
    assert features.get_seq_len(torch.tensor([8000.0, 8001.0])).tolist() == [50, 51]
    assert features.filter_banks.shape == (1, 40, 257)


def test_a_batch_is_normalised_over_its_valid_frames_and_stays_as_it_is():
    x, lengths = torch.randn(2, 3, 50) * 4 + 2, torch.tensor([50, 20])
    before = x.clone()
    one = normalize_batch(x, lengths, "per_feature")
    assert torch.equal(x, before)
    torch.testing.assert_close(one[1, :, :20].std(1), torch.ones(3), rtol=1e-3, atol=0)
    assert one[1, :, 20:].abs().max() == 0
    fixed = {"fixed_mean": [1.0, 2.0, 3.0], "fixed_std": [2.0, 2.0, 2.0]}
    torch.testing.assert_close(normalize_batch(x, lengths, fixed)[0, 2], (x[0, 2] - 3) / 2)
    assert torch.equal(normalize_batch(x, lengths, False), x)
    assert CONSTANT == 1e-5


def test_frames_are_spliced_and_a_rest_filled_with_zeros():
    spliced = splice_frames(torch.arange(5.0).view(1, 1, 5), 2)
    assert spliced.tolist() == [[[0, 2, 4], [1, 3, 0]]]


def test_the_factory_makes_featurizers():
    assert FeaturizerFactory.from_config({"sample_rate": 8000}).sample_rate == 8000
