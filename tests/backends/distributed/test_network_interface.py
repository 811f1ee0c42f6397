"""Which network interface leads to the other ranks, and what is said of the user's choice."""

import socket
from pathlib import Path

import pytest
from toys.launchers import slurm_task, torchrun

from nemo_lite.backends.pytorch.distributed import network_interface
from nemo_lite.backends.pytorch.distributed.network_interface import (
    Route,
    interfaces,
    numeric_address,
    route_to,
    unused_master,
    use_route,
)
from nemo_lite.base.errors import DistributedError
from nemo_lite.base.launch import who_am_i

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the loopback has its name on Linux: lo")


def test_an_interface_of_the_user_is_kept_and_a_wrong_one_is_told():
    route = route_to("127.0.0.1", 29500)
    environ = {"GLOO_SOCKET_IFNAME": "eth77"}
    (problem,) = use_route(route, environ)
    assert problem.startswith("GLOO_SOCKET_IFNAME=eth77: this machine has no such interface (it has lo")
    assert environ == {"GLOO_SOCKET_IFNAME": "eth77", "NCCL_SOCKET_IFNAME": "=lo"}


@pytest.mark.parametrize(
    ("chosen", "is_good"),
    [
        ("lo", True),
        ("=lo", True),
        ("l", True),
        ("=l", False),
        ("^=nothing", True),
        ("^" + ",".join(interfaces()), False),
    ],
)
def test_nccls_way_of_writing_interfaces_is_understood(chosen, is_good):
    problems = use_route(route_to("127.0.0.1", 29500), {"NCCL_SOCKET_IFNAME": chosen})
    assert (problems == []) is is_good


@pytest.mark.parametrize(
    ("found", "set_for_nccl"),
    [
        (["lo", "eth0"], None),
        (["lo", "eth0", "eth1", "docker0", "virbr0"], None),  # nccl uses both cards, and not Docker's bridge
        (["lo", "eth1", "eth0"], "=eth0"),  # it would start with eth1
        (["lo", "eth0", "br-7f3a"], "=eth0"),  # it would take a bridge for a card
        (["lo", "ib0", "eth0"], "=eth0"),
        (["docker0", "eth0"], None),
    ],
)
def test_nccl_keeps_all_cards_where_it_finds_the_way_itself_else_it_gets_one_name(found, set_for_nccl, monkeypatch):
    monkeypatch.setattr(network_interface, "interfaces", lambda: {name: ["10.0.0.1"] for name in found})
    monkeypatch.setattr(network_interface, "is_card", lambda name: name.startswith("eth"))
    environ = {}
    assert use_route(Route("eth0", "10.0.0.1"), environ) == []
    assert environ.get("NCCL_SOCKET_IFNAME") == set_for_nccl
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_an_interface_without_an_address_is_not_one_that_nccl_takes(monkeypatch):
    monkeypatch.setattr(network_interface, "interfaces", lambda: {"bond1": [], "eth0": ["10.0.0.1"]})
    environ = {}
    use_route(Route("eth0", "10.0.0.1"), environ)
    assert "NCCL_SOCKET_IFNAME" not in environ


class Ipv6Probe:
    """A socket from which packets would leave by one address."""

    def __init__(self, family, kind):
        self.family = family

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def bind(self, address):
        pass

    def connect(self, address):
        pass

    def getsockname(self):
        return "fd00::7", 0, 0, 0


def test_an_interface_is_found_by_its_ipv6_address(monkeypatch, tmp_path):
    listed = tmp_path / "if_inet6"
    lines = ["fe800000000000000000000000000007 02 40 20 80 lo", "fd000000000000000000000000000007 02 40 00 80 lo"]
    listed.write_text("\n".join(lines))
    monkeypatch.setattr(network_interface, "_IPV6_ADDRESSES", listed)
    assert interfaces()["lo"] == ["127.0.0.1", "fd00::7"]
    real = socket.socket
    monkeypatch.setattr(socket, "socket", lambda *how: (Ipv6Probe if how[0] == socket.AF_INET6 else real)(*how))
    route = route_to("fd00::1", 29500)
    assert route == Route("lo", "fd00::7")
    environ = {}
    assert use_route(route, environ) == []
    assert environ["GLOO_SOCKET_IFNAME"] == "lo"


def knows_own_name_as_loopback(monkeypatch, host, addresses):
    """A machine as Debian sets one up, with these interfaces; there is no way out of its network."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 1))])
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(network_interface, "route_to", lambda *_: Route("", ""))
    monkeypatch.setattr(network_interface, "interfaces", lambda: addresses)
    monkeypatch.setattr(network_interface, "is_card", lambda name: name.startswith("en"))


@pytest.mark.parametrize("rank", [0, 3])
def test_ranks_of_a_first_machine_that_is_the_loopback_to_itself_take_its_other_address(monkeypatch, rank):
    addresses = {"lo": ["127.0.0.1"], "docker0": ["172.17.0.1"], "vpn0": ["10.8.0.1"], "en1": ["10.0.0.1", "fd00::1"]}
    knows_own_name_as_loopback(monkeypatch, "gpu08", addresses)
    assert numeric_address(who_am_i(environ=slurm_task(rank))) == "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "rank", "cards"),
    [("gpu09", 4, ["en1"]), ("gpu08", 0, ["en1", "en2"]), ("gpu08", 0, [])],
    ids=["another machine", "two cards and no way out", "no card"],
)
def test_a_loopback_is_refused_where_the_first_machines_address_is_not_plain(monkeypatch, host, rank, cards):
    knows_own_name_as_loopback(monkeypatch, host, {"lo": ["127.0.0.1"], **{card: ["10.0.0.1"] for card in cards}})
    with pytest.raises(DistributedError, match=r"the first machine, gpu08, is the loopback \(127\.0\.1\.1\) on gpu0"):
        numeric_address(who_am_i(environ=slurm_task(rank)))


def test_an_address_of_another_machine_that_is_not_used_is_told(monkeypatch):
    monkeypatch.setattr(network_interface, "interfaces", lambda: {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1"]})
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")

    def line(host, agent="False"):
        environ = torchrun(0, 0, MASTER_ADDR=host, TORCHELASTIC_USE_AGENT_STORE=agent)
        return unused_master(who_am_i(environ=environ))

    assert line("node7") == "The address of the first machine, node7, is not used: all 2 ranks are on this machine"
    assert line("10.0.0.7") != ""
    assert [line(host) for host in ("127.0.0.1", "localhost", "10.0.0.1", "node1", "node1.cluster")] == [""] * 5
    assert line("node7", agent="True") == ""
