from nemo_asr.compat.pretrained import ASRConvCTCModel as ASRConvCTCModel
from nemo_asr.compat.pretrained import JasperNet as JasperNet
from nemo_asr.compat.pretrained import QuartzNet as QuartzNet
