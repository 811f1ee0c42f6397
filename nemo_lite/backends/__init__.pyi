"""The names of nemo_lite.backends; each is imported when it is asked for."""

from nemo_lite.backends.torch_backend import get_state_dict as get_state_dict
from nemo_lite.backends.torch_backend import load as load
from nemo_lite.backends.torch_backend import save as save
from nemo_lite.backends.torch_backend import set_state_dict as set_state_dict
