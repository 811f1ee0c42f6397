"""Student's t distribution."""

import pytest

from nemo_asr.scoring.rates import two_sided_p_value, two_sided_score

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
