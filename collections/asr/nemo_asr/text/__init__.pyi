from nemo_asr.text.labels import main_metric as main_metric
from nemo_asr.text.parser import CharParser as CharParser
from nemo_asr.text.parser import ENCharParser as ENCharParser
from nemo_asr.text.parser import make_parser as make_parser
from nemo_asr.text.parser import vocabulary as vocabulary
from nemo_asr.text.subwords import Subwords as Subwords
from nemo_asr.text.subwords import load_subwords as load_subwords
