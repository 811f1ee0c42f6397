"""The core: typed modules and DAGs, without torch. Re-exports, nothing else."""

from nemo_lite.core.dag import Dag as Dag
from nemo_lite.core.dag import Slice as Slice
from nemo_lite.core.dag import Step as Step
from nemo_lite.core.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.nm_tensor import NmTensor as NmTensor
from nemo_lite.core.ports import Ports as Ports
