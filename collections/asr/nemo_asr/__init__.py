"""nemo_asr: speech recognition with nemo_lite. Re-exports, nothing else."""

from nemo_asr.audio_files import AudioFilesDataLayer as AudioFilesDataLayer
from nemo_asr.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.augment import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.augment import MultiplyBatch as MultiplyBatch
from nemo_asr.augment import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.data_layer import AudioToTextDataLayer as AudioToTextDataLayer
from nemo_asr.decoders import GreedyCTCDecoder as GreedyCTCDecoder
from nemo_asr.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.jasper import JasperEncoder as JasperEncoder
from nemo_asr.losses import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_asr.losses import CTCLossNM as CTCLossNM
from nemo_asr.metrics import word_error_rate as word_error_rate
from nemo_asr.perturb import AudioAugmentor as AudioAugmentor
from nemo_asr.plan import leave_out_infeasible as leave_out_infeasible
from nemo_asr.plan import show_plan as show_plan
from nemo_asr.plan import warn_of_infeasible as warn_of_infeasible
from nemo_asr.plan import without_weights as without_weights
from nemo_asr.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
from nemo_asr.recipe import Recipe as Recipe
from nemo_asr.recipe import load_recipe as load_recipe
