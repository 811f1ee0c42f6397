"""ActionCallback: the callbacks of NeMo 0.9 and 0.10, beside newer ones."""

from __future__ import annotations

from toys.fake_action_state import FakeState, train

from nemo_lite.core.callbacks import ActionCallback, CallbackList, on_step_end
from nemo_lite.utils import logging


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
