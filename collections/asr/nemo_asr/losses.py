"""The place where NeMo keeps these names: re-exports, nothing else."""

from nemo_asr.models.losses import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_asr.models.losses import CTCLossNM as CTCLossNM
