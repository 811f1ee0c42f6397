"""The PyTorch backend: re-exports; failures are told to other ranks."""

from nemo_lite.backends.pytorch import common as common
from nemo_lite.backends.pytorch import tutorials as tutorials
from nemo_lite.backends.pytorch.actions import PtActions as PtActions
from nemo_lite.backends.pytorch.common import BCEWithLogitsLossNM as BCEWithLogitsLossNM
from nemo_lite.backends.pytorch.common import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_lite.backends.pytorch.common import DataCombination as DataCombination
from nemo_lite.backends.pytorch.common import LossAggregatorNM as LossAggregatorNM
from nemo_lite.backends.pytorch.common import MultiDataLayer as MultiDataLayer
from nemo_lite.backends.pytorch.common import MultiDataset as MultiDataset
from nemo_lite.backends.pytorch.common import MultiLayerPerceptron as MultiLayerPerceptron
from nemo_lite.backends.pytorch.common import SequenceEmbedding as SequenceEmbedding
from nemo_lite.backends.pytorch.common import SequenceLoss as SequenceLoss
from nemo_lite.backends.pytorch.common import ZerosDataLayer as ZerosDataLayer
from nemo_lite.backends.pytorch.common import ZerosLikeNM as ZerosLikeNM
from nemo_lite.backends.pytorch.common import char_lm_metrics as char_lm_metrics
from nemo_lite.backends.pytorch.common import neuralType2TensorShape as neuralType2TensorShape
from nemo_lite.backends.pytorch.distributed.rendezvous import announce_failures
from nemo_lite.backends.pytorch.nm import DataLayerNM as DataLayerNM
from nemo_lite.backends.pytorch.nm import LossNM as LossNM
from nemo_lite.backends.pytorch.nm import NonTrainableNM as NonTrainableNM
from nemo_lite.backends.pytorch.nm import TrainableNeuralModuleWrapper as TrainableNeuralModuleWrapper
from nemo_lite.backends.pytorch.nm import TrainableNM as TrainableNM
from nemo_lite.backends.pytorch.tutorials import CrossEntropyLoss as CrossEntropyLoss
from nemo_lite.backends.pytorch.tutorials import L1Loss as L1Loss
from nemo_lite.backends.pytorch.tutorials import MSELoss as MSELoss
from nemo_lite.backends.pytorch.tutorials import RealFunctionDataLayer as RealFunctionDataLayer
from nemo_lite.backends.pytorch.tutorials import TaylorNet as TaylorNet
from nemo_lite.core.ports import WeightShareTransform as WeightShareTransform
from nemo_lite.utils.substitutes import tell_of_missing

announce_failures()

__getattr__ = tell_of_missing("nemo.backends.pytorch", __name__)
