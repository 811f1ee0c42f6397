"""Checkpoints: sets of files in a folder. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder as CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.folder import Contents as Contents
from nemo_lite.backends.pytorch.checkpoint.folder import StoredCheckpoint as StoredCheckpoint
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint as read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.state import can_go_on as can_go_on
from nemo_lite.backends.pytorch.checkpoint.state import fitted as fitted
from nemo_lite.backends.pytorch.checkpoint.state import with_todays_names as with_todays_names
from nemo_lite.backends.pytorch.checkpoint.storage import Weights as Weights
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module as fill_module
from nemo_lite.backends.pytorch.checkpoint.storage import load_module as load_module
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state as load_training_state
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors as read_tensors
from nemo_lite.backends.pytorch.checkpoint.storage import save_module as save_module
from nemo_lite.backends.pytorch.checkpoint.storage import save_training_state as save_training_state
from nemo_lite.backends.pytorch.checkpoint.store import CheckpointSet as CheckpointSet
from nemo_lite.backends.pytorch.checkpoint.tensors import read_torch_file as read_torch_file
from nemo_lite.backends.pytorch.checkpoint.tensors import read_torch_tensors as read_torch_tensors
from nemo_lite.backends.pytorch.checkpoint.tensors import write_torch_file as write_torch_file
