"""The names of nemo_asr; each is imported when it is asked for."""

import types

from nemo_asr.augmentation import AudioAugmentor as AudioAugmentor
from nemo_asr.augmentation import TimeStretchAugmentation as TimeStretchAugmentation
from nemo_asr.commands.seeds import train_seeds as train_seeds
from nemo_asr.commands.training import TrainingRun as TrainingRun
from nemo_asr.commands.training import start_record as start_record
from nemo_asr.commands.training import trackers_of as trackers_of
from nemo_asr.compat import parts as parts
from nemo_asr.compat.kaldi import KaldiFeatureDataLayer as KaldiFeatureDataLayer
from nemo_asr.data.audio_files import AudioFilesDataLayer as AudioFilesDataLayer
from nemo_asr.data.check import warn_of_leaks as warn_of_leaks
from nemo_asr.data.evaluated_sets import ScoredSet as ScoredSet
from nemo_asr.data.labelled import AudioToSpeechLabelDataLayer as AudioToSpeechLabelDataLayer
from nemo_asr.data.scored_texts import clusters_in_data as clusters_in_data
from nemo_asr.data.scored_texts import hypotheses_in_data as hypotheses_in_data
from nemo_asr.data.scored_texts import references_in_data as references_in_data
from nemo_asr.data.scored_texts import write_transcripts as write_transcripts
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer as AudioToTextDataLayer
from nemo_asr.data.tarred import TarredAudioToTextDataLayer as TarredAudioToTextDataLayer
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder as BeamSearchCTCDecoder
from nemo_asr.decoding.beam_search import BeamSearchDecoderWithLM as BeamSearchDecoderWithLM
from nemo_asr.decoding.greedy import GreedyCTCDecoder as GreedyCTCDecoder
from nemo_asr.decoding.greedy import HypothesesType as HypothesesType
from nemo_asr.features.audio_preprocessor import AudioPreprocessor as AudioPreprocessor
from nemo_asr.features.augmentation import CropOrPadSpectrogramAugmentation as CropOrPadSpectrogramAugmentation
from nemo_asr.features.augmentation import MultiplyBatch as MultiplyBatch
from nemo_asr.features.augmentation import SpectrogramAugmentation as SpectrogramAugmentation
from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor as AudioToKaldiFbankPreprocessor
from nemo_asr.features.preprocessors import AudioPreprocessing as AudioPreprocessing
from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor as AudioToMelSpectrogramPreprocessor
from nemo_asr.features.preprocessors import AudioToMFCCPreprocessor as AudioToMFCCPreprocessor
from nemo_asr.features.preprocessors import AudioToSpectrogramPreprocessor as AudioToSpectrogramPreprocessor
from nemo_asr.models.conformer import ConformerEncoder as ConformerEncoder
from nemo_asr.models.contextnet import ContextNetDecoderForCTC as ContextNetDecoderForCTC
from nemo_asr.models.contextnet import ContextNetEncoder as ContextNetEncoder
from nemo_asr.models.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper import JasperEncoder as JasperEncoder
from nemo_asr.models.jasper import set_batch_norm_momentum as set_batch_norm_momentum
from nemo_asr.models.losses import CTCLossNM as CTCLossNM
from nemo_asr.models.speaker import JasperDecoderForSpkrClass as JasperDecoderForSpkrClass
from nemo_asr.run.transcribe.stream import EndpointRules as EndpointRules
from nemo_asr.scoring.rates import word_error_rate as word_error_rate
from nemo_asr.scoring.word_error_rate import WordErrorRate as WordErrorRate
from nemo_asr.tasks.families import Classifier as Classifier
from nemo_asr.tasks.families import ClassWires as ClassWires
from nemo_asr.tasks.families import connect_classifier as connect_classifier
from nemo_asr.tasks.family import Family as Family
from nemo_asr.tasks.family import Model as Model
from nemo_asr.tasks.family import Role as Role
from nemo_asr.tasks.family import Wires as Wires
from nemo_asr.tasks.family import connect as connect
from nemo_asr.tasks.family import register_family as register_family
from nemo_asr.tasks.fitting import leave_out_infeasible as leave_out_infeasible
from nemo_asr.tasks.fitting import warn_of_infeasible as warn_of_infeasible
from nemo_asr.tasks.recipe import Recipe as Recipe
from nemo_asr.tasks.recipe import load_class_recipe as load_class_recipe
from nemo_asr.tasks.recipe import load_recipe as load_recipe
from nemo_asr.tasks.recipe import recipe_from_text as recipe_from_text
from nemo_asr.tasks.registry import register as register
from nemo_asr.trained.best import AveragedModelCallback as AveragedModelCallback
from nemo_asr.trained.best import BestModelCallback as BestModelCallback
from nemo_asr.trained.fine_tuning import init_from as init_from
from nemo_asr.trained.fine_tuning import recipe_of as recipe_of
from nemo_asr.trained.folder import ModelCard as ModelCard
from nemo_asr.trained.folder import about_checkpoint as about_checkpoint
from nemo_asr.trained.folder import read_model as read_model
from nemo_asr.trained.model import TrainedModel as TrainedModel
from nemo_asr.trained.model import check_goes_on as check_goes_on
from nemo_asr.trained.model import describe as describe
from nemo_asr.trained.model import load_classifier as load_classifier
from nemo_asr.trained.model import load_model as load_model
from nemo_lite import __version__ as __version__
from nemo_lite.backends.pytorch.common import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_lite.backends.pytorch.nm import without_weights as without_weights
from nemo_lite.core.show import show_plan as show_plan

# NeMo's modules of these names (nemo_lite/base/aliases.py).
audio_preprocessing: types.ModuleType
beam_search_decoder: types.ModuleType
contextnet: types.ModuleType
data_layer: types.ModuleType
greedy_ctc_decoder: types.ModuleType
helpers: types.ModuleType
jasper: types.ModuleType
losses: types.ModuleType
metrics: types.ModuleType
