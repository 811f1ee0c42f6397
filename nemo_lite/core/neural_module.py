"""The place where collections find these names: re-exports, nothing else."""

from nemo_lite.core.graph.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.graph.neural_module import subclasses as subclasses
