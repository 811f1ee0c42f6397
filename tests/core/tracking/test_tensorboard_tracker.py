"""TensorboardTracker: training steps become curves."""

from toys.fake_action_state import Writer

from nemo_lite.core.trackers import TensorboardTracker


def test_training_steps_are_written_and_evaluations_left_to_their_callback():
    writer = Writer()
    tracker = TensorboardTracker(writer)
    train = {"kind": "train", "time": "t", "step": 25, "epoch": 2, "loss": 0.5, "lr": 0.1, "amount_per_second": 5.0}
    tracker.write({**train, "amount_unit": "items", "data_wait_share": 0.25, "step_seconds": 2.0})
    tracker.write({"kind": "evaluation", "step": 25, "set": "dev", "wer": 0.5})
    tracker.write({"kind": "end", "step": 25})
    assert writer.of("loss") == [(0.5, 25)]
    assert writer.of("param/lr") == [(0.1, 25)]
    assert writer.of("misc/step_time") == [(2.0, 25)]
    assert len(writer.scalars) == 6
    tracker.close()
    assert writer.num_flushes == 1
