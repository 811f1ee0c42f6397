"""The families and modules that a model's YAML may name: one line each; ``role`` where ports are properties."""

from __future__ import annotations

from nemo_asr.data.labelled import AudioToSpeechLabelDataLayer
from nemo_asr.data.speech_data_layer import AudioToTextDataLayer
from nemo_asr.data.tarred import TarredAudioToTextDataLayer
from nemo_asr.decoding.attention import AttentionRescoring, AttentionSearch
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.decoding.greedy import GreedyCTCDecoder
from nemo_asr.decoding.transducer import TransducerBeamSearch, TransducerSearch
from nemo_asr.features.augmentation import MultiplyBatch, SpectrogramAugmentation
from nemo_asr.features.fbank import AudioToKaldiFbankPreprocessor
from nemo_asr.features.mel_deltas import AudioToMelDeltasPreprocessor
from nemo_asr.features.preprocessors import (
    AudioToMelSpectrogramPreprocessor,
    AudioToMFCCPreprocessor,
    AudioToSpectrogramPreprocessor,
)
from nemo_asr.features.waveform import AudioToWaveformPreprocessor
from nemo_asr.features.whisper_mel import AudioToWhisperMelPreprocessor
from nemo_asr.models.attention.decoder import TransformerDecoder
from nemo_asr.models.attention.loss import AttentionLoss
from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.models.attention.whisper_decoder import WhisperDecoder
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.models.contextnet import ContextNetDecoderForCTC, ContextNetEncoder
from nemo_asr.models.granite import GraniteSpeechEncoder
from nemo_asr.models.jasper import JasperDecoderForClassification, JasperDecoderForCTC, JasperEncoder
from nemo_asr.models.lasr import LasrEncoder
from nemo_asr.models.losses import AuxiliaryCTCLoss, CTCLossNM
from nemo_asr.models.speaker import JasperDecoderForSpkrClass
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.loss import RNNTLoss
from nemo_asr.models.transducer.prediction import RNNTDecoder, StatelessTransducerDecoder
from nemo_asr.models.transducer.prompt import LanguagePrompt
from nemo_asr.models.wav2vec import Wav2VecEncoder
from nemo_asr.models.wav2vec_bert import Wav2VecBertEncoder
from nemo_asr.models.whisper import WhisperEncoder
from nemo_asr.tasks.attention import Attention, CTCAttention
from nemo_asr.tasks.families import CTC, Classification
from nemo_asr.tasks.family import register_family
from nemo_asr.tasks.registry import OlderArgument, register, register_models
from nemo_asr.tasks.transducer import Hybrid, Transducer
from nemo_lite.backends.pytorch.common import CrossEntropyLossNM

register_family("ctc", CTC())
register_family("classification", Classification())
register_family("transducer", Transducer())
register_family("hybrid", Hybrid())
register_family("attention", Attention())
register_family("ctc_attention", CTCAttention())
register(AudioToTextDataLayer, default=True)
register(TarredAudioToTextDataLayer)
register(
    AudioToMelSpectrogramPreprocessor,
    role="preprocessor",
    older_names=["AudioPreprocessing"],
    older_arguments={"feat_type": OlderArgument("log", {"logfbank": True, "fbank": False})},
)
register(AudioToSpectrogramPreprocessor, role="preprocessor")
register(AudioToKaldiFbankPreprocessor, role="preprocessor")
register(AudioToMFCCPreprocessor, role="preprocessor")
register(AudioToWaveformPreprocessor, role="preprocessor")
register(AudioToMelDeltasPreprocessor, role="preprocessor")
register(AudioToWhisperMelPreprocessor, role="preprocessor")
register(SpectrogramAugmentation)
register(MultiplyBatch)
register(JasperEncoder, role="encoder")
register(ContextNetEncoder, role="encoder")
register(
    ConformerEncoder,
    role="encoder",
    without_effect={
        "subsampling_conv_chunking_factor": (),
        "pos_emb_max_len": (),
        "sync_max_audio_length": (),
        "reduction": (None,),
        "reduction_position": (None,),
        "reduction_factor": (1,),
    },
)
register(Wav2VecEncoder, role="encoder")
register(Wav2VecBertEncoder, role="encoder")
register(LasrEncoder, role="encoder")
register(GraniteSpeechEncoder, role="encoder")
register(WhisperEncoder, role="encoder")
register(ContextNetDecoderForCTC, role="decoder")
register(JasperDecoderForCTC, role="decoder", default=True)
register(CTCLossNM, default=True)
register(GreedyCTCDecoder, default=True)
register(BeamSearchCTCDecoder)
register(AudioToSpeechLabelDataLayer, default=True, task="classification")
register(JasperDecoderForClassification, role="decoder", default=True, task="classification")
register(JasperDecoderForSpkrClass, role="decoder", task="classification")
register(CrossEntropyLossNM, default=True, task="classification")
register(LanguagePrompt, role="prompt")
register(RNNTDecoder, role="prediction")
register(StatelessTransducerDecoder, role="prediction")
register(
    RNNTJoint,
    role="joint",
    without_effect={
        "log_softmax": (),
        "preserve_memory": (),
        "fuse_loss_wer": (),
        "fused_batch_size": (),
        "experimental_fuse_loss_wer": (),
        "masking_prob": (None, -1, -1.0),
    },
)
register(RNNTLoss, default=True, family="transducer")
register(TransducerSearch, default=True, family="transducer", role="search")
register(TransducerBeamSearch, role="search")
register(AuxiliaryCTCLoss, default=True, family="hybrid", role="ctc_loss")
register(TransformerDecoder, role="attention")
register(PromptedDecoder, role="attention")
register(WhisperDecoder, role="attention")
register(AttentionLoss, default=True, family="attention")
register(AttentionSearch, default=True, family="attention", role="search")
register(AttentionRescoring, default=True, family="ctc_attention", role="search")
register(AuxiliaryCTCLoss, default=True, family="ctc_attention", role="ctc_loss")
register_models("ASRConvCTCModel", "QuartzNet", "JasperNet")
