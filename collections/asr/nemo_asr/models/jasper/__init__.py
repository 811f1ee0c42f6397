"""Jasper and QuartzNet: keys of blocks, their layers, the encoder, the decoders. Re-exports."""

from nemo_asr.models.jasper.block import ACTIVATIONS as ACTIVATIONS
from nemo_asr.models.jasper.block import GroupShuffle as GroupShuffle
from nemo_asr.models.jasper.block import JasperBlock as JasperBlock
from nemo_asr.models.jasper.block import activated as activated
from nemo_asr.models.jasper.block_spec import Blocks as Blocks
from nemo_asr.models.jasper.block_spec import JasperBlockSpec as JasperBlockSpec
from nemo_asr.models.jasper.block_spec import read_blocks as read_blocks
from nemo_asr.models.jasper.decoders import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper.decoders import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper.encoder import JasperEncoder as JasperEncoder
from nemo_asr.models.jasper.layers import BatchNorm as BatchNorm
from nemo_asr.models.jasper.layers import Frames as Frames
from nemo_asr.models.jasper.layers import MaskedConv1d as MaskedConv1d
from nemo_asr.models.jasper.layers import MaskedGroupNorm as MaskedGroupNorm
from nemo_asr.models.jasper.layers import TimeConv1d as TimeConv1d
from nemo_asr.models.jasper.layers import clear as clear
from nemo_asr.models.jasper.layers import frames_type as frames_type
from nemo_asr.models.jasper.layers import init_weights as init_weights
from nemo_asr.models.jasper.layers import is_time_major as is_time_major
from nemo_asr.models.jasper.layers import make_normalization as make_normalization
from nemo_asr.models.jasper.layers import same_padding as same_padding
from nemo_asr.models.jasper.layers import set_batch_norm_momentum as set_batch_norm_momentum
from nemo_asr.models.jasper.layers import valid_frames as valid_frames
from nemo_asr.models.jasper.squeeze_excite import SqueezeExcite as SqueezeExcite
