"""NeMo's import place of its models. Re-exports, nothing else."""

from nemo_lite.core.models.nemo_model import NeMoModel as NeMoModel
from nemo_lite.core.models.nemo_model import PretrainedModelInfo as PretrainedModelInfo
