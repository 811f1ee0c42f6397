"""Transcribed speech in tar shards: the data layer over them, and their maker. Re-exports, nothing else."""

from nemo_asr.data.tarred.data_layer import TarredAudioToTextDataLayer as TarredAudioToTextDataLayer
from nemo_asr.data.tarred.making import make_shards as make_shards
