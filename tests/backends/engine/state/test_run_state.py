"""What the state of a run does for callbacks: checkpoints, resuming, stopping."""

import json

import pytest
import torch
from torch import nn
from toys.device_verdict import use_device_verdict
from toys.nets import Mse, Net, Points, Record, build, train
from toys.rank_training import rank_factory, train_net
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.core.callbacks.action_state import EvaluationResult


def test_a_second_run_starts_anew(factory):
    _, loss = build()
    first, second = Record(), Record()
    train(factory, [loss], first, params={"max_steps": 2})
    train(factory, [loss], second, params={"max_steps": 2})
    assert second.events[:3] == ["action_start", "epoch_start 0", "step_start 0"]


def test_a_callback_can_ask_to_stop(factory):
    _, loss = build()
    record = Record()

    class Stop(nemo.NeMoCallback):
        def on_step_end(self, state):
            if state.step == 1:
                state.request_stop("enough")

    factory.train([loss], optimizer="sgd", callbacks=[record, Stop()], optimization_params={"lr": 0.1, "num_epochs": 9})
    assert record.events[-2:] == ["step_end 1", "action_end"]


def test_a_finished_run_that_is_started_again_trains_no_further(factory, tmp_path):
    net, loss = build()

    def checkpoints():
        return nemo.CheckpointCallback(tmp_path, step_freq=3)  # three steps are an epoch: saved by the last of them

    train(factory, [loss], checkpoints())
    weight, record = net.fc.weight.detach().clone(), Record()
    factory.train(
        [loss],
        optimizer="sgd",
        callbacks=[record, checkpoints()],
        optimization_params={"lr": 0.1, "momentum": 0.0, "num_epochs": 2},
    )
    assert record.events == ["action_start", "action_end"]
    assert torch.equal(net.fc.weight, weight)


def _adam(**flags):
    return lambda net: torch.optim.Adam(net.parameters(), lr=0.1, **flags)


def _sgd(**flags):
    return lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **flags)


FORMS = {
    "adam": lambda net: "adam",
    "Adam()": _adam(),
    "Adam(foreach)": _adam(foreach=True),
    "Adam(fused)": _adam(fused=True),
    "sgd": lambda net: "sgd",
    "SGD()": _sgd(),
    "SGD(foreach)": _sgd(foreach=True),
    "SGD(fused)": _sgd(fused=True),
}
OTHER_FORMS = [
    *(("Adam()", "adam"), ("Adam(foreach)", "adam"), ("adam", "Adam()"), ("Adam()", "Adam(fused)")),
    *(("SGD()", "sgd"), ("SGD(foreach)", "sgd"), ("sgd", "SGD(foreach)"), ("SGD()", "SGD(fused)")),
]


def flags_of(optimizer):
    return [{name: group.get(name) for name in ("fused", "foreach", "capturable")} for group in optimizer.param_groups]


def momentum_run(factory, folder, form, steps):
    """The net, and the optimizer's flags at the first step and behind the run."""
    net, loss = build(net=Net(norm=True))
    made, seen = FORMS[form](net), []
    flags = [] if isinstance(made, str) else [flags_of(made)]

    class See(nemo.NeMoCallback):
        def on_step_end(self, state):
            seen.append(flags_of(state.optimizers[0]))

    params = {"lr": 0.1, "max_steps": steps} | ({"momentum": 0.9} if made == "sgd" else {})
    callbacks = [See(), *([nemo.CheckpointCallback(folder, step_freq=3)] if folder else [])]
    factory.train([loss], optimizer=made, callbacks=callbacks, optimization_params=params)
    return net.state_dict(), [*flags, *seen]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("saved_by", "going_on"), OTHER_FORMS)
def test_a_resumed_run_keeps_the_kernels_of_its_own_optimizer(
    factory, tmp_path, monkeypatch, saved_by, going_on, on_device
):
    if on_device:
        use_device_verdict(monkeypatch)
    whole, flags = momentum_run(factory, None, going_on, 6)
    momentum_run(factory, tmp_path, saved_by, 3)
    weights, resumed_flags = momentum_run(factory, tmp_path, going_on, 6)
    assert all(each == flags[0] for each in resumed_flags)
    assert resumed_flags
    torch.testing.assert_close(weights, whole)


@pytest.mark.parametrize("form", ["adam", "sgd", "Adam()", "Adam(fused)", "SGD(fused)"])
def test_a_run_of_nemo_goes_on_with_the_kernels_of_this_run(factory, tmp_path, monkeypatch, form):
    use_device_verdict(monkeypatch)
    net = Net(norm=True)
    made = torch.optim.SGD(net.parameters(), 0.1, 0.9) if form[0] in "sS" else torch.optim.Adam(net.parameters(), 0.1)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    state = made.state_dict()
    for kept in state["state"].values():
        if "step" in kept:
            kept["step"] = int(kept["step"])
    options = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad", "momentum", "dampening", "nesterov")
    state["param_groups"] = [  # torch 1.4 had no others
        {name: value for name, value in group.items() if name in options} for group in state["param_groups"]
    ]
    torch.save(net.state_dict(), tmp_path / "Net-STEP-1.pt")
    torch.save({"step": 1, "epoch": 0, "optimizer_state": [state]}, tmp_path / "trainer-STEP-1.pt")
    first = FORMS[form](Net())
    _, flags = momentum_run(factory, tmp_path, form, 4)
    assert len(flags) >= 3
    assert all(each == flags[0] for each in flags)
    assert flags[0][0]["fused"] == (first in ("adam", "sgd") or "fused" in form or None)


