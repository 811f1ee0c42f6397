"""ValueSetterCallback and UnfreezeCallback: what they change in modules, and when."""

from __future__ import annotations

import pytest
from toys.fake_action_state import Encoder, FakeState, Writer, train

from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.callbacks import ActionCallback, UnfreezeCallback, ValueSetterCallback

Policy, Method = ValueSetterCallback.Policy, ValueSetterCallback.Method


def values_of(policies, total_steps=None, run_steps=10, **state):
    module, seen = Encoder(), []

    class Note(ActionCallback):
        def on_iteration_start(self):
            seen.append(round(module.dropout, 6))

    setter = ValueSetterCallback(module, "dropout", policies, total_steps)
    train(FakeState(total_steps=run_steps, **state), [setter, Note()], steps_per_epoch=run_steps)
    return seen


def test_a_value_follows_its_policies():
    policies = [Policy(Method.Linear(0.0, 0.3), start=0.0, end=0.4), Policy(Method.Const(0.5), start=4, end=1.0)]
    assert values_of(policies, total_steps=10) == [0.0, 0.1, 0.2, 0.3, *[0.5] * 6]


def test_the_length_of_the_run_is_the_default_length_of_a_schedule():
    assert values_of([Policy(Method.Linear(0, 9), 0, 1.0)]) == list(range(10))


def test_after_its_end_a_schedule_keeps_its_last_value():
    assert values_of([Policy(Method.Linear(1, 3), 0, 1.0)], total_steps=3, run_steps=5) == [1, 2, 3, 3, 3]


def test_without_policies_a_value_stays():
    assert values_of(None) == [0.25] * 10


def test_any_function_of_step_and_number_is_a_method():
    assert values_of([Policy(lambda step, number: step * number, 0, 1.0)], run_steps=3) == [0, 3, 6]


def test_a_linear_policy_of_one_step_has_its_first_value():
    assert values_of([Policy(Method.Linear(0.1, 0.9), 0, 1), Policy(Method.Const(2), 1, 2)], run_steps=2) == [0.1, 2]


def test_the_value_of_each_step_is_written():
    writer = Writer()
    setter = ValueSetterCallback(Encoder(), "dropout", [Policy(Method.Linear(0, 2), 0, 3)], 3, tb_writer=writer)
    train(FakeState(), [setter], steps_per_epoch=3)
    assert writer.scalars == [("param/Encoder.dropout", float(n), n) for n in range(3)]


def test_gaps_between_policies_are_refused():
    policies = [Policy(Method.Const(1), 0, 4), Policy(Method.Const(2), 5, 10)]
    with pytest.raises(
        UsageError, match=r"Encoder\.dropout: the policies leave gaps.*got 0 to 4, 5 to 10, wanted 0 to 10"
    ):
        values_of(policies)


def test_a_schedule_of_unknown_length_is_refused():
    setter = ValueSetterCallback(Encoder(), "dropout")
    with pytest.raises(UsageError, match=r"Encoder\.dropout: the length .* is not known; give total_steps"):
        train(FakeState(), [setter])


def test_an_attribute_that_is_not_there_is_refused():
    with pytest.raises(UnknownNameError, match=r'Encoder: attribute "droput".*did you mean dropout\?'):
        ValueSetterCallback(Encoder(), "droput")


def test_one_module_to_unfreeze_without_a_list_is_refused():
    with pytest.raises(UsageError, match="UnfreezeCallback: modules must be a list: got object"):
        UnfreezeCallback(object())


def test_modules_are_unfrozen_once_when_their_epoch_comes():
    module, when = Encoder(), []

    class Note(ActionCallback):
        def on_iteration_end(self):
            when.append(module.num_unfreezes)

    train(FakeState(), [UnfreezeCallback([module], start_epoch=2), Note()], num_epochs=4, steps_per_epoch=1)
    assert when == [0, 0, 1, 1]


def test_a_run_resumed_later_unfreezes_at_its_start():
    module = Encoder()
    train(FakeState(epoch=5), [UnfreezeCallback([module], start_epoch=2)], num_epochs=2)
    assert module.num_unfreezes == 1


def frozen_until(**when):
    """How often a module had been unfrozen after each step, in two epochs of three steps."""
    module, counts = Encoder(), []

    class Note(ActionCallback):
        def on_iteration_end(self):
            counts.append(module.num_unfreezes)

    train(FakeState(), [UnfreezeCallback([module], **when), Note()], num_epochs=2, steps_per_epoch=3)
    return counts


def test_modules_are_unfrozen_once_when_their_step_comes():
    assert frozen_until(start_step=4) == [0, 0, 0, 0, 1, 1]
    assert frozen_until(start_step=0) == [1] * 6
    assert frozen_until(start_step=6) == [0] * 6


def test_a_run_resumed_after_the_step_unfreezes_at_its_first_step():
    module = Encoder()
    train(FakeState(step=9), [UnfreezeCallback([module], start_step=4)], steps_per_epoch=1)
    assert module.num_unfreezes == 1


def test_an_epoch_and_a_step_to_unfreeze_at_are_refused():
    told = "UnfreezeCallback: when to unfreeze must be said once: got start_epoch 2 and start_step 10"
    with pytest.raises(UsageError, match=told):
        UnfreezeCallback([Encoder()], start_epoch=2, start_step=10)


def test_a_run_resumed_behind_the_end_of_a_schedule_has_its_last_value():
    module = Encoder()
    line = ValueSetterCallback.Policy(ValueSetterCallback.Method.Linear(0.0, 1.0), 0, 1.0)
    setter = ValueSetterCallback(module, "dropout", [line], total_steps=5)
    train(FakeState(step=8), [setter], steps_per_epoch=2)
    assert module.dropout == 1.0
