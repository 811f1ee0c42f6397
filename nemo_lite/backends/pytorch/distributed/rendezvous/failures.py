"""A rank that fails before the ranks have met: the others, which wait for it, learn at once who it was and why.

Where the process does not come as far as the meeting (a missing file, an empty manifest), it goes to the store only to
refuse the attempt. Rank 0 serves the store for that, if nobody else does. After the meeting, heartbeats report.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store

from nemo_lite.backends.pytorch.distributed.network_interface import numeric_address
from nemo_lite.backends.pytorch.distributed.rendezvous.attempts import LATE_SECONDS, Attempt, AttemptWatch, Refusal
from nemo_lite.backends.pytorch.distributed.rendezvous.members import Member
from nemo_lite.backends.pytorch.distributed.rendezvous.run_identity import identity_of, options_in
from nemo_lite.backends.pytorch.distributed.rendezvous.stores import POLL_SECONDS, join, serve
from nemo_lite.errors import DistributedError, NemoLiteError, when_failing
from nemo_lite.utils.launch import ProcessInfo, who_am_i

# Ranks start at different speeds: so long does one that failed wait for those that are to be told.
_SECONDS = 30.0
# Launchers take the process that ends first for the cause: the others stay this much longer.
_LATER_SECONDS = 1.0
_OF_LAUNCH = ("local_rank", "launcher", "init_method", "rank", "world_size")


def announce_failures() -> None:
    """From now on tell the other ranks if this process ends with an error before they have met."""
    when_failing(tell_others)
    atexit.register(_tell_at_exit)


def announce_failures_by(report: Callable[[BaseException], object]) -> None:
    """The ranks have met: errors go there instead; those that nobody catches are reported by others."""
    when_failing(report)
    atexit.unregister(_tell_at_exit)


def tell_others(error: BaseException, seconds: float = _SECONDS) -> None:
    """Let the ranks that wait for this one end with the reason. Nothing happens where there are no others.

    Args:
        error: with which this process ends. One of the meeting itself is known to the others, or was theirs. A signal,
            which most launchers send to all, is not told: who sends it does not wait.
        seconds: how long to wait for ranks that have not come so far.
    """
    info = _this_process()
    if info is None or isinstance(error, KeyboardInterrupt) or (info.world_size == 1 and info.is_first):
        return
    if isinstance(error, DistributedError):
        if "exit_code" in vars(error):  # that of a process that failed, which is about to end
            time.sleep(_LATER_SECONDS)
        return
    me = Member(info.rank, socket.gethostname(), os.getpid(), "", "", "")
    lines = str(error).splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    refusal = Refusal(
        f"{me} failed before the ranks had met: {text}{' ...' if len(lines) > 1 else ''}",
        "see the end of that process' own output",
        getattr(error, "exit_code", 1),
    )
    # What goes wrong here is no news: the user has read why this process ends, the others end after their timeout.
    with suppress(DistributedError, dist.DistError, OSError):
        (_tell_as_first if info.is_first else _tell_first)(info, me, refusal, seconds)


def _tell_as_first(info: ProcessInfo, me: Member, refusal: Refusal, seconds: float) -> None:
    """Rank 0: begin an attempt that is refused, and stay for those that come to it."""
    attempt = Attempt.open(_store(info, seconds), me, identity_of(info), info.world_size)
    attempt.refuse(refusal)
    attempt.hear(me.rank)
    attempt.stay(info.world_size, seconds, as_last=True)


def _tell_first(info: ProcessInfo, me: Member, refusal: Refusal, seconds: float) -> None:
    """Another rank: refuse the attempt that rank 0 begins, and wait until all have seen it.

    An attempt of another run, or one that has this rank already, is not this process's to refuse. One of another size
    is where this rank is out of range: its own world size may be the wrong one.
    """
    deadline = time.monotonic() + seconds
    watch, run = AttemptWatch(_store(info, seconds)), identity_of(info)
    is_out_of_range = info.rank >= info.world_size
    while time.monotonic() < deadline:
        attempt = watch.living()
        is_for = attempt and attempt.is_for(run, attempt.world_size if is_out_of_range else info.world_size)
        if attempt and is_for and not attempt.was_heard(me.rank):
            if me.rank not in [member.rank for member in attempt.members()]:
                attempt.refuse(refusal)
                attempt.hear(me.rank)
                # A launcher ends the others as soon as this process has ended.
                attempt.stay(info.world_size, LATE_SECONDS)
            return
        time.sleep(POLL_SECONDS)


def _store(info: ProcessInfo, seconds: float) -> Store:
    address, timeout = (numeric_address(info), info.master[1]), timedelta(seconds=seconds)
    return serve(address, timeout) if info.is_first and not info.agent_hosts_store else join(address, info, seconds)


def _this_process() -> ProcessInfo | None:
    """By the launcher's variables and the options on the command line, as far as they make sense."""
    said = {name.removeprefix("ddp."): values for name, values in options_in(sys.argv[1:]).items()}  # WeNet's
    options = {name: said[name][0] for name in _OF_LAUNCH if said.get(name)}
    with suppress(NemoLiteError):
        return who_am_i(
            options.get("local_rank"),
            launcher=options.get("launcher", "auto"),
            init_method=options.get("init_method"),
            rank=options.get("rank"),
            world_size=options.get("world_size"),
            checks=False,  # a rank that is out of range is what the others wait for
        )
    return None


def _tell_at_exit() -> None:
    """The interpreter ends: was it with an error that nobody caught, whose traceback it has printed?"""
    error = getattr(sys, "last_value", None)
    if error is not None:
        tell_others(error)
