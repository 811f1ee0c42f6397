"""A run that is interrupted anywhere and resumed makes the steps of the uninterrupted one, to the bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toys.fake_comm import FakeComm
from toys.nets import Points
from toys.ranks import results_of
from toys.resumable import BATCH, NUM_ITEMS, DrawingNet, DrawingPoints, Trained, factory, joined, train

from nemo_lite.backends.pytorch import precision as loss_scale
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import ModuleWeights, load_training_state, save_training_state
from nemo_lite.backends.pytorch.engine.resuming import Position, unstacked
from nemo_lite.backends.pytorch.precision import LossScale, Precision
from nemo_lite.base.interruption import Interrupted
from nemo_lite.utils.optimizers import OPTIMIZERS

TWO = {"batches_per_step": 2}  # six steps an epoch


def disturb() -> None:
    """Another process would have other generators."""
    torch.manual_seed(random.randrange(1000))
    random.seed(8)
    np.random.seed(8)


def in_parts(folder: Path, *ends: int, **settings: Any) -> Trained:
    parts = []
    for end in ends:
        disturb()
        parts.append(train(folder, end, **settings))
    return joined(parts)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("whole"), 14, **TWO)


@pytest.mark.parametrize("cut", [1, 5, 6, 7, 11, 12])
def test_a_run_resumed_at_any_step_is_the_uninterrupted_run(whole: Trained, tmp_path: Path, cut: int) -> None:
    parts = in_parts(tmp_path, cut, 14, **TWO)
    assert (parts.steps, parts.weights) == (whole.steps, whole.weights)


@pytest.mark.slow
def test_a_run_resumed_with_another_number_of_workers_is_the_uninterrupted_run(whole: Trained, tmp_path: Path) -> None:
    parts = [train(tmp_path, 4, data=DrawingPoints(workers=2), **TWO), in_parts(tmp_path, 14, **TWO)]
    assert (joined(parts).steps, parts[-1].weights) == (whole.steps, whole.weights)


def test_finding_the_place_reads_no_item(whole: Trained, tmp_path: Path) -> None:
    data = DrawingPoints()
    train(tmp_path, 4, **TWO)
    rest = train(tmp_path, 5, data=data, **TWO)
    # Those of step 4, and of the epoch's last step, which are fetched ahead.
    assert rest.reads == whole.reads[4 * 2 * BATCH : NUM_ITEMS]


def test_a_run_without_a_seed_goes_on_with_its_own_generators(tmp_path: Path) -> None:
    def seeded(folder: Path, *ends: int) -> Trained:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        parts = [train(folder, ends[0], seed=None, **TWO)]
        return joined([*parts, *([in_parts(folder, *ends[1:], seed=None, **TWO)] if ends[1:] else [])])

    assert seeded(tmp_path / "parts", 3, 6, 9) == seeded(tmp_path / "whole", 9)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
def test_a_run_resumed_writes_the_files_of_the_uninterrupted_one_with_every_optimizer(
    tmp_path: Path, optimizer: str
) -> None:
    train(tmp_path / "whole", 4, optimizer=optimizer)
    in_parts(tmp_path / "parts", 2, 4, optimizer=optimizer)
    whole, parts = (CheckpointFolder(tmp_path / name).newest().files for name in ("whole", "parts"))
    assert {name: file.sha256 for name, file in parts.items()} == {name: file.sha256 for name, file in whole.items()}


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_novograd_with_amsgrad_is_resumed_to_the_bit_also_with_half_weights(tmp_path: Path, level: str) -> None:
    options = {"optimizer": "novograd", "params": {"amsgrad": True}, "factory_settings": {"optimization_level": level}}
    expected = train(tmp_path / "whole", 6, **options)
    parts = in_parts(tmp_path / "parts", 2, 4, 6, **options)
    assert (parts.steps, parts.weights) == (expected.steps, expected.weights)


class WideNet(DrawingNet):
    """So many weights that another order of adding three ranks' gradients shows in any step."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 60), nn.BatchNorm1d(60), nn.Tanh(), nn.Linear(60, 1)
        self.fc = nn.Sequential(*layers)  # type: ignore[assignment]  # in the place of one layer


# What leads gradients another way between ranks.
EXCHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two micro-batches": {"batches_per_step": 2},
    "synced statistics": {"synced_batchnorm": True},
    "static graph": {"static_graph": True},
}


def stopped_at_each_step(folder: Path) -> dict[str, list[int]]:
    """For each way, the steps at which a run was stopped and went on to weights unlike those of the whole run."""
    made, unlike = factory(), {}
    for way, options in EXCHANGES.items():

        def run(name: str, end: int, options: Any = options, way: str = way) -> Trained:
            disturb()
            data = DrawingPoints(n=36)
            return train(folder / way / name, end, made=made, data=data, net=WideNet(), optimizer="sgd", **options)

        whole = run("whole", 7)
        unlike[way] = []
        for cut in (1, 2, 4, 6):
            run(str(cut), cut)
            unlike[way] += [cut] if run(str(cut), 7).weights != whole.weights else []
    return unlike


