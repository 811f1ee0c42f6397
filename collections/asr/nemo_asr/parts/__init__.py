"""The import places of NeMo's speech parts: re-exports, and NeMo's shapes around our own parts."""

from nemo_asr.audio.augmentation import WaveformFeaturizer as WaveformFeaturizer
from nemo_asr.parts import cleaners as cleaners
from nemo_asr.parts import collections as collections
from nemo_asr.parts import dataset as dataset
from nemo_asr.parts import features as features
from nemo_asr.parts import jasper as jasper
from nemo_asr.parts import manifest as manifest
from nemo_asr.parts import parsers as parsers
from nemo_asr.parts import perturb as perturb
from nemo_asr.parts import segment as segment
from nemo_asr.parts import spectr_augment as spectr_augment
from nemo_asr.parts.dataset import AudioDataset as AudioDataset
from nemo_asr.parts.dataset import AudioLabelDataset as AudioLabelDataset
