"""Optimizers by name. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.optim.adam_w import AdamW as AdamW
from nemo_lite.backends.pytorch.optim.create import create_optimizer as create_optimizer
from nemo_lite.backends.pytorch.optim.foreach import ForeachOptimizer as ForeachOptimizer
from nemo_lite.backends.pytorch.optim.lamb import Lamb as Lamb
from nemo_lite.backends.pytorch.optim.novograd import Novograd as Novograd
