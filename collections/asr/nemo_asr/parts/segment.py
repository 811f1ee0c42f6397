"""A re-export under NeMo's module name; the code is in ``audio/segment.py``."""

from nemo_asr.audio.segment import AudioSegment as AudioSegment
