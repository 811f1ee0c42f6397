"""Is a data set fit for training and for evaluation: statistics, problems and leaks. Re-exports, nothing else."""

from nemo_asr.data.check.examined import Examined as Examined
from nemo_asr.data.check.examined import ExaminedSet as ExaminedSet
from nemo_asr.data.check.examined import examine as examine
from nemo_asr.data.check.findings import Finding as Finding
from nemo_asr.data.check.findings import findings_between as findings_between
from nemo_asr.data.check.findings import findings_in as findings_in
from nemo_asr.data.check.leaks import shared_recordings as shared_recordings
from nemo_asr.data.check.leaks import warn_of_leaks as warn_of_leaks
from nemo_asr.data.check.picture import draw_histograms as draw_histograms
from nemo_asr.data.check.statistics import statistics_of as statistics_of
from nemo_asr.data.check.told import as_text as as_text
