"""Diagnosis: which rank is to blame, from what is known of each."""

import json
from pathlib import Path

import pytest

from nemo_lite.backends.pytorch.distributed.health import (
    ABORTED,
    LEFT,
    Diagnosis,
    Observation,
    Status,
    Timeouts,
    diagnose,
    diagnose_error,
    diagnose_lost_store,
)
from nemo_lite.backends.pytorch.distributed.rendezvous import Member
from nemo_lite.errors import DataError

TIMEOUTS = Timeouts(collective=60.0, silence=6.0, silence_after_error=2.4)


def seen(rank, status=None, silent=0.0, process=""):
    return Observation(Member(rank, f"node{rank}", 100 + rank, "eth0", "", f"machine{rank}"), status, silent, process)


def found(observations, has_all_heartbeats=True):
    return diagnose(observations, TIMEOUTS, has_all_heartbeats)


def blamed(observations, has_all_heartbeats=True):
    return int(found(observations, has_all_heartbeats).problem.split()[1])


def waiting(seconds=1.0, num_collectives=7, label="vote", **kwargs):
    return Status(5, 12, "a collective", True, seconds, num_collectives, label, **kwargs)


def test_on_another_machine_a_rank_is_gone_when_it_is_silent_and_sooner_once_a_connection_broke():
    encoder = Status(5, 12, "forward of encoder")
    assert found([seen(0, waiting()), seen(1, encoder, 5.0)]) is None
    diagnosis = found([seen(0, waiting()), seen(1, encoder, 6.2)])
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) is gone: no sign of life for 6 s, last seen at step 12 in forward of encoder"
    )
    assert diagnosis.remedy.startswith("its machine or the network to it failed, or its process was ended")
    assert diagnosis.by_silence
    assert blamed([seen(0, waiting(network_error="closed")), seen(1, encoder, 2.5)]) == 1


def test_a_rank_that_lives_but_is_silent_hangs_and_is_not_gone():
    observations = [seen(0, waiting()), seen(1, waiting(), 50.0, "alive")]
    assert found(observations) is None
    diagnosis = found([seen(0, waiting(61.0)), *observations[1:]])
    assert diagnosis.problem.startswith("rank 1 (node1, pid 101) hangs at step 12")


def test_a_stopped_rank_is_named_with_how_to_continue_it():
    assert found([seen(0, waiting()), seen(1, Status(5, 12, "evaluation"), 5.0, "stopped")]) is None
    assert found([seen(0, waiting()), seen(1, Status(5, 12, "evaluation"), 6.0, "stopped")]).report() == (
        "rank 1 (node1, pid 101) is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen at step 12 in evaluation; "
        "continue it with kill -CONT 101: it ends then, as the others do; start the run again"
    )


def test_a_rank_outside_of_training_steps_has_no_step():
    status = Status(5, None, "evaluation")
    assert status.at_step == "outside of training steps in evaluation"
    assert "last seen outside of training steps in evaluation" in found([seen(0, status, process="gone")]).problem


def test_a_rank_still_starting_is_no_alarm():
    assert found([seen(0, waiting()), seen(1, None, 30.0)]) is None
    assert blamed([seen(0, waiting()), seen(1, None, 60.0)]) == 1


def test_a_rank_that_computes_is_no_alarm_while_nobody_waits_too_long_for_it():
    alone = Status(5, 12, "writing a checkpoint", False, 5000.0)
    assert found([seen(0, alone), seen(1, waiting(59.0))]) is None
    assert blamed([seen(0, alone), seen(1, waiting(60.0))]) == 0


def test_waiting_for_gradients_counts_as_waiting():
    diagnosis = found([seen(0, Status(5, 12, "backward", True, 61.0)), seen(1, Status(5, 12, "waiting for data"))])
    assert diagnosis.problem.startswith("rank 1 (")
    assert diagnosis.problem.endswith("while rank 0 waits for it in backward for 61 s")


def test_a_rank_that_computes_without_end_in_its_own_backward_cannot_be_told_from_one_that_waits():
    diagnosis = found([seen(rank, Status(5, 12, "backward", True, 61.0 + rank)) for rank in range(2)])
    assert diagnosis.problem == "backward does not end although all ranks are in it"
    assert diagnosis.remedy.startswith(
        "either one of them computes there without end, or the data does not get from one rank to the other: check "
    )


