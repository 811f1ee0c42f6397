"""Member: what a rank says of itself to the others."""

from __future__ import annotations

import json
import os
import socket

from nemo_lite.backends.pytorch.distributed.rendezvous import Member, this_member
from nemo_lite.utils.launch import ProcessInfo


def test_this_process_is_described_for_the_others(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    me = this_member(ProcessInfo(1, 2, 1, 2, 1, "pytorch", ("127.0.0.1", 29500)), ("127.0.0.1", 29500))
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")  # set for this process: taken back at the end of the test
    assert str(me) == f"rank 1 ({socket.gethostname()}, pid {os.getpid()})"
    assert me.address == "127.0.0.1"
    assert [problem[:25] for problem in me.problems] == ["GLOO_SOCKET_IFNAME=eth77:"]
    assert Member(*json.loads(json.dumps(me))) == me
