"""Re-exports under NeMo's module name; the code is in ``audio/``."""

from nemo_asr.audio.augmentor import AudioAugmentor as AudioAugmentor
from nemo_asr.audio.augmentor import perturbation_types as perturbation_types
from nemo_asr.audio.augmentor import register_perturbation as register_perturbation
from nemo_asr.audio.perturbation import GainPerturbation as GainPerturbation
from nemo_asr.audio.perturbation import ImpulsePerturbation as ImpulsePerturbation
from nemo_asr.audio.perturbation import NoisePerturbation as NoisePerturbation
from nemo_asr.audio.perturbation import Perturbation as Perturbation
from nemo_asr.audio.perturbation import ShiftPerturbation as ShiftPerturbation
from nemo_asr.audio.perturbation import SpeedPerturbation as SpeedPerturbation
from nemo_asr.audio.perturbation import TimeStretchPerturbation as TimeStretchPerturbation
from nemo_asr.audio.perturbation import WhiteNoisePerturbation as WhiteNoisePerturbation
