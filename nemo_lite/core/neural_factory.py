"""The place where NeMo 0.x keeps these names: re-exports of ``nemo_lite.core.factory``, nothing else."""

from nemo_lite.core.factory import Backend as Backend
from nemo_lite.core.factory import DeviceType as DeviceType
from nemo_lite.core.factory import NeuralModuleFactory as NeuralModuleFactory
from nemo_lite.core.factory import Optimization as Optimization
