"""Each policy against its formula, written here independently, at several points and at every boundary."""

from __future__ import annotations

import inspect
import math

import pytest

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.utils import lr_policies
from nemo_lite.utils.lr_policies import LRPolicy, get_all_lr_classes, get_lr_policy, register_lr_policy

L, T, W, M = 0.02, 100, 10, 0.001
AFTER_WARMUP = (10, 11, 37, 55, 99, 100)

FORMULAS = {
    "WarmupPolicy": ({}, lambda s: L),
    "WarmupHoldPolicy": ({"min_lr": M, "hold_steps": 20}, lambda s: L),
    "SquareAnnealing": ({"min_lr": M}, lambda s: max(M, L * ((T - s) / (T - W)) ** 2)),
    "SquareRootAnnealing": ({"min_lr": M}, lambda s: max(M, L * ((T - s) / T) ** 0.5)),
    "CosineAnnealing": (
        {"min_lr": M},
        lambda s: M + (L - M) * 0.5 * (1 + math.cos(math.pi * (s - W) / (T - W))),
    ),
    "WarmupAnnealing": ({}, lambda s: L * max(0.0, (s / T - 1) / (W / T - 1))),
    "InverseSquareRootAnnealing": ({}, lambda s: L / ((s + 1) / (W + 1)) ** 0.5),
    "PolynomialDecayAnnealing": (
        {"min_lr": M, "power": 2.0},
        lambda s: (L - M) * (1 - (s - W) / (T - W)) ** 2 + M,
    ),
    "PolynomialHoldDecayAnnealing": (
        {"min_lr": M, "power": 2.0, "hold_ratio": 0.2},
        lambda s: L if s < 30 else (L - M) * (1 - (s - 30) / (T - 30)) ** 2 + M,
    ),
}


def test_every_policy_has_a_formula_in_this_test():
    assert {*FORMULAS, "NoamAnnealing", "WarmupLR", "warmuplr"} == set(get_all_lr_classes())


def wenets_rate(lr, warmup_steps, step_num):
    """The formula of `wenet/utils/scheduler.py`, in which the first step is number 1."""
    if warmup_steps == 0:
        return lr * step_num**-0.5
    return lr * warmup_steps**0.5 * min(step_num**-0.5, step_num * warmup_steps**-1.5)


@pytest.mark.parametrize("warmup_steps", [0, 1, 1562, 25000])
@pytest.mark.parametrize("name", ["warmuplr", "WarmupLR"])
def test_wenets_name_gives_wenets_curve(name, warmup_steps):
    policy = get_lr_policy(name, total_steps=T, warmup_steps=warmup_steps)
    for step in range(20_000):
        assert policy(0.002, step, 0) == pytest.approx(wenets_rate(0.002, warmup_steps, step + 1), rel=1e-9, abs=0)


def test_without_a_number_of_warmup_steps_wenets_policy_has_wenets():
    assert get_lr_policy("warmuplr")(0.002, 24_999, 0) == pytest.approx(0.002, rel=1e-12)


def test_inverse_square_root_annealing_with_one_step_less_is_wenets_curve():
    ours = get_lr_policy("InverseSquareRootAnnealing", total_steps=20_000, warmup_steps=1561)
    other = get_lr_policy("InverseSquareRootAnnealing", total_steps=20_000, warmup_steps=1562)
    curve = [wenets_rate(0.002, 1562, step + 1) for step in range(20_000)]
    assert [ours(0.002, step, 0) for step in range(20_000)] == pytest.approx(curve, rel=1e-9, abs=0)
    assert other(0.002, 0, 0) != pytest.approx(curve[0], rel=1e-4, abs=0)


def test_a_negative_warmup_of_wenets_policy_is_refused():
    with pytest.raises(UsageError, match="warmup_steps is -1, wanted float from 0 on"):
        get_lr_policy("warmuplr", warmup_steps=-1)


