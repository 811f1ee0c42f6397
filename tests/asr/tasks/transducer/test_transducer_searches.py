"""What the searches of transducers give through the commands and classes that CTC has too."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
import soundfile
from toys.random_models import RATE, noise
from toys.random_transducers import BIG_BLANKS, TDT, config_of, random_transducer
from toys.tone_corpus import run_subcommand

import nemo_asr
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.decoding.transducer import TransducerBeamSearch
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.tasks.family import search_of
from nemo_asr.trained.calibrating import calibrate
from nemo_asr.trained.model import TrainedModel
from nemo_lite.base.errors import UsageError

pytestmark = pytest.mark.slow


def model_in(folder, joint=TDT, family="transducer", search="TransducerSearch: {max_symbols: 2}") -> TrainedModel:
    """A folder that can be loaded, and the model in it."""
    model = random_transducer(folder, f"{config_of(joint, family=family)}{search}\n")
    model.save(folder)
    model.place = str(folder)
    return model


@pytest.fixture(scope="module", params=["", TDT, BIG_BLANKS], ids=["RNN-T", "TDT", "big blanks"])
def model(request, tmp_path_factory) -> TrainedModel:
    return model_in(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def tdt(tmp_path_factory) -> TrainedModel:
    return model_in(tmp_path_factory.mktemp("tdt"))


def search(model, **options):
    return search_of(model.modules, model.card.labels, SearchOptions(**options) if options else None)


def times(transcript):
    return [(word.text, word.start, word.end) for word in transcript.words]


def test_what_a_search_reads_is_measured_alike_for_each_search(tdt):
    measuring = TrainedModel(tdt.place, tdt.recipe, tdt.modules, msgspec.structs.replace(tdt.card, domain=Domain()))
    (greedy,), (beam,) = (
        measuring.transcribe([noise(2)], RATE, decoder=decoder) for decoder in (None, search(tdt, beam_size=4))
    )
    assert (greedy.moments == beam.moments).all()
    assert greedy.moments[0, 0] > 5  # frames
    (uncut,) = measuring.transcribe([noise(2)], RATE, cutting=None)
    (unknowing,) = tdt.transcribe([noise(2)], RATE)
    assert [uncut.moments, unknowing.moments, unknowing.distance] == [None] * 3


OPTIONS = pytest.mark.parametrize("options", [{}, {"beam_size": 4}], ids=["greedy", "beam"])


@OPTIONS
def test_words_have_times_and_confidences_in_any_batch_and_windows(model, options):
    decoder = search(model, **options)
    recordings = [noise(3), noise(1, seed=1), noise(2, seed=2)]
    alone = [model.transcribe([samples], RATE, cutting=None, decoder=decoder)[0] for samples in recordings]
    together = model.transcribe(recordings, RATE, cutting=None, decoder=decoder)
    windows = model.transcribe(recordings, RATE, cutting=None, decoder=decoder, batch_seconds=0.7)
    assert len(alone[0].text) > 2 or options
    for one, other, third in zip(alone, together, windows, strict=True):
        assert times(one) == times(other) == times(third)
        for word in one.words:
            assert 0.0 <= word.start < word.end <= one.duration
            assert 0.0 < word.confidence <= 1.0


@pytest.mark.parametrize("nbest", [1, 3])
def test_the_networks_of_a_beam_are_in_evaluation_mode_as_the_model_is(tmp_path, nbest):
    prediction = "StatelessTransducerDecoder: {prednet: {pred_hidden: 20, dropout: 0.5}, context_size: 2}"
    model = random_transducer(tmp_path, config_of(TDT, prediction))
    decoder = search(model, beam_size=4)

    def heard():
        (transcript,) = model.transcribe([noise(2)], RATE, cutting=None, decoder=decoder, nbest=nbest)
        return transcript.hypotheses or transcript.words

    wanted = heard()
    assert wanted
    modules: Any = model.modules.modules
    for module in modules.values():
        module.train()
    assert heard() == wanted
    assert modules["prediction"].training  # it is put back


def test_a_search_with_words_and_several_hypotheses(model, tmp_path):
    samples = noise(1.5)
    (tmp_path / "words.txt").write_text("cab\nba\n")
    (tmp_path / "words.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-0.1\tcab\n-2\tba\n\n\\end\\\n"
    )
    plain, hot = search(model, beam_size=8), search(model, beam_size=8, hotwords=("cab",), hotword_weight=40.0)
    closed = search(model, beam_size=8, lexicon=str(tmp_path / "words.txt"), lm=str(tmp_path / "words.arpa"))
    before, after, words = (
        model.transcribe([samples], RATE, cutting=None, decoder=each)[0] for each in (plain, hot, closed)
    )
    assert "cab" not in before.text.split()
    assert "cab" in after.text.split()
    assert set(words.text.split()) <= {"cab", "ba"}
    (several,) = model.transcribe([samples], RATE, cutting=None, decoder=plain, nbest=3)
    texts = [each.text for each in several.hypotheses]
    assert texts[0].strip() == several.text == before.text
    assert len(set(texts)) == 3
    scores = [each.score for each in several.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert times(several) == times(before)


@pytest.mark.parametrize("options", [{}, {"beam_size": 4}, {"beam_size": 4, "hotwords": ("ab",)}])
@pytest.mark.parametrize("size", [4001, 24_000])
def test_a_stream_has_the_text_and_times_of_the_whole_recording(model, options, size):
    samples, decoder = noise(1.5), search(model, **options)
    (whole,) = model.transcribe([samples], RATE, decoder=decoder)  # in one segment, as the stream
    stream = model.stream(decoder=decoder, rules=nemo_asr.EndpointRules(silence=9, pause=9))
    events = []
    for first in range(0, len(samples), size):
        events += stream.accept(samples[first : first + size])
    events += stream.finish()
    assert stream.text == whole.text
    assert times(events[-1] if events else whole) == times(whole)


def test_a_hybrid_searches_with_the_head_that_its_own_search_reads(tdt, tmp_path):
    hybrid = model_in(tmp_path, family="hybrid")
    assert isinstance(search(hybrid, beam_size=2), TransducerBeamSearch)
    modules = {**hybrid.modules.modules, "search": nemo_asr.GreedyCTCDecoder()}
    family = nemo_asr.tasks.family.family_of("hybrid")
    assert isinstance(family.search(hybrid.card.labels, SearchOptions(2), modules), BeamSearchCTCDecoder)


def test_a_search_with_other_options_keeps_the_most_labels_at_a_frame(tmp_path):
    model = model_in(tmp_path, search="TransducerBeamSearch: {max_symbols: 3}")
    assert model.modules.search.max_symbols == search(model, beam_size=2).max_symbols == 3


def test_more_hypotheses_than_the_beam_are_refused(tdt):
    with pytest.raises(UsageError, match="a search cannot give so many hypotheses: got nbest 3, wanted 1 to 2"):
        tdt.transcribe([noise(1)], RATE, cutting=None, decoder=search(tdt, beam_size=2), nbest=3)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    lines = []
    for number in range(4):
        path = folder / f"{number}.wav"
        soundfile.write(path, noise(2, seed=number), RATE)
        lines.append(json.dumps({"audio_filepath": str(path), "duration": 2.0, "text": "ab ca"}))
    (folder / "set.json").write_text("\n".join(lines) + "\n")
    return folder


def test_the_commands_transcribe_and_eval_take_the_options_of_a_search(tdt, recordings, tmp_path):
    shared = ("--decoder", "beam", "--beam_size", 4, "--hotwords", "cab")
    audio = recordings / "0.wav"
    heard = run_subcommand("transcribe", tdt.place, audio, "--format", "srt", *shared)
    assert heard.code == 0, heard.err
    assert re.search(r"\d\d:\d\d:\d\d,\d{3} --> ", heard.out)
    scored = run_subcommand("eval", tdt.place, "--eval_datasets", recordings / "set.json", "--out", tmp_path, *shared)
    assert scored.code == 0, scored.err
    assert re.search(r"WER.*\d%", scored.out + scored.err)


def test_a_known_text_is_aligned_with_times_of_words_and_labels(model):
    samples = noise(3)
    (heard,) = model.transcribe([samples], RATE, cutting=None)
    for cutting in ({"cutting": None}, {}):
        (aligned,) = model.align([samples], [heard.text], RATE, **cutting)
        assert [word.text for word in aligned.words] == heard.text.split()
        starts = [word.start for word in aligned.words]
        assert starts == sorted(starts)
        for word in aligned.words:
            assert 0.0 <= word.start <= word.end <= 3.0
            assert 0.0 < word.confidence <= 1.0
    (whole,) = model.align([samples], [heard.text], RATE, cutting=None, delay=0.0)
    if model.modules.others["joint"].durations:  # untrained, the others pile labels up
        for word, other in zip(whole.words, heard.words, strict=True):
            assert abs(word.start - other.start) < 0.5
    (other,) = model.align([samples], ["c" * 9], RATE, cutting=None)
    assert other.score < whole.score <= 0.0


def test_texts_that_cannot_be_aligned_are_one_line_each(tdt, tmp_path):
    found = tdt.aligned([noise(1)] * 2, ["", "ab" * 200], audio_rate=RATE, cutting=None)
    assert "there is no text to align" in found.faults[0]
    assert "the text is longer than its recording: got 400 labels in 1." in found.faults[1]
    assert not found.alignments


def test_the_command_align_writes_times(tdt, recordings, tmp_path):
    aligned = run_subcommand("align", tdt.place, recordings / "set.json", "--out", tmp_path / "ctm", "--format", "ctm")
    assert aligned.code == 0, aligned.err
    written = (tmp_path / "ctm").read_text()
    assert re.search(r"^0 1 \d+\.\d{3} \d+\.\d{3} ab 0\.\d{3}$", written, re.MULTILINE), written


@OPTIONS
def test_confidences_of_words_are_calibrated_whichever_search_heard_them(tdt, recordings, options):
    files = [recordings / f"{number}.wav" for number in range(4)]
    decoder = search(tdt, **options)
    plain, calibrated = (
        [word for each in tdt.transcribed(files, decoder=decoder, calibration=given).transcripts for word in each.words]
        for given in (None, lambda confidence: confidence / 2)
    )
    assert [word.confidence for word in calibrated] == pytest.approx([w.confidence / 2 for w in plain], abs=2e-3)
    assert plain


def test_a_calibration_is_learnt_from_the_words_of_a_transducer(tdt, tmp_path):
    lines = []
    for number in range(24):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, noise(3, seed=number), RATE)
        (heard,) = tdt.transcribe([path])
        text = heard.text if number % 2 else "b"
        lines.append(json.dumps({"audio_filepath": str(path), "duration": 3.0, "text": text}))
    (tmp_path / "set.json").write_text("\n".join(lines) + "\n")
    record, _ = calibrate(tdt, str(tmp_path / "set.json"))
    (measured,) = record.sets
    assert 0.4 < measured.before.right < 0.7
    assert measured.after.error < measured.before.error
