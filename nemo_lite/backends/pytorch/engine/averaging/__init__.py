"""Averaged weights. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.engine.averaging.averages import Averaging as Averaging
