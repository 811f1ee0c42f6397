"""NeMo's import paths of its speech collection, and a short one that users write. Data only."""

from __future__ import annotations

# Module of today -> NeMo's paths of its names, all below nemo_asr.
PATHS = {
    "": "losses",
    "augmentation": "audio_preprocessing parts.perturb parts.segment",
    "compat.callbacks": "helpers",
    "compat.kaldi": "data_layer",
    "compat.parts": """
        parts.cleaners parts.collections parts.dataset parts.features parts.jasper parts.manifest parts.parsers
        parts.spectr_augment parts
    """,
    "compat.pretrained": "models.asrconvctcmodel",
    "data.labelled": "data_layer",
    "data.speech_data_layer": "data_layer",
    "data.tarred": "data_layer",
    "decoding.beam_search": "beam_search_decoder",
    "decoding.greedy": "greedy_ctc_decoder helpers",
    "features": "audio_preprocessing",
    "models.contextnet": "contextnet jasper",
    "models.jasper": "jasper",
    "models.losses": "losses",
    "models.speaker": "jasper",
    "run.audio.reading": "audio",
    "scoring.classification": "metrics",
    "scoring.nemo_lines": "helpers",
    "scoring.rates": "helpers metrics",
}
