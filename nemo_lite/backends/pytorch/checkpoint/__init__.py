"""Checkpoints: sets of files in a folder. Re-exports, nothing else."""

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder as CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.folder import Contents as Contents
from nemo_lite.backends.pytorch.checkpoint.folder import StoredCheckpoint as StoredCheckpoint
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint as read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.sets import CheckpointSet as CheckpointSet
from nemo_lite.backends.pytorch.checkpoint.storage import Weights as Weights
from nemo_lite.backends.pytorch.checkpoint.storage import check_fit as check_fit
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module as fill_module
from nemo_lite.backends.pytorch.checkpoint.storage import load_module as load_module
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state as load_training_state
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors as read_tensors
from nemo_lite.backends.pytorch.checkpoint.storage import save_module as save_module
from nemo_lite.backends.pytorch.checkpoint.storage import save_training_state as save_training_state
