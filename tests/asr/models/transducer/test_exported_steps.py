"""A step of each network of a transducer, label by label, is the network itself on the whole text."""

from typing import Any

import pytest
import torch
from toys.random_transducers import (
    BATCH_NORM,
    BIG_BLANKS,
    LAYER_NORM,
    LSTM,
    ONE_LABEL,
    STATELESS,
    config_of,
    random_transducer,
)

from nemo_asr.models.transducer.exported_steps import JointStep, PredictionStep
from nemo_lite.core import Reference

PREDICTIONS = {
    "LSTM": LSTM,
    "batch norm": BATCH_NORM,
    "layer norm": LAYER_NORM,
    "stateless": STATELESS,
    "one label": ONE_LABEL,
}


@pytest.mark.parametrize("prediction", PREDICTIONS.values(), ids=PREDICTIONS)
def test_steps_of_labels_are_the_states_of_the_whole_text(tmp_path, prediction):
    others: Any = random_transducer(tmp_path, config_of(BIG_BLANKS, prediction)).modules.others
    network, joint = others["prediction"], others["joint"]
    step = PredictionStep(Reference(network), Reference(joint))
    labels = torch.tensor([[1, 0, 3, 3, 2], [2, 2, 1, 0, 1]])
    memory, states = network.beginning(2), []
    for label in (torch.tensor([4, 4]), *labels.T):  # the label behind the last one stands for the beginning
        state, *memory = step.forward(label, *memory)
        states.append(state)
    whole = joint.pred(network(labels, torch.tensor([5, 5])))
    torch.testing.assert_close(torch.stack(states, 1), whole)
    frames = torch.randn(2, 24)
    torch.testing.assert_close(JointStep(Reference(joint))(frames, state), joint.joint_net(frames + whole[:, -1]))


def test_examples_fit_the_ports(tmp_path):
    others: Any = random_transducer(tmp_path, config_of()).modules.others
    step = PredictionStep(Reference(others["prediction"]), Reference(others["joint"]))
    values = step.examples()
    assert [len(value) for value in values] == [2] * len(step.input_ports) == [2, 2, 2]
    assert [value.shape for value in step(*values)] == [(2, 24), (2, 2, 20), (2, 2, 20)]
    assert step.examples()[1].equal(values[1])
