"""Re-exports under NeMo's module name; the code is in ``models/contextnet.py``."""

from nemo_asr.models.contextnet import ContextNetDecoderForCTC as ContextNetDecoderForCTC
from nemo_asr.models.contextnet import ContextNetEncoder as ContextNetEncoder
