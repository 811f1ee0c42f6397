"""Networks and losses, and NeMo's whole models. Re-exports."""

from nemo_asr.models.pretrained.conv_ctc import ASRConvCTCModel as ASRConvCTCModel
from nemo_asr.models.pretrained.conv_ctc import JasperNet as JasperNet
from nemo_asr.models.pretrained.conv_ctc import QuartzNet as QuartzNet
