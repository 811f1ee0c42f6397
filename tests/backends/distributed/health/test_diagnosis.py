"""Verdict: who is to blame, judged from what is known of each rank."""

from nemo_lite.backends.pytorch.distributed.health.diagnosis import (
    LEFT,
    Limits,
    Sighting,
    Status,
    judge,
    of_failure,
    of_lost_store,
    status_of,
    verdict_of,
)
from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import DataError

LIMITS = Limits(timeout_seconds=60.0, silence_seconds=6.0, troubled_silence_seconds=2.4)


def seen(rank, status=None, silent=0.0, process=""):
    return Sighting(Member(rank, f"node{rank}", 100 + rank, "eth0", "", f"machine{rank}"), status, silent, process)


def waiting(seconds=1.0, exchange=7, label="vote", **kwargs):
    return Status(5, 12, "a collective", True, seconds, exchange, label, **kwargs)


def test_on_another_machine_a_rank_is_gone_when_it_is_silent_and_sooner_once_a_connection_broke():
    encoder = Status(5, 12, "forward of encoder")
    assert judge([seen(0, waiting()), seen(1, encoder, 5.0)], LIMITS, True) is None
    verdict = judge([seen(0, waiting()), seen(1, encoder, 6.2)], LIMITS, True)
    assert verdict.problem == (
        "rank 1 (node1, pid 101) is gone: no sign of life for 6 s, last seen at step 12 in forward of encoder"
    )
    assert verdict.remedy.startswith("its machine or the network to it failed, or its process was ended")
    assert verdict.by_silence
    assert judge([seen(0, waiting(trouble="closed")), seen(1, encoder, 2.5)], LIMITS, True).ranks == (1,)


def test_a_rank_that_lives_but_is_silent_hangs_and_is_not_gone():
    sightings = [seen(0, waiting()), seen(1, waiting(), 50.0, "alive")]
    assert judge(sightings, LIMITS, True) is None
    verdict = judge([seen(0, waiting(61.0)), *sightings[1:]], LIMITS, True)
    assert verdict.problem.startswith("rank 1 (node1, pid 101) hangs at step 12")


def test_a_rank_still_starting_is_no_alarm():
    assert judge([seen(0, waiting()), seen(1, None, 30.0)], LIMITS, True) is None
    assert judge([seen(0, waiting()), seen(1, None, 60.0)], LIMITS, True).ranks == (1,)


def test_a_rank_that_computes_is_no_alarm_while_nobody_waits_too_long_for_it():
    alone = Status(5, 12, "writing a checkpoint", False, 5000.0)
    assert judge([seen(0, alone), seen(1, waiting(59.0))], LIMITS, True) is None
    assert judge([seen(0, alone), seen(1, waiting(60.0))], LIMITS, True).ranks == (0,)


def test_waiting_for_gradients_counts_as_waiting():
    verdict = judge(
        [seen(0, Status(5, 12, "backward", True, 61.0)), seen(1, Status(5, 12, "waiting for data"))], LIMITS, True
    )
    assert verdict.ranks == (1,)
    assert verdict.problem.endswith("while rank 0 waits for it in backward")


def test_of_several_late_ranks_the_one_that_is_farthest_behind_is_named():
    late = [
        seen(1, Status(5, 12, "forward of x", False, 61.0, 7)),
        seen(2, Status(5, 12, "evaluation", False, 61.0, 6)),
    ]
    assert judge([seen(0, waiting(61.0)), *late], LIMITS, True).ranks == (2,)


def test_the_odd_ones_out_are_named_and_all_in_one_collective_is_the_networks_fault():
    three = [seen(0, waiting(61.0)), seen(1, waiting(61.0, label="gather")), seen(2, waiting(61.0))]
    verdict = judge(three, LIMITS, True)
    assert verdict.ranks == (1,)
    assert "ranks 0, 2 are in collective 7 (vote), rank 1 is in collective 7 (gather)" in verdict.problem
    same = judge([three[0], three[2]], LIMITS, True)
    assert same.problem == "collective 7 (vote) does not end although all ranks are in it"
    assert "GLOO_SOCKET_IFNAME" in same.remedy