def test_a_run_of_three_ranks_resumed_at_any_step_is_the_uninterrupted_run(tmp_path: Path) -> None:
    for unlike in results_of(3, stopped_at_each_step, tmp_path):
        assert unlike == {way: [] for way in EXCHANGES}


class Shuffled(Points):
    """A data layer with torch's own DataLoader, which the engine can only read in order."""

    @property
    def dataset(self) -> None:  # type: ignore[override]
        return None

    @property
    def data_iterator(self) -> Any:
        pairs = torch.utils.data.TensorDataset(self.x, self.y)
        return torch.utils.data.DataLoader(pairs, batch_size=2, shuffle=True)


@pytest.mark.parametrize("seed", [1, None])
def test_a_data_iterator_is_read_again_up_to_the_place_and_says_so(
    tmp_path: Path, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    def seeded(folder: Path, *ends: int) -> Trained:
        torch.manual_seed(3)
        parts = [train(folder, ends[0], seed=seed, data=Shuffled(), net=DrawingNet())]
        return joined([*parts, *([in_parts(folder, *ends[1:], seed=seed, data=Shuffled())] if ends[1:] else [])])

    random.seed(3)
    np.random.seed(3)
    expected = seeded(tmp_path / "whole", 9)
    random.seed(3)
    np.random.seed(3)
    assert seeded(tmp_path / "parts", 4, 9) == expected
    told = [line for line in caplog.messages if "reading the" in line]
    assert told == ["The data layer gives batches only in order: reading the 4 that are done again"]


# What decides later


def test_an_average_skipped_steps_and_a_loss_scale_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Precision.__init__

    def scaling(precision: Precision, level: Any, device: torch.device, *args: Any, **kwargs: Any) -> None:
        make(precision, level, device, *args, **kwargs)
        precision._scale = LossScale(device)  # which otherwise only float16 on a GPU has

    monkeypatch.setattr(Precision, "__init__", scaling)
    monkeypatch.setattr(loss_scale, "_GROWTH_INTERVAL", 3)
    settings: dict[str, Any] = {
        "data": None,
        "params": {"ema_decay": 0.9, "grad_norm_clip": 1.0},
        "factory_settings": {"optimization_level": "O1", "amp_dtype": "bfloat16"},
        **TWO,
    }
    expected = train(tmp_path / "whole", 9, **settings)
    parts = in_parts(tmp_path / "parts", 4, 9, **settings)
    assert (parts.steps, parts.weights) == (expected.steps, expected.weights)
    states = [read_state(tmp_path / name) for name in ("whole", "parts")]
    assert states[0] == states[1]


def read_state(folder: Path) -> str:
    path = CheckpointFolder(folder).newest().path_of("trainer")
    assert path is not None
    state = load_training_state(path)
    assert state["precision"]["scale"] > 2.0**16
    return str([state["precision"], state["average"], state["skipped"]])


# Evaluations


def test_a_resumed_run_is_evaluated_when_the_uninterrupted_one_is(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", 9, evaluate=4, **TWO)
    assert [step for step, _ in expected.evaluations] == [0, 4, 8, 9]
    for cut in (2, 6):
        parts = in_parts(tmp_path / str(cut), cut, 9, evaluate=4, **TWO)
        # The first part evaluates its weights at its end.
        kept = [each for each in parts.evaluations if each[0] != cut]
        assert (parts.steps, parts.weights, kept) == (expected.steps, expected.weights, expected.evaluations)


def test_a_run_stopped_inside_an_evaluation_repeats_it_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole", 9, evaluate=4, **TWO)
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", 9, evaluate=4, stop_in_evaluation=True, **TWO)
    assert read_checkpoint(tmp_path / "parts").step == 4
    rest = in_parts(tmp_path / "parts", 9, evaluate=4, **TWO)
    assert rest.evaluations == expected.evaluations[1:]
    assert (rest.steps, rest.weights) == (expected.steps[4:], expected.weights)


# Other data, and checkpoints of NeMo


def test_a_run_whose_batches_changed_goes_on_at_the_start_of_its_epoch_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, 3)
    rest = train(tmp_path, 4, data=DrawingPoints(batch_size=3))
    assert [index for index, _, _ in rest.steps] == [3]
    assert "the data or how they make batches changed: going on at the start of epoch 1" in caplog.messages
    assert sorted(rest.reads) == sorted(set(rest.reads)), "nothing was read twice"


def test_a_checkpoint_without_a_place_goes_on_at_the_start_of_its_epoch_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "new", 8, **TWO)  # two steps into the second epoch
    folder = CheckpointFolder(tmp_path / "new")
    found, stored = folder.newest(), read_checkpoint(tmp_path / "new")
    path = found.path_of("trainer")
    assert path is not None
    state = {
        key: value
        for key, value in load_training_state(path).items()
        if key not in ("pace", "seed", "done", "plan", "ranks")
    }
    weights = {name: ModuleWeights(name, values) for name, values in stored.weights.items()}
    CheckpointFolder(tmp_path / "old").save(weights, state, kind="STEP", number=8, keep=1)
    caplog.clear()
    data = DrawingPoints(shuffle=False)
    rest = train(tmp_path / "old", 14, data=data, **TWO)
    assert [index for index, _, _ in rest.steps] == [*range(8, 14)]
    assert data.reads[:NUM_ITEMS] == [*range(NUM_ITEMS)], "the whole epoch, from its start"
    place = f"{tmp_path}/old/checkpoint-STEP-8"
    assert f"{place} does not say where in its epoch it was saved: going on at the start of epoch 2" in caplog.messages
    caplog.clear()
    train(tmp_path / "new", 9, **TWO)
    assert not any("does not say where" in line for line in caplog.messages)


