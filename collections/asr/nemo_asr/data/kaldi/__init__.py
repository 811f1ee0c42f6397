"""Features that Kaldi computed, with their texts. Re-exports, nothing else."""

from nemo_asr.data.kaldi.data_layer import KaldiFeatureDataLayer as KaldiFeatureDataLayer
