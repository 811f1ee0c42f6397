"""The place where collections find this name: a re-export, nothing else."""

from nemo_lite.core.graph.ports import Ports as Ports
