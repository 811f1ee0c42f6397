"""The place where NeMo keeps these names: re-exports, nothing else."""

from nemo_asr.models.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper import JasperEncoder as JasperEncoder
