"""Recordings to transcripts by modules that no model folder has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.transcribe.driver import transcribe as transcribe_recordings
from nemo_asr.run.transcribe.inputs import recordings_in
from nemo_asr.run.transcribe.transcript import Transcribed
from nemo_asr.tasks.family import Model
from nemo_asr.trained.engine import TorchEngine
from nemo_lite import NeuralModuleFactory


def transcribe(
    model: Model,
    labels: Sequence[str],
    sample_rate: int,
    audio: Sequence[Any],
    *,
    audio_rate: int | None = None,
    channel: int | str | None = None,
    factory: NeuralModuleFactory | None = None,
    decoder: object = None,
    trim_silence: bool = False,
    int_values: bool = False,
    **settings: Any,
) -> Transcribed:
    """As ``TrainedModel.transcribed``."""
    engine = TorchEngine(model, labels, sample_rate, factory, trim_silence=trim_silence, int_values=int_values)
    recordings = recordings_in(audio, audio_rate, channel)
    return transcribe_recordings(engine, recordings, TranscriptionSettings(search=decoder, **settings))
