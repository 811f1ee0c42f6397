"""Streams of DAGs: windows over chunks, signals in step, the state as a value, modules that cannot stream."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from nemo_lite.backends.pytorch.nm import DataLayerNM, NonTrainableNM
from nemo_lite.backends.pytorch.streaming import ChunkFrames, Delay, SlidingWindow, Streams, in_step, lower_to_stream
from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import NeuralType

SIGNAL = NeuralType("B T")


class Source(DataLayerNM):
    output_ports = {"signal": SIGNAL}


class Sums(NonTrainableNM):
    """Sums of three neighbours, zeros at both ends."""

    input_ports = {"signal": SIGNAL}
    output_ports = {"sums": SIGNAL}
    window = SlidingWindow(3, 1, 1, 1)

    def forward(self, signal):
        return F.pad(signal, (1, 1)).unfold(1, 3, 1).sum(2)

    def stream_problem(self):
        return ""

    def stream_delay(self):
        return self.window.delay

    def initial_state(self, batch):
        return {"kept": self.window.initial((batch, 0), 1, torch.zeros(1))}

    def step(self, signal, *, state, last):
        seen, kept = self.window.take(state["kept"], signal, 1, last)
        sums = seen.unfold(1, 3, 1).sum(2) if seen.shape[1] else seen
        return (sums,), {"kept": kept}


class Twice(NonTrainableNM):
    input_ports = {"signal": SIGNAL}
    output_ports = {"twice": SIGNAL}
    is_framewise = True

    def forward(self, signal):
        return 2 * signal


class Mean(Twice):
    is_framewise = False

    def forward(self, signal):
        return signal - signal.mean(1, keepdim=True)


def chain(*modules):
    wire = Source()()
    for module in modules:
        wire = module(wire)
    return Dag([wire]).slice()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_windows_over_any_chunks_are_those_of_the_whole(data):
    kernel, stride, dilation = (data.draw(st.integers(1, most)) for most in (5, 6, 3))
    span = dilation * (kernel - 1) + 1
    before, behind = (data.draw(st.integers(0, span - 1)) for _ in range(2))
    window = SlidingWindow(span, stride, before, behind)
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    whole = torch.randn(2, 3, sum(sizes))
    weight = torch.randn(1, 3, kernel)

    def convolved(x):
        too_short = x.shape[2] < span
        return x.new_zeros(2, 1, 0) if too_short else F.conv1d(x, weight, stride=stride, dilation=dilation)

    kept, parts = window.initial(whole.shape, 2, whole), []
    for number, chunk in enumerate(whole.split(sizes, dim=2)):
        seen, kept = window.take(kept, chunk, 2, last=number == len(sizes) - 1)
        parts.append(convolved(seen))
    torch.testing.assert_close(torch.cat(parts, 2), convolved(F.pad(whole, (before, behind))))


def test_an_output_is_there_as_soon_as_its_last_frame_is():
    window = SlidingWindow(5, 2, 2, 2)
    kept = window.initial((1, 0), 1, torch.zeros(1))
    there = []
    for frame in range(9):
        seen, kept = window.take(kept, torch.tensor([[float(frame)]]), 1, last=False)
        there.append(seen.shape[1] > 0)
    assert window.delay == Delay(2, 2)
    assert [frame for frame, is_there in enumerate(there) if is_there] == [2, 4, 6, 8]


def test_signals_of_which_one_is_ahead_are_brought_in_step():
    now, ahead = in_step([torch.zeros(1, 2), torch.zeros(1, 0)], [torch.ones(1, 3), torch.ones(1, 1)], 1)
    assert [part.tolist() for part in now] == [[[0.0]], [[1.0]]]
    assert [part.shape[1] for part in ahead] == [4, 0]


def test_a_dag_in_chunks_gives_what_it_gives_of_the_whole_and_leaves_its_state_alone():
    stream = lower_to_stream(chain(Sums(name="first"), Twice(), Sums(name="second")))
    assert stream.delay == Delay(1, 2)
    signal = torch.arange(10.0).unsqueeze(0)
    state, parts = stream.initial_state(1), []
    assert {name: set(kept) for name, kept in state.items()} == {"first": {"kept"}, "second": {"kept"}}
    for sizes in ([4, 0, 1, 5], [10], [1] * 10):
        state, parts = stream.initial_state(1), []
        for number, chunk in enumerate(signal.split(sizes, dim=1)):
            (out,), new_state = stream(chunk, state=state, last=number == len(sizes) - 1)
            (again,), _ = stream(chunk, state=state, last=number == len(sizes) - 1)
            torch.testing.assert_close(out, again)
            parts.append(out)
            state = new_state
        torch.testing.assert_close(torch.cat(parts, 1), Sums()(2 * Sums()(signal)))


def test_a_dag_in_chunks_is_an_fx_module_that_compiles_and_exports():
    stream = lower_to_stream(chain(Sums(name="first"), Twice(name="twice"), Sums(name="second")))
    assert isinstance(stream, fx.GraphModule)
    assert "first.step(signal, state = getitem, last = last)" in stream.code
    state, chunk = stream.initial_state(1), torch.arange(6.0).unsqueeze(0)
    (wanted,), kept = stream(chunk, state, False)
    (compiled,), compiled_kept = torch.compile(stream, backend="eager", fullgraph=True)(chunk, state, False)
    exported = torch.export.export(stream, (chunk, state, False)).module()
    (again,), exported_kept = exported(chunk, state, False)
    for out, new_state in ((compiled, compiled_kept), (again, exported_kept)):
        torch.testing.assert_close(out, wanted, rtol=0, atol=0)
        torch.testing.assert_close(new_state, kept, rtol=0, atol=0)


def test_every_module_that_cannot_stream_is_named_with_its_reason():
    assert not isinstance(Mean(), Streams)
    modules = Mean(name="mean"), Sums(), Mean(name="other")
    with pytest.raises(UsageError, match=r"cannot stream.*mean: Mean needs the whole input; other: Mean needs"):
        lower_to_stream(chain(*modules))


def test_modules_are_the_slices_own():
    sums = Sums()
    stream = lower_to_stream(chain(sums, sums))
    assert [module for module in stream.modules() if isinstance(module, nn.Module) and module is sums] == [sums]
    (out,), _ = stream(torch.ones(1, 4), state=stream.initial_state(1), last=True)
    assert out.tolist() == [[5.0, 8.0, 8.0, 5.0]]


CHAINS = {
    "same": [SlidingWindow(5, 1, 2, 2), SlidingWindow(3, 1, 1, 1)],
    "unpadded halves": [SlidingWindow(3, 2, 0, 0), SlidingWindow(3, 2, 0, 0)],
    "causal, then gaps": [SlidingWindow(7, 1, 6, 0), SlidingWindow(1, 3, 0, 0), SlidingWindow(3, 1, 1, 1)],
    "late, then gaps": [SlidingWindow(3, 1, 1, 1), SlidingWindow(1, 4, 0, 0)],
    "pooling": [SlidingWindow(3, 1, 1, 1), SlidingWindow(2, 2, 0, 1), SlidingWindow(3, 1, 0, 2)],
}


def windowed(values, window):
    """Sums over windows plus 1, so that what stands beside the signal would be seen."""
    return values.unfold(1, window.span, window.stride).sum(2) + 1


@pytest.mark.parametrize("name", CHAINS)
def test_in_a_graph_chunks_and_states_of_fixed_sizes_give_the_outputs_of_the_whole_late(name, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    chunk = 12
    for length in (0, 1, 5, 12, 13, 40):
        signal = torch.randn(1, length, generator=torch.Generator().manual_seed(0))
        whole, states, first = signal, [], 0
        for window in CHAINS[name]:
            whole = F.pad(whole, (window.before, window.behind))
            whole = windowed(whole, window) if whole.shape[1] >= window.span else whole[:, :0]
            states.append(window.initial((1, 0), 1, signal, first=first))
            first = window.first(first)
        padded, found = F.pad(signal, (0, 10 * chunk), value=7.0), []
        for number in range(9):
            x = padded[:, number * chunk : (number + 1) * chunk]
            frames = ChunkFrames.of_chunk(torch.tensor([length - number * chunk]), torch.tensor([number * chunk]))
            for place, window in enumerate(CHAINS[name]):
                x = torch.where(frames.is_there(x.shape[1]), x, 0.0)
                seen, kept = window.take(states[place], x, 1, last=False)
                assert kept.shape == states[place].shape, "the size of a state is fixed"
                x, states[place], frames = windowed(seen, window), kept, frames.behind(window)
            assert frames.first == first
            left = int(frames.left)
            found.append(x[:, : max(left, 0)])
        joined = torch.cat(found, dim=1)[:, -first:]
        assert joined.shape == whole.shape, length
        torch.testing.assert_close(joined, whole)
