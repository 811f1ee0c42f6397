"""Who this process is among those that a launcher started. Re-exports, nothing else."""

from nemo_lite.utils.launch.identity import LAUNCHERS as LAUNCHERS
from nemo_lite.utils.launch.identity import Place as Place
from nemo_lite.utils.launch.identity import launch_line as launch_line
from nemo_lite.utils.launch.identity import rank_in as rank_in
from nemo_lite.utils.launch.identity import restart_warning as restart_warning
from nemo_lite.utils.launch.identity import who_am_i as who_am_i
