"""Re-exports under NeMo's module name; the code is in ``models/jasper.py``."""

from nemo_asr.models.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper import JasperEncoder as JasperEncoder
