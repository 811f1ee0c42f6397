"""What a worker does: a request in, one batch out, faults told instead of raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from nemo_lite.backends.pytorch.data.order import Counts, DataChangedError, ItemDataset, Loaded, Request
from nemo_lite.errors import DataError, UsageError


class Words(ItemDataset[str, str]):
    """Items that are the word they are found by; some words cannot be read."""

    def read(self, position: int, ref: str, request: Request[str], counts: Counts) -> str:
        counts["read"][ref] += 1
        if ref == "bad":
            raise DataError("it is bad", place=f"words:{position}")
        if ref == "gone":
            raise DataChangedError("the words are others now")
        if ref == "wrong":
            raise UsageError("an argument does not fit the words")
        return f"{ref}!" if request.training else ref

    def collate(self, items: Sequence[str]) -> tuple[Any, ...]:
        return (list(items),)

    def amount(self, items: Sequence[str]) -> float:
        return float(sum(map(len, items)))


def load(words: str, spares: str = "", training: bool = False) -> Loaded:
    items = list(enumerate(words.split()))
    return Words()[Request(0, items, list(enumerate(spares.split(), len(items))), training)]


def test_a_batch_holds_its_items_their_positions_and_its_amount() -> None:
    assert load("one three") == Loaded((["one", "three"],), [0, 1], 8.0, [], {"read": {"one": 1, "three": 1}})
    assert load("one", training=True).values == (["one!"],)


def test_faults_are_told_with_their_position_and_the_rest_of_the_batch_is_kept() -> None:
    loaded = load("bad one bad")
    assert loaded.values == (["one"],)
    assert loaded.ids == [1]
    assert loaded.faults == [(0, "words:0: it is bad"), (2, "words:2: it is bad")]
    assert loaded.counts == {"read": {"bad": 2, "one": 1}}


def test_one_spare_is_used_when_no_other_item_can_be() -> None:
    assert load("one", spares="two three").ids == [0]
    loaded = load("bad", spares="bad two three")
    assert (loaded.values, loaded.ids) == ((["two"],), [2])
    assert [position for position, _ in loaded.faults] == [0, 1]
    nothing = load("bad", spares="bad")
    assert (nothing.values, nothing.ids, nothing.amount) == ((), [], 0.0)


def test_what_is_wrong_with_all_items_ends_the_run() -> None:
    assert load("bad gone one") == Loaded(fatal="the words are others now")
    assert load("wrong").fatal == "an argument does not fit the words"


def test_torch_pins_the_values_of_a_batch_and_leaves_the_rest_as_it_is() -> None:
    class Pinnable:
        def pin_memory(self) -> str:
            return "pinned"

    loaded = load("bad one")._replace(values={"words": (Pinnable(), ["one"])})
    pinned: Any = pin_memory(loaded)
    assert type(pinned) is Loaded
    assert pinned.values == {"words": ("pinned", ["one"])}
    assert pinned[1:] == loaded[1:]
