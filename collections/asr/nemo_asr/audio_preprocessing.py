"""Features and augmentation under the name of NeMo's module. Re-exports, nothing else."""

from nemo_asr.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.augment import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.augment import MultiplyBatch as MultiplyBatch
from nemo_asr.augment import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
