"""The recording of a request: which ones are read at once, which in another thread."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
import soundfile
from toys.served import TellsLength, search_for, wav

from nemo_asr.run.audio import files
from nemo_asr.run.audio.decoded import decode_pieces
from nemo_asr.run.audio.segments import DEFAULT_CUTTING
from nemo_asr.run.serve.batching import Batcher
from nemo_asr.run.serve.models import ServedModel
from nemo_asr.run.transcribe.inputs import Recording

pytest.importorskip("starlette")
pytest.importorskip("python_multipart")

from nemo_asr.run.serve.openai_api import ApiError, asked_for
from nemo_asr.run.serve.transcription import Transcription
from nemo_asr.run.serve.uploads import IN_MEMORY_BYTES, Upload
from nemo_asr.run.serve.watching import Turns, Watch


@pytest.fixture
def batcher():
    batcher = Batcher(TellsLength(), wait=60.0)
    yield batcher
    batcher.close()


@pytest.fixture
def new(batcher):
    model = ServedModel("toy", [" ", "a"], 16000, batcher, search_for)

    def new(audio, keywords="", detector=None, most_seconds=60.0, most_values=1 << 30):
        upload = Upload()
        upload.name, upload.audio = "a.wav", audio
        asked = asked_for([("keywords", keywords)], DEFAULT_CUTTING)
        watch = Watch(Turns(2), most_values, time.monotonic() + 60.0, ApiError(503, "too late"))
        return Transcription(model, asked, upload, most_seconds, detector, watch)

    return new


def content(kind, samples, **settings):
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format=kind, **settings)
    return file.getvalue()


NOISE = np.random.default_rng(0).normal(0.0, 0.1, 16000)


def test_short_recordings_of_16_bits_are_read_at_once(new):
    for audio in (wav(5, 8), content("FLAC", NOISE), content("WAV", np.stack([NOISE, NOISE], 1), subtype="PCM_16")):
        assert new(audio).read_if_quick()


def test_what_takes_long_is_left_to_another_thread(new):
    silence = np.zeros(IN_MEMORY_BYTES // 2 + 1, np.int16)
    for audio in (content("WAV", NOISE, subtype="FLOAT"), content("FLAC", silence)):
        assert not new(audio).read_if_quick()


def test_what_may_take_long_is_not_even_opened(new, monkeypatch, tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(5))
    monkeypatch.setattr(Recording, "in_memory", None)
    for audio in (content("MP3", NOISE), content("OGG", NOISE), str(tmp_path / "a.wav")):
        assert not new(audio).read_if_quick()
    assert not new(wav(5), keywords="nairobi").read_if_quick()
    assert not new(wav(5), detector=lambda pieces, rate: (np.ones(9, bool), 0.1)).read_if_quick()


def test_what_was_read_at_once_is_refused_as_in_a_thread(new):
    for audio, most_seconds, told in (
        (wav(5)[:60], 60.0, "is damaged"),
        (wav(5), 1.0, "it lasts 2 s, wanted at most 1 s"),
    ):
        messages = []
        for read in (lambda work: work.read_if_quick(), lambda work: work.begin(None, lambda: None)):
            with pytest.raises(ApiError) as error:
                read(new(audio, most_seconds=most_seconds))
            messages.append(error.value.message)
        assert messages[0] == messages[1]
        assert told in messages[0]


def test_a_recording_with_more_samples_than_may_be_is_refused_before_any_is_decoded(new, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.audio.files.AudioFile._read", None)
    many = np.zeros((8000, 8), np.int16)
    for audio in (content("FLAC", many), content("WAV", many, subtype="FLOAT")):
        work = new(audio, most_values=63_999)
        message = "file: it has too many samples, wanted at most 63999 of all channels; resample it"
        with pytest.raises(ApiError, match=message) as told:
            work.begin_in_turn(None, lambda: None)
        assert (told.value.status, told.value.code) == (413, "file_too_large")


def test_parts_of_a_compressed_recording_are_decoded_before_the_model_has_them(new, monkeypatch):
    decoded, decode = [], decode_pieces
    monkeypatch.setattr(files, "decode_pieces", lambda *args, **named: decoded.append(1) or decode(*args, **named))
    speech, pause = 0.3 * np.sin(np.arange(16000) * 0.2), np.zeros(16000)
    work = new(content("OGG", np.concatenate([pause, speech, pause, speech, pause])))
    work.begin_in_turn(None, lambda: None)
    work.job.result.result(30)
    assert len(work.transcript().segments) == 2
    assert decoded


def test_what_has_ended_is_not_computed(new):
    work = new(wav(5, 8), keywords="nairobi")
    work._watch.end(ApiError(499, "the client has left"))
    with pytest.raises(ApiError, match="the client has left"):
        work.begin_in_turn(None, lambda: None)
    assert work.job is None


def test_channels_that_cancel_each_other_are_told_also_of_a_short_recording(new, caplog):
    tone = 0.3 * np.sin(np.arange(16000) * 0.2)
    for phase, told in ((1.0, False), (-1.0, True)):
        for kind in ("WAV", "FLAC"):
            caplog.clear()
            assert new(content(kind, np.stack([tone, phase * tone], 1), subtype="PCM_16")).read_if_quick()
            assert ("a.wav: its channels cancel each other when they are averaged" in caplog.text) == told


def test_the_model_waits_for_a_request_until_its_segments_are_queued_and_no_longer(new, batcher):
    with batcher.expected() as has_come:
        work = new(wav(5, 8))
        work.begin(None, has_come)
        work.job.result.result(30)
        assert work.transcript().text == "8 11"
