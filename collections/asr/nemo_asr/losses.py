"""Re-exports under NeMo's module name; the code is in ``models/losses.py``."""

from nemo_asr.models.losses import CTCLossNM as CTCLossNM
from nemo_lite.backends.pytorch.common import CrossEntropyLossNM as CrossEntropyLossNM