def two_of_one_name():
    x, y = Points()()
    first, second = Net(), Net()
    second.fc = nn.Linear(1, 1)
    return Mse()(out=second(x=first(x=x)), target=y)


def test_modules_that_cannot_be_saved_side_by_side_are_told_before_the_first_step(factory, tmp_path):
    record = Record()
    callbacks = [record, nemo.CheckpointCallback(tmp_path, step_freq=100)]
    with pytest.raises(CheckpointError, match='two modules would be saved as "Net"; give each its own name='):
        factory.train(
            [two_of_one_name()], optimizer="sgd", callbacks=callbacks, optimization_params={"max_steps": 9, "lr": 0.1}
        )
    assert record.events == ["action_start"]


def test_a_checkpoint_folder_that_cannot_be_written_is_told_before_the_first_step(factory, tmp_path):
    (tmp_path / "file").touch()
    record = Record()
    callbacks = [record, nemo.CheckpointCallback(tmp_path / "file" / "folder", step_freq=100)]
    with pytest.raises(UsageError, match="file"):
        factory.train(
            [build()[1]], optimizer="sgd", callbacks=callbacks, optimization_params={"max_steps": 9, "lr": 0.1}
        )
    assert record.events == ["action_start"]


def with_folders_of_their_own(folder, max_steps):
    made, net = rank_factory(), Net()
    own = folder / str(made.global_rank)  # as on machines that share no file system
    callback = nemo.CheckpointCallback(own, step_freq=4)
    weights = train_net(made, net, Points(n=16, batch_size=2), [callback], max_steps=max_steps, lr_policy=None)
    return weights, sorted(path.name for path in own.glob("*/Net-*")), made.get_trainer().step


def test_a_checkpoint_need_only_lie_with_the_first_rank(tmp_path):
    results_of(2, with_folders_of_their_own, tmp_path, 4)
    (first, saved, step), (second, nothing, _) = results_of(2, with_folders_of_their_own, tmp_path, 8)
    assert (saved, nothing, step) == (["Net-STEP-4.safetensors", "Net-STEP-8.safetensors"], [], 7)
    assert first == second


class Evaluate(nemo.NeMoCallback):
    """After each step makes a result known, the error rate of which is 1 / steps done."""

    def on_step_end(self, state):
        done = state.step + 1
        state.publish(lambda: EvaluationResult("dev", done, {"wer": 1 / done}, 3, "abc", 0.5))


def test_a_checkpoint_says_what_it_is_about_and_how_good_it_is(factory, tmp_path):
    _, loss = build()
    saves = nemo.CheckpointCallback(tmp_path, step_freq=2, about={"labels": ["a", "b"]})
    factory.train(
        [loss],
        optimizer="sgd",
        callbacks=[Evaluate(), saves],
        optimization_params={"lr": 0.1, "momentum": 0.0, "max_steps": 2},
    )
    stored = read_checkpoint(tmp_path)
    assert (stored.about, stored.step, stored.epoch) == ({"labels": ["a", "b"]}, 2, 0)
    (rates,) = stored.evaluations
    assert rates == {
        "name": "dev",
        "step": 2,
        "values": {"wer": 0.5},
        "num_items": 3,
        "digest": "abc",
        "seconds": 0.5,
        "higher_is_better": {},
    }


def saved_in(folder, lr=0.02, max_steps=2, **settings):
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, **settings)
    net, loss = build()
    params = {"lr": lr, "max_steps": max_steps}
    made.train([loss], "sgd", params, callbacks=[nemo.CheckpointCallback(folder, step_freq=2)])
    return net.fc.weight.detach().clone()


def test_a_resumed_run_says_what_is_other_than_in_its_checkpoint_and_refuses_nothing(tmp_path, caplog):
    saved_in(tmp_path)
    caplog.clear()
    saved_in(tmp_path, lr=0.5, max_steps=4, optimization_level="O1")
    assert [line for line in caplog.messages if line.startswith("resuming with")] == [
        "resuming with lr 0.5, the checkpoint was made with 0.02",
        "resuming with max_steps 4, the checkpoint was made with 2",
        "resuming with optimization_level O1, the checkpoint was made with O0",
        "resuming with computes in torch.bfloat16, the checkpoint was made with torch.float32",
    ]


def test_records_of_two_equal_runs_are_the_same(tmp_path):
    records = []
    for name in ("one", "two"):
        saved_in(tmp_path / name)
        records.append(json.loads((tmp_path / name / "checkpoint-STEP-2" / "record.json").read_text()))
    assert records[0] == records[1]
    assert records[0]["contract"]["arguments"]["lr"] == 0.02
