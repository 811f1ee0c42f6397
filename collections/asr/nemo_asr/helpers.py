"""Re-exports under NeMo's module name; the code is in ``decoding/texts.py`` and ``scoring/*_callbacks.py``."""

from nemo_asr.decoding.texts import post_process_predictions as post_process_predictions
from nemo_asr.decoding.texts import post_process_transcripts as post_process_transcripts
from nemo_asr.scoring.asr_callbacks import monitor_asr_train_progress as monitor_asr_train_progress
from nemo_asr.scoring.asr_callbacks import process_evaluation_batch as process_evaluation_batch
from nemo_asr.scoring.asr_callbacks import process_evaluation_epoch as process_evaluation_epoch
from nemo_asr.scoring.asr_callbacks import score_evaluation as score_evaluation
from nemo_asr.scoring.classification import classification_accuracy as classification_accuracy
from nemo_asr.scoring.classification_callbacks import (
    monitor_classification_training_progress as monitor_classification_training_progress,
)
from nemo_asr.scoring.classification_callbacks import (
    process_classification_evaluation_batch as process_classification_evaluation_batch,
)
from nemo_asr.scoring.classification_callbacks import (
    process_classification_evaluation_epoch as process_classification_evaluation_epoch,
)
from nemo_asr.scoring.error_counts import word_error_rate as word_error_rate
