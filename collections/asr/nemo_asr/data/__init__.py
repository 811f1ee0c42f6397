"""Data layers of speech, and the parts to make another one of. Re-exports, nothing else."""

from nemo_asr.data.audio_to_text import AudioToTextDataLayer as AudioToTextDataLayer
from nemo_asr.data.kaldi import KaldiFeatureDataLayer as KaldiFeatureDataLayer
from nemo_asr.data.manifest import Manifest as Manifest
from nemo_asr.data.speech_data_layer import SpeechDataLayer as SpeechDataLayer
from nemo_asr.data.tarred import TarredAudioToTextDataLayer as TarredAudioToTextDataLayer
from nemo_asr.data.utterances import AudioFilesDataLayer as AudioFilesDataLayer
from nemo_asr.data.utterances import Reading as Reading
from nemo_asr.data.utterances import Utterance as Utterance
from nemo_asr.data.utterances import UtteranceReader as UtteranceReader
from nemo_asr.data.utterances import Utterances as Utterances
