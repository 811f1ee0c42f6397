"""Re-exports under NeMo's module name; the code is in ``models/jasper.py``, ``contextnet.py`` and ``speaker.py``."""

from nemo_asr.models.contextnet import ContextNetDecoderForCTC as ContextNetDecoderForCTC
from nemo_asr.models.contextnet import ContextNetEncoder as ContextNetEncoder
from nemo_asr.models.jasper import JasperDecoderForClassification as JasperDecoderForClassification
from nemo_asr.models.jasper import JasperDecoderForCTC as JasperDecoderForCTC
from nemo_asr.models.jasper import JasperEncoder as JasperEncoder
from nemo_asr.models.speaker import JasperDecoderForSpkrClass as JasperDecoderForSpkrClass
