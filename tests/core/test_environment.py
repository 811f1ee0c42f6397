"""RunEnvironment: devices, precision and seeds that are refused before anything is made."""

from __future__ import annotations

import re

import pytest
import torch

import nemo_lite as nemo
from nemo_lite.backends.pytorch.actions import PyTorchAdapter
from nemo_lite.errors import DeviceError, UnknownNameError, UsageError


def test_levels_that_do_not_exist_are_refused_and_not_replaced():
    with pytest.raises(UnknownNameError, match='optimization level "O7" is not known; known: O0, O1, O2, O3'):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level="O7")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_gpu_where_there_is_none_is_one_clear_line():
    with pytest.raises(DeviceError, match=r"placement GPU asks for a GPU, and there is none: .*; use DeviceType\.CPU"):
        nemo.NeuralModuleFactory(placement=nemo.DeviceType.GPU)


def test_repeatable_algorithms_are_taken_only_where_that_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(PyTorchAdapter, "set_cudnn", lambda self, benchmark, deterministic: asked.append(deterministic))
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
        *(
            ({name: value}, f"{name} is {value}, wanted a number of seconds above 0, up to 604800 (a week)")
            for name in ("dist_timeout", "dist_start_timeout", "dist_silence_timeout")
            for value in (0, -1, float("nan"), float("inf"))
        ),
        ({"dist_timeout": "60"}, "dist_timeout is '60', wanted a number of seconds above 0, up to 604800 (a week)"),
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
