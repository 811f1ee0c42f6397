"""Re-exports under NeMo's module name; the code is in ``features/``."""

from nemo_asr.audio.augmentation import TimeStretchAugmentation as TimeStretchAugmentation
from nemo_asr.features.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.features.augmentation import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.features.augmentation import MultiplyBatch as MultiplyBatch
from nemo_asr.features.augmentation import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.features.first_generation import AudioPreprocessing as AudioPreprocessing
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.features.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.features.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
