"""Re-exports under NeMo 0.x's module name; the code is in ``core/graph/neural_module.py``."""

from nemo_lite.core.graph.kinds import WeightShareTransform as WeightShareTransform
from nemo_lite.core.graph.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.graph.recording import OperationMode as OperationMode
