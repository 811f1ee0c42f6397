"""Greedy search of transducers against a plain loop, and what other programs got wrong."""

from __future__ import annotations

import numpy as np
import pytest
from toys.transducer_networks import ChosenNetworks, RandomNetworks, numbered, plain_greedy, random_frames

from nemo_asr.run.search.transducer import FRAMES, GreedyTransducer
from nemo_lite.base.errors import UsageError

KINDS = {
    "RNN-T": {},
    "TDT": {"durations": [0, 1, 2, 3, 4]},
    "TDT without 0": {"durations": [1, 2]},
    "TDT with gaps": {"durations": [0, 1, 3, 8]},
    "big blanks": {"big_blank_durations": [2, 4, 8]},
}
LENGTHS = (40, 1, 17, 0, 33, 40, 5)


def greedy(networks, frames, **options):
    return GreedyTransducer(networks, **options).recognise({FRAMES: frames}).best


def exact(labels):
    """What has to be the same to the last bit."""
    return list(labels.ids), list(labels.starts), list(labels.ends)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_texts_times_and_durations_are_those_of_a_plain_loop_in_any_batch(kind, seed):
    networks = RandomNetworks(seed, **KINDS[kind])
    recordings = [random_frames(length, number) for number, length in enumerate(LENGTHS)]
    wanted = [plain_greedy(networks, frames, 3) for frames in recordings]
    assert sum(map(len, wanted)) > 10
    search = GreedyTransducer(networks, max_symbols=3)
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3], [2, 2, 2], [4, 0] * 10):
        for number, found in zip(order, search.decode([recordings[number] for number in order]), strict=True):
            ids, starts, ends, log_probs = found.labels
            durations = [max(step, 1) for _, _, step, _ in wanted[number]]
            assert ids == [label for label, *_ in wanted[number]]
            assert starts == [frame for _, frame, *_ in wanted[number]]
            assert np.subtract(ends, starts).tolist() == durations
            assert np.divide(log_probs, durations) == pytest.approx([each[3] for each in wanted[number]], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 40])
def test_a_stream_has_the_labels_times_and_durations_of_the_whole(kind, chunk):
    networks, frames = RandomNetworks(1, **KINDS[kind]), random_frames(40)
    search = GreedyTransducer(networks)
    stream = search.stream()
    for first in range(0, len(frames), chunk):
        stream.accept({FRAMES: frames[first : first + chunk]}, lambda _: False)
    whole = search.recognise({FRAMES: frames}).best
    assert exact(stream.end(len(frames))) == exact(whole)
    assert stream.ids() == whole.ids


def scores(output, duration=None, num_labels=3):
    """Of all outputs, where one of them, and the duration of one place, is the most probable."""
    values = [0.0] * (num_labels + 1 + (5 if duration is not None else 0))
    values[output] = 4.0
    if duration is not None:
        values[num_labels + 1 + duration] = 4.0
    return values


BLANK = 3
TDT = (0, 1, 2, 3, 4)


@pytest.mark.parametrize("durations", [(), TDT], ids=["RNN-T", "TDT"])
@pytest.mark.parametrize("max_symbols", [1, 4])
def test_a_head_that_never_says_blank_moves_on_after_max_symbols_and_ends(durations, max_symbols):
    networks = ChosenNetworks(lambda frame, before: scores(1, 0 if durations else None), BLANK, durations)
    labels = greedy(networks, numbered(6), max_symbols=max_symbols)
    assert np.bincount(labels.starts).tolist() == [max_symbols] * 6


def test_a_blank_of_duration_0_goes_on_by_one_frame():
    networks = ChosenNetworks(lambda frame, before: scores(2 if frame == 3 else BLANK, 0), BLANK, TDT)
    assert exact(greedy(networks, numbered(5), max_symbols=2)) == ([2, 2], [3, 3], [4, 4])


def test_the_memory_changes_by_labels_alone():
    asked = []

    def of(frame, before):
        asked.append((frame, before))
        return scores(frame % 2 if frame in (1, 4) and before[-1:] != (frame % 2,) else BLANK)

    assert greedy(ChosenNetworks(of, BLANK), numbered(6)).ids == [1, 0]
    assert {before for _, before in asked} == {(), (1,), (1, 0)}


def test_a_duration_skips_frames():
    networks = ChosenNetworks(lambda frame, before: scores(frame % 3, 2), BLANK, TDT)
    assert exact(greedy(networks, numbered(6))) == ([0, 2, 1], [0, 2, 4], [2, 4, 6])


def test_the_last_label_is_no_blank_and_the_blank_stands_behind_it():
    networks = ChosenNetworks(lambda frame, before: scores(BLANK - 1 if not before else BLANK), BLANK)
    assert greedy(networks, numbered(3)).ids == [BLANK - 1]


def test_the_duration_of_a_label_is_its_own_whatever_its_neighbours_have():
    def of(frame, before):
        return scores(0, 4) if frame == 0 else scores(1, 1) if frame == 4 else scores(BLANK, 2)

    def short(frame, before):
        return of(frame - 100, before) if frame >= 100 else scores(2, 1)

    search = GreedyTransducer(ChosenNetworks(short, BLANK, TDT))
    alone, together = search.decode([numbered(9) + 100]), search.decode([numbered(9) + 100, numbered(20)])
    assert exact(alone[0].labels) == exact(together[0].labels) == ([0, 1], [0, 4], [4, 5])


def test_frames_in_a_row_are_looked_at_together():
    networks = RandomNetworks(0)
    frames = random_frames(400)
    labels = greedy(networks, frames)
    assert networks.num_calls < 0.8 * (len(labels.ids) + len(frames))


def test_several_hypotheses_of_a_greedy_search_are_refused():
    with pytest.raises(UsageError, match="greedy decoding gives one text: got nbest 2; search with a beam"):
        GreedyTransducer(RandomNetworks()).recognise({FRAMES: random_frames(3)}, 2)
