"""The place where NeMo keeps this name: a re-export, nothing else."""

from nemo_asr.data.audio_to_text import AudioToTextDataLayer as AudioToTextDataLayer
