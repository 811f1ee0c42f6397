"""The greedy decoder under the name of NeMo's module. A re-export, nothing else."""

from nemo_asr.decoders import GreedyCTCDecoder as GreedyCTCDecoder
