"""The report of a run: one page with curves, rates and the worst utterances. And the comparison of two models."""

from nemo_asr.scoring.report.comparison import Comparison as Comparison
from nemo_asr.scoring.report.comparison import compare as compare
from nemo_asr.scoring.report.comparison import compare_folders as compare_folders
from nemo_asr.scoring.report.comparison import comparison_table as comparison_table
from nemo_asr.scoring.report.page import try_report as try_report
from nemo_asr.scoring.report.page import write_report as write_report
