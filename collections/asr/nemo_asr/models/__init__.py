"""Networks and losses, and NeMo's whole models. Re-exports."""

from nemo_asr.models.pretrained import ASRConvCTCModel as ASRConvCTCModel
from nemo_asr.models.pretrained import JasperNet as JasperNet
from nemo_asr.models.pretrained import QuartzNet as QuartzNet
