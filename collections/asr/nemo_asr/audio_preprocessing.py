"""Features and augmentation under the name of NeMo's module. Re-exports, nothing else."""

from nemo_asr.features.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.features.augmentation import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.features.augmentation import MultiplyBatch as MultiplyBatch
from nemo_asr.features.augmentation import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.features.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.features.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
