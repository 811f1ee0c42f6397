from nemo_asr.run.text.labels import main_metric as main_metric
from nemo_asr.run.text.parser import CharParser as CharParser
from nemo_asr.run.text.parser import ENCharParser as ENCharParser
from nemo_asr.run.text.parser import make_parser as make_parser
from nemo_asr.run.text.parser import vocabulary as vocabulary
from nemo_asr.run.text.subwords import Subwords as Subwords
from nemo_asr.run.text.subwords import load_subwords as load_subwords
