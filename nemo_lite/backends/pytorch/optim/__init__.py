"""Optimizers by name. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.optim.create import create_optimizer as create_optimizer
from nemo_lite.backends.pytorch.optim.list_optimizers import AdamW as AdamW
from nemo_lite.backends.pytorch.optim.list_optimizers import Lamb as Lamb
from nemo_lite.backends.pytorch.optim.list_optimizers import Novograd as Novograd
