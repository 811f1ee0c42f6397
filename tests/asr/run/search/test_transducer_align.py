"""The most probable path of a known text through the lattice, against an enumeration of all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from toys.transducer_networks import ChosenNetworks, RandomNetworks, log_softmax, numbered, plain_greedy, random_frames

from nemo_asr.run.search import transducer_align
from nemo_asr.run.search.search import FILLER_COST
from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.run.search.transducer_align import TransducerAligner
from nemo_lite.base.errors import UsageError

KINDS = {
    "RNN-T": {},
    "TDT": {"durations": [0, 1, 2]},
    "TDT without 0": {"durations": [1, 2]},
    "TDT without 1": {"durations": [0, 2, 3]},
    "big blanks": {"big_blank_durations": [2, 3]},
}


def best_path(networks, frames, ids, edges=(), borders=()):
    """The score of the best path, and the label's frames on it, by trying all."""
    memories = [networks.beginning(1)]
    for label in ids:
        memories.append(networks.after(np.array([label]), memories[-1]))
    stops = [*borders, len(frames)]

    def arcs(frame, place):
        if frame in borders:
            return [(1, False, 0.0)]
        (scores,) = networks.scores(frames[frame : frame + 1], memories[place])
        of_outputs, of_steps = log_softmax(scores[: networks.blank + 1]), scores[networks.blank + 1 :]
        steps = dict(zip(networks.durations, log_softmax(of_steps), strict=True)) if len(of_steps) else {}
        found = [(step, False, of_outputs[networks.blank] + score) for step, score in steps.items() if step]
        if not steps:
            found = [(1, False, of_outputs[networks.blank])]
            bigger = enumerate(networks.big_blank_durations, 1)
            found += [(step, False, of_outputs[networks.blank - place]) for place, step in bigger]
        if place in edges:
            found.append((1, False, of_outputs.max() - FILLER_COST))
        if place < len(ids):
            found += [(step, True, of_outputs[ids[place]] + score) for step, score in (steps or {0: 0.0}).items()]
        return found

    known = {}

    def best(frame, place):
        if frame == len(frames):
            return (0.0, ()) if place == len(ids) else (-np.inf, ())
        if (frame, place) not in known:
            stop = min(stop for stop in stops if stop > frame)
            ways = []
            for step, is_label, score in arcs(frame, place):
                behind, starts = best(min(frame + step, stop), place + is_label)
                ways.append((score + behind, ((frame,) if is_label else ()) + starts))
            known[frame, place] = max(ways)
        return known[frame, place]

    return best(0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", ["plain", "edges and borders"])
def test_the_path_is_the_best_of_all(kind, seed, case):
    networks, frames, ids = RandomNetworks(seed, **KINDS[kind]), random_frames(12, seed), [0, 2, 2, 1, 0]
    edges, borders = ([], []) if case == "plain" else ([0, 2, 5], [4, 8])
    found = TransducerAligner(networks, 10).align(frames.copy(), ids, edges, borders)
    score, starts = best_path(networks, frames, ids, edges, borders)
    assert list(found.timed.ids) == ids
    assert tuple(found.timed.starts) == starts
    steps = np.subtract(found.timed.ends, found.timed.starts)
    assert (steps >= 1).all()
    if kind == "RNN-T":  # the score of a longer arc stands at each of its frames
        assert float(found.scores.sum()) == pytest.approx(score, abs=1e-4)
    assert not set(borders) & set(starts)
    for border, (start, end) in itertools.product(borders, zip(starts, found.timed.ends, strict=True)):
        assert not start < border < end


@pytest.mark.parametrize("kind", ["TDT", "TDT without 0"])
def test_what_greedy_search_is_sure_of_is_aligned_where_it_was_heard(kind):
    networks, frames = RandomNetworks(4, scale=60.0, **KINDS[kind]), random_frames(60)
    said = plain_greedy(networks, frames, 10)
    starts = [start for _, start, *_ in said]
    found = TransducerAligner(networks, 10).align(frames, [label for label, *_ in said])
    close = np.abs(np.subtract(found.timed.starts, starts)) <= 3
    assert close.mean() > 0.8
    assert np.exp(found.timed.log_probs).max() > 0.9


def test_a_label_s_probability_is_that_of_the_label_for_each_of_its_frames():
    networks = ChosenNetworks(lambda frame, before: [2.0, 0.0, 9.0 * (frame > 0), 0.0, 5.0], 1, (0, 1, 2))
    found = TransducerAligner(networks, 10).align(numbered(5), [0])
    start, end = found.timed.starts[0], found.timed.ends[0]
    wanted = 2.0 - np.logaddexp(2.0, 0.0)
    assert found.timed.log_probs[0] == pytest.approx((end - start) * wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_band_that_is_widened_the_path_is_that_of_the_whole_lattice(kind, monkeypatch):
    networks, frames = RandomNetworks(2, **KINDS[kind]), random_frames(150, 1)
    ids = np.random.default_rng(0).integers(0, 3, 90).tolist()
    whole = TransducerAligner(networks, 10).align(frames, ids, [0, 90])
    widths = []
    lattice = transducer_align._Lattice
    monkeypatch.setattr(transducer_align, "_Lattice", lambda *args: widths.append(args[6]) or lattice(*args))
    monkeypatch.setattr(transducer_align, "_LEAST_WIDTH", 24)
    monkeypatch.setattr(transducer_align, "_MOST_OUTPUTS", 24)
    banded = TransducerAligner(networks, 10).align(frames, ids, [0, 90])
    assert widths[0] == 24
    assert banded.timed == whole.timed
    assert np.allclose(banded.scores, whole.scores)


def test_a_text_that_is_longer_than_its_lattice_is_one_line():
    ids = [0, 1] * 6
    for durations, num_frames, needed in (([1, 2], 11, 12), ([], 1, 2)):
        aligner = TransducerAligner(RandomNetworks(0, durations=durations), 10)
        assert aligner.frames_needed(ids) == needed
        match = f"the text is longer than its lattice: got 12 labels in {num_frames} frames, wanted {needed} frames"
        with pytest.raises(UsageError, match=match):
            aligner.align(random_frames(num_frames), ids)


def test_a_text_without_labels_is_a_path_of_blanks():
    found = TransducerAligner(RandomNetworks(), 10).align(random_frames(5), [])
    assert not found.timed.ids
    assert (found.scores < 0).all()


def test_frames_are_kept_as_they_are():
    frames = random_frames(3)
    assert TransducerAligner(RandomNetworks(), 10).kept({FRAMES: frames}, [1]) is frames
