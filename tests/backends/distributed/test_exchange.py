"""Values that travel between ranks: round trips, what is refused, and exchanges on real groups of processes."""

from __future__ import annotations

import math
import resource
import time
import weakref
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.ranks import on_ranks, results_of

from nemo_lite.backends.pytorch.distributed.comm import Exchange, decode, encode
from nemo_lite.base.errors import DistributedError, UsageError

# Bytes and back


def travelled(value: Any) -> Any:
    return decode(torch.cat(encode(value)))


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, dtype and shape; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        equal = left.dtype == right.dtype and left.shape == right.shape
        return equal and left.reshape(-1).view(torch.uint8).equal(right.reshape(-1).view(torch.uint8))
    if isinstance(left, (np.ndarray, np.generic)):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left, right)) and all(same(left[k], right[k]) for k in left)
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=3))
    content = draw(st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize))
    if dtype == torch.bool:
        content = bytes(byte & 1 for byte in content)
    buffer = torch.tensor(list(content), dtype=torch.uint8)
    return buffer.view(dtype).reshape(shape)


LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats(), st.binary(), tensors()),
    st.text(st.characters(exclude_categories=())),
)
VALUES = st.recursive(
    LEAVES,
    lambda values: st.one_of(
        st.lists(values, max_size=4),
        st.lists(values, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), values, max_size=4),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_every_value_arrives_as_it_left(value: Any) -> None:
    assert same(travelled(value), value)


@settings(max_examples=50, deadline=None)
@given(VALUES, st.integers(1, 40))
def test_pieces_are_of_one_length_and_join_to_the_parcel(value: Any, piece_bytes: int) -> None:
    parcel, no_group = torch.cat(encode(value)), cast(Any, None)
    pieces = Exchange(no_group, 0, 1, piece_bytes)._pieces(parcel)
    assert torch.cat(pieces).equal(parcel)
    assert {len(piece) for piece in pieces[:-1]} <= {piece_bytes}
    assert 0 < len(pieces[-1]) <= piece_bytes


@pytest.mark.parametrize(
    "value",
    [
        10**5000,  # longer than what Python writes in decimal digits
        -(2**63) - 1,
        "\ud83d\ude00 as two halves, \U0001f600 as one, \ud800 alone",
        float("-inf"),
        -0.0,
        {1: "a", "1": "b", 2**70: "c"},
        torch.empty(0, 5),
        torch.tensor(3.5, dtype=torch.bfloat16),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.array(["å", "bcd"]),
        np.float32(0.1),
        np.float64("nan"),
        np.bool_(True),
        np.array(2.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_easily_lost_is_not(value: Any) -> None:
    assert same(travelled(value), value)
    assert math.copysign(1, travelled(-0.0)) == -1


def test_views_gradients_and_parameters_arrive_as_plain_tensors() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert travelled(base.t()[1:]).equal(base.t()[1:])
    conjugate = torch.tensor([1 + 2j]).conj()
    assert travelled([conjugate, conjugate.imag])[0].equal(torch.tensor([1 - 2j]))
    assert travelled([conjugate, conjugate.imag])[1].equal(torch.tensor([-2.0]))
    arrived = travelled(torch.nn.Parameter(base))
    assert type(arrived) is torch.Tensor
    assert not arrived.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tensor_on_a_gpu_arrives_on_the_cpu() -> None:
    assert same(travelled(torch.arange(5, device="cuda")), torch.arange(5))


def test_an_arrived_tensor_keeps_nothing_else_in_memory_and_can_be_written_to() -> None:
    small, _, array = travelled([torch.ones(3), torch.ones(1000), np.ones(3)])
    assert small.untyped_storage().nbytes() == 12
    small += 1
    array += 1


class Row(tuple[int, ...]):
    pass


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"value: set cannot travel between ranks: wanted tensors, "),
        ({"rows": [0, (1, object())]}, r"value\['rows'\]\[1\]\[1\]: object cannot travel"),
        ([Row((1, 2))], r"value\[0\]: test_exchange\.Row cannot travel"),
        ({"a": {2.5: 1}}, r"value\['a'\]: a dictionary with the key 2\.5 cannot"),
        ({True: 1}, r"value: a dictionary with the key True cannot"),
        ([torch.ones(2).to_sparse()], r"value\[0\]: a tensor that is sparse"),
        (torch.ones(2, device="meta"), r"without data cannot travel"),
        (np.array([None]), r"a NumPy array of object cannot"),
        (np.zeros(1, dtype=[("a", "i4")]), r"a NumPy array of \[\('a', '<i4'\)\] cannot"),
        (CYCLE, r"value: what is nested so deeply, or contains itself, cannot travel"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_type_and_place(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encode(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"$class": []}', r"unknown mark \$class"),
        ('{"$tensor": ["load", 1]}', "a tensor of 'load'"),
        ('{"$tensor": ["float32", 1]}', "a buffer of 4 bytes, 0 are left"),
        ('{"$array": ["O", [1], ["uint8", 0]]}', "an array of 'O'"),
        ('{"$array": ["<f4", [-1], ["uint8", 0]]}', r"an array of the shape \[-1\]"),
        ('{"$array": ["<f4", [1000000], ["uint8", 0]]}', "too small"),
        ('{"$array": ["(01,)i4", [1], ["uint8", 0]]}', "an array of"),
        ('{"$array": ["<U1", [1], ["uint8", 4]]}', "a buffer of 4 bytes"),
        ('{"$array": ["<f4"]}', "not enough values"),
        ('{"$tensor": ["uint8", 1000000000000]}', "a buffer of 1000000000000 bytes, 0 are left"),
        ('{"$tensor": ["uint8", -8]}', "a buffer of -8 bytes"),
        ('{"$items": [[[], 1]]}', "no header of a parcel"),
        ('{"$float": {}}', "no header of a parcel"),
        ("[" * 100_000, "no header of a parcel"),
        ('{"$array": ["f3", [1], ["uint8", 8]]}', "an array of 'f3'"),
        ("[", "Expecting value"),
    ],
)
def test_bytes_of_another_origin_run_nothing_and_are_refused(text: str, message: str) -> None:
    parcel = parcel_of(text)
    told = rf"^rank 3 sent data that nemo_lite did not write: got .*{message}.*; see that all ranks run the same"
    with pytest.raises(DistributedError, match=told):
        decode(parcel, rank=3)


def parcel_of(text: str, extra: int = 0) -> torch.Tensor:
    """A parcel whose header says that it is longer by so many bytes."""
    content = text.encode()
    return torch.tensor(list((len(content) + extra).to_bytes(8, "little") + content), dtype=torch.uint8)


def test_a_header_longer_than_its_parcel_is_refused_also_where_what_is_there_can_be_read() -> None:
    assert decode(parcel_of("[1]")) == [1]
    with pytest.raises(DistributedError, match=r"rank 3 sent data .*: got .*a header of 4 bytes in a parcel of 11"):
        decode(parcel_of("[1]", 1), rank=3)


# Between processes


def in_group(timeout: float = 20.0, **settings: Any) -> Exchange:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    group = dist.group.WORLD
    assert group is not None
    return Exchange(group, dist.get_rank(), dist.get_world_size(), **settings)


def value_of(rank: int) -> dict[str, Any]:
    return {"rank": rank, "text": "å" * rank, "ragged": torch.arange(rank), "half": torch.ones(2, rank).bfloat16()}


def gather_and_share() -> tuple[bool, Any, Any]:
    exchange = in_group(piece_bytes=64)
    rank = dist.get_rank()
    gathered = exchange.gather(value_of(rank))
    right = gathered is None
    if rank == 0:
        right = same(gathered, [value_of(other) for other in range(dist.get_world_size())])
    return right, exchange.share(value_of(7) if rank == 0 else object()), exchange.share(None)


@pytest.mark.parametrize("world_size", [1, 3])
def test_values_are_gathered_in_order_and_the_first_ones_is_shared(world_size: int) -> None:
    for right, shared, nothing in results_of(world_size, gather_and_share):
        assert right
        assert same(shared, value_of(7))
        assert nothing is None


def rounds_of(cases: list[list[int]]) -> list[list[list[str]]]:
    exchange = in_group(piece_bytes=64)
    rank = dist.get_rank()
    return [list(exchange.rounds(f"{rank}:{i}" for i in range(lengths[rank]))) for lengths in cases]


def test_each_round_has_a_row_of_every_rank_that_still_has_one() -> None:
    first, *others = results_of(4, rounds_of, [[2, 0, 3, 1], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]])
    ragged = [["0:0", "2:0", "3:0"], ["0:1", "2:1"], ["2:2"]]
    assert first == [ragged, [], [["3:0"]], [["0:0"]]]
    assert others == [[[]] * 4] * 3


class Rows:
    """Tensors, counted while they live."""

    def __init__(self) -> None:
        self.alive: list[int] = []
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> torch.Tensor:
        self.alive.append(sum(made() is not None for made in self._made))
        if len(self.alive) > 3:
            raise StopIteration
        row = torch.ones(1000)
        self._made.append(weakref.ref(row))
        return row

    def note(self, arrived: list[torch.Tensor]) -> None:
        self._made += map(weakref.ref, arrived)


def alive_rows() -> list[int]:
    exchange, rows = in_group(), Rows()
    for arrived in exchange.rounds(rows):
        rows.note(arrived)
        del arrived
    return rows.alive


def test_no_row_is_held_when_the_next_one_is_made() -> None:
    first, second = results_of(2, alive_rows)
    assert set(first) == set(second) == {0}


def stop_early() -> tuple[int, Any]:
    exchange = in_group()
    consumed = 0

    def rows() -> Any:
        nonlocal consumed
        for consumed in range(1, 101):  # noqa: B007  # read after the loop was left
            yield torch.ones(10)

    for number, _ in enumerate(exchange.rounds(rows()), 1):
        if number == 2:
            break
    return consumed, exchange.gather(dist.get_rank())


def test_when_the_first_rank_stops_early_all_have_taken_equally_many_rows_and_go_on() -> None:
    assert results_of(2, stop_early) == [(2, [0, 1]), (2, None)]


def stop_and(go_on: str) -> list[Any]:
    exchange = in_group()
    firsts = [arrived for arrived, _ in zip(exchange.rounds([1, 2, 3]), range(1), strict=False)]
    if go_on == "end":
        exchange.end_rounds()
        exchange.end_rounds()
        dist.barrier()
    elif go_on == "share":
        firsts.append([exchange.share(dist.get_rank())])
    else:
        firsts += exchange.rounds([4])
    return firsts


@pytest.mark.parametrize(
    ("go_on", "wanted"),
    [("end", ([[1, 1]], [])), ("share", ([[1, 1], [0]], [[0]])), ("rounds", ([[1, 1], [4, 4]], []))],
)
def test_the_next_exchange_or_whoever_drives_the_ranks_ends_what_the_first_rank_left(go_on: str, wanted: Any) -> None:
    assert tuple(results_of(2, stop_and, go_on)) == wanted


def fail_between_rounds() -> None:
    exchange = in_group(timeout=1.0)
    for _ in exchange.rounds([1, 2]):
        raise UsageError("the first row is wrong")


def test_an_error_of_the_first_rank_between_rounds_is_no_end_of_them_for_the_others() -> None:
    first, second = on_ranks(2, fail_between_rounds)
    assert (first.code, first.err) == (2, "UsageError: the first row is wrong\n")
    assert second.code != 0


def drop_after_the_group() -> int:
    rounds = in_group().rounds([1, 2])
    if dist.get_rank() == 0:
        next(rounds)
        dist.barrier()
    else:
        # One round that rank 0 asks for by hand, so that this rank does not wait for a second one.
        goes_on, sizes = torch.zeros(1, dtype=torch.int64), [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
        dist.broadcast(goes_on, 0)
        dist.all_gather(sizes, torch.tensor([0]))
        dist.barrier()
    dist.destroy_process_group()
    del rounds
    return 1


def test_an_iteration_that_is_dropped_when_the_group_is_gone_sends_and_prints_nothing() -> None:
    assert [(end.result, end.err) for end in on_ranks(2, drop_after_the_group)] == [(1, "")] * 2


def fail_in_rows() -> None:
    exchange = in_group(timeout=1.0)

    def rows() -> Any:
        yield 1
        if dist.get_rank() == 1:
            raise UsageError("the second row is wrong")
        yield 2

    list(exchange.rounds(rows()))


def test_an_error_of_the_rows_leaves_on_its_rank() -> None:
    finished = on_ranks(2, fail_in_rows)
    assert (finished[1].code, finished[1].err) == (2, "UsageError: the second row is wrong\n")
    assert finished[0].code != 0


def long_row(megabytes: int) -> tuple[list[int], list[tuple[str, int | None]], bool]:
    marks: list[tuple[str, int | None]] = []
    sent: list[int] = []

    @contextmanager
    def mark(name: str, partner: int | None) -> Any:
        marks.append((name, partner))
        yield

    def spied(send: Any) -> Any:
        def note(tensor: torch.Tensor, **kwargs: Any) -> Any:
            sent.append(tensor.nbytes)
            return send(tensor, **kwargs)

        return note

    dist.send, dist.recv = spied(dist.send), spied(dist.recv)
    exchange = in_group(mark=mark)
    row = torch.arange(megabytes * 2**18, dtype=torch.int32)
    rounds = list(exchange.rounds([] if dist.get_rank() == 0 else [row]))
    right = same(rounds, [[row]] if dist.get_rank() == 0 else [])
    return sent, marks, right


def test_a_row_of_40_mebibytes_travels_in_pieces_and_every_exchange_is_marked() -> None:
    started = time.perf_counter()
    first, second = results_of(2, long_row, 40)
    for sent, _, right in (first, second):
        assert right
        assert sent[:-1] == [4 * 2**20] * 10
        assert 0 < sent[-1] < 100  # the header's share
    asked = ["rank 0 asks for the next", "sizes of all ranks"]
    of_all = [[(f"evaluation results, round {number}: {what}", None) for what in asked] for number in (1, 2)]
    for (_, marks, _), partner in ((first, 1), (second, 0)):
        assert marks == [*of_all[0], ("evaluation results, round 1: rank 1 to rank 0", partner), *of_all[1]]
    assert time.perf_counter() - started < 10


def growth_while_shared(megabytes: int) -> tuple[float, bool, bool]:
    """By how much of the value's size the process grew, at most; whether the value is right, and is the rank's own."""
    exchange = in_group()
    value = [torch.full((megabytes * 2**16,), float(i)) for i in range(4)] if dist.get_rank() == 0 else None
    exchange.share(torch.ones(10))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shared = exchange.share(value)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert shared is not None
    return grown / megabytes, all(bool((part == i).all()) for i, part in enumerate(shared)), shared is value


def test_sharing_takes_the_memory_of_the_value_once() -> None:
    (first, *first_has), (second, *second_has) = results_of(2, growth_while_shared, 100)
    assert (first_has, second_has) == ([True, True], [True, False])
    assert first < 0.2
    assert second < 1.2
