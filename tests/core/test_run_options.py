"""RunOptions and InferOptions: what is taken from NeMo's arguments, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.run_options import InferOptions, RunOptions


def test_options_come_from_optimization_params_and_from_flat_arguments() -> None:
    params = {"lr": 0.1, "max_steps": 7, "grad_norm_clip": 1.5, "amp_min_loss_scale": 2.0}
    options = RunOptions.of(params, batches_per_step=2, uneven="join")
    wanted = RunOptions(max_steps=7, grad_norm_clip=1.5, amp_min_loss_scale=2.0, batches_per_step=2, uneven="join")
    assert options == wanted
    assert RunOptions.of({"num_epochs": 1}, batches_per_step=None) == RunOptions(num_epochs=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, r"how long to train must be said: got neither, wanted num_epochs or max_steps"),
        ({"num_epochs": 0}, "num_epochs is 0, wanted int from 1 on or null"),
        ({"max_steps": 1.5}, r"max_steps is 1\.5, wanted int from 1 on or null"),
        ({"max_steps": 1, "batches_per_step": 0}, "batches_per_step is 0, wanted int from 1 on"),
        ({"max_steps": 1, "max_nonfinite_steps": -1}, "max_nonfinite_steps is -1, wanted int from 1 on"),
        ({"max_steps": 1, "grad_norm_clip": 0}, "grad_norm_clip is 0, wanted float above 0 or null"),
        ({"max_steps": 1, "uneven": "padd"}, r'uneven "padd" is not known.*did you mean pad'),
        ({"max_steps": 1, "gradient_predivide": True}, r"gradient_predivide was an option of apex.*leave it out"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError if "padd" not in problem else UnknownNameError, match=problem):
        RunOptions(**options)


def test_gradients_clipped_by_infinity_are_measured_only() -> None:
    assert RunOptions.of({"max_steps": 1, "grad_norm_clip": math.inf}).grad_norm_clip == math.inf


def test_groups_that_share_statistics_divide_the_world_size() -> None:
    options = RunOptions(max_steps=1, synced_batchnorm=True, synced_batchnorm_groupsize=2)
    options.check_world_size(4)
    with pytest.raises(UsageError, match="synced_batchnorm_groupsize must divide the number of processes: got 2 and 3"):
        options.check_world_size(3)


def test_an_argument_that_is_not_known_is_refused_by_the_nearest_known() -> None:
    with pytest.raises(UnknownNameError, match=r'train: argument "batch_per_step" is not known.*mean batches_per_step'):
        RunOptions.of({"max_steps": 1}, batch_per_step=2)
    with pytest.raises(UnknownNameError, match=r'infer: argument "cached" is not known.*did you mean cache'):
        InferOptions.of(cached=True)


def test_keeping_values_and_going_on_from_kept_ones_exclude_each_other() -> None:
    assert InferOptions.of(verbose=False) == InferOptions(verbose=False)
    with pytest.raises(UsageError, match="cache and use_cache were both set; leave one out"):
        InferOptions(cache=True, use_cache=True)


def test_with_both_limits_the_first_one_ends_the_run():
    both = RunOptions(num_epochs=2, max_steps=5)
    assert [both.is_reached(*done) for done in ((4, 1), (5, 1), (4, 2))] == [False, True, True]
    assert "--num_epochs" in str(both.nothing_left(4, 2))
    assert "--max_steps" in str(both.nothing_left(5, 2))
