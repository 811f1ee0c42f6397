"""The names of nemo_lite.backends; each is imported when it is asked for."""

from nemo_lite.backends.pytorch.checkpoint.storage import get_state_dict as get_state_dict
from nemo_lite.backends.pytorch.checkpoint.storage import load as load
from nemo_lite.backends.pytorch.checkpoint.storage import save as save
from nemo_lite.backends.pytorch.checkpoint.storage import set_state_dict as set_state_dict
