"""The recording of a request: which ones are read at once, which in another thread."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from toys.served import TellsLength, search_for, wav

from nemo_asr.audio.segments import DEFAULT_CUTTING
from nemo_asr.serve.batching import Batcher
from nemo_asr.serve.models import ServedModel
from nemo_asr.transcribe.inputs import Recording

pytest.importorskip("starlette")
pytest.importorskip("python_multipart")

from nemo_asr.serve.openai_api import ApiError, asked_for
from nemo_asr.serve.transcription import Transcription
from nemo_asr.serve.uploads import IN_MEMORY_BYTES, Upload


@pytest.fixture
def batcher():
    batcher = Batcher(TellsLength(), wait=60.0)
    yield batcher
    batcher.close()


@pytest.fixture
def new(batcher):
    model = ServedModel("toy", [" ", "a"], 16000, batcher, search_for)

    def new(audio, keywords="", detector=None, most_seconds=60.0):
        upload = Upload()
        upload.name, upload.audio = "a.wav", audio
        asked = asked_for([("keywords", keywords)], DEFAULT_CUTTING)
        return Transcription(model, asked, upload, most_seconds, detector)

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


def test_the_model_waits_for_a_request_until_its_segments_are_queued_and_no_longer(new, batcher):
    with batcher.expected() as has_come:
        work = new(wav(5, 8))
        work.begin(None, has_come)
        work.job.result.result(30)
        assert work.transcript().text == "8 11"