def test_of_several_late_ranks_the_one_that_is_farthest_behind_is_named():
    late = [
        seen(1, Status(5, 12, "forward of x", False, 61.0, 7)),
        seen(2, Status(5, 12, "evaluation", False, 61.0, 6)),
    ]
    assert blamed([seen(0, waiting(61.0)), *late]) == 2


def test_the_odd_ones_out_are_named_and_all_in_one_collective_is_the_networks_fault():
    three = [seen(0, waiting(61.0)), seen(1, waiting(61.0, label="gather")), seen(2, waiting(61.0))]
    diagnosis = found(three)
    assert diagnosis.problem == (
        "mismatched collectives: ranks 0, 2 are in collective 7 (vote), rank 1 is in collective 7 (gather)"
    )
    same = found([three[0], three[2]])
    assert same.problem == "collective 7 (vote) does not end although all ranks are in it"
    assert same.remedy.startswith("the data does not get from one rank to the other: check the interfaces (GLOO_SOCKET")


def test_the_table_tells_where_each_rank_is_and_for_how_long():
    observations = [
        seen(0, waiting(61.0)),
        seen(1, Status(5, 11, "forward of encoder", False, 62.0)),
        seen(2, None, 3.0),
    ]
    diagnosis = found(observations)
    assert diagnosis.table.splitlines() == [
        "  rank  host   pid  step  where                since",
        "  0     node0  100  12    collective 7 (vote)  61 s",
        "  1     node1  101  11    forward of encoder   62 s",
        "  2     node2  102  -     unknown              3.0 s",
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_guide_shows_a_report_as_it_is_printed(language):
    members = [Member(rank, "node1", 6363 + rank, "lo", "", "one") for rank in range(2)]
    statuses = Status(5, 11, "backward", True, 600.0), Status(5, 11, "forward of jasper_encoder", False, 599.0)
    diagnosis = found(list(map(Observation, members, statuses)))
    guide = Path(__file__).parents[4] / "docs" / language / "fast_training.md"
    assert f"```text\n[rank 0] {diagnosis.report()}\n```" in guide.read_text()
    assert diagnosis.problem in guide.read_text().replace(diagnosis.report(), "")  # in the list of failures


def test_only_rank_0_decides_who_hangs_unless_it_is_silent_itself():
    both = [seen(0, Status(5, 12, "evaluation"), 0.0, "alive"), seen(1, waiting(61.0))]
    assert found(both, False) is None
    assert blamed([seen(0, Status(5, 12, "evaluation"), 7.0, "alive"), both[1]], False) == 0


def test_ranks_that_left_in_order_are_no_alarm():
    assert found([seen(0, waiting()), seen(1, Status(9, 12, num_collectives=7, state=LEFT), 99.0, "gone")]) is None


def test_a_rank_that_waits_for_one_other_blames_that_one():
    transfer = waiting(61.0, label="gather: rank 2 to rank 0", partner=2)
    ahead, behind = (
        Status(5, 13, "forward of encoder", num_collectives=7),
        Status(5, 12, "evaluation", num_collectives=7),
    )
    assert blamed([seen(0, transfer), seen(1, ahead), seen(2, behind)]) == 2
    voting = waiting(62.0, 8)
    diagnosis = found([seen(0, transfer), seen(1, voting), seen(2, transfer._replace(partner=0))])
    assert diagnosis.problem == "gather: rank 2 to rank 0 does not end although both ranks are in it"


def test_a_hung_rank_of_several_is_told_with_who_waits_for_it():
    hung = Status(5, 11, "train.py:12 in main", False, 0.3)  # in a loop: the line was another one before
    diagnosis = found([seen(0, waiting(61.0)), seen(1, hung)])
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) hangs at step 11 in train.py:12 in main, "
        "while rank 0 waits for it in collective 7 (vote) for 61 s"
    )
    assert diagnosis.remedy == (
        "see the output of rank 1; if it was only slow there, raise --dist_timeout (dist_timeout=)"
    )
    several = found([seen(0, waiting(61.0)), seen(1, hung), seen(2, hung)])
    assert several.problem.endswith("while rank 0 waits for them in collective 7 (vote) for 61 s")
    assert several.remedy.startswith("see the output of ranks 1, 2; if they were only slow there, raise ")


