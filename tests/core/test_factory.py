"""NeuralModuleFactory: modules by name, and one actions object until it is reset."""

from __future__ import annotations

import pytest

import nemo_lite as nemo
from nemo_lite.backends.pytorch.tutorials import TaylorNet
from nemo_lite.errors import UnknownNameError, UsageError


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
