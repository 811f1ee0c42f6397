"""Recordings to transcripts: in order, in windows, on any batch, with other decoders and encoders."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from toys.beam_search import PrefixBeamSearch
from toys.gru_encoder import GruEncoder
from toys.tone_corpus import record
from toys.tone_model import train_tones
from toys.transcribing import transcribe

from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.run.audio.reading import loud_part
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcribed
from nemo_asr.trained import engine as transcribing
from nemo_lite import DeviceType, NeuralModuleFactory
from nemo_lite.base.errors import DataError, UsageError

LETTER_SECONDS, PAUSE_SECONDS = 0.15, 0.02  # of tone_corpus


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture
def factory():
    return NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)


@pytest.fixture
def run(trained, factory):
    """transcribe() with the trained model, or with modules that take the place of its own."""
    recipe, model = trained

    def run(audio, modules=(), **settings):
        changed = replace(model, **dict(modules))
        return transcribe(changed, recipe.labels, recipe.sample_rate, audio, factory=factory, **settings)

    return run


@pytest.fixture
def files(tmp_path):
    """Recordings of different lengths and rates, and what is said in each."""
    texts = {"one.wav": "cab", "two.flac": "abbacab" * 3, "three.ogg": "b", "four.wav": "bc"}
    for number, (name, text) in enumerate(texts.items()):
        record(tmp_path / name, text, rate=(16000, 22050)[number % 2], channels=1 + number % 2)
    return {str(tmp_path / name): text for name, text in texts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"batch_size": 1}, {"batch_size": 2, "num_workers": 1}])
def test_the_result_is_in_the_order_given_whatever_the_batches(run, files, settings):
    found = run(list(files), **settings)
    assert [(each.source, each.text) for each in found.transcripts] == list(files.items())
    assert found.faults == {}
    assert found.seconds == pytest.approx(27 * (LETTER_SECONDS + PAUSE_SECONDS), abs=0.1)


@pytest.mark.slow
def test_words_have_the_times_of_their_sounds(trained, factory, tmp_path):
    """Without a space among the labels each letter is a word, and the first one is heard when it sounds."""
    recipe, model = trained
    record(tmp_path / "a.wav", "cabbac")
    labels = ["-", *recipe.labels[1:]]
    (found,) = transcribe(model, labels, 16000, [tmp_path / "a.wav"], factory=factory).transcripts
    assert found.text == "cabbac"
    for number, word in enumerate(found.words):
        begins = number * (LETTER_SECONDS + PAUSE_SECONDS)
        assert begins - 0.08 < word.start < word.end < begins + LETTER_SECONDS + 0.08
        assert word.confidence > 0.5
    assert found.duration == pytest.approx(6 * (LETTER_SECONDS + PAUSE_SECONDS), abs=0.01)


@pytest.mark.parametrize("search", [False, True])
def test_quiet_ends_are_left_out_and_times_count_from_the_beginning_of_the_recording(run, tmp_path, search):
    settings = {"cutting": None, "decoder": BeamSearchCTCDecoder([" ", "a", "b", "c"]) if search else None}
    record(tmp_path / "a.wav", "cabbac")
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    padded = np.pad(samples, (8192, 16000))
    loud = loud_part(padded)
    assert 8192 - 1024 <= loud.start <= 8192
    (alone,) = run([padded[loud]], audio_rate=rate, **settings).transcripts
    (found,) = run([padded], audio_rate=rate, trim_silence=True, **settings).transcripts
    assert (alone.text[:6], found.text, found.duration) == ("cabbac", alone.text, len(padded) / rate)
    for word, shifted in zip(alone.words, found.words, strict=True):
        assert shifted.confidence == word.confidence
        assert shifted.start == pytest.approx(word.start + loud.start / rate, abs=2e-3)
        assert shifted.end == pytest.approx(word.end + loud.start / rate, abs=2e-3)


def test_arrays_are_transcribed_as_files_are(run, files, tmp_path):
    samples, rate = soundfile.read(next(iter(files)))
    (found,) = run([samples], audio_rate=rate).transcripts
    assert (found.text, found.source) == ("cab", "audio[0]")
    assert [each.text for each in run([torch.from_numpy(samples)], audio_rate=rate).transcripts] == ["cab"]


def long_text():
    return "".join(np.random.default_rng(0).choice(list("abc"), 1100))


@pytest.mark.slow
def test_minutes_in_windows_give_the_text_times_and_confidences_of_the_whole_recording(run, tmp_path):
    record(tmp_path / "long.wav", long_text())
    (whole,) = run([tmp_path / "long.wav"], batch_seconds=3600).transcripts
    (windows,) = run([tmp_path / "long.wav"], batch_seconds=7).transcripts
    assert whole.duration > 180
    assert windows == whole
    # What the model can hear at all: a letter that comes twice in a row is the hardest.
    assert abs(len(whole.text) - len(long_text())) < 0.02 * len(long_text())


def test_a_search_that_finds_labels_has_their_times_too(run, files):
    greedy = run(list(files)).transcripts
    found = run(list(files), {"search": PrefixBeamSearch()}.items(), batch_seconds=2).transcripts
    assert [each.text for each in found] == [each.text for each in greedy]
    for mine, theirs in zip(found, greedy, strict=True):
        assert [(word.start, word.end) for word in mine.words] == [(word.start, word.end) for word in theirs.words]


def test_a_search_for_the_words_of_a_list_takes_the_place_of_the_models_own(run, trained, files, tmp_path):
    labels = trained[0].labels
    (tmp_path / "words.txt").write_text("cab\nbc\n")
    decoder = BeamSearchCTCDecoder(labels, lexicon=str(tmp_path / "words.txt"))
    found = run(list(files), decoder=decoder).transcripts
    assert {each.source: each.text for each in found if files[each.source] in ("cab", "bc")} == {
        source: text for source, text in files.items() if text in ("cab", "bc")
    }
    assert {word.text for each in found for word in each.words} <= {"cab", "bc"}


def test_an_nbest_has_the_text_first_with_falling_scores(run, trained, files):
    decoder = BeamSearchCTCDecoder(trained[0].labels)
    found = run(list(files), decoder=decoder, nbest=4, batch_size=3).transcripts
    for each in found:
        assert each.hypotheses[0].text == each.text == files[each.source]
        assert len({one.text for one in each.hypotheses}) == 4
        assert [one.score for one in each.hypotheses] == sorted((one.score for one in each.hypotheses), reverse=True)
    assert run(list(files), decoder=decoder).transcripts == [replace(each, hypotheses=()) for each in found]


def test_an_nbest_of_fewer_texts_has_those_alone(run, files, trained, tmp_path):
    (tmp_path / "words.txt").write_text("cab\n")
    decoder = BeamSearchCTCDecoder(trained[0].labels, beam_size=8, lexicon=str(tmp_path / "words.txt"))
    (found,) = run(list(files)[:1], decoder=decoder, nbest=8).transcripts
    texts = [one.text for one in found.hypotheses]
    assert texts[0] == "cab"
    assert len(set(texts)) == len(texts) < 8


def test_a_decoder_of_one_text_gives_no_nbest(run, files):
    with pytest.raises(
        UsageError, match=r"this decoder gives one text: got nbest 2, GreedyCTCDecoder; search with a beam"
    ):
        run(list(files), nbest=2)
    with pytest.raises(UsageError, match=r"so many hypotheses: got nbest 3, wanted 1 to 2, the beam; raise beam_size"):
        run(list(files), decoder=BeamSearchCTCDecoder([" ", "a", "b", "c"], beam_size=2), nbest=3)


@pytest.mark.slow
def test_an_encoder_that_does_not_say_how_far_it_sees_has_ten_seconds_of_context(run, tmp_path):
    torch.manual_seed(0)
    model = {"encoder": GruEncoder(32, hidden=64)}.items()
    record(tmp_path / "long.wav", long_text()[:400])
    whole, windows = (run([tmp_path / "long.wav"], model, batch_seconds=each) for each in (3600, 5))
    assert len(whole.transcripts[0].text) > 10
    assert windows.transcripts == whole.transcripts  # a GRU of random weights forgets quickly


def test_an_encoder_without_a_rule_for_its_shapes_gives_times_by_the_recording(run, files, monkeypatch):
    monkeypatch.setattr(transcribing, "stride_of", lambda wire: None)
    found = run(list(files)).transcripts
    assert [each.text for each in found] == list(files.values())
    assert all(word.end <= each.duration for each in found for word in each.words)


def test_bad_recordings_do_not_end_the_others(run, files, tmp_path):
    (tmp_path / "bad.wav").write_text("no audio")
    content = (tmp_path / "two.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(content[: len(content) // 2])  # its header is good
    names = [*files, str(tmp_path / "bad.wav"), str(tmp_path / "cut.flac"), "none.wav"]
    found = run(names[::-1], batch_size=2)
    assert [each.text for each in found.transcripts] == list(files.values())[::-1]
    assert sorted(found.faults) == [0, 1, 2]
    with pytest.raises(DataError, match=r"3 of the recordings cannot be read: .* file none.*cut\.flac is damaged"):
        found.or_error()


def test_a_recording_that_alone_turns_out_damaged_gives_nothing(run, files, tmp_path):
    content = (tmp_path / "two.flac").read_bytes()
    found = run([Recording("cut", content[: len(content) // 2])])
    assert (found.transcripts, list(found.faults)) == ([], [0])
    assert found.faults[0].startswith("cut: the audio is damaged (")


def test_nothing_runs_where_no_recording_can_be_read(run, tmp_path):
    (tmp_path / "bad.wav").write_text("no audio")
    found = run([tmp_path / "bad.wav"])
    assert (found.transcripts, found.seconds, list(found.faults)) == ([], 0.0, [0])
    assert run([]) == Transcribed([], {}, 0.0)


def test_numbers_out_of_range_are_refused(run):
    with pytest.raises(UsageError, match="batch_seconds is 0, wanted float above 0"):
        run([np.zeros(100)], audio_rate=16000, batch_seconds=0)
    with pytest.raises(UsageError, match="batch_size"):
        run([np.zeros(100)], audio_rate=16000, batch_size=0)


def test_a_default_factory_is_made_where_there_is_none(trained):
    recipe, model = trained
    NeuralModuleFactory.reset_default_factory()
    found = transcribe(model, recipe.labels, 16000, [np.zeros(16000)], audio_rate=16000)
    assert len(found.transcripts) == 1


@pytest.mark.parametrize(("level", "dtype"), [(None, torch.float32), ("O0", torch.float32), ("O2", torch.bfloat16)])
def test_without_a_factory_the_precision_is_that_of_the_one_made_last(trained, level, dtype):
    recipe, model = trained
    NeuralModuleFactory.reset_default_factory()
    if level is not None:
        NeuralModuleFactory(placement=DeviceType.CPU, optimization_level=level, amp_dtype="bfloat16")
    seen = []
    with model.encoder.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs[0].dtype)):
        transcribe(model, recipe.labels, 16000, [np.random.default_rng(0).normal(0, 0.1, 16000)], audio_rate=16000)
    assert set(seen) == {dtype}
    assert {weight.dtype for weight in model.encoder.parameters()} == {torch.float32}
