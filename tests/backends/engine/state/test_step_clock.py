"""StepClock: each reader gets the sums since it last asked."""

from nemo_lite.backends.pytorch.engine.state import StepClock


def test_each_reader_gets_what_came_since_it_last_asked() -> None:
    clock, first, second = StepClock(), [1], [1]
    clock.add(2.0, 0.5, 4)
    assert clock.read(first).seconds == 2.0
    clock.add(1.0, 0.0, 2)
    assert (clock.read(first).num_steps, clock.read(second).num_steps) == (1, 2)
    assert (clock.read(second).amount, clock.total.amount) == (0.0, 6)
