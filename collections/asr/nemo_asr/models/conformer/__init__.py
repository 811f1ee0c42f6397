"""Conformer: subsampling, attention, layers, encoder; NVIDIA's and WeNet's are settings of one. Re-exports."""

from nemo_asr.models.conformer.encoder import AttentionName as AttentionName
from nemo_asr.models.conformer.encoder import ConformerEncoder as ConformerEncoder
from nemo_asr.models.conformer.encoder import ContextStyle as ContextStyle
from nemo_asr.models.conformer.layer import FeedForward as FeedForward
from nemo_asr.models.conformer.self_attention import FULL_CONTEXT as FULL_CONTEXT
from nemo_asr.models.conformer.self_attention import AttentionContext as AttentionContext
from nemo_asr.models.conformer.self_attention import add_dropped as add_dropped
from nemo_asr.models.conformer.self_attention import attention as attention
from nemo_asr.models.conformer.self_attention import drawn_context as drawn_context
from nemo_asr.models.conformer.self_attention import hidden_frames as hidden_frames
from nemo_asr.models.conformer.self_attention import kept_at_random as kept_at_random
from nemo_asr.models.conformer.self_attention import shifted as shifted
