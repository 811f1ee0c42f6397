"""Intervals of error rates by resampling, and the paired test."""

import math

import numpy as np
import pytest
from toys.run_folder import rows_of

from nemo_asr.scoring.bootstrap import (
    UtteranceErrors,
    bootstrap_interval,
    paired_test,
    utterance_errors,
)
from nemo_asr.scoring.error_counts import count_errors
from nemo_lite.errors import UsageError


def counts(errors, lengths):
    return UtteranceErrors(np.array(errors, dtype=np.int64), np.array(lengths, dtype=np.int64))


def drawn(seed, num_utterances=400, rate=0.1):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 20, num_utterances)
    return counts(generator.binomial(lengths, rate), lengths)


def plain_resampling(sums, number, resamples, seed):
    """The definition: draw utterances one by one."""
    generator = np.random.default_rng(seed)
    items = generator.integers(0, number, (resamples, number))
    return [column[items].sum(axis=1) for column in sums]


@pytest.mark.parametrize("use_cer", [False, True])
def test_errors_of_utterances_sum_to_those_of_the_corpus(use_cer):
    rows = rows_of(50, 0.3)
    heard, said = [row["hypothesis"] for row in rows], [row["reference"] for row in rows]
    found, together = utterance_errors(heard, said, use_cer), count_errors(heard, said, use_cer)
    assert (found.errors.sum(), found.lengths.sum()) == (together.errors, together.reference_length)
    assert found.rate == together.rate


def test_hypotheses_without_references_are_refused():
    with pytest.raises(UsageError, match="must pair up: got 1 hypotheses and 2 references"):
        utterance_errors(["a"], ["a", "b"])


@pytest.mark.slow
def test_the_interval_is_that_of_drawing_utterances_one_by_one():
    data = drawn(1)
    errors, lengths = plain_resampling([data.errors, data.lengths], 400, 20000, seed=2)
    low, high = np.quantile(errors / lengths, [0.025, 0.975])
    found = bootstrap_interval(data, resamples=20000)
    assert found.low == pytest.approx(low, abs=0.02 * (high - low))
    assert found.high == pytest.approx(high, abs=0.02 * (high - low))


@pytest.mark.slow
def test_the_interval_holds_the_true_rate_about_95_times_in_100():
    holds = [
        interval.low <= 0.1 <= interval.high
        for interval in (bootstrap_interval(drawn(seed), resamples=500) for seed in range(300))
    ]
    assert 0.91 < np.mean(holds) < 0.98


def test_the_interval_gets_narrower_with_more_utterances_and_less_confidence():
    def width(**arguments):
        interval = bootstrap_interval(drawn(3, arguments.pop("num", 400)), **arguments)
        return interval.high - interval.low

    assert width(num=6400) == pytest.approx(width() / 4, rel=0.15)
    assert width(confidence=0.68) == pytest.approx(width() / 1.96, rel=0.1)


def test_the_same_seed_gives_the_same_interval_and_another_a_near_one():
    one, same, other = (bootstrap_interval(drawn(4), seed=seed) for seed in (0, 0, 1))
    assert one == same != other
    assert other.low == pytest.approx(one.low, rel=0.05)


def test_blocks_of_draws_do_not_change_how_many_there_are(monkeypatch):
    whole = bootstrap_interval(drawn(5))
    monkeypatch.setattr("nemo_asr.scoring.bootstrap._BLOCK_VALUES", 1000)
    parts = bootstrap_interval(drawn(5))
    assert parts == whole  # the generator goes on where the block before ended


def test_edges_have_intervals_too():
    assert bootstrap_interval(counts([0, 0], [3, 4])).high == 0.0
    assert bootstrap_interval(counts([2], [4])).low == 0.5
    assert math.isinf(bootstrap_interval(counts([1, 2], [0, 0])).high)
    assert bootstrap_interval(counts([1, 1], [0, 2])).low == 0.5  # a resample without words does not count
    with pytest.raises(UsageError, match="an interval of an error rate needs utterances: got none"):
        bootstrap_interval(counts([], []))


def test_a_model_that_is_better_everywhere_is_better_in_all_resamples():
    a = drawn(6, rate=0.3)
    b = counts(np.maximum(a.errors - 1, 0), a.lengths)
    test = paired_test(a, b)
    assert test.probability == 1.0
    assert test.p_value < 1e-6
    assert test.interval.low <= test.difference <= test.interval.high < 0
    assert test.difference == pytest.approx(b.rate - a.rate)


def test_equal_models_are_told_apart_by_nothing():
    test = paired_test(drawn(7), drawn(7))
    assert (test.difference, test.probability, test.p_value) == (0.0, 0.5, 1.0)
    assert (test.interval.low, test.interval.high) == (0.0, 0.0)


@pytest.mark.slow
def test_models_that_differ_by_chance_are_found_different_5_times_in_100():
    generator = np.random.default_rng(8)
    lengths = np.full(300, 10)
    pairs = [[counts(generator.binomial(10, 0.1, 300), lengths) for _ in "ab"] for _ in range(300)]
    tests = [paired_test(a, b, resamples=300) for a, b in pairs]
    assert 0.02 < np.mean([test.p_value < 0.05 for test in tests]) < 0.09
    assert 0.02 < np.mean([not test.interval.low <= 0 <= test.interval.high for test in tests]) < 0.09


def test_pairs_are_drawn_together():
    """A and B fail on the same utterances: drawn apart, their difference would be far less sure."""
    generator = np.random.default_rng(9)
    lengths = np.full(400, 10)
    hard = generator.binomial(10, 0.3, 400) * (generator.random(400) < 0.5)
    a, b = counts(np.minimum(hard + 1, 10), lengths), counts(hard, lengths)
    together = paired_test(a, b).interval
    apart = bootstrap_interval(b).high - bootstrap_interval(b).low
    assert together.high - together.low < apart / 3


def test_one_flipped_utterance_of_many_may_be_chance():
    a = drawn(10)
    errors = a.errors.copy()
    errors[0] += 1
    test = paired_test(a, counts(errors, a.lengths))
    assert test.p_value == pytest.approx(math.erfc(1 / math.sqrt(2)), rel=0.01)  # one of n: a score of 1
    assert test.probability < 0.5


def test_differences_without_spread_have_a_p_value():
    assert paired_test(counts([0], [4]), counts([1], [4])).p_value == 1.0
    assert paired_test(counts([0, 0], [4, 4]), counts([1, 1], [4, 4])).p_value == 0.0


def test_different_utterances_are_refused():
    with pytest.raises(UsageError, match="the same utterances: got 1 and 2 utterances of different reference lengths"):
        paired_test(counts([1], [2]), counts([1, 1], [2, 2]))
