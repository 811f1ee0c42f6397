"""TimeStretchAugmentation: a batch stretched by one rate, in training only."""

import pytest
import torch

from nemo_asr import TimeStretchAugmentation
from nemo_lite.errors import UsageError

SIGNAL = torch.sin(torch.arange(8000) / 5).repeat(2, 1)
LENGTHS = torch.tensor([8000, 4000])


def test_all_utterances_are_stretched_by_one_rate_and_padded_with_zeros():
    module = TimeStretchAugmentation(16000, 1.0, min_speed_rate=1.25, max_speed_rate=1.25).train()
    processed, lengths = module(SIGNAL, LENGTHS)
    assert (processed.shape, lengths.tolist()) == ((2, 6400), [6400, 3200])
    assert processed[1, 3200:].abs().max() == 0
    assert processed[1, :3200].abs().max() > 0.5
    torch.manual_seed(1)
    several = TimeStretchAugmentation(16000, 1.0, num_rates=3).train()
    assert {several(SIGNAL, LENGTHS)[1][0].item() for _ in range(12)} == {8889, 8000, 7273}


def test_evaluation_and_an_improbable_batch_stay_as_they_are():
    assert TimeStretchAugmentation.training_only
    for module in (TimeStretchAugmentation(16000, 1.0).eval(), TimeStretchAugmentation(16000, 0.0).train()):
        processed, lengths = module(SIGNAL, LENGTHS)
        assert processed is SIGNAL
        assert lengths is LENGTHS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probability": 1.5}, "probability is 1.5, wanted float from 0 to 1"),
        ({"probability": 1, "min_speed_rate": 2}, "rates or n_fft are not usable: got 2, 1.1 and n_fft 512"),
        ({"probability": 1, "n_fft": 510}, "and n_fft 510, wanted min_speed_rate <="),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        TimeStretchAugmentation(16000, **arguments)
