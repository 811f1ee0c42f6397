"""A re-export under NeMo's module name; the code is in ``data/audio_to_text.py``."""

from nemo_asr.data.audio_to_text import AudioToTextDataLayer as AudioToTextDataLayer
