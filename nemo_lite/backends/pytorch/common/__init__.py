"""Losses, data layers and small modules that several collections use. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.common.losses import BCEWithLogitsLossNM as BCEWithLogitsLossNM
from nemo_lite.backends.pytorch.common.losses import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_lite.backends.pytorch.common.losses import LossAggregatorNM as LossAggregatorNM
from nemo_lite.backends.pytorch.common.losses import MSELoss as MSELoss
from nemo_lite.backends.pytorch.common.losses import SequenceLoss as SequenceLoss
from nemo_lite.backends.pytorch.common.metrics import char_lm_metrics as char_lm_metrics
from nemo_lite.backends.pytorch.common.multi_data import DataCombination as DataCombination
from nemo_lite.backends.pytorch.common.multi_data import MultiDataLayer as MultiDataLayer
from nemo_lite.backends.pytorch.common.multi_data import MultiDataset as MultiDataset
from nemo_lite.backends.pytorch.common.other import SequenceEmbedding as SequenceEmbedding
from nemo_lite.backends.pytorch.common.other import ZerosLikeNM as ZerosLikeNM
from nemo_lite.backends.pytorch.common.parts import MultiLayerPerceptron as MultiLayerPerceptron
from nemo_lite.backends.pytorch.common.zero_data import ZerosDataLayer as ZerosDataLayer
from nemo_lite.backends.pytorch.common.zero_data import neuralType2TensorShape as neuralType2TensorShape
