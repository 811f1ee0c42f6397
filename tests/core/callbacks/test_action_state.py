"""StepTiming: means and shares, also where no time has passed."""

from __future__ import annotations

import pytest

from nemo_lite.core.callbacks.action_state import StepTiming


def test_times_become_means_and_shares():
    timing = StepTiming(num_steps=4, seconds=2.0, data_wait_seconds=0.5, amount=30.0)
    assert (timing.step_seconds, timing.amount_per_second, timing.data_wait_share) == (0.5, 15.0, 0.25)


def test_no_steps_are_no_time():
    timing = StepTiming()
    assert (timing.step_seconds, timing.amount_per_second, timing.data_wait_share) == pytest.approx((0.0, 0.0, 0.0))
