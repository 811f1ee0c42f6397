"""Agreement: what a contract holds; differences in each argument are told with their values before weights travel."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from toys.disagreeing import actions, told
from toys.nets import Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.distributed.contract import Agreement, RunContract, inference_arguments, saved
from nemo_lite.core import (
    ModuleSaverCallback,
    SimpleLogger,
    UnfreezeCallback,
    ValueSetterCallback,
    on_epoch_end,
    on_step_end,
)
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.callbacks.base import CallbackList
from nemo_lite.core.run_options import InferOptions, RunOptions
from nemo_lite.core.trackers import Trackers
from nemo_lite.utils.lr_policies import CosineAnnealing, WarmupPolicy

SAME_COMMAND = "; start every process with the same command"


def train(comm: Any, *, net: Net | None = None, data: Any = Points, factory: Any = None, **given: Any) -> None:
    x, y = data()()
    loss = Mse()(out=(net or Net())(x=x), target=y)
    params = {"lr": 0.02, "max_steps": 4} | given.pop("params", {})
    params = {name: value for name, value in params.items() if value is not None}
    asked = {"optimizer": "sgd", "optimization_params": params, **given}
    actions(comm, **(factory or {})).train([loss], **asked)


def evaluator(**given: Any) -> nemo.EvaluatorCallback:
    x, _ = Points()()
    return nemo.EvaluatorCallback([Net()(x=x)], lambda values, collected: None, lambda collected: None, **given)


def contract_of(files: Any = (), dags: Any = None, called: Any = (), given: Any = None) -> RunContract:
    agreement = Agreement(SingleProcess(), {}, files)
    return agreement.reached_on("train", given or {}, dags or {}, CallbackList(called))()


def training_dag(data: Any = None, net: Any = None, twice: bool = False) -> nemo.Dag:
    x, y = (data or Points())()
    net = net or Net()
    return nemo.Dag([Mse()(out=net(x=x), target=net(x=x) if twice else y)])


# Differences, and what is told of them


def test_other_learning_rates_are_told_with_the_option_and_the_values() -> None:
    runs = [partial(train, params={"lr": lr}) for lr in (0.02, 0.5, 0.02)]
    commands = [f"jasper.py --lr {lr} --local-rank={rank}" for rank, lr in enumerate((0.02, 0.5, 0.02))]
    expected = (
        "the ranks do not agree: --lr: rank 1 has 0.5, the others 0.02; start every process with the same command"
    )
    assert told(*runs, commands=commands) == expected
    assert told(*runs) == expected.replace("--lr", "lr")
    assert told(*runs[:1] * 3) is None


NUM_EPOCHS = {"max_steps": None, "num_epochs": 1}, {"max_steps": None, "num_epochs": 2}
REPRODUCTIONS: list[tuple[Any, Any, str]] = [
    ({"factory": {"seed": 0}}, {"factory": {"seed": 1}}, "random_seed: rank 0 has 0, rank 1 has 1"),
    ({"params": NUM_EPOCHS[0]}, {"params": NUM_EPOCHS[1]}, "num_epochs: rank 0 has 1, rank 1 has 2"),
    ({}, {"params": {"weight_decay": 0.1}}, "weight_decay: rank 0 has none, rank 1 has 0.1"),
    ({}, {"params": {"grad_norm_clip": 1.0}}, "grad_norm_clip: rank 0 has none, rank 1 has 1.0"),
    ({}, {"params": {"module_lr": {"net": 0.1}}}, "module_lr.net: rank 0 has none, rank 1 has 0.1"),
    ({}, {"batches_per_step": 2}, "batches_per_step: rank 0 has 1, rank 1 has 2"),
    ({}, {"uneven": "join"}, "uneven: rank 0 has pad, rank 1 has join"),
    ({}, {"synced_batchnorm": True}, "synced_batchnorm: rank 0 has False, rank 1 has True"),
    ({}, {"optimizer": "adam"}, "optimizer: rank 0 has sgd, rank 1 has adam"),
    ({}, {"factory": {"amp_dtype": "bfloat16"}}, "amp_dtype: rank 0 has none, rank 1 has bfloat16"),
    ({}, {"factory": {"shard_weights": True}}, "shard_weights: rank 0 has False, rank 1 has True"),
    ({}, {"data": partial(Points, batch_size=2)}, "points.batch_size: rank 0 has 4, rank 1 has 2"),
    (
        {"lr_policy": WarmupPolicy(10, warmup_steps=1)},
        {"lr_policy": WarmupPolicy(20, warmup_steps=1)},
        "lr_policy.total_steps: rank 0 has 10, rank 1 has 20",
    ),
]


@pytest.mark.parametrize(("here", "there", "expected"), REPRODUCTIONS)
def test_each_argument_that_differs_is_told_with_its_values(here: Any, there: Any, expected: str) -> None:
    said = told(partial(train, **here), partial(train, **there))
    assert said == f"the ranks do not agree: {expected}{SAME_COMMAND}"


@pytest.mark.parametrize("name", ["benchmark", "deterministic"])
def test_what_cudnn_was_told_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def told_otherwise(comm: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.cudnn, name, True)
            train(comm)

    assert f"cudnn_{name}: rank 0 has False, rank 1 has True" in (told(train, told_otherwise) or "")


def test_precision_differs_in_the_level_and_in_what_it_means() -> None:
    said = told(train, partial(train, factory={"optimization_level": "O1"})) or ""
    assert "optimization_level: rank 0 has O0, rank 1 has O1" in said
    assert "computes in: rank 0 has torch.float32, rank 1 has torch.bfloat16" in said


def test_callbacks_differ_in_number_frequency_and_what_they_evaluate() -> None:
    often, seldom = (partial(train, callbacks=[evaluator(eval_step=steps)]) for steps in (1, 2))
    commands = [f"jasper.py --eval_freq {steps} --seed 1" for steps in (1, 2)]
    remedy = f"{SAME_COMMAND}; give each the same callbacks"
    place = "EvaluatorCallback.eval_step"
    expected = f"the ranks do not agree: --eval_freq ({place}): rank 0 has 1, rank 1 has 2{remedy}"
    assert told(often, seldom, commands=commands) == expected
    said = told(often, train) or ""
    assert "EvaluatorCallback: rank 0 has callbacks[0], rank 1 has none" in said
    assert "evaluation DAG 1: rank 0 has " in said


@on_step_end
def at_a_step(state: Any) -> None:
    """A callback made of a function."""


@on_epoch_end
def at_an_epoch(state: Any) -> None:
    """Another one."""


def schedule(end: int) -> Any:
    policies = [ValueSetterCallback.Policy(ValueSetterCallback.Method.Linear(0.0, end), 0, 1.0)]
    return ValueSetterCallback(Net(), "norm", policies)


@pytest.mark.parametrize(
    ("make", "differs"),
    [
        (lambda step: nemo.SimpleLossLoggerCallback(step_freq=step), "SimpleLossLoggerCallback.step_freq"),
        (lambda step: SimpleLogger(step_freq=step), "SimpleLogger.step_freq"),
        (lambda step: SimpleLogger(tensors_to_log=[f"wire {step}"]), "SimpleLogger reads"),
        (lambda step: TrackingCallback(Trackers([]), step), "TrackingCallback.step_freq"),
        (lambda step: ModuleSaverCallback([Net()], step), "ModuleSaverCallback.step_freq"),
        (lambda step: UnfreezeCallback([Net()], start_epoch=step), "UnfreezeCallback.start_epoch"),
        (lambda step: nemo.CheckpointCallback("", epoch_freq=step), "CheckpointCallback.epoch_freq"),
        (schedule, "ValueSetterCallback.policies"),
        ([None, at_a_step, at_an_epoch].__getitem__, "FunctionCallback.moments"),
    ],
)
def test_each_callback_says_when_it_acts(make: Any, differs: str) -> None:
    assert f"{differs}: rank 0 has " in (told(*(partial(train, callbacks=[make(step)]) for step in (1, 2))) or "")


def infer(comm: Any, **given: Any) -> None:
    actions(comm).infer([Net()(x=Points()().x)], **given)


def test_inferences_differ_in_what_they_keep_and_where_they_begin() -> None:
    assert "cache: rank 0 has False, rank 1 has True" in (told(infer, partial(infer, cache=True)) or "")
    assert "use_cache: rank 0 has False, rank 1 has True" in (told(infer, partial(infer, use_cache=True)) or "")
    said = told(infer, partial(infer, checkpoint_dir="weights")) or ""
    assert "restores a checkpoint: rank 0 has False, rank 1 has True" in said


def test_one_rank_that_trains_and_one_that_infers_are_told_that_and_no_more() -> None:
    def evaluate(comm: Any) -> None:
        actions(comm).eval([evaluator()])

    remedy = "; call the same in every process"
    assert told(train, infer) == f"the ranks do not agree: action: rank 0 has train, rank 1 has infer{remedy}"
    assert told(infer, evaluate) == f"the ranks do not agree: action: rank 0 has infer, rank 1 has eval{remedy}"


@pytest.mark.parametrize("name", ["run_id", "attempt_id"])
def test_processes_of_two_runs_or_attempts_are_told_that_and_no_more(name: str) -> None:
    def of_another_run(comm: Any) -> None:
        setattr(comm, name, "b")
        train(comm, params={"lr": 1.0})

    assert told(train, of_another_run) == (
        f"the ranks do not agree: {name.replace('_', ' ')}: rank 0 has none, rank 1 has b; "
        "processes of two runs, or of two attempts at one, have met: end the other, or give each run a port of its own"
    )


def test_weights_that_are_divided_for_an_optimizer_of_ones_own_wait_for_the_agreement_too() -> None:
    def create(comm: Any, lr: float) -> None:
        actions(comm, shard_weights=True).create_optimizer("sgd", [Net()], {"lr": lr})

    expected = f"the ranks do not agree: lr: rank 0 has 0.1, rank 1 has 0.2{SAME_COMMAND}"
    assert told(partial(create, lr=0.1), partial(create, lr=0.2)) == expected


def test_what_machines_may_differ_in_is_no_difference(tmp_path: Path) -> None:
    class Workers(Points):
        def __init__(self, num_workers: int = 0) -> None:
            super().__init__()
            self.num_workers = num_workers

    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "net.yaml").write_text("size: 3")
    loaded = [partial(train, data=partial(Workers, num_workers=number)) for number in (0, 4)]
    assert told(*loaded) is None
    copies = [partial(train, factory={"files": [folder / "net.yaml"]}) for folder in (here, there)]
    assert told(*copies) is None
    saved = [partial(train, callbacks=[nemo.CheckpointCallback(folder, step_freq=9)]) for folder in (here, there)]
    assert told(*saved) is None
    shown = [
        partial(infer, verbose=verbose, checkpoint_dir=folder) for verbose, folder in ((True, here), (False, there))
    ]
    assert told(infer, partial(infer, verbose=False)) is None
    assert told(*shown) is None
    (there / "net.yaml").write_text("size: 4")
    assert "net.yaml: rank 0 has " in (told(*copies) or "")


# What a contract holds


def test_each_argument_of_the_factory_and_of_the_actions_is_in_the_contract_or_left_out_with_a_reason(
    tmp_path: Path,
) -> None:
    left_out = {
        **dict.fromkeys(("local_rank", "launcher", "init_method", "rank", "world_size"), "who a process is"),
        **dict.fromkeys(("dist_backend", "dist_timeout", "dist_start_timeout"), "compared when the ranks meet"),
        **dict.fromkeys(("log_dir", "checkpoint_dir", "tensorboard_dir", "add_time_to_log_dir"), "folders"),
        **dict.fromkeys(("create_tb_writer", "verbose", "ckpt_pattern"), "rank 0's"),
        **dict.fromkeys(
            ("set_default", "backend", "reset", "dist_silence_timeout", "master_process"), "change no computation"
        ),
        "others": "there are none",
        "files_to_copy": "their contents are sections of their own",
        "placement": "the device's type is in it",
        "tensors": "the DAG is in it",
        "tensors_to_optimize": "the DAG is in it",
        "optimization_params": "each of them is an entry",
        "training_graph": "the DAG is in it",
        "callbacks": "a section of their own",
        "self": "",
    }
    made = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=7)
    x, y = Points()()
    made.train(
        [Mse()(out=Net()(x=x), target=y)],
        optimizer="sgd",
        optimization_params={"lr": 0.1, "max_steps": 1},
        callbacks=[nemo.CheckpointCallback(tmp_path, step_freq=1)],
        lr_policy=CosineAnnealing(10),
    )
    stored = json.loads((tmp_path / "checkpoint-STEP-1" / "record.json").read_text())["contract"]
    for function in (nemo.NeuralModuleFactory.__init__, nemo.NeuralModuleFactory.train):
        missing = set(inspect.signature(function).parameters) - {*stored["arguments"]} - {*left_out}
        assert not missing, function
    assert {field.name for field in fields(RunOptions)} <= {*stored["arguments"]}
    asked = Agreement(SingleProcess(), inference_arguments(InferOptions())).reached_on("infer", {}, {})()
    assert {field.name for field in fields(InferOptions)} - {*asked["arguments"]} - {*left_out} == set()
    assert stored["arguments"]["random_seed"] == 7
    assert stored["arguments"]["lr_policy.total_steps"] == 10
    assert stored["code"]["torch"] == torch.__version__


def test_an_optimizer_that_is_there_already_counts_with_its_options() -> None:
    def trained(comm: Any, momentum: float) -> None:
        net = Net()
        train(comm, net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum))

    said = told(partial(trained, momentum=0.0), partial(trained, momentum=0.9))
    assert said == f"the ranks do not agree: optimizer.momentum: rank 0 has 0.0, rank 1 has 0.9{SAME_COMMAND}"


def test_a_policy_of_ones_own_counts_by_its_class_its_function_and_what_it_was_given() -> None:
    def constant(initial_lr: float, step: int, epoch: int, power: float = 1.0) -> float:
        return initial_lr

    one, two = (partial(train, lr_policy=partial(constant, power=power)) for power in (1.0, 2.0))
    assert "lr_policy: rank 0 has " in (told(one, two) or "")
    assert told(one, one) is None
    assert "lr_policy: rank 0 has none, rank 1 has " in (told(train, one) or "")


def test_names_are_of_code_script_files_modules_and_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # as in a script
    config = tmp_path / "net.yaml"
    config.write_text("norm: false\n")
    found = contract_of([config], {"training DAG": training_dag()})
    assert list(found["code"]) == ["code of nemo_lite", "code of toys", Path(__file__).name, "torch"]
    assert list(found["configuration"]) == ["net.yaml"]
    assert list(found["wiring"]) == ["training DAG"]
    assert [name for name in found["modules"] if "." not in name] == ["points", "net", "mse"]
    assert found["modules"]["net.norm"] is False
    version, digest = str(found["code"]["code of nemo_lite"]).split(" ")
    assert version == nemo.__version__
    assert len(digest) == 64
    assert found == contract_of([config], {"training DAG": training_dag()})


class TwoLayers(Net):
    """A net with one parameter more."""

    def __init__(self) -> None:
        super().__init__()
        self.label = "net"
        self.more = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))


def frozen(net: Net) -> Net:
    net.label = "net"
    net.fc.bias.requires_grad_(False)
    return net


def trained(net: Net) -> Net:
    net.label = "net"
    return net


def test_weights_that_are_frozen_missing_or_of_another_shape_or_type_are_told_by_name() -> None:
    remedy = "make and freeze the same weights in every process"

    def told_of(here: Any, there: Any) -> str:
        return str(told(*(lambda comm, net=net: train(comm, net=net()) for net in (here, there))))

    plain = partial(lambda: trained(Net()))
    expected = "net.fc.bias: rank 0 has float32 (1,), trained, rank 1 has float32 (1,), frozen"
    assert told_of(plain, lambda: frozen(Net())) == f"the ranks do not agree: {expected}; {remedy}"
    # One class: otherwise the wiring differs, and tells of it.
    missing = trained(TwoLayers())
    del missing.more
    expected = "net.more: rank 0 has float64 (2,), trained, rank 1 has none"
    assert told_of(TwoLayers, lambda: missing) == f"the ranks do not agree: {expected}; {remedy}"
    wide = trained(Net())
    wide.fc = torch.nn.Linear(3, 1).double()
    assert "net.fc.weight: rank 0 has float32 (1, 3), trained, rank 1 has float64 (1, 3)" in told_of(
        plain, lambda: wide
    )


def test_weights_are_told_where_nothing_else_differs_and_no_checkpoint_holds_them() -> None:
    other = told(
        lambda comm: train(comm, net=trained(Net())), lambda comm: train(comm, net=frozen(Net()), params={"lr": 1.0})
    )
    assert other is not None
    assert "fc.bias" not in other
    assert saved({"data": {}, "weights": {"net.fc.bias": "float32 (1,), trained"}}) == {"data": {}}


def test_a_difference_shows_in_what_it_concerns() -> None:
    def changed(**given: Any) -> set[str]:
        one, other = (contract_of(dags={"training DAG": dag}) for dag in (training_dag(), training_dag(**given)))
        entries = {(section, name) for section in one for name in {*one[section], *other[section]}}
        return {name for section, name in entries if one[section].get(name) != other[section].get(name)}

    assert changed(net=Net(norm=True)) == {"net.norm", "net.norm.weight", "net.norm.bias"}
    assert changed(data=Points(n=200)) == {"points.n"}
    assert changed(twice=True) == {"training DAG"}


def test_modules_of_one_name_have_entries_of_their_own() -> None:
    x, _ = Points()()
    found = contract_of(dags={"": nemo.Dag([Net()(x=x), Net(norm=True)(x=x)])})
    assert (found["modules"]["net.norm"], found["modules"]["net.norm (2)"]) == (False, True)


def test_the_code_of_a_module_of_another_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dag, mine, codes = training_dag(net=type("Mine", (Net,), {"__module__": "mine.nets"})()), ModuleType("mine"), []
    monkeypatch.setitem(sys.modules, "mine", mine)
    for name, text in (("one", "version one"), ("two", "version two"), ("three", "version one")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(text)
        mine.__file__ = str(tmp_path / name / "mine.py")
        codes.append(contract_of(dags={"": dag})["code"]["code of mine"])
    assert codes[0] == codes[2] != codes[1]


def test_code_that_changes_while_it_runs_is_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("version one")
    mine = ModuleType("mine")
    mine.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "mine", mine)
    dag = training_dag(net=type("Mine", (Net,), {"__module__": "mine.nets"})())
    before = contract_of(dags={"": dag})["code"]["code of mine"]
    (tmp_path / "mine.py").write_text("version two")
    assert contract_of(dags={"": dag})["code"]["code of mine"] == before


def test_on_a_machine_with_gpus_the_versions_of_cuda_and_nccl_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    code = contract_of()["code"]
    assert (code["CUDA"], code["nccl"]) == ("12.6", "2.27.3")


def test_a_process_alone_collects_nothing_unless_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agreement, "_contract", lambda *_: pytest.fail("collected"))
    train(SingleProcess())
    infer(SingleProcess())
