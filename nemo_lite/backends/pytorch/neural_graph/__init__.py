"""Runs NeuralGraphs without a factory. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.neural_graph.runner import PtGraphRunner as PtGraphRunner
