"""Intervals of error rates by resampling, the paired test, and Student's t distribution."""

import math
import time

import numpy as np
import pytest
from toys.run_folder import rows_of

from nemo_asr.scoring.intervals import (
    Clusters,
    Interval,
    UtteranceErrors,
    bootstrap_interval,
    class_errors,
    clusters_of,
    paired_test,
    two_sided_p_value,
    two_sided_score,
    utterance_errors,
)
from nemo_asr.scoring.rates import count_errors
from nemo_lite.base.errors import UsageError


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
    assert (int(found.errors.sum()), int(found.lengths.sum())) == (together.errors, together.reference_length)
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


@pytest.mark.long
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
    monkeypatch.setattr("nemo_asr.scoring.intervals._BLOCK_VALUES", 1000)
    parts = bootstrap_interval(drawn(5))
    assert parts == whole  # the generator goes on where the block before ended


def test_edges_have_intervals_too():
    assert bootstrap_interval(counts([2], [4])) == Interval(0.0, 1.0)  # one utterance tells nothing about others
    assert bootstrap_interval(counts([6], [4])) == Interval(0.0, 1.5)
    assert math.isinf(bootstrap_interval(counts([1, 2], [0, 0])).high)
    assert bootstrap_interval(counts([1, 1], [0, 2])).low == 0.5  # a resample without words does not count
    with pytest.raises(UsageError, match="an interval of an error rate needs utterances: got none"):
        bootstrap_interval(counts([], []))


def test_a_set_without_errors_has_the_interval_of_clopper_and_pearson():
    found = bootstrap_interval(counts([0] * 50, [4] * 50))
    assert found.low == 0.0
    assert (1 - found.high) ** 200 == pytest.approx(0.025)  # as rare are 200 right words at that rate


def test_many_equal_utterances_are_drawn_by_kind_with_the_same_result(monkeypatch):
    few_kinds = counts([0, 0, 0, 0, 1] * 200, [2, 3] * 500)
    by_kind = bootstrap_interval(few_kinds)
    monkeypatch.setattr("nemo_asr.scoring.intervals._COST_OF_A_KIND", 1000)
    one_by_one = bootstrap_interval(few_kinds)
    assert by_kind != one_by_one
    assert (by_kind.low, by_kind.high) == pytest.approx((one_by_one.low, one_by_one.high), rel=0.02)


def test_the_order_of_the_utterances_and_the_names_of_the_clusters_do_not_change_the_interval():
    data, generator = drawn(11, 60), np.random.default_rng(0)
    people, order = generator.integers(0, 9, 60), generator.permutation(60)
    found = [
        bootstrap_interval(UtteranceErrors(data.errors[each], data.lengths[each], by_speaker(names[each])))
        for each, names in ((np.arange(60), people), (order, 100 - people))
    ]
    assert found[0] == found[1] != bootstrap_interval(data)


def by_speaker(speakers):
    return clusters_of([str(each) for each in speakers], [None] * len(speakers))


@pytest.mark.parametrize(
    ("speakers", "recordings", "told", "ids"),
    [
        (["a", "b", "a"], ["x", "y", "z"], "2 speakers", [0, 1, 0]),
        (["a", "b", "c"], ["x", "x", "x"], "3 speakers", [0, 1, 2]),
        ([None, None, None], ["x", "y", "x"], "2 recordings", [0, 1, 0]),
        (["a", "a", "a"], ["x", "y", "x"], "2 recordings", [0, 1, 0]),
        (["a", None, None, "a"], ["x", "a", "a", "z"], "2 speakers and recordings", [0, 1, 1, 0]),
        (["a", None, None], [None, None, None], "3 speakers and recordings", [0, 1, 2]),
        ([None, None, None], ["x", "y", "z"], "3 utterances", [0, 1, 2]),
        (["a", "a"], ["x", "x"], "2 utterances", [0, 1]),
        ([None], [None], "1 utterance", [0]),
        ([], [], "0 utterances", []),
    ],
)
def test_clusters_are_speakers_or_else_recordings(speakers, recordings, told, ids):
    found = clusters_of(speakers, recordings)
    assert (str(found), found.ids.tolist()) == (told, ids)


def test_speakers_without_recordings_are_refused():
    with pytest.raises(UsageError, match="speakers and recordings must pair up: got 1 and 2"):
        clusters_of(["a"], ["x", "y"])


def of_speakers(generator, num_speakers, spread=0.6, num_utterances=12, harder=0.0):
    """Errors that depend on the speaker; the true rate is that of all speakers there could be."""
    rates = 1 / (1 + np.exp(2.2 - spread * generator.standard_normal(num_speakers) - harder))
    people = np.repeat(np.arange(num_speakers), num_utterances)
    lengths = generator.integers(4, 16, len(people))
    return UtteranceErrors(generator.binomial(lengths, rates[people]), lengths, by_speaker(people))


@pytest.mark.long
@pytest.mark.slow
def test_the_interval_by_speaker_holds_the_rate_of_all_speakers_and_that_by_utterance_does_not():
    generator = np.random.default_rng(12)
    true = of_speakers(generator, 20000).rate
    for num_speakers, least in ((8, 0.88), (40, 0.91)):
        sets = [of_speakers(generator, num_speakers) for _ in range(150)]
        holds = {True: 0, False: 0}
        for each in sets:
            for knows, data in ((True, each), (False, counts(each.errors, each.lengths))):
                interval = bootstrap_interval(data, resamples=400)
                holds[knows] += interval.low <= true <= interval.high
        assert least < holds[True] / len(sets) < 0.985
        assert holds[False] / len(sets) < 0.8


