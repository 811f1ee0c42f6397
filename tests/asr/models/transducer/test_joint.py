"""The joint network: names and sizes of NVIDIA's weights, the order of its outputs, what is refused."""

from __future__ import annotations

import pytest
import torch

from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_lite.base.errors import UsageError

SIZES = {"joint_hidden": 6, "pred_hidden": 5, "encoder_hidden": 4}


@pytest.mark.parametrize(("dropout", "place"), [(0.0, 1), (0.2, 2)])
def test_weights_have_nvidias_names_which_dropout_decides(dropout: float, place: int) -> None:
    joint = RNNTJoint({**SIZES, "dropout": dropout}, 7, durations=[0, 1])
    shapes = {name: tuple(tensor.shape) for name, tensor in joint.state_dict().items()}
    assert shapes == {
        "pred.weight": (6, 5),
        "pred.bias": (6,),
        "enc.weight": (6, 4),
        "enc.bias": (6,),
        f"joint_net.{place}.weight": (7 + 1 + 2, 6),
        f"joint_net.{place}.bias": (10,),
    }


def test_big_blanks_stand_between_the_labels_and_the_blank() -> None:
    joint = RNNTJoint(SIZES, 7, big_blank_durations=[2, 4], num_extra_outputs=2)
    assert (joint.num_labels, joint.blank) == (7, 9)
    assert len(joint.state_dict()["joint_net.1.bias"]) == 10


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_it_projects_frames_and_its_parts_give_scores(activation: str) -> None:
    torch.manual_seed(0)
    joint = RNNTJoint({**SIZES, "activation": activation}, 7)
    encoded, state = torch.randn(2, 4, 3), torch.randn(2, 5)
    frames = joint.forward(encoded)
    assert frames.shape == (2, 3, 6)
    scores = joint.joint_net(frames[:, 1] + joint.pred(state))
    hidden = getattr(torch, activation)(joint.enc(encoded[:, :, 1]) + joint.pred(state))
    torch.testing.assert_close(scores, joint.joint_net[-1](hidden))


def test_the_size_of_the_encoder_may_come_from_the_recipe() -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "encoder_hidden"}
    assert RNNTJoint(sizes, 7, feat_in=8).enc.in_features == 8
    with pytest.raises(UsageError, match="RNNTJoint: the size of encoded frames is missing: wanted feat_in"):
        RNNTJoint(sizes, 7)