def test_the_log_says_at_which_batch_of_the_epoch_a_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, 8, **TWO)
    train(tmp_path, 12, **TWO)
    assert any(line.endswith("going on at step 8, in epoch 2 after 4 batches") for line in caplog.messages)
    train(tmp_path, 13, **TWO)
    assert any(line.endswith("going on at step 12, at the start of epoch 3") for line in caplog.messages)
    train(tmp_path / "other", 1)
    train(tmp_path / "other", 2)
    assert any(line.endswith("going on at step 1, in epoch 1 after 1 batch") for line in caplog.messages)


# Several ranks


def whole_and_parts(folder: Path, shard_weights: bool) -> list[tuple[Trained, Trained]]:
    """On one rank of several: runs that were not interrupted, each with one that was."""
    made, found = factory(shard_weights=shard_weights), []
    # In the second, rounds of one item end an epoch: rank 1 takes part with its last batch, which counts nothing.
    for name, items, norm, options in (
        ("even", 24, True, {}),
        ("join", 25, False, {"uneven": "join"}),
        ("synced", 24, True, {"synced_batchnorm": True}),
    ):

        def run(where: str, end: int, items: int = items, norm: bool = norm, **settings: Any) -> Trained:
            data, net = DrawingPoints(n=items), DrawingNet(norm)
            return train(folder / where, end, made=made, data=data, net=net, **settings, **TWO)

        whole = run(f"{name} whole", 9, **options)
        disturb()
        found.append((whole, joined([run(f"{name} parts", end, **options) for end in (2, 3, 7, 9)])))
    return found


def ranks_saved_in(folder: Path) -> Any:
    """What a checkpoint has of the ranks."""
    path = CheckpointFolder(folder).newest().path_of("trainer")
    assert path is not None
    return load_training_state(path)["ranks"]


@pytest.mark.parametrize("shard_weights", [pytest.param(False, marks=pytest.mark.long), True])
def test_on_two_ranks_each_goes_on_with_its_own_generators_and_statistics(tmp_path: Path, shard_weights: bool) -> None:
    by_rank = results_of(2, whole_and_parts, tmp_path, shard_weights)
    for found in by_rank:
        for whole, parts in found:
            assert (parts.steps, parts.weights) == (whole.steps, whole.weights)
    assert by_rank[0][0][0].steps != by_rank[1][0][0].steps, "the ranks draw different numbers"
    ranks = ranks_saved_in(tmp_path / "even parts")
    assert unstacked(ranks["buffers"], 0).keys() == {"drawing_net.norm.running_mean", "drawing_net.norm.running_var"}
    assert all(node["stack"].shape == (2, 3) for node in ranks["buffers"]["fields"].values())
    assert ranks_saved_in(tmp_path / "synced parts")["buffers"] == {"same": {}}, "the weights hold them"


@pytest.mark.long
@pytest.mark.slow
def test_a_checkpoint_of_a_thousand_ranks_can_be_written_and_each_reads_its_own(tmp_path: Path) -> None:
    net = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(90))
    modules, device, num_ranks = {"net": net}, torch.device("cpu"), 1000
    sums = [
        float(name.endswith("running_mean")) for name in net.state_dict() if "weight" not in name and "bias" not in name
    ]

    class OfManyRanks(FakeComm):
        def gather(self, value: Any) -> Any:
            def of_rank(rank: int) -> dict[str, Any]:
                return {**value, "buffers": {name: mean + rank for name, mean in value["buffers"].items()}}

            return [of_rank(rank) for rank in range(self.world_size)]

    state = Position(OfManyRanks(0, num_ranks, {"sum": [sums]}), device, modules).state_dict()
    save_training_state(tmp_path / "trainer-STEP-1.safetensors", state)
    for rank in (0, 7, 999):
        other = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(90))
        position = Position(FakeComm(rank, num_ranks), device, {"net": other})
        position.load_state_dict(load_training_state(tmp_path / "trainer-STEP-1.safetensors"))
        assert all(part.running_mean.tolist() == [rank] * 4 for part in other)