def nemos_rate(lr, d_model, warmup_steps, min_lr, step):
    """The formula of NeMo's ``nemo/core/optim/lr_scheduler.py``, in which the first steps are 0 and 1."""
    step = max(1, step)
    least = step * warmup_steps**-1.5 if warmup_steps else step**-0.5
    rate = lr * d_model**-0.5 * min(step**-0.5, least)
    return max(rate, min_lr) if step > warmup_steps else rate


@pytest.mark.parametrize(("warmup_steps", "min_lr"), [(0, 0.0), (1, 1e-4), (100, 1e-6), (100, 2e-3)])
def test_noams_curve_is_nemos(warmup_steps, min_lr):
    policy = get_lr_policy("NoamAnnealing", total_steps=T, d_model=176, warmup_steps=warmup_steps, min_lr=min_lr)
    for step in range(3000):
        wanted = nemos_rate(5.0, 176, warmup_steps, min_lr, step)
        assert policy(5.0, step, 0) == pytest.approx(wanted, rel=1e-12, abs=0)


def test_noams_highest_rate_is_that_of_the_paper():
    policy = get_lr_policy("NoamAnnealing")
    highest = max(range(20_000), key=lambda step: policy(2.0, step, 0))
    assert highest == 10_000
    assert policy(2.0, highest, 0) == pytest.approx(2.0 * (512 * 10_000) ** -0.5)


@pytest.mark.parametrize("name", ["d_model", "warmup_steps", "min_lr"])
def test_numbers_of_noams_policy_that_are_out_of_range_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} is -1, wanted float "):
        get_lr_policy("NoamAnnealing", **{name: -1})


@pytest.mark.parametrize("name", FORMULAS)
def test_policy_follows_its_formula_after_the_warmup(name):
    arguments, formula = FORMULAS[name]
    policy = get_lr_policy(name, total_steps=T, warmup_steps=W, **arguments)
    for step in AFTER_WARMUP:
        assert policy(L, step, 3) == pytest.approx(formula(step), rel=1e-12), step


@pytest.mark.parametrize("name", FORMULAS)
def test_warmup_rises_linearly_and_ends_just_below_the_initial_rate(name):
    policy = get_lr_policy(name, total_steps=T, warmup_ratio=0.1, **FORMULAS[name][0])
    assert [policy(L, step, 0) for step in (0, 4, 9)] == pytest.approx([L / 11, L * 5 / 11, L * 10 / 11])


@pytest.mark.parametrize("name", FORMULAS)
def test_rate_after_the_last_step_is_zero_or_the_floor_of_a_hold_policy(name):
    policy = get_lr_policy(name, total_steps=T, **FORMULAS[name][0])
    assert policy(L, T + 1, 9) == (M if "Hold" in name else 0.0)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_warmup_as_long_as_the_training_or_longer_never_divides_by_zero(name):
    for warmup_steps in (T, 3 * T):
        policy = get_lr_policy(name, total_steps=T, warmup_steps=warmup_steps, **FORMULAS[name][0])
        assert all(0.0 <= policy(L, step, 0) <= L for step in range(4 * T))


def test_a_warmup_policy_without_an_end_stays_at_the_initial_rate():
    assert lr_policies.WarmupPolicy(warmup_steps=2)(L, 10**9, 0) == L


def test_square_annealing_has_a_floor_by_default():
    assert lr_policies.SquareAnnealing(100)(L, 100, 0) == 1e-5


def test_total_steps_and_min_lr_may_be_positional():
    assert lr_policies.CosineAnnealing(100, 0.5)(1.0, 100, 0) == 0.5


def test_a_cycle_stretches_the_decay_over_the_next_multiple():
    policy = lr_policies.PolynomialHoldDecayAnnealing(T, cycle=True, warmup_steps=30)
    # no hold: s' = s, d = T - w = 70; at s = 90 the cycle has stretched d to 140
    assert policy(L, 90, 0) == pytest.approx(L * (1 - 90 / 140))
    assert lr_policies.PolynomialDecayAnnealing(T, cycle=True)(L, 0, 0) == L


