"""nemo_lite: typed neural modules connected into training and evaluation DAGs. Re-exports.

A script's own parser learns both spellings of ``--local_rank`` when this is imported.
"""

from nemo_lite import backends as backends
from nemo_lite import constants as constants
from nemo_lite import core as core
from nemo_lite import errors as errors
from nemo_lite import package_info as package_info
from nemo_lite import utils as utils
from nemo_lite.backends.pytorch import DataLayerNM as DataLayerNM
from nemo_lite.backends.pytorch import LossNM as LossNM
from nemo_lite.backends.pytorch import NonTrainableNM as NonTrainableNM
from nemo_lite.backends.pytorch import PtActions as PtActions
from nemo_lite.backends.pytorch import TrainableNeuralModuleWrapper as TrainableNeuralModuleWrapper
from nemo_lite.backends.pytorch import TrainableNM as TrainableNM
from nemo_lite.backends.pytorch import WeightShareTransform as WeightShareTransform
from nemo_lite.backends.pytorch import tutorials as tutorials
from nemo_lite.backends.pytorch.neural_graph import NeuralGraph
from nemo_lite.compat import OLD_PATHS, add_old_paths
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
from nemo_lite.errors import NemoLiteError as NemoLiteError
from nemo_lite.factory import NeuralModuleFactory as NeuralModuleFactory
from nemo_lite.package_info import __version__ as __version__
from nemo_lite.utils import logging as logging
from nemo_lite.utils.launch import accept_both_spellings

accept_both_spellings()
del accept_both_spellings

setattr(core, "NeuralGraph", NeuralGraph)  # noqa: B010
setattr(core, "NeuralModuleFactory", NeuralModuleFactory)  # noqa: B010  # mypy takes it for a class of core
add_old_paths("nemo_lite", OLD_PATHS)
