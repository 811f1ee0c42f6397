"""Greedy decoding, frame by frame, and what lengths do to it."""

import torch

from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_lite.core.shapes import symbol, written

# (B=2, T=4) best classes over three labels and the blank, 3.
BEST = torch.tensor([[0, 0, 3, 1], [2, 3, 3, 1]])


def log_probs():
    return torch.nn.functional.one_hot(BEST, 4).float().log_softmax(2)


def test_repeats_and_blanks_are_left_in():
    predictions = GreedyCTCDecoder()(log_probs=log_probs())
    assert predictions.tolist() == BEST.tolist()
    assert predictions.dtype == torch.int64


def test_frames_behind_the_end_of_an_utterance_are_blank():
    predictions = GreedyCTCDecoder()(log_probs=log_probs(), log_probs_length=torch.tensor([4, 2]))
    assert predictions.tolist() == [[0, 0, 3, 1], [2, 3, 3, 3]]


def test_the_length_port_need_not_be_connected():
    ports = GreedyCTCDecoder().input_ports
    assert {name: port.optional for name, port in ports.items()} == {"log_probs": False, "log_probs_length": True}


def test_symbolic_shapes_lose_the_classes():
    shapes = GreedyCTCDecoder().output_shapes({"log_probs": (symbol("B"), symbol("T"), 29)})
    assert written(shapes["predictions"]) == "B T"
