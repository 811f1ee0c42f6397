"""The way of recordings through any engine: rows in batches, one batch without a loader, rows of a server."""

from __future__ import annotations

import numpy as np
import pytest
from toys.onnx_toy import RATE, write_toy
from toys.tone_corpus import record
from toys.tone_model import train_tones
from toys.transcribing import transcribe as transcribe_tones

from nemo_asr.run.engines import Row, TranscriptionSettings
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.transcribe.driver import in_batches, row_transcriber, transcribe
from nemo_asr.run.transcribe.inputs import Recording, recordings_in
from nemo_asr.trained.engine import RecordingsDataLayer
from nemo_lite import DeviceType, NeuralModuleFactory


def test_rows_come_in_batches_with_their_own_numbers_and_faults():
    rows = [Recording(name, "", seconds=seconds) for name, seconds in (("a", 1.0), ("b", 3.0), ("c", 2.0))]
    batches, faults = [], {}

    def compute(batch, faults_of_batch):
        batches.append([row.source for row in batch])
        for number, row in enumerate(batch):
            if row.source == "c":
                faults_of_batch[number] = "c is damaged"
            else:
                yield Row(number, row.source, 0.0, 0.02)

    found = list(in_batches(rows, faults, TranscriptionSettings(batch_size=2), compute))
    assert batches == [["b", "c"], ["a"]]
    assert {row.number: row.value for row in found} == {0: "a", 1: "b"}
    assert faults == {2: "c is damaged"}


@pytest.mark.slow
def test_one_batch_alone_has_the_transcripts_that_a_loader_gives(tmp_path, monkeypatch):
    recipe, model = train_tones(tmp_path)
    factory = NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)
    for name in ("cabbac", "abc", "b"):
        record(tmp_path / f"{name}.wav", name)
    paths = [str(tmp_path / f"{name}.wav") for name in ("abc", "cabbac", "b")]
    arguments = (model, recipe.labels, recipe.sample_rate, paths)
    loaded = transcribe_tones(*arguments, factory=factory, num_workers=1)
    assert [each.text for each in loaded.transcripts] == ["abc", "cabbac", "b"]
    monkeypatch.setattr(RecordingsDataLayer, "loader", None)
    assert transcribe_tones(*arguments, factory=factory) == loaded


def test_rows_of_a_program_that_serves_are_transcribed_as_they_are(tmp_path):
    model = OnnxModel(write_toy(tmp_path / "toy.onnx"))
    rows = [row.measured() for row in recordings_in([np.array([1, 4, 2, 4], np.float32)], RATE)]
    (whole,) = transcribe(model, rows, TranscriptionSettings(cutting=None)).transcripts
    of_rows = row_transcriber(model, TranscriptionSettings())
    assert of_rows([*rows, Recording("none", "none.wav", seconds=1.0)]).transcripts == [whole]
    assert list(of_rows([Recording("none", "none.wav", seconds=1.0)]).faults) == [0]
