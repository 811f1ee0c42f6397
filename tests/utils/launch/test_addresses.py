"""Node lists, tasks per node, tcp:// addresses, loopback and derived ports, as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_lite.errors import UsageError
from nemo_lite.utils.launch import derived_port, host_names, is_loopback, tasks_of_node, tcp_address

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,4}[a-z])?", fullmatch=True)


@st.composite
def entries(draw):
    """An entry of a node list, and the hosts it stands for, made without looking at the code."""
    head, tail = draw(NAMES), draw(st.sampled_from(["", "-ib", ".cluster"]))
    if draw(st.booleans()):
        return head + tail, [head + tail]
    pieces, hosts = [], []
    for _ in range(draw(st.integers(1, 3))):
        width, first, more = draw(st.integers(1, 4)), draw(st.integers(0, 120)), draw(st.integers(0, 12))
        numbers = [f"{number:0{width}d}" for number in range(first, first + more + 1)]
        pieces.append(numbers[0] if more == 0 else f"{numbers[0]}-{numbers[-1]}")
        hosts += [head + number + tail for number in numbers]
    return f"{head}[{','.join(pieces)}]{tail}", hosts


@given(st.lists(entries(), min_size=1, max_size=4))
def test_a_node_list_gives_its_hosts_in_order(drawn):
    assert host_names(",".join(text for text, _ in drawn)) == [host for _, hosts in drawn for host in hosts]


@given(st.text(alphabet="n01-,[] ", max_size=12))
def test_any_text_gives_hosts_or_one_line(text):
    try:
        hosts = host_names(text)
    except UsageError as error:
        told = str(error)
    else:
        told = "MASTER_ADDR" if all(hosts) else "an empty host"
    assert "MASTER_ADDR" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("gpu5", ["gpu5"]),
        ("a,b-1,c.example.org", ["a", "b-1", "c.example.org"]),
        ("nid[000998-001001]", ["nid000998", "nid000999", "nid001000", "nid001001"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_node_lists_as_slurm_writes_them(nodelist, hosts):
    assert host_names(nodelist) == hosts


@pytest.mark.parametrize("nodelist", ["", ",", "a,", "n[1-2", "n1-2]", "n[]", "n[2-1]", "n[a-b]", "n[1,]", "n[1-2-3]"])
def test_a_list_that_is_not_well_formed_is_shown(nodelist):
    with pytest.raises(UsageError) as caught:
        host_names(nodelist)
    assert f"the node list cannot be read: got {nodelist!r}" in str(caught.value)


def test_several_bracket_groups_ask_for_the_master():
    with pytest.raises(UsageError, match=r"rack\[1-2\]n\[0-3\]: a host name with several .* set MASTER_ADDR"):
        host_names("a,rack[1-2]n[0-3]")


@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [
        ("4(x2)", 1, 4),
        ("4(x2)", None, 4),
        ("4", 3, 4),
        ("4(x2),3", 0, 4),
        ("4(x2),3", 2, 3),
        ("4(x2),3", 3, None),
        ("4(x2),3", None, None),
        ("2,3", 1, 3),
        ("", 0, None),
        ("four", 0, None),
    ],
)
def test_tasks_of_a_node(text, node, tasks):
    assert tasks_of_node(text, node) == tasks


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.1:23456", ("10.0.0.1", 23456)),
        ("tcp://node1.example.org:1", ("node1.example.org", 1)),
        ("tcp://[fd00::1]:80", ("fd00::1", 80)),
    ],
)
def test_a_tcp_address_is_a_host_and_a_port(text, address):
    assert tcp_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("tcp://host", "tcp://:80", "tcp://host:0", "tcp://host:65536", "tcp://host:x", "tcp://host:80/x"),
        *("tcp://host:80?rank=0", "file:///tmp/x", "host:80", "tcp://[:1", ""),
    ],
)
def test_another_address_is_shown_with_what_is_wanted(text):
    with pytest.raises(UsageError) as caught:
        tcp_address(text)
    assert str(caught.value) == f"--init_method {text}: cannot be used: wanted tcp://host:port or env://"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "0.0.0.0"])
def test_loopback_addresses(host):
    assert is_loopback(host)


def test_a_loopback_address_in_the_newer_form_is_one_too():
    assert is_loopback("::ffff:127.0.0.1")


@pytest.mark.parametrize("host", ["10.0.0.1", "node1", "fd00::1", "localhost1", "1.2.7.0"])
def test_other_addresses(host):
    assert not is_loopback(host)


@given(st.integers(0, 2**40), st.integers(1, 9999))
def test_runs_with_numbers_near_each_other_get_different_ports(job, apart):
    assert 20_000 <= derived_port(str(job)) < 30_000
    assert derived_port(str(job)) != derived_port(str(job + apart))
    assert derived_port(str(job), 0) != derived_port(str(job), 1)


def test_a_run_with_a_name_gets_the_same_port_everywhere():
    assert derived_port("prterun-node1-2233@1") == derived_port("prterun-node1-2233@1")
    assert 20_000 <= derived_port("prterun-node1-2233@1") < 30_000
