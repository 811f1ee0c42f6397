"""What the tests of the engine share."""

import pytest

import nemo_lite as nemo


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
