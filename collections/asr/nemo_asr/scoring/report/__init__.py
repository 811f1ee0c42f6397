"""The report of a run: one page with curves, rates, the worst utterances. Scores of a set; two models."""

from nemo_asr.scoring.report.comparison import Comparison as Comparison
from nemo_asr.scoring.report.comparison import compare as compare
from nemo_asr.scoring.report.comparison import compare_folders as compare_folders
from nemo_asr.scoring.report.comparison import comparison_table as comparison_table
from nemo_asr.scoring.report.page import try_report as try_report
from nemo_asr.scoring.report.page import write_report as write_report
from nemo_asr.scoring.report.set_scores import score_transcripts as score_transcripts
from nemo_asr.scoring.report.set_scores import scores_table as scores_table
from nemo_asr.scoring.report.set_scores import write_scores as write_scores
