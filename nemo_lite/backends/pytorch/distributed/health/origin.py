"""Where an error comes from: an exchange between ranks, or not. Decided by the frame that raised it and by its type.

The words of an error's text do not decide this: a path with "gloo" in it is not an error of the network. They decide
only what a user is told to look at.
"""

from __future__ import annotations

import os
import re
from enum import Enum, auto
from types import FrameType

import torch
import torch.distributed as dist

_TORCH = os.path.dirname(torch.__file__) + os.sep
# The files of torch whose functions call collectives. The rest of torch/distributed also runs where nothing is sent.
COLLECTIVES = tuple(
    os.path.join(_TORCH, "distributed", name)
    for name in ("distributed_c10d.py", "_functional_collectives.py", "c10d_logger.py", "utils.py", "fsdp/")
)
_AUTOGRAD = (os.path.join(_TORCH, "autograd", ""), os.path.join(_TORCH, "_tensor.py"))


# What gloo, nccl and torch's store say of sockets and addresses.
_NETWORK = re.compile(
    r"socket|connect|address|interface|network|peer|timed? ?out|refused|broken pipe|reset|unreachable|route|\bEOF\b",
    re.IGNORECASE,
)


class Origin(Enum):
    """Where an error comes from."""

    EXCHANGE = auto()
    """An exchange between ranks."""
    BACKWARD = auto()
    """Torch's C++ in a backward pass: an exchange of gradients, or something that concerns this rank alone."""
    ELSEWHERE = auto()
    """Something that concerns this rank alone."""


def origin_of(error: BaseException) -> Origin:
    """Where an error comes from."""
    if isinstance(error, dist.DistError):
        return Origin.EXCHANGE
    # gloo's errors have no type of their own. Its subclasses do: those of data, of memory, of this package.
    if type(error) is not RuntimeError:
        return Origin.ELSEWHERE
    frame = innermost(error)
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith(COLLECTIVES):
        return Origin.EXCHANGE
    return Origin.BACKWARD if file.startswith(_AUTOGRAD) else Origin.ELSEWHERE


def innermost(error: BaseException) -> FrameType | None:
    """The frame that raised an error; ``None`` if it was not raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame


def one_line(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = str(error).splitlines() or [type(error).__name__]
    # "[/path/of/gloo/pair.cc:525] Connection closed": where in gloo is of no use to a reader.
    return re.sub(r"^\[[^\]]*\]\s*", "", lines[0])[:300]


def remedy_of(text: str) -> str:
    """What to look at where an exchange failed while all ranks still send heartbeats."""
    if _NETWORK.search(text):
        return "all ranks still send heartbeats: check the network between them"
    return (
        "all ranks still send heartbeats, so they reach each other: see that every rank makes the same modules, "
        "freezes the same weights, and calls the same in the same order"
    )
