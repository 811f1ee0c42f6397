"""How rules are applied."""

import pytest

from nemo_asr.run.text.english_numbers import apply, rule


def test_rules_are_applied_in_order_and_leave_single_spaces():
    rules = (rule("a", "b"), rule("b", lambda match: match[0] * 2))
    assert apply(rules, "xAy b") == "x bb y bb"


@pytest.mark.parametrize(("with_case", "result"), [(True, "A x"), (False, "x x")])
def test_case_counts_only_where_asked(with_case, result):
    assert apply((rule(r"\ba\b", "x", with_case=with_case),), "A a") == result
