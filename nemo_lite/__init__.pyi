"""The names of nemo_lite; each is imported when it is asked for."""

import types

from nemo_lite import backends as backends
from nemo_lite import core as core
from nemo_lite import package_info as package_info
from nemo_lite import utils as utils
from nemo_lite.backends.pytorch import DataLayerNM as DataLayerNM
from nemo_lite.backends.pytorch import LossNM as LossNM
from nemo_lite.backends.pytorch import NonTrainableNM as NonTrainableNM
from nemo_lite.backends.pytorch import PtActions as PtActions
from nemo_lite.backends.pytorch import TrainableNeuralModuleWrapper as TrainableNeuralModuleWrapper
from nemo_lite.backends.pytorch import TrainableNM as TrainableNM
from nemo_lite.backends.pytorch import WeightShareTransform as WeightShareTransform
from nemo_lite.base import errors as errors
from nemo_lite.base.errors import NemoLiteError as NemoLiteError
from nemo_lite.compat import tutorials as tutorials
from nemo_lite.core import Backend as Backend
from nemo_lite.core import CheckpointCallback as CheckpointCallback
from nemo_lite.core import Dag as Dag
from nemo_lite.core import DeviceType as DeviceType
from nemo_lite.core import EvaluatorCallback as EvaluatorCallback
from nemo_lite.core import NeMoCallback as NeMoCallback
from nemo_lite.core import NeuralModule as NeuralModule
from nemo_lite.core import NmTensor as NmTensor
from nemo_lite.core import Optimization as Optimization
from nemo_lite.core import SimpleLogger as SimpleLogger
from nemo_lite.core import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from nemo_lite.core import TensorboardLogger as TensorboardLogger
from nemo_lite.core.run_options import Objective as Objective
from nemo_lite.factory import NeuralModuleFactory as NeuralModuleFactory
from nemo_lite.package_info import __version__ as __version__
from nemo_lite.utils import logging as logging

# NeMo's module of this name (nemo_lite/base/aliases.py).
constants: types.ModuleType
