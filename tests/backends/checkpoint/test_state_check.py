"""Training states of wrong types and shapes: an error of ours before a step is made, whatever value is wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from toys.nets import build

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.state import check_state
from nemo_lite.backends.pytorch.checkpoint.storage import Weights, load_training_state
from nemo_lite.errors import CheckpointError, NemoLiteError

BAD = (None, "x", -1, 2**70, float("inf"), True, [], {}, [1], {"a": 1}, torch.zeros(7, 5), torch.zeros(0))


def trained(optimizer):
    module = torch.nn.Linear(3, 2)
    made = optimizer(module.parameters(), lr=0.1)
    module(torch.ones(1, 3)).sum().backward()
    made.step()
    return made, {"step": 1, "epoch": 0, "optimizers": [made.state_dict()], "optimizer_names": [type(made).__name__]}


def places_in(tree, path=()):
    """The paths of all values of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for key, value in items:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def changed(tree, path, value):
    if not path:
        return value
    if isinstance(tree, dict):
        return {key: changed(each, path[1:], value) if key == path[0] else each for key, each in tree.items()}
    return type(tree)(changed(each, path[1:], value) if at == path[0] else each for at, each in enumerate(tree))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor, torch.optim.Rprop])
def test_a_state_of_the_optimizer_fits(optimizer):
    made, state = trained(optimizer)
    check_state(state, [made], "x")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("step",), -1, "in step: got -1, wanted a number from 0"),
        (("epoch",), float("nan"), "in epoch: got nan, wanted a number from 0"),
        (("optimizers",), {}, "in optimizers: got a dict of 0, wanted a list"),
        (("optimizers", 0), 3, "in optimizers.0: got 3, wanted a mapping"),
        (("optimizers", 0, "param_groups", 0, "lr"), "x", "in optimizers.0.param_groups.0.lr: got 'x', wanted as this"),
        (("optimizers", 0, "param_groups", 0, "betas"), (1, None), "in optimizers.0.param_groups.0.betas: got (1, N"),
        (("optimizers", 0, "param_groups", 0, "params"), [0], "in optimizers.0.param_groups.0: wanted a group of 2"),
        (("optimizers", 0, "state", 0, "exp_avg"), torch.zeros(3, 2), "got a tensor of shape (3, 2), wanted a tensor"),
        (("optimizers", 0, "state", 0, "exp_avg"), [1.0], "in optimizers.0.state.0.exp_avg: got a list of 1, wanted a"),
        (("optimizers", 0, "state", 0), 5, "in optimizers.0.state.0: got 5, wanted the state of a parameter"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place_in_the_state(path, value, told):
    made, state = trained(torch.optim.Adam)
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(CheckpointError) as caught:
        check_state(changed(state, path, value), [made], "ck")
    assert str(caught.value).startswith("ck: the training state does not fit this run in ")
    assert told in str(caught.value)
    assert str(made.state_dict()) == str(before)


def test_no_wrong_value_anywhere_in_a_state_ends_a_run_with_an_error_of_pythons(tmp_path):
    def train(max_steps):
        made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
        source = tmp_path / "bad" if max_steps > 2 else None
        saves = nemo.CheckpointCallback(tmp_path, load_from_folder=source, step_freq=2)
        made.train([build()[1]], "adam", {"lr": 0.02, "max_steps": max_steps}, callbacks=[saves])

    train(2)
    found = CheckpointFolder(tmp_path).newest()
    state = load_training_state(found.path_of("trainer"))
    contents = CheckpointFolder(tmp_path).read({"Net": build()[0]})
    paths = [*places_in(state)]
    assert len(paths) > 30
    num_refused, wrong = 0, []
    # Each value, and at each another thing; the same in every run.
    for number, path in enumerate(paths):
        bad = changed(state, path, BAD[number % len(BAD)])
        weights = {"Net": Weights("Net", contents.weights["Net"])}
        CheckpointFolder(tmp_path / "bad").save(weights, bad, kind="STEP", number=2, keep=1)
        try:
            train(3)
        except NemoLiteError:
            num_refused += 1
        except Exception as error:
            print(
                "WRONG",
                path,
                repr(BAD[number % len(BAD)])[:30],
                type(error).__name__,
                str(error)[:50],
                error.__traceback__.tb_next
                and [f"{f.name}:{f.lineno}" for f in __import__("traceback").extract_tb(error.__traceback__)][-5:],
            )
            wrong.append((path, BAD[number % len(BAD)], error))
    assert wrong == []
    assert num_refused > len(paths) // 2
