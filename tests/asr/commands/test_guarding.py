"""What a fine-tuning has won and forgotten: rates before and after, and the line for each set."""

from __future__ import annotations

import pytest

from nemo_asr.commands.guarding import compare_guarded, told
from nemo_asr.scoring.report.transcripts import ScoredUtterance
from nemo_lite.base.errors import UsageError


def rows(*heard: str, said: str = "a b c d", first: int = 0) -> list[ScoredUtterance]:
    return [ScoredUtterance(f"dev.json:{first + number}", said, text) for number, text in enumerate(heard)]


RIGHT, WRONG = "a b c d", "a b c x"


def compared(before: list[str], after: list[str], is_guard: bool = True, metric: str = "wer"):
    return compare_guarded("dev", rows(*before), rows(*after), is_guard=is_guard, metric=metric)


def test_rates_are_those_of_all_words_with_the_interval_of_the_paired_difference() -> None:
    made = compared([RIGHT] * 12 + [WRONG] * 8, [WRONG] * 12 + [RIGHT] * 8)
    assert (made.before, made.after) == (8 / 80, 12 / 80)
    assert made.difference == pytest.approx(0.05)
    assert made.difference_low < 0 < made.difference_high
    assert made.before_low < made.before < made.before_high
    assert made.verdict == "no clear change"
    (line,) = told([made])
    assert line.startswith("guard  dev  10.0 % [")
    assert ": no clear change, +5.00 points [-" in line


@pytest.mark.parametrize(
    ("is_guard", "is_worse", "verdict"),
    [(True, True, "forgot"), (False, True, "lost"), (True, False, "won"), (False, False, "won")],
)
def test_a_clear_change_is_won_lost_or_forgotten(is_guard: bool, is_worse: bool, verdict: str) -> None:
    one, other = [RIGHT] * 40 + [WRONG] * 2, [WRONG] * 20 + [RIGHT] * 20 + [WRONG] * 2
    made = compared(one, other, is_guard) if is_worse else compared(other, one, is_guard)
    assert made.verdict == verdict
    (line,) = told([made])
    assert line.startswith("guard" if is_guard else "new")
    assert f": {verdict} 11.90 points [" in line
    assert "-" not in line.partition(": ")[2]


def test_characters_are_counted_where_they_decide() -> None:
    assert compared([RIGHT], [WRONG], metric="cer").after == pytest.approx(1 / 7)


def test_both_are_compared_with_the_references_of_the_new_model() -> None:
    before = rows("grün", said="grn")  # labels without the letter write it so
    made = compare_guarded("dev", before, rows("grün", said="grün"), is_guard=True, metric="wer")
    assert (made.before, made.after) == (0.0, 0.0)


def test_other_utterances_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"dev: the two models were not scored on the same utt.*got 1 and 2 utterances"
    ):
        compare_guarded("dev", rows("a"), rows("a", "b"), is_guard=True, metric="wer")
