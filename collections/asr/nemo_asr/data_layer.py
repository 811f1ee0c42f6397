"""Re-exports under NeMo's module name; the code is in ``data/``."""

from nemo_asr.data.audio_to_text import AudioToTextDataLayer as AudioToTextDataLayer
from nemo_asr.data.kaldi.data_layer import KaldiFeatureDataLayer as KaldiFeatureDataLayer
from nemo_asr.data.labelled.speech_label import AudioToSpeechLabelDataLayer as AudioToSpeechLabelDataLayer
from nemo_asr.data.tarred.data_layer import TarredAudioToTextDataLayer as TarredAudioToTextDataLayer
