"""Re-exports under NeMo's module name; the code is in ``audio/``."""

from nemo_asr.audio.augmentation import AudioAugmentor as AudioAugmentor
from nemo_asr.audio.augmentation import GainPerturbation as GainPerturbation
from nemo_asr.audio.augmentation import ImpulsePerturbation as ImpulsePerturbation
from nemo_asr.audio.augmentation import NoisePerturbation as NoisePerturbation
from nemo_asr.audio.augmentation import Perturbation as Perturbation
from nemo_asr.audio.augmentation import ShiftPerturbation as ShiftPerturbation
from nemo_asr.audio.augmentation import SpeedPerturbation as SpeedPerturbation
from nemo_asr.audio.augmentation import TimeStretchPerturbation as TimeStretchPerturbation
from nemo_asr.audio.augmentation import WhiteNoisePerturbation as WhiteNoisePerturbation
from nemo_asr.audio.augmentation import perturbation_types as perturbation_types
from nemo_asr.audio.augmentation import register_perturbation as register_perturbation
