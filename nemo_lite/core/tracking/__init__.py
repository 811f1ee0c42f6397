"""Tracking: the records of a run, and the trackers that get them. Re-exports, nothing else."""

from nemo_lite.core.tracking.callback import TrackingCallback as TrackingCallback
from nemo_lite.core.tracking.metrics_file import MetricsFile as MetricsFile
from nemo_lite.core.tracking.metrics_file import read_metrics as read_metrics
from nemo_lite.core.tracking.mlflow_tracker import MlflowTracker as MlflowTracker
from nemo_lite.core.tracking.records import FINISHED as FINISHED
from nemo_lite.core.tracking.records import Record as Record
from nemo_lite.core.tracking.records import Tracker as Tracker
from nemo_lite.core.tracking.records import Trackers as Trackers
from nemo_lite.core.tracking.tensorboard_tracker import TensorboardTracker as TensorboardTracker
from nemo_lite.core.tracking.terminal import TerminalLines as TerminalLines
from nemo_lite.core.tracking.terminal import duration_text as duration_text
from nemo_lite.core.tracking.wandb_tracker import WandbTracker as WandbTracker
