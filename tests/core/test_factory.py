"""NeuralModuleFactory: modules by name, one actions object until it is reset, devices, precision and seeds."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
from toys.launchers import no_launcher

import nemo_lite as nemo
from nemo_lite import factory as factories
from nemo_lite.base.errors import DeviceError, UnknownNameError, UsageError
from nemo_lite.base.ranges import shown
from nemo_lite.compat.tutorials import TaylorNet


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)


def test_first_generation_scripts_get_modules_by_name(factory):
    net = factory.get_module(name="TaylorNet", collection="tutorials", params={"dim": 3})
    assert isinstance(net, TaylorNet)
    assert net.init_params["dim"] == 3
    with pytest.raises(UnknownNameError, match=r'module "TylorNet" is not known; .*did you mean TaylorNet\?'):
        factory.get_module(name="TylorNet")


def test_pretrained_modules_are_refused(factory):
    with pytest.raises(UsageError, match=r"TaylorNet: there are no pretrained modules; .*restore_from\(path\)"):
        factory.get_module(name="TaylorNet", params={"dim": 3}, pretrained=True)


def test_the_trainer_stays_until_it_is_reset(factory):
    trainer = factory.get_trainer()
    assert factory.get_trainer() is trainer
    factory.reset_trainer()
    assert factory.get_trainer() is not trainer


def test_without_losses_only_the_end_of_the_action_is_told(factory):
    moments = []
    told = [nemo.core.on_action_start(lambda state: moments.append("start"))]
    told.append(nemo.core.on_action_end(lambda state: moments.append("end")))
    factory.train(callbacks=told)
    assert moments == ["end"]


def test_a_process_that_is_to_be_alone_says_what_it_ignores(monkeypatch, caplog):
    no_launcher(monkeypatch)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, launcher="none")
    assert (factory.world_size, factory.global_rank, factory.device) == (1, None, torch.device("cpu"))
    assert caplog.messages == ["--launcher none: this process runs alone and ignores RANK=1 LOCAL_RANK=1"]


def test_a_seed_reaches_every_generator(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    draws = []
    for _ in range(2):
        factories.seed_generators(2**40 + 5)
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
    assert not torch.backends.cudnn.deterministic


def test_cudnn_takes_slow_repeatable_algorithms_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    factories.set_cudnn(benchmark=True, deterministic=False)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (True, False)
    factories.set_cudnn(benchmark=False, deterministic=True)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)


# Arguments that are refused before anything is made


def test_levels_that_do_not_exist_are_refused_and_not_replaced():
    with pytest.raises(UnknownNameError, match='optimization level "O7" is not known; known: O0, O1, O2, O3'):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level="O7")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_gpu_where_there_is_none_is_one_clear_line():
    with pytest.raises(DeviceError, match=r"placement GPU asks for a GPU, and there is none: .*; use DeviceType\.CPU"):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.GPU)


def test_repeatable_algorithms_are_taken_only_where_that_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(factories, "set_cudnn", lambda benchmark, deterministic: asked.append(deterministic))
    for arguments in ({}, {"random_seed": 3}, {"cudnn_deterministic": True}):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, **arguments)
    assert asked == [False, False, True]
    with pytest.raises(UsageError, match="cudnn_deterministic and cudnn_benchmark contradict each other"):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, cudnn_benchmark=True, cudnn_deterministic=True)


def test_a_seed_and_cudnn_benchmark_contradict_each_other():
    with pytest.raises(UsageError, match="random_seed and cudnn_benchmark contradict each other"):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1, cudnn_benchmark=True)


def test_a_precision_that_the_device_does_not_have_is_refused_before_a_folder_is_made(tmp_path):
    for level in ("O1", "O2", "O3"):
        with pytest.raises(UsageError, match="amp_dtype: float16 is not computed on a CPU; use bfloat16"):
            nemo.NeuralModuleFactory(
                placement=nemo.DeviceType.CPU, log_dir=tmp_path / "run", optimization_level=level, amp_dtype="float16"
            )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "CPU"}, "placement must be a DeviceType: got 'CPU', wanted DeviceType.GPU, DeviceType.CPU"),
        ({"random_seed": "a"}, "random_seed must be a whole number, at least 0: got 'a'"),
        ({"random_seed": -1}, "random_seed must be a whole number, at least 0: got -1"),
        ({"random_seed": 2**64}, "at least 0: got 18446744073709551616, wanted a number from 0, below 2**64"),
        *(
            (
                {name: value},
                f"NeuralModuleFactory.{name} is {shown(value)}, wanted float above 0, up to 604800 seconds (a week)",
            )
            for name in ("dist_timeout", "dist_start_timeout", "dist_silence_timeout")
            for value in (0, -1, float("nan"), float("inf"))
        ),
        ({"dist_timeout": "60"}, 'dist_timeout is "60", wanted float above 0, up to 604800 seconds (a week)'),
    ],
)
def test_arguments_of_the_factory_of_another_kind_are_refused(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        nemo.NeuralModuleFactory(set_default=False, **{"placement": nemo.DeviceType.CPU, **arguments})


def test_the_default_factory_is_the_one_made_last_and_can_be_forgotten():
    first = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    assert nemo.NeuralModuleFactory.get_default_factory() is first
    nemo.NeuralModuleFactory.reset_default_factory()
    assert nemo.NeuralModuleFactory.get_default_factory() is None


@pytest.mark.parametrize("turn", ["one test", "the next"])
def test_a_test_begins_without_a_default_factory(turn):
    assert nemo.NeuralModuleFactory.get_default_factory() is None
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level="O2")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optim_wrapper": {"type": "AmpOptimWrapper"}}, "in place of it: optimization_level=Optimization.mxprO1"),
        ({"cfg": {"compile": True}}, "in place of it: compile=True"),
        ({"placment": None}, r"placment is not an argument \(did you mean placement\?\)$"),
    ],
)
def test_an_argument_of_another_engine_is_refused_with_its_name_here(given, told):
    with pytest.raises(TypeError, match=f"NeuralModuleFactory: .*{told}"):
        nemo.core.NeuralModuleFactory(**given)
