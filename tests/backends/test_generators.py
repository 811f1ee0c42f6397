"""The states of generators as a tree: put back, everything is drawn again."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from toys.nets import BD, build, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state, save_training_state
from nemo_lite.backends.pytorch.data.loaders import Request, SeededDataset
from nemo_lite.backends.pytorch.generators import generator_states, generators_set_aside, set_generator_states

CPU = torch.device("cpu")


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(2)


def drawn(module: Masks) -> list[float]:
    # Pairs: Python and NumPy keep the second number of each.
    of_numpy = [float(np.random.rand()), float(np.random.randn())]
    own = torch.rand(1, generator=module.rng).item()
    return [random.random(), random.gauss(0, 1), *of_numpy, torch.rand(1).item(), own]


def test_all_is_drawn_again_after_the_states_went_through_a_file(tmp_path: Any) -> None:
    module = nn.Sequential(Masks())
    masks = module[0]
    assert isinstance(masks, Masks)
    drawn(masks)
    save_training_state(tmp_path / "state.safetensors", generator_states(CPU, {"net": module}))
    expected = drawn(masks)
    set_generator_states(load_training_state(tmp_path / "state.safetensors"), CPU, {"net": module})
    assert drawn(masks) == expected


def test_generators_of_another_module_are_left_alone() -> None:
    masks = Masks()
    states = generator_states(CPU, {"net": masks})
    expected = drawn(masks)
    set_generator_states(states, CPU, {"other": masks})
    assert (drawn(masks)[:-1], drawn(masks)[-1] != expected[-1]) == (expected[:-1], True)


def test_another_generator_in_numpys_place_is_left_alone() -> None:
    from numpy.random.mtrand import get_bit_generator, set_bit_generator

    before = get_bit_generator()
    set_bit_generator(np.random.PCG64(1))
    try:
        states = generator_states(CPU, {})
        assert states["numpy"] is None
        set_generator_states(states, CPU, {})
    finally:
        set_bit_generator(before)


def test_what_is_drawn_inside_changes_nothing() -> None:
    masks = Masks()
    states = generator_states(CPU, {"net": masks})
    with generators_set_aside(CPU, {"net": masks}):
        expected = drawn(masks)
    assert drawn(masks) == expected
    set_generator_states(states, CPU, {"net": masks})
    assert drawn(masks) == expected


def test_generators_that_two_set_aside_at_once_are_put_back_in_whatever_order_they_end() -> None:
    masks = Masks()
    states = generator_states(CPU, {"net": masks})
    first, second = generators_set_aside(CPU, {"net": masks}), generators_set_aside(CPU, {})
    with first:
        expected = drawn(masks)
    first, second = generators_set_aside(CPU, {"net": masks}), generators_set_aside(CPU, {})
    first.__enter__()
    drawn(masks)
    second.__enter__()
    drawn(masks)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert drawn(masks) == expected
    set_generator_states(states, CPU, {"net": masks})


class Drawing(Dataset[float]):
    """Draws a number, and lets other threads run before and behind it."""

    def __getitem__(self, request: Request[Any]) -> float:
        time.sleep(0.001)
        value = random.random() + float(np.random.rand()) + torch.rand(1).item()
        time.sleep(0.001)
        return value


def test_threads_that_read_at_once_draw_what_each_alone_draws_and_leave_the_generators_alone() -> None:
    dataset = SeededDataset(Drawing(), base=1, rank=0)
    requests = [Request(0, [], position=position) for position in range(20)]
    expected = [dataset[request] for request in requests]
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(dataset.__getitem__, requests)) == expected
    assert (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == before


class Noisy(nemo.TrainableNM):
    """Draws at each step of training."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(nn.functional.dropout(x, 0.5, self.training)) + random.random() + float(np.random.rand())


class Inferring(nemo.NeMoCallback):
    """Lets another thread begin an inference behind the second step, and end it behind the fourth."""

    def __init__(self, batches: Any = None) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._batches, self._thread = batches, ThreadPoolExecutor(1)

    def on_step_end(self, state: Any) -> None:
        self.losses.append(state["tensors"].get_tensor("loss").item())
        if self._batches is not None and state["step"] in (1, 3):
            take = list if state["step"] == 3 else next
            self._thread.submit(take, self._batches).result()


def test_a_training_draws_what_it_draws_alone_while_another_thread_infers() -> None:
    def losses_with(callback: Inferring) -> list[float]:
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
        _, loss = build(net=Noisy())
        train(factory, [loss], callback, params={"num_epochs": 3})
        return callback.losses

    other = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    batches = other.infer_batches([build()[1]])
    assert losses_with(Inferring(batches)) == losses_with(Inferring())
    assert list(batches) == []  # it ran
