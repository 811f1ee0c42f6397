"""Callbacks of both generations, and the list that is notified."""

from __future__ import annotations

import pytest
from toys.fake_action_state import FakeState, Source, train

from nemo_lite.base.errors import UsageError
from nemo_lite.core.callbacks import (
    ActionCallback,
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
from nemo_lite.utils import logging

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


# ActionCallback: the callbacks of NeMo 0.9 and 0.10, beside newer ones.


def test_an_action_callback_hears_of_epochs_and_iterations_without_arguments():
    seen = []

    class Old(ActionCallback):
        def __init__(self):
            self.names = "an attribute of the user's own"

        def on_action_start(self):
            seen.append("start")

        def on_epoch_start(self):
            seen.append(f"epoch {self.epoch_num}")

        def on_iteration_start(self):
            seen.append(f"step {self.step}")

        def on_iteration_end(self):
            seen.append(f"done {self.step}")

        def on_epoch_end(self):
            seen.append(f"end of epoch {self.epoch_num}")

        def on_action_end(self):
            seen.append("end")

    train(FakeState(), [Old()], steps_per_epoch=2)
    steps = ["step 0", "done 0", "step 1", "done 1"]
    assert seen == ["start", "epoch 0", *steps, "end of epoch 0", "end"]


def test_an_action_callback_sees_the_action_in_properties():
    callback, state = ActionCallback(), FakeState(step=3, epoch=2, local_rank=0, global_rank=4, learning_rate=0.5)
    callback.action = state
    assert (callback.step, callback.epoch_num, callback.learning_rate) == (3, 2, 0.5)
    assert (callback.local_rank, callback.global_rank, callback.logger) == (0, 4, logging)


def test_wires_in_the_attributes_are_registered_tensors(wires):
    x, y = wires

    class Old(ActionCallback):
        def __init__(self):
            super().__init__()
            self.loss, self.more = x, [y]
            self.seen = []

        def on_iteration_end(self):
            self.seen.append((self.registered_tensors[x.unique_name], self.registered_tensors[y.unique_name]))

    callback = Old()
    assert CallbackList([callback]).wires == [x, y]
    train(FakeState(values={x: 1.0, y: 2.0}), [callback], steps_per_epoch=1)
    assert callback.seen == [(1.0, 2.0)]
    assert list(callback.registered_tensors) == [x.unique_name, y.unique_name]
    assert "other" not in callback.registered_tensors


def test_moments_that_an_action_callback_leaves_alone_are_not_kept():
    assert not any(CallbackList([ActionCallback()])._hooks.values())


def test_old_and_new_callbacks_mix_in_the_order_given():
    order = []

    class Old(ActionCallback):
        def on_iteration_end(self):
            order.append(f"old {self.step}")

    new = on_step_end(lambda state: order.append(f"new {state.step}"))
    train(FakeState(), [Old(), new, Old()], steps_per_epoch=2)
    assert order == ["old 0", "new 0", "old 0", "old 1", "new 1", "old 1"]
