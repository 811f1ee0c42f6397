"""What launchers put into the environment of a process, as recorded: torchrun, Slurm, OpenMPI, MPICH and Intel MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from nemo_lite.base.errors import UsageError
from nemo_lite.base.launch import who_am_i


def torchrun(rank: int, local_rank: int, local_world_size: int = 2, num_nodes: int = 1, **more: str) -> dict[str, str]:
    """What torchrun, and torch.distributed.launch, set for a worker."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(local_world_size * num_nodes),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(rank // local_world_size),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(local_world_size * num_nodes),
        "MASTER_ADDR": "10.0.0.1" if num_nodes > 1 else "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def slurm_batch(nodes: str = "gpu[08-09]", num_nodes: int = 2, tasks: int = 8) -> dict[str, str]:
    """A batch script before any srun."""
    return {
        "SLURM_JOB_ID": "200505",
        "SLURM_JOBID": "200505",
        "SLURM_JOB_NAME": "jasper",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(num_nodes),
        "SLURM_NNODES": str(num_nodes),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks // num_nodes),
        "SLURM_TASKS_PER_NODE": f"{tasks // num_nodes}(x{num_nodes})" if num_nodes > 1 else str(tasks),
        "SLURM_JOB_CPUS_PER_NODE": f"20(x{num_nodes})",
        "SLURM_CPUS_ON_NODE": "20",
        "SLURM_SUBMIT_HOST": "login1",
        "SLURM_CLUSTER_NAME": "ada",
        "SLURMD_NODENAME": "gpu08",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_TASK_PID": "16360",
    }


def slurm_task(
    rank: int, nodes: str = "gpu[08-09]", num_nodes: int = 2, tasks_per_node: int = 4, **more: str
) -> dict[str, str]:
    """A task that srun started from a batch script."""
    tasks = tasks_per_node * num_nodes
    return {
        **slurm_batch(nodes, num_nodes, tasks),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": str(num_nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks_per_node}(x{num_nodes})" if num_nodes > 1 else str(tasks_per_node),
        "SLURM_STEP_LAUNCHER_PORT": "37564",
        "SLURM_SRUN_COMM_HOST": "10.19.0.68",
        "SLURM_SRUN_COMM_PORT": "37564",
        "SLURM_LAUNCH_NODE_IPADDR": "10.19.0.68",
        "SLURM_NODEID": str(rank // tasks_per_node),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % tasks_per_node),
        "SLURM_MPI_TYPE": "pmix",
        "PMIX_RANK": str(rank),
        **more,
    }


# The shell that salloc opens where the site lets Slurm run it as a step: its number is one of Slurm's own.
SALLOC_STEP = {
    **slurm_batch("gpu08", 1, 8),
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEPID": "4294967290",
    "SLURM_STEP_NODELIST": "gpu08",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_SRUN_COMM_HOST": "172.18.140.10",
    "SLURM_LAUNCH_NODE_IPADDR": "172.18.140.10",
    "SLURM_PTY_PORT": "42169",
}


def openmpi(rank: int, size: int = 4, local_size: int = 4, **more: str) -> dict[str, str]:
    """A process that mpirun of OpenMPI started."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank % local_size),
        "OMPI_UNIVERSE_SIZE": str(size),
        "PMIX_RANK": str(rank),
        "PMIX_NAMESPACE": "1234567890",
        **more,
    }


def hydra(rank: int, size: int = 4) -> dict[str, str]:
    """A process that mpiexec of MPICH or Intel MPI started."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "PMI_FD": "9",
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(size),
    }


def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what a launcher of the tests themselves has set: they may run in a job."""
    known = {**torchrun(0, 0), **slurm_task(0), **openmpi(0), **hydra(0)}
    for name in known.keys() & os.environ.keys() - {"OMP_NUM_THREADS"}:
        monkeypatch.delenv(name)


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """An environment that lacks these variables."""
    return {name: value for name, value in environ.items() if name not in names}


def refusal(environ: Mapping[str, str], *args: Any, **kwargs: Any) -> str:
    """The text, of one line, with which ``who_am_i`` refuses an environment."""
    with pytest.raises(UsageError) as caught:
        who_am_i(*args, environ=environ, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)
