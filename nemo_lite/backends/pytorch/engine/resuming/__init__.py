"""What a run needs beside weights and optimizers to go on as if it had not been interrupted. Re-exports."""

from nemo_lite.backends.pytorch.engine.resuming.position import Position as Position
from nemo_lite.backends.pytorch.engine.resuming.position import SavedPart as SavedPart
from nemo_lite.backends.pytorch.engine.resuming.restoring import read_chosen as read_chosen
from nemo_lite.backends.pytorch.engine.resuming.restoring import refuse_newer_elsewhere as refuse_newer_elsewhere
from nemo_lite.backends.pytorch.engine.resuming.restoring import restore_weights as restore_weights
from nemo_lite.backends.pytorch.engine.resuming.world_size import Pace as Pace
from nemo_lite.backends.pytorch.engine.resuming.world_size import check_world_size as check_world_size
