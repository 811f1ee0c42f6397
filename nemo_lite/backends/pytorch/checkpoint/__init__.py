"""Checkpoints: tensors in files, sets of files in a folder, and how a run saves them."""

from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder as CheckpointFolder
from nemo_lite.backends.pytorch.checkpoint.folder import Contents as Contents
from nemo_lite.backends.pytorch.checkpoint.folder import StoredCheckpoint as StoredCheckpoint
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint as read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.record import CheckpointSet as CheckpointSet
