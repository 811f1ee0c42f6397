"""nemo_lite: typed neural modules connected into training and evaluation DAGs. Re-exports, nothing else."""

from nemo_lite import core as core
from nemo_lite import errors as errors
from nemo_lite.core import Dag as Dag
from nemo_lite.core import NeuralModule as NeuralModule
from nemo_lite.core import NmTensor as NmTensor
