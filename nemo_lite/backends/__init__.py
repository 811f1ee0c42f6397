"""Backends that execute DAGs, and what NeMo has here beside them: files of tensors."""

from nemo_lite.backends.torch_backend import get_state_dict as get_state_dict
from nemo_lite.backends.torch_backend import load as load
from nemo_lite.backends.torch_backend import save as save
from nemo_lite.backends.torch_backend import set_state_dict as set_state_dict
