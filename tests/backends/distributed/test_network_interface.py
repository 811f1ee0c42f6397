"""Which network interface leads to the other ranks, and what is said of the user's choice."""

from pathlib import Path

import pytest

from nemo_lite.backends.pytorch.distributed.network_interface import interfaces, route_to, use_route

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the loopback has its name on Linux: lo")


def test_an_interface_of_the_user_is_kept_and_a_wrong_one_is_told():
    route = route_to("127.0.0.1", 29500)
    environ = {"GLOO_SOCKET_IFNAME": "eth77"}
    (problem,) = use_route(route, ("127.0.0.1", 29500), environ)
    assert problem.startswith("GLOO_SOCKET_IFNAME=eth77: this machine has no such interface (it has lo")
    assert environ == {"GLOO_SOCKET_IFNAME": "eth77", "NCCL_SOCKET_IFNAME": "lo"}


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
