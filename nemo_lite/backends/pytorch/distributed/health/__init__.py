"""Heartbeats of the ranks, and one diagnosis when one hangs or dies. Import from this package, not from its files."""

from nemo_lite.backends.pytorch.distributed.health.activity import BACKWARD as BACKWARD
from nemo_lite.backends.pytorch.distributed.health.activity import COMPILING as COMPILING
from nemo_lite.backends.pytorch.distributed.health.activity import EVALUATION as EVALUATION
from nemo_lite.backends.pytorch.distributed.health.activity import READING_CHECKPOINT as READING_CHECKPOINT
from nemo_lite.backends.pytorch.distributed.health.activity import WAITING_FOR_DATA as WAITING_FOR_DATA
from nemo_lite.backends.pytorch.distributed.health.activity import WRITING_CHECKPOINT as WRITING_CHECKPOINT
from nemo_lite.backends.pytorch.distributed.health.activity import Activity as Activity
from nemo_lite.backends.pytorch.distributed.health.activity import note_write as note_write
from nemo_lite.backends.pytorch.distributed.health.endings import end_process as end_process
from nemo_lite.backends.pytorch.distributed.health.endings import log_cpp_errors_only as log_cpp_errors_only
from nemo_lite.backends.pytorch.distributed.health.endings import print_each_once as print_each_once
from nemo_lite.backends.pytorch.distributed.health.endings import print_stack_of_crash as print_stack_of_crash
from nemo_lite.backends.pytorch.distributed.health.endings import tell_now as tell_now
from nemo_lite.backends.pytorch.distributed.health.heartbeat import WRITES as WRITES
from nemo_lite.backends.pytorch.distributed.health.monitor import HealthMonitor as HealthMonitor
