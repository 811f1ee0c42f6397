"""Re-exports under NeMo's module name; the code is in ``models/losses.py``."""

from nemo_asr.models.losses import CrossEntropyLossNM as CrossEntropyLossNM
from nemo_asr.models.losses import CTCLossNM as CTCLossNM
