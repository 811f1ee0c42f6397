"""Vocabularies of subwords: files of SentencePiece. Re-exports, nothing else."""

from nemo_asr.text.subwords.training import train_subwords as train_subwords
from nemo_asr.text.subwords.vocabulary import Subwords as Subwords
from nemo_asr.text.subwords.vocabulary import load_subwords as load_subwords
