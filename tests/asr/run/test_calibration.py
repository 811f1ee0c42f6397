"""Calibration of confidences: the error by hand, which words are right, and what is learned from drawn words."""

import math

import numpy as np
import pytest

from nemo_asr.run.calibration import Calibration, fit_calibration, held_out, reliability, right_words


def drawn(number, slope, offset, seed=0):
    """Confidences, and words that are right as often as a calibration with these numbers says."""
    generator = np.random.default_rng(seed)
    confidences = generator.beta(4, 1, number)
    right = generator.random(number) < Calibration(slope=slope, offset=offset).of(confidences)
    return confidences, right


def test_words_are_right_where_the_alignment_says_so():
    assert right_words(["a", "b", "c", "d"], ["a", "x", "c", "c", "d"]) == [True, False, False, True, True]
    assert right_words([], ["a"]) == [False]
    assert right_words(["a"], []) == []


def test_the_error_is_the_distance_in_each_tenth_weighed_by_words():
    confidences = np.array([0.95, 0.95, 0.95, 0.55, 1.0])
    found = reliability(confidences, np.array([True, True, False, False, True]))
    assert [each.words for each in found.bins] == [1, 4]
    assert found.bins[1].right == 0.75
    assert found.error == pytest.approx((1 * 0.55 + 4 * (0.9625 - 0.75)) / 5)
    assert (found.words, found.right) == (5, 0.6)


def test_no_words_have_no_error():
    assert reliability(np.zeros(0), np.zeros(0, bool)).error == 0.0


def test_the_numbers_behind_drawn_words_are_found():
    confidences, right = drawn(20_000, 0.6, -0.4)
    found = fit_calibration(confidences, right, "dev")
    assert found.slope == pytest.approx(0.6, abs=0.06)
    assert found.offset == pytest.approx(-0.4, abs=0.1)
    assert (found.set, found.words) == ("dev", 20_000)


def test_held_out_confidences_are_calibrated_better_than_given_ones():
    confidences, right = drawn(3000, 0.5, -0.5)
    calibrated = held_out(confidences, right, np.arange(3000) // 3)
    assert reliability(confidences, right).error > 0.1
    assert reliability(calibrated, right).error < 0.03


def test_held_out_words_do_not_count_in_their_own_calibration():
    confidences, right = np.full(100, 0.9), np.arange(100) % 5 == 0  # the words of one part alone are right
    calibrated = held_out(confidences, right, np.arange(100))
    assert (calibrated[right] < 0.05).all()
    assert calibrated[~right] == pytest.approx(0.25, abs=0.02)


def test_a_higher_confidence_never_becomes_a_lower_one():
    found = fit_calibration(np.array([0.9] * 50 + [0.1] * 50), np.array([False] * 40 + [True] * 60))
    assert found.slope == 0.0
    assert found(0.1) == found(0.9) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("right", [True, False])
def test_a_set_without_errors_or_without_right_words_promises_nothing_certain(right):
    found = fit_calibration(np.linspace(0.5, 1.0, 60), np.full(60, right))
    assert all(0.0 < found(confidence) < 1.0 for confidence in (0.0, 0.5, 0.999, 1.0))
    assert (found(0.9) > 0.9) == right


def test_confidences_that_part_right_from_wrong_words_give_finite_numbers():
    found = fit_calibration(np.array([1.0] * 50 + [0.0] * 50), np.array([True] * 50 + [False] * 50))
    assert math.isfinite(found.slope)
    assert found(1.0) > 0.95
    assert found(0.0) < 0.05
