"""NeMo's marks on classes of modules: where they may run. They set a class attribute, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nemo_lite.core.backend import DeviceType

C = TypeVar("C", bound=type)


def skip_in_data_parallel(cls: C) -> C:
    """Mark a class whose modules torch's DataParallel does not wrap: ``cls.skip_in_data_parallel`` is True."""
    cls.skip_in_data_parallel = True  # type: ignore[attr-defined]  # new with this line
    return cls


def run_only_on_device(device_type: DeviceType = DeviceType.CPU) -> Callable[[C], C]:
    """Mark a class whose modules run on one kind of device only: ``cls.run_only_on_device`` is that kind."""

    def mark(cls: C) -> C:
        cls.run_only_on_device = device_type  # type: ignore[attr-defined]  # new with this line
        return cls

    return mark
