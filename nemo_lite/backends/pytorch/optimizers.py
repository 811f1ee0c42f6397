"""Re-exports under NeMo 0.x's module name; the code is in ``optim/``."""

from nemo_lite.backends.pytorch.optim import AdamW as AdamW
from nemo_lite.backends.pytorch.optim import Lamb as Lamb
from nemo_lite.backends.pytorch.optim import Novograd as Novograd
from nemo_lite.backends.pytorch.optim import create_optimizer as create_optimizer
