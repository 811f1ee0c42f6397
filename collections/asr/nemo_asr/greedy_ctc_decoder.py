"""A re-export under NeMo's module name; the code is in ``decoding/greedy.py``."""

from nemo_asr.decoding.greedy import GreedyCTCDecoder as GreedyCTCDecoder
