"""StepClock: sums of what the steps of a run took. Nothing is measured here."""

from __future__ import annotations

from dataclasses import replace

from nemo_lite.core.action_state import StepTiming


class StepClock:
    """Sums of what the steps took, and what each reader had seen of them."""

    def __init__(self) -> None:
        self.total = StepTiming()
        # Readers need not be hashable. Each is kept with its id, which no other object can get while it lives.
        self._seen: dict[int, tuple[object, StepTiming]] = {}

    def add(self, seconds: float, data_wait_seconds: float, amount: float) -> None:
        """Add a step."""
        self.total.num_steps += 1
        self.total.seconds += seconds
        self.total.data_wait_seconds += data_wait_seconds
        self.total.amount += amount

    def read(self, reader: object) -> StepTiming:
        """The sums of the steps since this reader last asked."""
        now, (_, before) = replace(self.total), self._seen.get(id(reader), (reader, StepTiming()))
        self._seen[id(reader)] = (reader, now)
        sums = ("num_steps", "seconds", "data_wait_seconds", "amount")
        return replace(now, **{name: getattr(now, name) - getattr(before, name) for name in sums})
