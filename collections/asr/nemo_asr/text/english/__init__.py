"""English text as it is spoken. Re-exports, nothing else."""

from nemo_asr.text.english.normalize import normalize_english as normalize_english
