"""A re-export under NeMo 0.11's module name; the code is in ``core/graph/neural_interface.py``."""

from nemo_lite.core.graph.neural_interface import NeuralInterface as NeuralInterface
