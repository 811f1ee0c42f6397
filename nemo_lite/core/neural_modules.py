"""The place where NeMo 0.x keeps these names: re-exports, nothing else."""

from nemo_lite.core.graph.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.graph.neural_module import WeightShareTransform as WeightShareTransform
