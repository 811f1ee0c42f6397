"""NeMo's import place of its speech models. Re-exports, nothing else."""

from nemo_asr.models.pretrained.conv_ctc import ASRConvCTCModel as ASRConvCTCModel
from nemo_asr.models.pretrained.conv_ctc import JasperNet as JasperNet
from nemo_asr.models.pretrained.conv_ctc import QuartzNet as QuartzNet
