"""Where somebody speaks and no word stands is searched again, and told where still no word is found."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.engines import Row, TranscriptionSettings
from nemo_asr.run.search.search import Hypotheses, TimedLabels
from nemo_asr.run.transcribe import driver
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.driver import SpeechActivity, row_transcriber, transcribe
from nemo_asr.run.transcribe.gaps import gaps_in, without_words
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript, Word, as_json
from nemo_lite.backends.pytorch.distributed.comm import decode, encode

RATE = 16000
FRAME = 0.1  # seconds


def bursts(*seconds: float) -> np.ndarray:
    """Noise and silence by turns, of so many seconds; 20 ms of silence in each burst every 0.1 s, as syllables have."""
    draw = np.random.default_rng(0)
    parts = []
    for number, length in enumerate(seconds):
        part = draw.standard_normal(round(length * RATE)).astype(np.float32) * (0.0 if number % 2 else 0.1)
        parts.append(part + draw.standard_normal(len(part)).astype(np.float32) * 1e-4)
    return np.concatenate(parts)


class OneWord:
    """An engine that finds one word at the beginning of what it is given, and what it was given; longer is nothing."""

    labels: Sequence[str] = (" ", "a", "b")
    sample_rate = RATE
    longest_seconds = None
    may_invent = False
    domain = None

    def __init__(self, longest: float = 100.0) -> None:
        self.longest, self.given = longest, list[list[float]]()

    def hypotheses(self, rows, faults, settings):
        self.given.append([round(row.seconds, 2) for row in rows])
        for number, row in enumerate(rows):
            label = 1 if len(self.given) == 1 else 2
            found = [] if row.seconds > self.longest else [label]
            scored = [(found, -1.0), ([], -2.0)][: settings.nbest] if settings.nbest > 1 else []
            best = TimedLabels(found, [2] * len(found), [4] * len(found), [-0.1] * len(found))
            yield Row(number, Hypotheses(best, scored), 0.0, FRAME)

    def of_one_batch(self, settings):
        return lambda rows, faults: self.hypotheses(rows, faults, settings)

    def from_first(self, function):
        return decode(torch.cat(encode(function())))  # as it travels between ranks


def recording(*seconds: float) -> Recording:
    return Recording("a.wav", bursts(*seconds), RATE)


def test_a_recording_that_is_not_cut_is_heard_once_for_its_sound_its_gaps_and_its_doubts(monkeypatch) -> None:
    class Inventing(OneWord):
        may_invent = True
        domain = Domain()

    heard = []
    measured = SpeechActivity
    monkeypatch.setattr(
        driver, "SpeechActivity", lambda *args, **options: heard.append(1) or measured(*args, **options)
    )
    settings = TranscriptionSettings(cutting=None)
    (found,) = transcribe(Inventing(), [recording(0.5, 0.3, 1.0)], settings).or_error()
    assert (len(found.gaps), found.doubtful, found.sound is not None, len(heard)) == (1, (), True, 1)


def test_a_gap_is_searched_again_as_a_recording_of_its_own() -> None:
    engine = OneWord()
    (found,) = transcribe(engine, [recording(0.5, 0.3, 1.0)], TranscriptionSettings()).or_error()
    first, again = engine.given
    assert (first, len(again)) == ([1.8], 1)
    assert again[0] == pytest.approx(1.15, abs=0.1)  # the second burst, and 0.15 s in front of it
    assert found.text == "a b"
    assert [word.start for word in found.words] == pytest.approx([0.2, 0.85], abs=0.05)
    assert found.gaps == ()


def test_a_gap_in_which_no_word_is_found_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    engine = OneWord(longest=1.0)
    (found,) = transcribe(engine, [recording(0.2, 0.5, 2.0)], TranscriptionSettings()).or_error()
    assert found.text == "a"
    assert [list(gap) for gap in found.gaps] == [pytest.approx([0.6, 2.7], abs=0.1)]
    assert json.loads(as_json(found))["gaps"] == [{"start": found.gaps[0].start, "end": found.gaps[0].end}]
    assert "a.wav: somebody speaks, and no word was found: 0.5 to 2.7 s" in capfd.readouterr().err


def test_of_a_set_that_is_measured_the_recordings_with_gaps_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    recordings = [recording(0.2, 0.5, 2.0), recording(0.3), recording(0.2, 0.5, 2.0)]
    transcribe(OneWord(longest=1.0), recordings, TranscriptionSettings(count_gaps=True))
    told = capfd.readouterr().err.strip()
    assert told == "warning: In 2 of 3 recordings somebody speaks where no word was found, such as a.wav"


class ReadOnce(OneWord):
    """An engine for which nothing can be read a second time."""

    def hypotheses(self, rows, faults, settings):
        if self.given:
            faults[0] = "it is gone"
            return []
        return super().hypotheses(rows, faults, settings)


def test_a_gap_that_cannot_be_read_again_is_told_and_is_no_fault_of_another_recording() -> None:
    settings, recordings = TranscriptionSettings(), [recording(0.5), recording(0.5, 0.3, 1.0)]
    whole, with_gap = transcribe(ReadOnce(), recordings, settings).or_error()
    of_rows = row_transcriber(ReadOnce(), settings)([each.measured() for each in recordings]).or_error()
    assert (whole.text, with_gap.text, [row.text for row in of_rows]) == ("a", "a", ["a", "a"])
    assert len(with_gap.gaps) == 1


def test_of_several_hypotheses_a_gap_is_told_and_not_searched_again() -> None:
    engine = OneWord()
    settings = TranscriptionSettings(nbest=2)
    (found,) = transcribe(engine, [recording(0.5, 0.3, 1.0)], settings).or_error()
    assert len(engine.given) == 1
    assert len(found.gaps) == 1


def test_words_without_room_between_them_need_no_levels() -> None:
    (found,) = row_transcriber(OneWord(), TranscriptionSettings())([recording(1.0).measured()]).or_error()
    assert (found.text, found.gaps) == ("a", ())


def test_a_file_that_is_gone_when_gaps_are_looked_for_keeps_its_words_and_ends_no_other(tmp_path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, bursts(0.5, 0.3, 1.0), RATE)

    class Removing(OneWord):
        def hypotheses(self, rows, faults, settings):
            yield from super().hypotheses(rows, faults, settings)
            path.unlink(missing_ok=True)

    gone, other = transcribe(
        Removing(), [Recording("a", str(path)), recording(1.0)], TranscriptionSettings()
    ).or_error()
    assert (gone.text, gone.gaps, other.text) == ("a", (), "a")


def test_a_gap_of_a_file_that_is_gone_when_it_is_searched_again_is_told(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, bursts(0.5, 0.3, 1.0), RATE)
    read = []

    class Counted(SpeechActivity):
        def __init__(self, recording, detector=None, with_sound=False):
            read.append(recording)
            super().__init__(recording, detector, with_sound)

    class RemovedBehindTheFirst(ReadOnce):
        def hypotheses(self, rows, faults, settings):
            if self.given:
                path.unlink()
            return super().hypotheses(rows, faults, settings)

    monkeypatch.setattr(driver, "SpeechActivity", Counted)
    (found,) = transcribe(RemovedBehindTheFirst(), [Recording("a", str(path))], TranscriptionSettings()).or_error()
    assert found.text == "a"
    assert [list(gap) for gap in found.gaps] == [pytest.approx([0.8, 1.8], abs=0.15)]
    assert len(read) == 2  # to cut it, and to find the gap


def test_silence_is_no_gap() -> None:
    engine = OneWord()
    (found,) = transcribe(engine, [recording(0.5, 3.0)], TranscriptionSettings(cutting=None)).or_error()
    assert (found.text, found.gaps, len(engine.given)) == ("a", (), 1)


def test_a_gap_is_what_is_spoken_of_the_parts_without_words() -> None:
    words = [Word("a", 1.0, 1.2, 1.0), Word("b", 4.0, 4.1, 1.0)]
    parts = without_words(words, 5.0)
    assert parts == [Span(0.0, 0.7), Span(1.5, 3.7), Span(4.3999999999999995, 5.0)]
    assert gaps_in(parts, [Span(0.3, 2.2), Span(3.3, 5.0)]) == [Span(1.5, 2.2), Span(4.4, 5.0)]


def test_gaps_of_segments_are_told_in_the_time_of_the_recording() -> None:
    engine = OneWord(longest=0.0)
    (found,) = transcribe(engine, [recording(1.0, 2.0, 1.0)], TranscriptionSettings()).or_error()
    assert isinstance(found, Transcript)
    assert [list(gap) for gap in found.gaps] == [pytest.approx([0, 1], abs=0.1), pytest.approx([3, 4], abs=0.1)]