@pytest.mark.slow
def test_models_that_differ_by_speaker_are_found_different_5_times_in_100_by_speaker_and_far_more_by_utterance():
    """Each speaker suits one of two equally good models; a test by utterance takes that for a difference."""
    generator = np.random.default_rng(13)
    found = {True: 0, False: 0}
    for _ in range(150):
        lengths, people = np.full(150, 10), np.repeat(np.arange(15), 10)
        suits = 0.05 * generator.standard_normal(15)[people]
        errors = [generator.binomial(10, np.clip(0.15 + sign * suits, 0.01, 0.9)) for sign in (1, -1)]
        for knows, clusters in ((True, by_speaker(people)), (False, None)):
            a, b = (UtteranceErrors(each, lengths, clusters) for each in errors)
            found[knows] += paired_test(a, b, resamples=100).p_value < 0.05
    assert 0.01 < found[True] / 150 < 0.1
    assert found[False] / 150 > 0.15


def test_a_pair_by_speaker_says_how_many_there_are():
    a = drawn(14, 30).errors
    people = by_speaker([n % 3 for n in range(30)])
    lengths = np.full(30, 20)
    test = paired_test(UtteranceErrors(a, lengths, people), UtteranceErrors(a * 0, lengths, people))
    assert (test.num_clusters, test.unit) == (3, "speakers")
    one = by_speaker(["x"] * 30)
    assert one.unit == "utterances"
    alone = Clusters(np.zeros(30, dtype=np.int64), 1, "recordings")
    test = paired_test(UtteranceErrors(a, lengths, alone), UtteranceErrors(a * 0, lengths, alone))
    assert (test.p_value, test.interval) == (1.0, Interval(-1.0, 1.0))


def test_errors_of_a_classifier_have_an_interval_near_the_exact_one():
    found = bootstrap_interval(class_errors(np.arange(400) < 40))
    wilson = (0.0743, 0.1333)  # of 40 in 400, by SciPy
    assert (found.low, found.high) == pytest.approx(wilson, abs=0.005)


def test_3000_utterances_take_well_under_a_second():
    generator = np.random.default_rng(15)
    lengths = generator.integers(10, 200, 3000)
    data = counts(generator.binomial(lengths, 0.1), lengths)
    started = time.process_time()
    bootstrap_interval(data)
    assert time.process_time() - started < 1.0


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
    assert test.p_value == pytest.approx(math.erfc(1 / math.sqrt(2)), rel=0.02)  # one of n: a score of 1
    assert test.probability < 0.5


def test_differences_without_spread_have_a_p_value():
    assert paired_test(counts([0], [4]), counts([1], [4])).p_value == 1.0
    assert paired_test(counts([0, 0], [4, 4]), counts([1, 1], [4, 4])).p_value == 0.0


def test_different_utterances_are_refused():
    with pytest.raises(UsageError, match="the same utterances: got 1 and 2 utterances of different reference lengths"):
        paired_test(counts([1], [2]), counts([1, 1], [2, 2]))


# By SciPy 1.17: the scores that hold 50, 95 and 99.9 % of the values, and the p-values of 0.3, 1.7 and 4.
KNOWN = {
    1: ((1.0, 12.706204736, 636.619248769), (0.814452842, 0.338506055, 0.155958261)),
    2: ((0.816496581, 4.302652730, 31.599054576), (0.792485661, 0.231233426, 0.057190958)),
    3: ((0.764892328, 3.182446305, 12.923978637), (0.783763292, 0.187690642, 0.028008456)),
    4: ((0.740697084, 2.776445105, 8.610301581), (0.779121428, 0.164354941, 0.016130090)),
    7: ((0.711141778, 2.364624252, 5.407882521), (0.772890050, 0.132928897, 0.005189913)),
    30: ((0.682755693, 2.042272456, 3.645958635), (0.766246105, 0.099477876, 0.000381846)),
    297: ((0.675316695, 1.967983525, 3.323585070), (0.764387016, 0.090177835, 0.000080021)),
    2000: ((0.674612438, 1.961150826, 3.295398137), (0.764208332, 0.089286409, 0.000065647)),
}


@pytest.mark.parametrize("degrees", KNOWN)
def test_scores_and_p_values_are_those_of_the_tables(degrees):
    scores, p_values = KNOWN[degrees]
    assert [two_sided_score(each, degrees) for each in (0.5, 0.95, 0.999)] == pytest.approx(scores, rel=1e-7)
    found = [two_sided_p_value(each, degrees) for each in (0.3, -1.7, 4.0)]
    assert found == pytest.approx(p_values, rel=1e-4)


def test_beyond_2000_degrees_it_is_the_normal_distribution():
    assert two_sided_score(0.95, 2001) == pytest.approx(1.9599640, abs=1e-6)
    assert two_sided_p_value(1.9599640, 2001) == pytest.approx(0.05, rel=1e-6)


def test_an_enormous_score_has_a_p_value_near_0_and_never_a_negative_one():
    assert all(0.0 <= two_sided_p_value(1e9, degrees) < 1e-6 for degrees in (1, 2, 5, 1999, 2001))
