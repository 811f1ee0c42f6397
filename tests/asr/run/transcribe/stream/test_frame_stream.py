"""Streams by frames: the text of the whole recording however it arrives, and when parts of it are final."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from toys.random_models import CONFORMER, RATE, model_of, noise
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.run.search.ngram import NgramCounter, estimate, write_arpa
from nemo_asr.run.search.search import FrameByFrame, TimedLabels
from nemo_asr.run.transcribe.domain import Domain, moments_of, stored
from nemo_asr.run.transcribe.stream import EndpointRules, FrameStream, SegmentStream
from nemo_asr.trained.streamed_model import StreamedModel, streamed_model
from nemo_lite.backends.pytorch.streaming import Delay
from nemo_lite.base.errors import UsageError

STREAMS = "normalize: null, pad_to: 0, "
QUARTZNET = CONFIG.replace("Preprocessor: {", "Preprocessor: {" + STREAMS)


def run(stream, samples, size):
    events = []
    for first in range(0, len(samples), size):
        events += stream.accept(samples[first : first + size])
    return [*events, *stream.finish()]


@pytest.mark.slow
@pytest.mark.parametrize("text", [QUARTZNET, CONFORMER], ids=["QuartzNet", "Conformer"])
def test_the_text_and_the_times_are_those_of_the_whole_recording_however_it_arrives(tmp_path, text):
    model = model_of(tmp_path, text)
    samples = noise(5)
    (whole,) = model.transcribe([samples], RATE, cutting=None)
    assert len(whole.words) > 1
    assert len(whole.text) > 8
    seen = []
    for size in (97, 1600, 16001, len(samples)):
        stream = model.stream()
        assert isinstance(stream, FrameStream)
        events = run(stream, samples, size)
        assert stream.text == whole.text
        seen.append([event for event in events if event.is_final])
        (final,) = seen[-1]
        assert final.text == whole.text
        assert [(word.text, word.start, word.end) for word in final.words] == [
            (word.text, word.start, word.end) for word in whole.words
        ]
    assert len({tuple(event.text for event in finals) for finals in seen}) == 1


@pytest.mark.slow
def test_other_rates_are_resampled_on_the_way(tmp_path):
    model = model_of(tmp_path, QUARTZNET)
    samples = noise(2)
    texts = []
    for size in (1000, len(samples)):
        stream = model.stream(sample_rate=8000)
        run(stream, samples, size)
        texts.append(stream.text)
    assert texts[0] == texts[1] == model.transcribe([samples], 8000, cutting=None)[0].text


def searches(folder):
    """Searches of each kind, some of which hear another text than the others."""
    (folder / "words.txt").write_text("ab\nc\nbca\na\n")
    counter = NgramCounter(2)
    for text in ("ab c", "bca ab", "c c ab", "a bca"):
        counter.add(text.split())
    write_arpa(folder / "words.arpa", estimate(counter).tables)
    lexicon, lm = str(folder / "words.txt"), str(folder / "words.arpa")
    kinds = [{}, {"lexicon": lexicon}, {"lm": lm}, {"hotwords": ["cab", "b a:9"]}]
    kinds.append({"lexicon": lexicon, "lm": lm, "hotwords": ["bca"]})
    return [nemo_asr.BeamSearchCTCDecoder([" ", "a", "b", "c"], beam_size=8, **kind) for kind in kinds]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [pytest.param(QUARTZNET, id="QuartzNet", marks=pytest.mark.long), pytest.param(CONFORMER, id="Conformer")]
)
def test_a_beam_search_has_the_text_and_the_times_of_the_whole_recording_however_it_arrives(tmp_path, text):
    model, samples = model_of(tmp_path, text), noise(5)
    rules = EndpointRules(silence=9, pause=9)
    texts = set()
    for decoder in searches(tmp_path):
        (whole,) = model.transcribe([samples], RATE, cutting=None, decoder=decoder)
        texts.add(whole.text)
        rng = np.random.default_rng(0)
        for most in (4000, 30000):
            stream, first, events = model.stream(decoder=decoder, rules=rules), 0, []
            assert isinstance(stream, FrameStream)
            while first < len(samples):
                end = first + int(rng.integers(0, most + 1))
                events += stream.accept(samples[first:end])
                first = end
            *partials, final = [*events, *stream.finish()]
            assert not any(event.is_final for event in partials)
            assert stream.text == final.text == whole.text
            assert [(word.text, word.start, word.end) for word in final.words] == [
                (word.text, word.start, word.end) for word in whole.words
            ]
    assert len(texts) > 3


class Letters(torch.nn.Module):
    """Samples are the numbers of labels, the same 100 in a frame; 4 is an a, or a little less probably a b."""

    delay = Delay(1, 0)
    labels = " ", "a", "b"

    def initial_state(self, batch):
        return {}

    def forward(self, signal, length, *, state, last):
        table = torch.cat([50 * torch.eye(4), torch.tensor([[0, 50, 49.5, 0]])]).log_softmax(1)
        return (table[signal[:, ::100].long()],), {}


def letters_model():
    return StreamedModel(Letters(), Letters.labels, 1000, 100, 100, nemo_asr.GreedyCTCDecoder(), {"log_probs": 1})


def of_letters(text, rules=None, size=None, decoder=None, **of_stream):
    """The events of a stream of frames of 0.1 s; `.` is a frame without a label, `?` one of two labels."""
    stream = FrameStream(letters_model(), 1000, rules, decoder=decoder, **of_stream)
    frames = np.array([" ab.?".index(letter) for letter in text], np.float32)
    return run(stream, np.repeat(frames, 100), 100 * (size or len(text))), stream


BEAM = nemo_asr.BeamSearchCTCDecoder(Letters.labels, beam_size=4)


@pytest.mark.parametrize("decoder", [None, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("size", [1, 7, None])
def test_a_part_ends_after_a_pause_and_then_its_words_stay(size, decoder):
    events, stream = of_letters("a.b ba" + 12 * "." + "..a." + 3 * "." + "b", size=size, decoder=decoder)
    finals = [event for event in events if event.is_final]
    assert [(event.text, event.start, event.end) for event in finals] == [("ab ba", 0.0, 1.8), ("ab", 1.8, 2.6)]
    assert [(word.text, word.start, word.end) for word in finals[0].words] == [("ab", 0.0, 0.3), ("ba", 0.4, 0.6)]
    assert finals[1].words[0].start == 2.0
    assert stream.text == "ab baab"  # no space was said between them


def test_a_silence_moves_the_beginning_of_the_next_part():
    events, _ = of_letters(30 * "." + "a" + 12 * ".")
    assert [(event.text, event.start, event.end, event.is_final) for event in events] == [("a", 2.4, 4.3, True)]


@pytest.mark.parametrize("decoder", [None, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("size", [1, 7, None])
def test_a_part_of_one_word_ends_within_it_after_twice_as_long(size, decoder):
    said = "ab" * 6 + 15 * "a" + "b" + 30 * "a"
    events, stream = of_letters(said, EndpointRules(longest=1.2), size, decoder)
    finals = [(event.text, event.start, event.end) for event in events if event.is_final]
    assert finals == [("ab" * 6 + "a", 0.0, 2.4), ("ba", 2.4, 4.8)]
    assert stream.text == "ab" * 6 + "aba"


def test_a_beam_of_texts_that_never_agree_keeps_what_was_said_lately():
    said = " ?" + 60 * " ab."
    _, stream = of_letters(said, EndpointRules(longest=1.2), 3, BEAM)
    _, whole = of_letters(said, EndpointRules(longest=1000.0), None, BEAM)
    assert stream.text == whole.text == "a" + 60 * " ab"
    kept, grown = ([len(one.ids) for one in each._open._search._found] for each in (stream, whole))
    assert max(kept) < 80 < 180 < max(grown)
    assert len(stream._open._rows) <= 24


@pytest.mark.parametrize("decoder", [None, BEAM], ids=["greedy", "beam"])
@pytest.mark.parametrize("size", [1, None])
def test_a_part_that_is_too_long_ends_before_its_last_word(size, decoder):
    events, stream = of_letters("ab.ab aaab b.a" + "a", EndpointRules(longest=1.2), size, decoder)
    finals = [event.text for event in events if event.is_final]
    assert finals == ["abab ab", "ba"]
    assert stream.text == "abab ab ba"


@pytest.mark.parametrize("size", [1, 5, None])
def test_a_search_goes_on_behind_a_pause_and_may_hear_the_words_before_it_differently(size):
    decoder = nemo_asr.BeamSearchCTCDecoder(Letters.labels, hotwords=["b ab"])
    events, stream = of_letters("?" + 13 * "." + " ab", size=size, decoder=decoder)
    finals = [event for event in events if event.is_final]
    assert [(event.text, event.start) for event in finals] == [("a", 0.0), ("ab", 1.3)]
    assert [(word.start, word.end) for final in finals for word in final.words] == [(0.0, 0.1), (1.5, 1.7)]
    assert stream.text == "b ab"


def test_partial_texts_show_the_beginning_of_a_word_of_the_lexicon_and_final_ones_whole_words(tmp_path):
    (tmp_path / "words.txt").write_text("ab\nabba\n")
    decoder = nemo_asr.BeamSearchCTCDecoder(Letters.labels, lexicon=str(tmp_path / "words.txt"), min_log_prob=-60)
    events, stream = of_letters("ab ab.b", size=1, decoder=decoder)
    assert [event.text for event in events] == ["a", "ab", "ab a", "ab ab", "ab abb", "ab ab"]
    assert [event.is_final for event in events] == 5 * [False] + [True]
    assert stream.text == "ab ab"


def test_a_decoder_that_does_not_stream_is_refused(tmp_path):
    able = model_of(tmp_path, QUARTZNET)
    other = nemo_asr.BeamSearchCTCDecoder([" ", "a", "b", "c"]).several(2)
    assert isinstance(able.stream(decoder=other), SegmentStream)
    with pytest.raises(UsageError, match=r"settings of streams in segments.*a decoder NBestCTCDecoder"):
        able.stream(by="frames", decoder=other)


def test_a_model_with_a_beam_search_of_its_own_streams_with_it(tmp_path):
    own = QUARTZNET + "BeamSearchCTCDecoder: {beam_size: 3, hotwords: [cab]}\n"
    (tmp_path / "own.yaml").write_text(own)
    model = nemo_asr.load_recipe(tmp_path / "own.yaml").model()
    decoder = streamed_model(model, [" ", "a", "b", "c"], RATE).search
    assert isinstance(decoder, nemo_asr.BeamSearchCTCDecoder)


def test_partial_texts_come_where_they_change():
    events, _ = of_letters("a..b...", size=1)
    assert [(event.text, event.is_final) for event in events] == [("a", False), ("ab", False), ("ab", True)]


def test_final_texts_of_words_that_the_model_does_not_know_have_the_reason():
    domain = Domain(set="dev", ranges={"confidence": (0.8, 1.0)})
    for calibration in (None, lambda confidence: confidence / 2):
        events, _ = of_letters("a..b...", size=1, domain=domain, calibration=calibration)
        assert not any(event.unfamiliar for event in events)
    unsure = Domain(set="dev", ranges={"confidence": (0.0, 0.5)})
    events, _ = of_letters("a..b...", size=1, domain=unsure)
    assert [event.unfamiliar for event in events] == [(), (), ("confidence 1.00, on dev 0.00 to 0.50",)]


@pytest.mark.parametrize("size", [1, 7, None])
def test_final_texts_that_are_far_from_what_the_model_knows_have_the_reason_each_for_itself(size):
    pause = 12 * "."
    frames = {
        letter: letters_model().frames()(np.full(100, number, np.float32), False)["log_probs"]
        for letter, number in (("a", 1), (".", 3))
    }
    known = moments_of(np.concatenate([frames["a"], frames["."]]))
    domain = Domain(set="dev", utterances=20, ranges={"distance": (0.0, 2.0)}, frames=stored(known))
    events, _ = of_letters(
        "aaaaaa" + pause + "bbbbbb" + pause + "bb" + pause + "aa.aaa" + pause, size=size, domain=domain
    )
    finals = [
        (event.text, [reason.partition(" ")[0] for reason in event.unfamiliar]) for event in events if event.is_final
    ]
    assert finals == [("a", []), ("b", ["distance"]), ("b", []), ("aa", [])]  # 0.2 s are too short to tell


def test_a_stream_without_audio_says_nothing():
    stream = FrameStream(letters_model(), 1000)
    assert stream.accept(np.zeros(0, np.float32)) == stream.finish() == []
    assert stream.text == ""


def test_what_cannot_stream_by_frames_streams_in_segments_or_says_why(tmp_path):
    model = model_of(tmp_path, CONFIG)
    assert "takes mean and deviation of the whole utterance" in model.stream_problem()
    assert isinstance(model.stream(), SegmentStream)
    with pytest.raises(UsageError, match=r"cannot stream.*normalize takes mean and deviation"):
        model.stream(by="frames")
    able = model_of(tmp_path, QUARTZNET)
    assert isinstance(able.stream(by="segments"), SegmentStream)
    assert isinstance(able.stream(partial_seconds=None), SegmentStream)
    with pytest.raises(UsageError, match=r"settings of streams in segments.*partial_seconds"):
        able.stream(by="frames", partial_seconds=None)


@pytest.mark.parametrize("rate", [999, 800_000])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(UsageError, match="out of range"):
        FrameStream(letters_model(), rate)
    with pytest.raises(UsageError, match="above 0"):
        EndpointRules(pause=0)


class EachTwice:
    """A search that says each letter twice in its frame, as a transducer may, with a space before it."""

    def stream(self, most_frames):
        return FrameByFrame(Said(TimedLabels([], [], [], [])), self._next)

    def _next(self, states, frame, before):
        (said,) = before
        label = int(states["log_probs"].argmax())
        new = [0, label, 0, label] if label in (1, 2) else []
        ids, starts, ends, log_probs = map(list, said.labels)
        times = [frame] * len(new), [frame + 1] * len(new)
        return [Said(TimedLabels(ids + new, starts + times[0], ends + times[1], log_probs + [-0.1] * len(new)))]


class Said(NamedTuple):
    labels: TimedLabels
    score: float = 0.0


@pytest.mark.parametrize("size", [1, 3, None])
def test_words_that_share_a_frame_have_the_same_times_in_parts_as_in_the_whole(size):
    def times(rules):
        events = of_letters("ab..ba..ab..b......", rules, size, EachTwice())[0]
        finals = [event for event in events if event.is_final]
        return [(word.text, word.start, word.end) for event in finals for word in event.words], len(finals)

    whole, one = times(EndpointRules(pause=60.0, silence=60.0, longest=60.0))
    parts, several = times(EndpointRules(pause=60.0, silence=60.0, longest=0.2))
    assert parts == whole
    assert several > one == 1
    assert all(word[1] < word[2] for word in whole)
    assert all(before[2] <= word[1] for before, word in pairwise(whole))