def test_without_a_cycle_the_decay_stays_at_the_floor():
    policy = lr_policies.PolynomialHoldDecayAnnealing(T, min_lr=M, warmup_steps=30)
    assert policy(L, 90, 0) == M


def test_a_hold_of_zero_steps_decays_from_the_end_of_the_warmup():
    policy = lr_policies.PolynomialHoldDecayAnnealing(T, warmup_steps=20, hold_steps=0)
    assert policy(L, 20, 0) == L
    assert policy(L, 60, 0) == pytest.approx(L / 2)


def test_cosine_refuses_an_initial_rate_below_its_floor():
    with pytest.raises(UsageError, match=r"CosineAnnealing: .*got lr 0\.1, wanted at least 0\.5; raise lr"):
        lr_policies.CosineAnnealing(100, min_lr=0.5)(0.1, 3, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warmup_steps": 1, "warmup_ratio": 0.1}, "warmup_steps and warmup_ratio are both given"),
        ({"warmup_ratio": 1.5}, r"warmup_ratio is 1\.5, wanted float from 0 to 1"),
        ({"warmup_steps": -1}, "warmup_steps is -1, wanted float from 0 on"),
        ({"total_steps": 0}, "total_steps is 0, wanted float above 0"),
        ({"total_steps": None}, "total_steps is null, wanted float above 0"),
        ({"min_lr": math.nan}, "min_lr is NaN, wanted float from 0 on"),
        ({"min_lr": True}, "min_lr is true, wanted float from 0 on"),
        ({"hold_steps": 1, "hold_ratio": 0.1}, "hold_steps and hold_ratio are both given; give one of them"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        get_lr_policy("PolynomialHoldDecayAnnealing", **{"total_steps": T, **arguments})


def test_a_ratio_without_total_steps_is_refused():
    with pytest.raises(UsageError, match="warmup_ratio is a share of total_steps, which is missing"):
        lr_policies.WarmupPolicy(warmup_ratio=0.1)


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(
        UnknownNameError, match=r'lr policy "CosineAnealing" is not known.*did you mean CosineAnnealing'
    ):
        get_lr_policy("CosineAnealing", total_steps=10)


def test_an_unknown_argument_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r'CosineAnnealing: argument "min_lrr" .*did you mean min_lr\?'):
        get_lr_policy("CosineAnnealing", total_steps=10, min_lrr=1)


def test_missing_total_steps_is_named():
    with pytest.raises(UsageError, match="WarmupAnnealing: total_steps is missing"):
        get_lr_policy("WarmupAnnealing", warmup_steps=3)


def test_a_policy_prints_its_parameters():
    assert repr(lr_policies.CosineAnnealing(10)) == "CosineAnnealing(total_steps=10, warmup_steps=0, min_lr=0.0)"


def test_all_public_classes_of_the_file_are_listed_by_name():
    public = {
        name
        for name, value in inspect.getmembers(lr_policies, inspect.isclass)
        if issubclass(value, lr_policies.LRPolicy) and not name.startswith("_")
    }
    assert public - {"LRPolicy"} == set(get_all_lr_classes()) - {"warmuplr"}


def test_a_registered_policy_is_known_by_name_and_must_take_the_total_steps(monkeypatch):
    class Flat(LRPolicy):
        def __init__(self, total_steps=None, height=1.0):
            self.height = height

        def __call__(self, initial_lr, step, epoch):
            return self.height * initial_lr

    class Bare(Flat):
        def __init__(self):
            super().__init__()

    monkeypatch.setattr(lr_policies, "_POLICIES", dict(lr_policies._POLICIES))
    register_lr_policy("flat", Flat)
    assert get_lr_policy("flat", total_steps=3, height=0.5)(0.2, 1, 0) == 0.1
    assert "flat" in get_all_lr_classes()
    with pytest.raises(UsageError, match="bare: a policy by name must take total_steps: got Bare"):
        register_lr_policy("bare", Bare)
