"""A re-export under NeMo's module name; the code is in ``decoding/beam_search.py``."""

from nemo_asr.decoding.beam_search import BeamSearchDecoderWithLM as BeamSearchDecoderWithLM
