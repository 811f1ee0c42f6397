"""Which rank this process is, and how launchers start several. Re-exports, nothing else."""

from nemo_lite.utils.launch.identity import ProcessInfo as ProcessInfo
from nemo_lite.utils.launch.identity import who_am_i as who_am_i
from nemo_lite.utils.launch.launchers import LAUNCHERS as LAUNCHERS
from nemo_lite.utils.launch.launchers import accept_both_spellings as accept_both_spellings
from nemo_lite.utils.launch.launchers import as_typed as as_typed
from nemo_lite.utils.launch.launchers import forget_launcher as forget_launcher
from nemo_lite.utils.launch.launchers import launch_line as launch_line
from nemo_lite.utils.launch.launchers import rank_in as rank_in
from nemo_lite.utils.launch.launchers import without_passed_rank as without_passed_rank

Place = ProcessInfo  # its former name, kept for scripts that import it
