"""Re-exports under NeMo 0.x's module name; the code is in ``core/graph/neural_module.py``."""

from nemo_lite.core.factory import DeviceType as DeviceType
from nemo_lite.core.factory import NeuralModuleFactory as NeuralModuleFactory
from nemo_lite.core.graph.kinds import ModuleType as ModuleType
from nemo_lite.core.graph.kinds import PretrainedModelInfo as PretrainedModelInfo
from nemo_lite.core.graph.kinds import WeightShareTransform as WeightShareTransform
from nemo_lite.core.graph.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.graph.recording import OperationMode as OperationMode
from nemo_lite.core.neural_types import NeuralPortNameMismatchError as NeuralPortNameMismatchError
from nemo_lite.core.neural_types import NeuralPortNmTensorMismatchError as NeuralPortNmTensorMismatchError
from nemo_lite.core.neural_types import NeuralType as NeuralType
from nemo_lite.core.neural_types import NmTensor as NmTensor
