"""N-gram language models: counting, smoothing, ARPA files, fast look-up. Re-exports, nothing else."""

from nemo_asr.decoding.ngram.arpa import read_arpa as read_arpa
from nemo_asr.decoding.ngram.arpa import write_arpa as write_arpa
from nemo_asr.decoding.ngram.counts import NgramCounter as NgramCounter
from nemo_asr.decoding.ngram.loading import load_language_model as load_language_model
from nemo_asr.decoding.ngram.ngram_model import NgramModel as NgramModel
from nemo_asr.decoding.ngram.smoothing import estimate as estimate
from nemo_asr.decoding.ngram.tables import NgramTables as NgramTables
