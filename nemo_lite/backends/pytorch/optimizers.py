"""The place where NeMo 0.x keeps these names: re-exports, nothing else."""

from nemo_lite.backends.pytorch.optim import AdamW as AdamW
from nemo_lite.backends.pytorch.optim import Lamb as Lamb
from nemo_lite.backends.pytorch.optim import Novograd as Novograd
from nemo_lite.backends.pytorch.optim import create_optimizer as create_optimizer
