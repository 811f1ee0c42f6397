"""Evaluation and inference of a DAG. Import from this package, not from its files."""

from nemo_lite.backends.pytorch.engine.evaluation.cache import InferenceCache as InferenceCache
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import Evaluation as Evaluation
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import EvaluationRun as EvaluationRun
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import ItemsComputed as ItemsComputed
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import WireValues as WireValues
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import arriving as arriving
from nemo_lite.backends.pytorch.engine.evaluation.evaluation import torch_data_layer as torch_data_layer
from nemo_lite.backends.pytorch.engine.evaluation.rounds import BatchResult as BatchResult