def test_a_lost_store_is_told_with_who_served_it():
    server = seen(0, Status(5, 12, "evaluation"))
    assert diagnose_lost_store(server, "node0:29500", 6.0).problem == (
        "rank 0 (node0, pid 100) cannot be reached: the store that it serves at node0:29500 has not answered for 6 s, "
        "last seen at step 12 in evaluation"
    )
    assert diagnose_lost_store(server._replace(process="stopped"), "node0:29500", 6.0).problem == (
        "rank 0 (node0, pid 100) is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen at step 12 in evaluation"
    )
    assert diagnose_lost_store(None, "node0:29500", 6.0).problem == (
        "the launcher of the first machine cannot be reached: its store at node0:29500 has not answered for 6 s"
    )
    assert diagnose_lost_store(None, "node0:29500", 0.0).problem == (
        "the launcher of the first machine is gone: its store at node0:29500 was closed"
    )


def test_of_an_error_the_first_line_and_the_exit_code_are_kept():
    member = seen(1).member
    failure = diagnose_error(member, Status(step=3), DataError("no\nlines", place="a.json:1"))
    assert failure.problem == "rank 1 (node1, pid 101) stopped at step 3: DataError: a.json:1: no ..."
    assert (failure.exit_code, failure.error().exit_code) == (2, 2)
    codes = [diagnose_error(member, Status(), e).exit_code for e in (ValueError(), KeyboardInterrupt(), SystemExit(7))]
    assert codes == [1, 130, 7]


def test_what_lies_in_the_store_comes_back_as_it_was():
    status, diagnosis = waiting(network_error="closed"), found([seen(0, process="gone")])
    assert Status(*json.loads(json.dumps(status))) == status
    assert Diagnosis(*json.loads(json.dumps(diagnosis))) == diagnosis


# nccl exchanges gradients in the background


def on_nccl(step, activity, num_sent, seconds=61.0):
    return Status(5, step, activity, False, seconds, num_sent=num_sent, sent_step=num_sent - 1)


def test_a_rank_that_waits_for_gradients_in_a_later_call_is_not_said_to_hang_in_a_forward():
    diagnosis = found([seen(0, on_nccl(12, "forward of encoder", 12)), seen(1, on_nccl(11, "forward of decoder", 11))])
    assert diagnosis.blamed == [1]
    assert diagnosis.problem == (
        "rank 1 (node1, pid 101) hangs at step 11 in forward of decoder, while rank 0 waits for it in the exchange of "
        "gradients of step 11, in the background (itself at step 12 in forward of encoder), for 61 s"
    )
    rows = diagnosis.table.splitlines()
    assert "forward of encoder, gradients of step 11 sent" in rows[1]
    assert "forward of decoder, gradients of step 10 sent" in rows[2]


def test_ranks_that_have_sent_the_same_gradients_wait_for_none():
    same = [seen(rank, on_nccl(12, "forward of encoder", 12, 5000.0)) for rank in range(2)]
    assert found(same) is None
    assert found([seen(0, on_nccl(12, "train.py:1 in main", 12, 59.0)), seen(1, on_nccl(11, "evaluation", 11))]) is None


def test_a_cpp_error_while_ranks_are_at_different_places_is_a_mismatch_and_else_that_ranks():
    aborted = waiting(2.0, label="sum", state=ABORTED)
    other = waiting(2.0, label="gather")
    diagnosis = found([seen(0, other), seen(1, aborted)])
    places = "rank 0 is at step 12 in collective 7 (gather), rank 1 is at step 12 in collective 7 (sum)"
    assert diagnosis.problem == f"mismatched collectives: {places}"
    diagnosis = found([seen(0, Status(5, 12, "evaluation")), seen(1, aborted)])
    assert diagnosis.problem == "a C++ error stopped rank 1 (node1, pid 101) at step 12 in collective 7 (sum)"
    assert diagnosis.blamed == [1]
    assert found([seen(0, other), seen(1, aborted._replace(seconds=1.0))]) is None  # the others may be on their way
