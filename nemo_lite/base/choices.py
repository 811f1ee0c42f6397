"""Choices of a script by name: where modules run, in what precision, in which format they are exported."""

from __future__ import annotations

from enum import Enum

from nemo_lite.base.errors import UnknownNameError


class Backend(Enum):
    """Executes DAGs; PyTorch is the only one."""

    PyTorch = 1


class DeviceType(Enum):
    """Where modules run."""

    GPU = 1
    CPU = 2
    AllGpu = 3


class Optimization(Enum):
    """Precision, in the levels of apex amp; ``nothing`` is another name of O0.

    O0 is float32; O1 computes each operation in the type that it is safe in; O2 has half weights and activations, and
    float32 master weights and normalisation layers; O3 is half throughout.
    """

    mxprO0 = 0  # noqa: N815  # NeMo's name
    mxprO1 = 1  # noqa: N815
    mxprO2 = 2  # noqa: N815
    mxprO3 = 3  # noqa: N815
    nothing = 0

    @property
    def short(self) -> str:
        """``O0`` to ``O3``."""
        return f"O{self.value}"

    @staticmethod
    def parse(level: Optimization | str) -> Optimization:
        """A level, or one of the strings ``"O0"`` to ``"O3"``.

        Raises:
            UnknownNameError: another string.
        """
        if isinstance(level, Optimization):
            return level
        levels = {optimization.short: optimization for optimization in Optimization}
        if level not in levels:
            raise UnknownNameError("optimization level", str(level), levels)
        return levels[level]


class DeploymentFormat(Enum):
    """As what a module is exported. ``AUTO`` cannot be written."""

    AUTO = 0
    PYTORCH = 1
    TORCHSCRIPT = 2
    ONNX = 3
    TRTONNX = 4
    JARVIS = 5
