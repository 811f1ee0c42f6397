"""Searches of transducers with networks in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys.transducer_networks import plain_greedy

from nemo_asr.decoding.transducer import TorchNetworks, TransducerSearch
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.prediction import RNNTDecoder, StatelessTransducerDecoder
from nemo_lite.core import Reference

LABELS = [" ", "a", "b", "c"]


def prediction_network(kind):
    prednet = {"pred_hidden": 8}
    if kind == "one label":
        return StatelessTransducerDecoder(prednet, len(LABELS))
    if kind.startswith("stateless"):
        return StatelessTransducerDecoder(prednet, len(LABELS), 3, "layer" if "layer" in kind else None)
    if kind == "projected LSTM":
        return RNNTDecoder({**prednet, "rnn_hidden_size": 12, "pred_rnn_layers": 2}, len(LABELS))
    mode = kind.removesuffix(" norm LSTM") if "norm" in kind else None
    return RNNTDecoder({**prednet, "pred_rnn_layers": 2}, len(LABELS), mode, blank_as_pad="without" not in kind)


NETWORKS = ("LSTM", "LSTM without a row for the blank", "projected LSTM", "batch norm LSTM", "layer norm LSTM")
NETWORKS += ("stateless", "stateless layer", "one label")
KINDS = {"RNN-T": {}, "TDT": {"durations": [0, 1, 2, 3, 4]}, "big blanks": {"big_blank_durations": [2, 4, 8]}}


def networks(network, kind, seed=0):
    """Random ones that say something."""
    torch.manual_seed(seed)
    prediction = prediction_network(network).eval()
    joint = RNNTJoint({"joint_hidden": 8, "pred_hidden": 8, "encoder_hidden": 5}, len(LABELS), **KINDS[kind]).eval()
    with torch.no_grad():
        joint.joint_net[-1].weight *= 6
        joint.pred.weight *= 3
    return prediction, joint


@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_label_by_label_states_are_those_of_all_labels_at_once(network):
    prediction, _ = networks(network, "RNN-T")
    labels = torch.randint(0, len(LABELS), (3, 7))
    whole = prediction(labels, torch.full((3,), 7))
    states, memory = prediction.after(torch.full((3,), len(LABELS)), prediction.beginning(3))
    torch.testing.assert_close(states, whole[:, 0])
    for place in range(7):
        states, memory = prediction.after(labels[:, place], memory)
        torch.testing.assert_close(states, whole[:, place + 1])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_module_gives_what_a_plain_loop_gives_whatever_the_padding_holds(network, kind):
    prediction, joint = networks(network, kind)
    frames, lengths = 3 * torch.randn(4, 30, 8), torch.tensor([30, 11, 0, 23])
    for row, end in enumerate(lengths):
        frames[row, end:] = torch.nan
    search = TransducerSearch(Reference(prediction), Reference(joint), max_symbols=3)
    ids, _, starts, ends, log_probs = (each[:, 0] for each in search(frames, lengths))
    for row, end in enumerate(lengths.tolist()):
        plain = plain_greedy(TorchNetworks(prediction, joint), frames[row, :end].numpy(), 3)
        number = len(plain)
        assert ids[row, :number].tolist() == [label for label, *_ in plain]
        assert (ids[row, number:] == -1).all()
        assert starts[row, :number].tolist() == [start for _, start, *_ in plain]
        durations = np.array([max(step, 1) for _, _, step, _ in plain], int)
        assert (ends - starts)[row, :number].tolist() == durations.tolist()
        wanted = durations * [log_prob for *_, log_prob in plain]
        assert log_probs[row, :number].numpy() == pytest.approx(wanted, abs=1e-5)
    assert (ids >= 0).any()
