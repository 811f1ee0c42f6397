"""Whole models: several modules with one call, and the ``.nemo`` files that hold them. Re-exports."""

from nemo_lite.core.models.archive import CONFIG_0 as CONFIG_0
from nemo_lite.core.models.archive import CONFIG_1 as CONFIG_1
from nemo_lite.core.models.archive import NemoArchive as NemoArchive
from nemo_lite.core.models.archive import write_archive as write_archive
from nemo_lite.core.models.nemo_model import NeMoModel as NeMoModel
from nemo_lite.core.models.nemo_model import PretrainedModelInfo as PretrainedModelInfo
