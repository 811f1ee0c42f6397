"""Re-exports under NeMo's module name; the code is in ``scoring/``."""

from nemo_asr.scoring.classification import classification_accuracy as classification_accuracy
from nemo_asr.scoring.classification import classification_confusion_matrix as classification_confusion_matrix
from nemo_asr.scoring.error_counts import ErrorCounts as ErrorCounts
from nemo_asr.scoring.error_counts import count_errors as count_errors
from nemo_asr.scoring.error_counts import word_error_rate as word_error_rate
from nemo_asr.scoring.verification import all_pairs as all_pairs
from nemo_asr.scoring.verification import equal_error_rate as equal_error_rate
