"""Searches of attention decoders: exact against enumeration, the same for any batch; rescoring, and its streams."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from toys.attention_decoders import Decoder

from nemo_asr.decoding.attention import TorchLabels
from nemo_asr.models.attention.decoder import TransformerDecoder
from nemo_asr.run.search.attention import AttentionBeam, FoundText, Rescoring, TextScores, timed, timed_by_outputs
from nemo_asr.run.search.ctc import align
from nemo_asr.run.search.text_search import TextSearch
from nemo_lite.base.errors import UsageError

SIZE, LABELS = 8, 3
WORDS = ["a", "b", "c"]


def toy(seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(LABELS + 1, LABELS, SIZE, heads=2, inner=8, layers=1)


def network(of: Decoder) -> TorchLabels:
    made = TransformerDecoder(SIZE, LABELS, 2, linear_units=8, num_blocks=1, r_num_blocks=1, reverse_weight=0.4)
    made.load_state_dict(of.state_dict())
    return TorchLabels(made.eval())


def recordings(*lengths: int, seed: int = 0) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal((length, SIZE)).astype(np.float32) for length in lengths]


def all_texts(most: int) -> list[list[int]]:
    return [list(text) for number in range(most + 1) for text in itertools.product(range(LABELS), repeat=number)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5])
def test_a_beam_that_holds_all_texts_finds_the_best_ones_of_all(seed: int, penalty: float) -> None:
    of, (frames,) = toy(seed), recordings(3, seed=seed)
    scores = {}
    for text in all_texts(3):
        score = of.score(torch.from_numpy(frames), text)
        scores[tuple(text)] = score / max(len(text), 1) ** penalty
    best = sorted(scores, key=lambda text: -scores[text])[:5]
    (found,) = AttentionBeam(network(of), 60, penalty).decode([frames], 5)
    assert [tuple(one.ids) for one in found] == best
    np.testing.assert_allclose([one.score for one in found], [scores[text] for text in best], rtol=1e-5)
    for one in found:  # each label with its own logarithm, without that of the end
        rows = of.from_left(torch.from_numpy(frames), one.ids)
        wanted = [rows[place, label].item() for place, label in enumerate(one.ids)]
        np.testing.assert_allclose(one.log_probs, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_recordings_side_by_side_have_the_texts_that_they_have_alone(beam_size: int) -> None:
    search, parts = AttentionBeam(network(toy(5)), beam_size), recordings(7, 1, 0, 4, 9)
    together = search.decode(parts, beam_size)
    for got, frames in zip(together, parts, strict=True):
        (alone,) = search.decode([frames], beam_size)
        assert [text.ids for text in got] == [text.ids for text in alone]
        np.testing.assert_allclose([text.score for text in got], [text.score for text in alone], rtol=1e-5)
    assert together[2] == [FoundText([], [], 0.0)]


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_labels_are_drawn_by_their_probabilities_at_a_temperature_and_the_same_in_each_call(temperature: float) -> None:
    of, (frames,), number = toy(2), recordings(1), 4000
    search = AttentionBeam(network(of), 1, temperature=temperature)
    found = [texts[0] for texts in search.decode([frames] * number)]
    log_probs = of.from_left(torch.from_numpy(frames), [])[0].detach().double()
    wanted = (log_probs / temperature).softmax(0).tolist()
    drawn = [text.ids[0] if text.ids else LABELS for text in found]  # one frame: one label, or the end
    shares = [drawn.count(label) / number for label in range(LABELS + 1)]
    np.testing.assert_allclose(shares, wanted, atol=0.03)  # four standard deviations
    for text in found[:50]:
        np.testing.assert_allclose(text.log_probs, [log_probs[label].item() for label in text.ids], rtol=1e-5)
    assert [texts[0].ids for texts in search.decode([frames] * 50)] == [text.ids for text in found[:50]]


def test_greedy_takes_the_best_label_each_time() -> None:
    of, (frames,) = toy(2), recordings(6)
    ids: list[int] = []
    while len(ids) < 6 and (label := int(of.from_left(torch.from_numpy(frames), ids)[-1].argmax())) != LABELS:
        ids.append(label)
    (found,) = AttentionBeam(network(of), 1).decode([frames])
    assert found[0].ids == ids


class Stubborn:
    """Says one label for ever, or no numbers, or what no text has."""

    end, start, reverse_weight, times = 2, (2,), 0.0, range(0)

    def __init__(
        self, rows: Sequence[float], most_labels: int | None = None, num_silent: int = 0, labels_beyond: int = 0
    ) -> None:
        self.rows, self.most_labels = np.array(rows, np.float32), most_labels
        self.num_silent, self.labels_beyond = num_silent, labels_beyond

    def begin(self, recordings: Sequence[Any], width: int) -> None: ...

    def after(self, labels: Any, memory: None) -> tuple[Any, None]:
        return np.tile(self.rows, (*labels.shape, 1)), None

    def chosen(self, memory: None, recordings: Any, hypotheses: Any) -> None: ...

    def of_texts(self, frames: Any, texts: Sequence[Sequence[int]]) -> TextScores:
        longest = max(map(len, texts))
        padded = [[-1.0] * (len(text) + 1) + [0.0] * (longest - len(text)) for text in texts]
        return TextScores(np.array(padded), None)


def test_a_decoder_that_never_ends_is_ended_behind_as_many_labels_as_frames_or_as_it_can_say() -> None:
    frames = np.zeros((5, SIZE), np.float32)
    assert AttentionBeam(Stubborn([-0.1, -3.0, -9.0]), 2).decode([frames])[0][0].ids == [0] * 5
    assert AttentionBeam(Stubborn([-0.1, -3.0, -9.0], 3), 2).decode([frames])[0][0].ids == [0] * 3
    beyond = Stubborn([-0.1, -3.0, -9.0], labels_beyond=4)
    assert AttentionBeam(beyond, 2).decode([frames])[0][0].ids == [0] * 9
    assert AttentionBeam(beyond, 2).decode([frames[:0]])[0][0].ids == []


def test_outputs_behind_the_end_are_never_said() -> None:
    (found,) = AttentionBeam(Stubborn([-5.0, -6.0, -4.0, -0.1]), 2).decode([np.zeros((5, SIZE), np.float32)])
    assert found[0].ids == []


def test_special_outputs_may_be_said_and_no_text_has_them() -> None:
    rows = [-5.0, -6.0, -4.0, -0.1, -0.05]
    (found,) = AttentionBeam(Stubborn(rows, num_silent=1), 1).decode([np.zeros((5, SIZE), np.float32)])
    assert (found[0].ids, found[0].log_probs) == ([], [])
    np.testing.assert_allclose(found[0].score, 5 * -0.1 - 4.0, rtol=1e-6)  # five of the first special one, and the end
    (found,) = AttentionBeam(Stubborn(rows), 1).decode([np.zeros((5, SIZE), np.float32)])
    np.testing.assert_allclose(found[0].score, -4.0)


class Scripted(Stubborn):
    """Says some outputs one after another."""

    def __init__(self, outputs: Sequence[int], num_outputs: int, **arguments: Any) -> None:
        super().__init__([-9.0] * num_outputs, **arguments)
        self._outputs = iter(outputs)

    def after(self, labels: Any, memory: None) -> tuple[Any, None]:
        log_probs, _ = super().after(labels, memory)
        log_probs[..., next(self._outputs)] = -0.1
        return log_probs, None


@pytest.mark.parametrize(("times", "ids"), [(range(4, 7), [4, 0, 6]), (range(0), [0])])
def test_times_among_special_outputs_stay_in_the_text_where_they_are_found(times: range, ids: list[int]) -> None:
    network = Scripted([4, 0, 3, 6, 2], 8, num_silent=4)
    network.times = times
    (found,) = AttentionBeam(network, 1).decode([np.zeros((9, SIZE), np.float32)])
    assert found[0].ids == ids


def test_times_that_go_back_are_put_right() -> None:
    found = timed_by_outputs(FoundText([13, 0, 11, 1, 15], [-0.1] * 5, -0.5), 9, 10)
    assert (found.ids, found.starts, found.ends) == ([0, 1], [3, 3], [4, 5])


def test_no_numbers_and_more_texts_than_the_beam_has_are_one_line() -> None:
    frames = np.zeros((5, SIZE), np.float32)
    with pytest.raises(UsageError, match=r"the model gives scores that are no numbers \(NaN\)"):
        AttentionBeam(Stubborn([np.nan, 0.0, 0.0]), 2).decode([frames])
    with pytest.raises(UsageError, match=r"nbest is more than the beam: got 3, wanted at most 2"):
        AttentionBeam(Stubborn([-1.0, -1.0, -1.0]), 2).decode([frames], 3)


# When labels are said


def test_labels_have_the_frames_of_the_head_of_ctc_or_are_spread_evenly() -> None:
    text = FoundText([0, 1, 1], [-0.1, -0.2, -0.3], -1.0)
    log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(LABELS + 1), 9)).astype(np.float32)
    got = timed(text, 9, log_probs)
    path = align(log_probs, text.ids)
    assert [path[start] for start in got.starts] == got.ids == [0, 1, 1]
    lengths = np.subtract(got.ends, got.starts)
    np.testing.assert_allclose(got.log_probs, text.log_probs * lengths)
    assert timed(text, 9, None)[1:3] == ([0, 3, 6], [3, 6, 9])
    # Equal labels need a blank between them, so three of these do not fit three frames.
    assert timed(text, 3, log_probs[:3])[1:3] == ([0, 1, 2], [1, 2, 3])


# Rescoring


def ctc(length: int, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed).standard_normal((length, LABELS + 1)) * 2
    return (draw - np.log(np.exp(draw).sum(1, keepdims=True))).astype(np.float32)


@pytest.mark.parametrize(("ctc_weight", "reverse_weight"), [(0.5, 0.3), (0.0, 0.0), (1.0, None)])
def test_rescoring_adds_the_decoder_from_both_sides_and_the_weighted_first_pass(
    ctc_weight: float, reverse_weight: float | None
) -> None:
    of, (frames,) = toy(1), recordings(8)
    first, log_probs = TextSearch(WORDS, 6), ctc(8)
    (texts,) = first.hypotheses(log_probs[None], np.array([8]), 6)
    right = 0.4 if reverse_weight is None else reverse_weight
    wanted = [of.score(torch.from_numpy(frames), one.ids, right) + ctc_weight * one.score for one in texts]
    search = Rescoring(network(of), first, ctc_weight, reverse_weight)
    found = search.recognise({"encoded": frames, "log_probs": log_probs}, 6)
    order = np.argsort(-np.array(wanted), kind="stable")
    assert [list(ids) for ids, _ in found.scored] == [texts[row].ids for row in order]
    np.testing.assert_allclose([score for _, score in found.scored], np.array(wanted)[order], rtol=1e-5)
    assert found.best.ids == texts[order[0]].ids


def test_the_first_of_equal_texts_stays_first() -> None:
    search = Rescoring(Stubborn([]), TextSearch(WORDS, 2), 0.0)
    found = search.rescored([([1], -5.0), ([0], -1.0), ([2], -1.0)], {"encoded": np.zeros((3, SIZE), np.float32)})
    assert [text.ids for text in found] == [[1], [0], [2]]


def test_a_stream_gives_the_first_pass_until_a_part_ends_and_then_the_second() -> None:
    of, (frames,) = toy(1), recordings(20)
    log_probs, first = ctc(20, 3), TextSearch(WORDS, 6)
    search = Rescoring(network(of), first, 0.2)
    states = {"encoded": frames, "log_probs": log_probs}
    stream, ids = search.stream(100), list[int]()
    for begin in range(0, 20, 3):
        part = {name: values[begin : begin + 3] for name, values in states.items()}
        assert stream.accept(part, lambda _: False) == len(part["encoded"])
    (of_first,) = first.hypotheses(log_probs[None], np.array([20]))
    assert stream.best().ids == of_first[0].ids
    for begin, end in ((0, 12), (12, 20)):
        wanted = search.recognise({name: values[begin:end] for name, values in states.items()}).best
        assert stream.end(end - begin) == wanted
        ids += wanted.ids
    assert stream.ids() == ids
    assert wanted.ids != first.hypotheses(log_probs[None, 12:], np.array([8]))[0][0].ids  # it changes something


@pytest.mark.parametrize(
    ("ids", "labels", "starts", "ends"),
    [
        ([10, 1, 2, 14, 14, 3, 16], [1, 2, 3], [0, 2, 4], [2, 4, 6]),
        ([12, 1, 14, 15, 2], [1, 2], [2, 5], [4, 20]),  # without an end it goes on to that of the recording
        ([1, 2], [1, 2], [0, 10], [10, 20]),
        ([18, 1, 18], [1], [8], [9]),
        ([35, 1], [1], [25], [26]),  # behind the end of the recording: a frame all the same
        ([10, 12], [], [], []),
        ([], [], [], []),
    ],
)
def test_labels_lie_between_the_times_that_are_found(ids, labels, starts, ends) -> None:
    text = FoundText(ids, [-0.5] * len(ids), -1.0)
    found = timed_by_outputs(text, 20, 10)
    assert (found.ids, found.starts, found.ends) == (labels, starts, ends)
    assert found.log_probs == [-0.5 * (end - start) for start, end in zip(starts, ends, strict=True)]