def test_the_table_tells_where_each_rank_is_and_for_how_long():
    sightings = [seen(0, waiting(61.0)), seen(1, Status(5, 11, "forward of encoder", False, 62.0)), seen(2, None, 3.0)]
    verdict = judge(sightings, LIMITS, True)
    assert verdict.table.splitlines() == [
        "  rank  host   pid  step  where                for",
        "  0     node0  100  12    collective 7 (vote)  61 s",
        "  1     node1  101  11    forward of encoder   62 s",
        "  2     node2  102  -     unknown              3.0 s",
    ]


def test_only_the_first_rank_judges_who_hangs_unless_it_is_silent_itself():
    both = [seen(0, Status(5, 12, "evaluation"), 0.0, "alive"), seen(1, waiting(61.0))]
    assert judge(both, LIMITS, False) is None
    assert judge([seen(0, Status(5, 12, "evaluation"), 7.0, "alive"), both[1]], LIMITS, False).ranks == (0,)


def test_ranks_that_left_in_order_are_no_alarm():
    assert (
        judge([seen(0, waiting()), seen(1, Status(9, 12, exchange=7, state=LEFT), 99.0, "gone")], LIMITS, True) is None
    )


def test_a_rank_that_waits_for_one_other_blames_that_one():
    transfer = waiting(61.0, label="gather: rank 2 to rank 0")
    ahead, behind = Status(5, 13, "forward of encoder", exchange=7), Status(5, 12, "evaluation", exchange=7)
    assert judge([seen(0, transfer), seen(1, ahead), seen(2, behind)], LIMITS, True).ranks == (2,)
    voting = waiting(62.0, 8)
    verdict = judge([seen(0, transfer), seen(1, voting), seen(2, transfer)], LIMITS, True)
    assert verdict.problem == "gather: rank 2 to rank 0 does not end although both ranks are in it"


def test_a_hung_rank_of_several_is_told_with_who_waits_for_it():
    verdict = judge([seen(0, waiting(61.0)), seen(1, Status(5, 11, "forward of encoder", False, 62.0))], LIMITS, True)
    assert verdict.problem == (
        "rank 1 (node1, pid 101) hangs at step 11 in forward of encoder for 62 s, "
        "while rank 0 waits for it in collective 7 (vote)"
    )


def test_a_lost_store_is_told_with_who_served_it():
    host = seen(0, Status(5, 12, "evaluation"), process="stopped")
    assert of_lost_store(host, "node0:29500", 6.0).problem == (
        "rank 0 (node0, pid 100) is gone: the store that it serves at node0:29500 does not answer for 6 s "
        "(its process is stopped), last seen at step 12 in evaluation"
    )
    assert of_lost_store(None, "node0:29500", 0.0).problem == (
        "the launcher of the first machine is gone: its store at node0:29500 was closed"
    )


def test_of_an_error_the_first_line_and_the_exit_code_are_kept():
    member = seen(1).member
    failure = of_failure(member, Status(step=3), DataError("no\nlines", place="a.json:1"))
    assert failure.problem == "rank 1 (node1, pid 101) stopped at step 3: DataError: a.json:1: no ..."
    assert (failure.exit_code, failure.error().exit_code) == (2, 2)
    codes = [of_failure(member, Status(), e).exit_code for e in (ValueError(), KeyboardInterrupt(), SystemExit(7))]
    assert codes == [1, 130, 7]


def test_what_lies_in_the_store_comes_back_as_it_was():
    status, verdict = waiting(trouble="closed"), judge([seen(0, process="gone")], LIMITS, True)
    assert status_of(status.encoded().encode()) == status
    assert verdict_of(verdict.encoded().encode()) == verdict
