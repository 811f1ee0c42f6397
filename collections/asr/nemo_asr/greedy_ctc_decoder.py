"""The greedy decoder under the name of NeMo's module. A re-export, nothing else."""

from nemo_asr.decoding.greedy import GreedyCTCDecoder as GreedyCTCDecoder
