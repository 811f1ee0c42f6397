"""LossBalanceCallback: what it says of gradients, when, and on which rank."""

from __future__ import annotations

import pytest
from toys.fake_action_state import FakeState, Source, train

from nemo_lite.core.callbacks import LossBalanceCallback
from nemo_lite.core.callbacks.action_state import LossGradients
from nemo_lite.core.callbacks.loss_balance import tell_of_gradients


def told(capsys, norms, weights):
    tell_of_gradients(LossGradients("encoder.outputs", norms), weights)
    said = capsys.readouterr()
    return said.out, said.err


def test_gradients_of_one_size_are_a_line(capsys):
    out, err = told(capsys, [2.0, 3.0], {"transducer": 0.7, "ctc": 0.3})
    line = "on encoder.outputs, each times its weight: transducer 1.4, ctc 0.9; 1.6 : 1"
    assert f"Gradients of the parts of the loss {line}" in out
    assert not err


def test_a_part_that_outweighs_another_is_a_warning_that_says_what_to_do(capsys):
    _, err = told(capsys, [0.02, 4.0], {"transducer": 0.7, "ctc": 0.3})
    assert (
        "The gradients of the parts of the loss on encoder.outputs differ by a factor of 86, more than 10: "
        "transducer 0.014, ctc 1.2, each times its weight; transducer hardly trains what they share: "
        "reduce both losses alike (reduction), or change their weights"
    ) in err


def test_a_part_that_is_weak_until_it_has_learned_is_no_warning_and_the_line_says_why(capsys):
    for reasons, is_told in ((["it has not learned", ""], True), (["", "it has not learned"], False)):
        tell_of_gradients(LossGradients("encoder.outputs", [0.02, 4.0]), {"attention": 0.7, "ctc": 0.3}, reasons)
        said = capsys.readouterr()
        assert ("attention 0.014, ctc 1.2; 86 : 1, for it has not learned" in said.out) == is_told
        assert ("hardly trains what they share" in said.err) != is_told


@pytest.mark.parametrize("norms", [[0.0, 1.0], [float("nan"), 1.0], [1.0, float("inf")]])
def test_norms_without_a_ratio_are_shown_with_a_warning(capsys, norms):
    _, err = told(capsys, norms, {"transducer": 0.7, "ctc": 0.3})
    assert "Gradients of the parts of the loss on encoder.outputs, each times its weight: transducer" in err
    assert " : 1" not in err


def test_it_looks_once_on_the_first_rank_and_parts_without_weight_do_not_count(capsys):
    x, y = Source().connect()
    for rank, count in ((0, 1), (1, 0)):
        state = FakeState(total_steps=3, global_rank=rank, world_size=2, values={x: 1.0, y: 2.0})
        train(state, [LossBalanceCallback({"one": (x, 0.5), "other": (y, 0.5)})])
        assert capsys.readouterr().out.count("Gradients of the parts of the loss") == count
    state = FakeState(total_steps=3, values={x: 1.0, y: 2.0})
    train(state, [LossBalanceCallback({"one": (x, 1.0), "other": (y, 0.0)})])
    assert "Gradients" not in capsys.readouterr().out
