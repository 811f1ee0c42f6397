"""The PyTorch backend: re-exports, its registration with factory and graphs; failures are told to other ranks."""

from nemo_lite.backends.pytorch import tutorials as tutorials
from nemo_lite.backends.pytorch.actions import PtActions as PtActions
from nemo_lite.backends.pytorch.adapter import PyTorchAdapter as PyTorchAdapter
from nemo_lite.backends.pytorch.distributed import announce_failures
from nemo_lite.backends.pytorch.module_wrapper import TrainableNeuralModuleWrapper as TrainableNeuralModuleWrapper
from nemo_lite.backends.pytorch.neural_graph import PtGraphRunner
from nemo_lite.backends.pytorch.nm import DataLayerNM as DataLayerNM
from nemo_lite.backends.pytorch.nm import LossNM as LossNM
from nemo_lite.backends.pytorch.nm import NonTrainableNM as NonTrainableNM
from nemo_lite.backends.pytorch.nm import TrainableNM as TrainableNM
from nemo_lite.backends.pytorch.nm import WeightShareTransform as WeightShareTransform
from nemo_lite.backends.pytorch.tutorials import CrossEntropyLoss as CrossEntropyLoss
from nemo_lite.backends.pytorch.tutorials import L1Loss as L1Loss
from nemo_lite.backends.pytorch.tutorials import MSELoss as MSELoss
from nemo_lite.backends.pytorch.tutorials import RealFunctionDataLayer as RealFunctionDataLayer
from nemo_lite.backends.pytorch.tutorials import TaylorNet as TaylorNet
from nemo_lite.core.factory import Backend, NeuralModuleFactory
from nemo_lite.core.neural_graph import NeuralGraph

NeuralModuleFactory.register_backend(Backend.PyTorch, PyTorchAdapter())
NeuralGraph.make_runner = PtGraphRunner
announce_failures()
