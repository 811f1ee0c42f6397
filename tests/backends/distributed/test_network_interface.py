"""Which network interface leads to the other ranks, and what is said of the user's choice."""

from pathlib import Path

import pytest

from nemo_lite.backends.pytorch.distributed import network_interface
from nemo_lite.backends.pytorch.distributed.network_interface import Route, interfaces, route_to, use_route

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the loopback has its name on Linux: lo")


def test_an_interface_of_the_user_is_kept_and_a_wrong_one_is_told():
    route = route_to("127.0.0.1", 29500)
    environ = {"GLOO_SOCKET_IFNAME": "eth77"}
    (problem,) = use_route(route, ("127.0.0.1", 29500), environ)
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
    problems = use_route(route_to("127.0.0.1", 29500), ("127.0.0.1", 29500), {"NCCL_SOCKET_IFNAME": chosen})
    assert (problems == []) is is_good


def test_an_interface_without_a_way_to_the_others_is_told():
    (problem,) = use_route(route_to("198.51.100.1", 29500), ("198.51.100.1", 29500), {"GLOO_SOCKET_IFNAME": "lo"})
    assert problem.startswith("GLOO_SOCKET_IFNAME=lo: from there 198.51.100.1 cannot be reached")


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
    monkeypatch.setattr(network_interface, "interfaces", lambda: dict.fromkeys(found, "10.0.0.1"))
    monkeypatch.setattr(network_interface, "is_card", lambda name: name.startswith("eth"))
    environ = {}
    assert use_route(Route("eth0", "10.0.0.1"), ("10.0.0.9", 29500), environ) == []
    assert environ.get("NCCL_SOCKET_IFNAME") == set_for_nccl
    assert environ["GLOO_SOCKET_IFNAME"] == "eth0"


def test_an_interface_without_an_address_is_not_one_that_nccl_takes(monkeypatch):
    monkeypatch.setattr(network_interface, "interfaces", lambda: {"bond1": "", "eth0": "10.0.0.1"})
    environ = {}
    use_route(Route("eth0", "10.0.0.1"), ("10.0.0.9", 29500), environ)
    assert "NCCL_SOCKET_IFNAME" not in environ
