"""Recordings in segments: the same texts as of the segments alone, times of the recording, no memory of hours."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import record
from toys.tone_model import train_tones
from toys.transcribing import transcribe

from nemo_asr.run.audio import files, reading
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting, Span
from nemo_asr.run.transcribe import driver
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.driver import Segmented, SpeechActivity, best_of_all, joined
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import ScoredText, Transcript, Word, as_json, as_srt
from nemo_lite import DeviceType, NeuralModuleFactory

RATE = 16000
TIGHT = Cutting(padding=0.0)  # the model of the tests has never met silence


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture
def run(trained):
    recipe, model = trained
    factory = NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)
    return lambda audio, **settings: transcribe(model, recipe.labels, RATE, audio, factory=factory, **settings)


@pytest.fixture
def sounds(tmp_path):
    """Recorded letters, as samples."""

    def sounds(*texts):
        for text in texts:
            record(tmp_path / f"{text}.wav", text)
        return [soundfile.read(tmp_path / f"{text}.wav", dtype="float32")[0] for text in texts]

    return sounds


def silence(seconds):
    return np.zeros(round(seconds * RATE), np.float32)


def test_words_of_all_segments_have_the_times_of_the_recording(run, sounds):
    first, second = sounds("cabbac", "abc")
    start = 2.0 + len(first) / RATE + 1.0
    whole = np.concatenate([silence(2.0), first, silence(1.0), second, silence(3.0)])
    (found,) = run([whole], audio_rate=RATE, cutting=TIGHT).transcripts
    cut = SpeechActivity(Recording("a", whole, RATE)).segments(TIGHT)
    assert found.text == " ".join(segment.text for segment in run(cut, cutting=None).transcripts)
    assert found.duration == pytest.approx(len(whole) / RATE, abs=1e-3)
    assert [span.start for span in found.segments] == pytest.approx([2.0, start], abs=0.05)
    assert found.words[0].start == pytest.approx(2.0, abs=0.25)
    assert found.words[-1].end == pytest.approx(start + len(second) / RATE, abs=0.15)


def test_what_is_measured_of_the_frames_of_a_recording_is_that_of_all_its_segments():
    moments = np.full((3, 3), 2.0)
    recording, segment = Recording("a", None, seconds=5.0), Transcript("a", (), 1.0, "a", distance=1.5, moments=moments)
    both = joined(recording, [segment, replace(segment, distance=2.5, duration=3.0)], " ")
    assert both.distance == 2.25
    assert (both.moments == 2 * moments).all()
    not_all = joined(recording, [segment, replace(segment, distance=None, moments=None)], " ")
    nothing = joined(recording, [], " ")
    assert [not_all.distance, not_all.moments, nothing.distance, nothing.moments] == [None] * 4


def test_sounds_are_measured_only_where_a_domain_is_compared_with_them(monkeypatch):
    recording = Recording("a", np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32), RATE)
    by_row = {0: Transcript("", (), 1.0, "a")}
    for cutting in (DEFAULT_CUTTING, None):
        (with_domain,) = Segmented([recording], cutting, ["a"], domain=Domain()).transcribed(by_row, {}).transcripts
        assert with_domain.sound.bandwidth == RATE / 2
    monkeypatch.delattr(driver, "SoundMeter")
    for cutting in (DEFAULT_CUTTING, None):
        (without,) = Segmented([recording], cutting, ["a"]).transcribed(by_row, {}).transcripts
        assert without.sound is None


def test_short_recordings_whose_sound_is_measured_are_read_once(sounds, tmp_path, monkeypatch):
    sounds("cab", "abba", "bc")
    recordings = [Recording(name, str(tmp_path / f"{name}.wav")) for name in ("cab", "abba", "bc")]
    found = {}
    for most in (0, 10_000, 1 << 24):
        monkeypatch.setattr(driver, "_MOST_IN_MEMORY", most)
        segmented = Segmented(recordings, None, ["a"], domain=Domain())
        by_row = {number: Transcript("", (), row.seconds, row.source) for number, row in enumerate(segmented.rows)}
        samples = [row.read(RATE).samples.tolist() for row in segmented.rows]
        found[most] = samples, [each.sound for each in segmented.transcribed(by_row, {}).transcripts]
        is_read = [isinstance(row.audio, np.ndarray) for row in segmented.rows]
        assert is_read == {0: [False] * 3, 10_000: [True, False, False], 1 << 24: [True] * 3}[most]
    assert found[0] == found[10_000] == found[1 << 24]


def test_segments_together_give_the_text_of_each_alone_to_the_bit(run, sounds):
    pieces = sounds("cab", "abbacab", "bc", "accab")
    whole = np.concatenate([part for piece in pieces for part in (silence(0.7), piece)])
    recording = Recording("a", whole, RATE)
    (found,) = run([recording], batch_size=16).transcripts
    segments = SpeechActivity(recording).segments(DEFAULT_CUTTING)
    assert len(segments) == 4
    alone = [run([segment], batch_size=1, cutting=None).transcripts[0] for segment in segments]
    words = [word for transcript in alone for word in transcript.words]
    assert [word.text for word in found.words] == [word.text for word in words]
    assert [word.confidence for word in found.words] == [word.confidence for word in words]


def test_a_part_of_a_file_is_cut_within_its_part(run, sounds, tmp_path):
    first, second = sounds("cab", "abc")
    samples = np.concatenate([first, silence(1.0), second, silence(1.0)])
    soundfile.write(tmp_path / "whole.flac", samples, RATE)
    offset = len(first) / RATE + 0.5
    part = Recording("whole.flac", str(tmp_path / "whole.flac"), offset=offset, duration=len(second) / RATE + 1.0)
    (found,) = run([part], cutting=TIGHT).transcripts
    assert found.offset == offset
    assert [span.start for span in found.segments] == pytest.approx([0.5], abs=0.05)
    assert [span.end for span in found.segments] == pytest.approx([0.5 + len(second) / RATE], abs=0.05)
    assert found.words[0].start == pytest.approx(0.5, abs=0.1)


def test_a_recording_of_silence_has_an_empty_transcript(run):
    result = run([silence(3.0)], audio_rate=RATE)
    (found,) = result.transcripts
    assert (found.text, found.words, found.segments, found.duration, result.faults) == ("", (), (), 3.0, {})


def test_a_recording_that_cannot_be_read_does_not_end_the_others(run, sounds, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    result = run([str(tmp_path / "bad.wav"), np.concatenate([silence(1.0), *sounds("cab")])], audio_rate=RATE)
    assert [transcript.text.replace(" ", "") for transcript in result.transcripts] == ["cab"]
    assert list(result.faults) == [0]
    assert "bad.wav" in result.faults[0]


def test_without_a_cut_recordings_are_transcribed_as_they_are(run, sounds):
    (sound,) = sounds("cab")
    (found,) = run([np.concatenate([silence(1.0), sound])], audio_rate=RATE, cutting=None).transcripts
    assert found.segments == ()


def test_a_segment_over_all_of_a_recording_is_read_as_a_whole():
    voice = np.random.default_rng(0).normal(0.0, 0.1, 2 * RATE).astype(np.float32)
    (segment,) = SpeechActivity(Recording("a", voice, RATE)).segments(DEFAULT_CUTTING)
    assert segment.offset is None


def test_texts_and_scores_of_segments_are_put_together():
    whole = Recording("a.wav", "a.wav", offset=10.0, seconds=9.0)
    first = Transcript("one", (Word("one", 0.1, 0.5, 0.9),), 1.0, "a.wav", 11.0, (ScoredText("one", -1.0),))
    silent = Transcript("", (), 1.0, "a.wav", 13.0)
    last = Transcript("two", (Word("two", 0.2, 0.6, 0.8),), 2.0, "a.wav", 16.0)
    found = joined(whole, [first, silent, last], " ")
    assert found.text == "one two"
    assert [(word.start, word.end) for word in found.words] == [(1.1, 1.5), (6.2, 6.6)]
    assert found.segments == (Span(1.0, 2.0), Span(3.0, 4.0), Span(6.0, 8.0))
    assert (found.offset, found.duration) == (10.0, 9.0)
    assert '"segments": [{"start": 1.0, "end": 2.0}' in as_json(found)
    assert "00:00:06,200 --> " in as_srt(found)
    assert joined(whole, [first, last], "").text == "onetwo"


def test_the_best_texts_of_a_recording_are_the_best_sums_over_its_segments():
    def scored(**scores):
        return [ScoredText(text, score) for text, score in scores.items()]

    segments = [scored(a=-1.0, b=-1.5, c=-9.0), [], scored(d=-0.5, e=-0.7, f=-3.0)]
    found = best_of_all(segments, " ")
    assert [text for text, _ in found] == ["a d", "a e", "b d"]
    assert [score for _, score in found] == pytest.approx([-1.5, -1.7, -2.0])
    assert best_of_all([[], []], " ") == ()


@pytest.mark.long
@pytest.mark.slow
def test_levels_of_two_hours_are_found_in_bounded_memory(tmp_path):
    path = tmp_path / "long.flac"
    with soundfile.SoundFile(path, "w", 16000, 1, "PCM_16") as file:
        voice = np.random.default_rng(0).normal(0.0, 0.1, 10 * RATE).astype(np.float32)
        for _ in range(360):
            file.write(voice)
            file.write(silence(10.0))
    tracemalloc.start()
    rows = Segmented([Recording("long.flac", str(path))], Cutting(), [" ", "a"]).rows
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 360
    assert rows[-1].offset == pytest.approx(7180.0, abs=0.2)
    assert peak < 100e6  # 7,200 s of samples are 460 MB


def test_segments_of_an_mp3_file_are_to_the_bit_those_of_the_whole_in_any_order(sounds, tmp_path):
    pieces = sounds("cab", "abbacab", "bc", "accab")
    noise = np.random.default_rng(0).normal(0, 1e-3, RATE).astype(np.float32)
    soundfile.write(tmp_path / "a.mp3", np.concatenate([part for piece in pieces for part in (noise, piece)]), RATE)
    recording = Recording("a.mp3", str(tmp_path / "a.mp3"))
    whole, segments = recording.read(RATE).samples, SpeechActivity(recording).segments(DEFAULT_CUTTING)
    assert len(segments) == 4
    for segment in reversed(segments):
        first = round(segment.offset * RATE)
        samples = segment.read(RATE).samples
        assert samples.tobytes() == whole[first : first + len(samples)].tobytes()


@pytest.fixture
def opened(monkeypatch):
    """The sources of all files that are opened."""
    sources, open_it = [], files.open_audio
    monkeypatch.setattr(
        reading, "open_audio", lambda source, *rest: (sources.append(source), open_it(source, *rest))[1]
    )
    return sources


def test_a_recording_is_opened_once_to_be_measured_and_cut(sounds, opened, tmp_path):
    sounds("cab")
    segmented = Segmented([Recording("a", str(tmp_path / "cab.wav"))], DEFAULT_CUTTING, [" ", "a"])
    assert segmented.rows[0].seconds > 0
    assert len(opened) == 1


@pytest.mark.parametrize(("rate", "channels", "suffix"), [(16000, 1, "wav"), (44100, 2, "wav"), (8000, 1, "flac")])
def test_segments_in_memory_are_to_the_bit_those_of_the_file_which_is_opened_once(
    rate, channels, suffix, opened, tmp_path
):
    loud = np.repeat(np.random.default_rng(1).random(30) > 0.4, round(0.2 * rate))[:, None]
    samples = loud * np.random.default_rng(2).normal(0.0, 0.1, (len(loud), channels))
    soundfile.write(tmp_path / f"a.{suffix}", samples, rate, subtype="PCM_16")
    of_file = Recording("a", (tmp_path / f"a.{suffix}").read_bytes())
    wanted = [
        row.read(RATE, int_values=True).samples for row in SpeechActivity(of_file).segments(Cutting(min_pause=0.1))
    ]
    assert len(wanted) > 2
    opened.clear()
    rows = SpeechActivity(of_file.in_memory(len(samples) * channels)).segments(Cutting(min_pause=0.1))
    for row, file_samples in zip(rows, wanted, strict=True):
        assert np.array_equal(row.read(RATE, int_values=True).samples, file_samples)
    assert len(opened) == 1


def test_long_recordings_and_other_samples_than_of_16_bits_stay_files(tmp_path):
    noise = np.random.default_rng(3).normal(0.0, 0.1, (8000, 2))
    for subtype in ("PCM_16", "FLOAT", "PCM_24"):
        soundfile.write(tmp_path / f"{subtype}.wav", noise, RATE, subtype=subtype)
        recording = Recording("a", (tmp_path / f"{subtype}.wav").read_bytes())
        assert isinstance(recording.in_memory(15_999).audio, bytes), subtype
        assert isinstance(recording.in_memory(16_000).audio, bytes) == (subtype != "PCM_16"), subtype
        assert recording.in_memory(16_000).seconds == 0.5
