"""The launcher of this process, where its end can be known: torchrun's process, found among the parents.

Only torchrun (also as ``torch.distributed.launch``) is looked for: its ranks have no use without it, as it alone ends
and restarts them. A process that ``nohup``, ``setsid``, Slurm or MPI started may outlive its parent; Slurm and MPI end
their processes themselves. Processes are found in ``/proc``, so on Linux only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nemo_lite.backends.pytorch.distributed.health.diagnosis import Diagnosis
from nemo_lite.backends.pytorch.distributed.rendezvous import Member

# torchrun sets it for its workers, and nobody sets it by hand.
_OF_WORKERS = "TORCHELASTIC_RESTART_COUNT"
_INIT = 1


def launcher_of_this_process(environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> int | None:
    """The process id of the torchrun that started this process, also through a shell; None where there is none.

    In a container whose first process is torchrun there is nothing to watch: the system ends all with that process.
    """
    if _OF_WORKERS not in environ:
        return None
    pid = os.getppid()
    try:
        while pid > _INIT:
            if f"{_OF_WORKERS}=".encode() not in (proc / f"{pid}/environ").read_bytes():
                return pid
            pid = int((proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # not Linux, another user's process, or it has just ended
        pass
    return None


def diagnose_lost_launcher(member: Member, pid: int) -> Diagnosis:
    """A rank runs on without the process that started it."""
    problem = f"the launcher of {member} is gone: process {pid} was killed or has ended; nothing would end its ranks"
    return Diagnosis(problem, "start this machine's command again: the run goes on from its newest checkpoint")
