"""nemo_asr: speech recognition with nemo_lite. Re-exports; the import registers the modules of ``known_modules``."""

import nemo_asr.known_modules
from nemo_asr.audio.augmentor import AudioAugmentor as AudioAugmentor
from nemo_asr.data.audio_files import AudioFilesDataLayer as AudioFilesDataLayer
from nemo_asr.data.audio_to_text import AudioToTextDataLayer as AudioToTextDataLayer
from nemo_asr.decoding.greedy import GreedyCTCDecoder as GreedyCTCDecoder
from nemo_asr.features.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.features.augmentation import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.features.augmentation import MultiplyBatch as MultiplyBatch
from nemo_asr.features.augmentation import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.features.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.features.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
from nemo_asr.models.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper import JasperEncoder as JasperEncoder
from nemo_asr.models.losses import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_asr.models.losses import CTCLossNM as CTCLossNM
from nemo_asr.recipe.feasibility import leave_out_infeasible as leave_out_infeasible
from nemo_asr.recipe.feasibility import warn_of_infeasible as warn_of_infeasible
from nemo_asr.recipe.recipe import Recipe as Recipe
from nemo_asr.recipe.recipe import load_recipe as load_recipe
from nemo_asr.recipe.recipe import recipe_from_text as recipe_from_text
from nemo_asr.recipe.registry import register as register
from nemo_asr.recipe.wiring import Model as Model
from nemo_asr.recipe.wiring import Wires as Wires
from nemo_asr.recipe.wiring import connect as connect
from nemo_asr.scoring.error_counts import word_error_rate as word_error_rate
from nemo_asr.trained.best import BestModelCallback as BestModelCallback
from nemo_asr.trained.card import ModelCard as ModelCard
from nemo_asr.trained.card import describe as describe
from nemo_asr.trained.folder import about_checkpoint as about_checkpoint
from nemo_asr.trained.folder import read_model as read_model
from nemo_asr.trained.model import TrainedModel as TrainedModel
from nemo_asr.trained.model import load_model as load_model
from nemo_lite.backends.pytorch.nm import without_weights as without_weights
from nemo_lite.core.show import show_plan as show_plan
