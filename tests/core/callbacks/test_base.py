"""Callbacks of both generations, and the list that is notified."""

from __future__ import annotations

import pytest
from toys.fake_action_state import FakeState, Source, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import (
    CallbackList,
    EvaluatorCallback,
    NeMoCallback,
    SimpleLogger,
    SimpleLossLoggerCallback,
    TensorboardLogger,
    on_action_end,
    on_action_start,
    on_batch_end,
    on_batch_start,
    on_epoch_end,
    on_epoch_start,
    on_step_end,
    on_step_start,
)

# NeMoCallback, decorators and CallbackList, against a fake action.


def test_every_moment_arrives_in_order():
    seen = []
    decorators = {d.__name__: d for d in (on_action_start, on_epoch_start, on_step_start, on_batch_start)}
    decorators |= {d.__name__: d for d in (on_batch_end, on_step_end, on_epoch_end, on_action_end)}
    callbacks = [d(lambda state, name=name: seen.append(name)) for name, d in decorators.items()]
    train(FakeState(), callbacks, num_epochs=1, steps_per_epoch=2)
    step = ["on_step_start", "on_batch_start", "on_batch_end", "on_step_end"]
    assert seen == ["on_action_start", "on_epoch_start", *step, *step, "on_epoch_end", "on_action_end"]


def test_a_decorated_function_keeps_its_docstring_and_can_be_called():
    @on_step_end
    def double(state):
        """Doubles."""
        state.values["twice"] = state.step * 2

    assert double.__doc__ == "Doubles."
    state = FakeState(step=4)
    double(state)
    assert state.values["twice"] == 8


def test_a_function_decorated_twice_is_called_at_both_moments():
    steps = []

    @on_epoch_end
    @on_step_end
    def note(state):
        steps.append(state["step"])

    train(FakeState(), [note], steps_per_epoch=2)
    assert steps == [0, 1, 1]


class Wants(NeMoCallback):
    """Wants the end of each step, and counts look-ups of its methods."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, state):
        self.steps.append(state.step)


def test_only_overridden_moments_are_kept():
    called = CallbackList([Wants(), NeMoCallback(), SimpleLogger()])
    kept = {name: len(hooks) for name, hooks in called._hooks.items() if hooks}
    assert kept == {"on_epoch_start": 1, "on_step_end": 2, "on_epoch_end": 1}


def test_a_method_set_on_the_object_counts_as_overridden():
    callback, seen = NeMoCallback(), []
    callback.on_epoch_end = lambda state: seen.append(state.epoch)
    train(FakeState(), [callback], num_epochs=2)
    assert seen == [0, 1]


def my_function(state):
    """Not decorated."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, r"callbacks\[1\]: this is not a callback: got int, wanted a NeMoCallback$"),
        (None, r"callbacks\[1\]: .*got NoneType"),
        (SimpleLogger, r"got SimpleLogger.*make an object of the class: SimpleLogger\(\.\.\.\)"),
        (my_function, r"got my_function.*decorate my_function with the moment .*such as @on_step_end"),
    ],
)
def test_what_is_not_a_callback_is_named(wrong, message):
    with pytest.raises(UsageError, match=message):
        CallbackList([NeMoCallback(), wrong])


def test_the_list_says_which_wires_and_names_are_wanted():
    x, y = Source().connect()
    evaluator = EvaluatorCallback([y], lambda values, collected: None, lambda collected: None)
    callbacks = [
        SimpleLogger(tensors_to_log=["loss", "a"]),
        TensorboardLogger(tensors_to_log=["a", "b", x]),
        SimpleLossLoggerCallback([x]),
        evaluator,
    ]
    called = CallbackList(callbacks)
    assert (called.wires, called.names, called.eval_wires) == ([x], ["a", "b"], [[y]])


def test_close_reaches_every_callback():
    closed = []

    class Holds(NeMoCallback):
        def close(self):
            closed.append(self)

    first, second = Holds(), Holds()
    CallbackList([first, second]).close()
    assert closed == [first, second]
