"""The store at which ranks meet: served on one address, and joined within a time, or an error says what to check."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from toys.ranks import free_port

from nemo_lite.backends.pytorch.distributed.rendezvous import join, serve, written
from nemo_lite.errors import DistributedError
from nemo_lite.utils.launch import ProcessInfo

RANK_1 = ProcessInfo(1, 2, 1, 2, 1, "pytorch", ("127.0.0.1", 1))


def test_a_store_that_is_served_is_joined():
    address = ("127.0.0.1", free_port())
    server = serve(address, timedelta(seconds=5))
    join(address, RANK_1, 5.0).set("a", "b")
    assert server.get("a") == b"b"


def test_a_master_that_nobody_serves_is_named_with_what_to_check():
    port = free_port()
    with pytest.raises(DistributedError, match=rf"rank 1 on .* could not reach rank 0 at 127\.0\.0\.1:{port} .*0\.5 s"):
        join(("127.0.0.1", port), RANK_1, 0.5)


def test_a_port_in_use_says_what_may_use_it():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DistributedError, match=rf"port {port} of 127\.0\.0\.1 is in use; another run.*node_rank"):
            serve(("127.0.0.1", port), timedelta(seconds=1))


def test_a_port_of_something_else_than_a_store_is_an_error_of_ours():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DistributedError, match="what listens there is no store"):
            join(other.getsockname(), RANK_1, 1.0)


def test_an_address_is_written_as_in_a_url():
    assert (written(("10.0.0.1", 80)), written(("::1", 80))) == ("10.0.0.1:80", "[::1]:80")
