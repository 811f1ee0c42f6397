"""The place where NeMo 0.x keeps these names: re-exports of ``nemo_lite.core.neural_module``, nothing else."""

from nemo_lite.core.neural_module import NeuralModule as NeuralModule
