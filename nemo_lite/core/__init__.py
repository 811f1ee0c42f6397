"""The core: typed modules, DAGs, the factory and callbacks, without torch. Re-exports, nothing else."""

import types
from typing import TYPE_CHECKING

from nemo_lite.core import callbacks as callbacks
from nemo_lite.core import module_decorators as module_decorators
from nemo_lite.core import neural_types as neural_types
from nemo_lite.core import show as show
from nemo_lite.core.backend import Backend as Backend
from nemo_lite.core.backend import DeploymentFormat as DeploymentFormat
from nemo_lite.core.backend import DeviceType as DeviceType
from nemo_lite.core.backend import Optimization as Optimization
from nemo_lite.core.callbacks import ActionCallback as ActionCallback
from nemo_lite.core.callbacks import CheckpointCallback as CheckpointCallback
from nemo_lite.core.callbacks import Collected as Collected
from nemo_lite.core.callbacks import EvaluatorCallback as EvaluatorCallback
from nemo_lite.core.callbacks import ModuleSaverCallback as ModuleSaverCallback
from nemo_lite.core.callbacks import NeMoCallback as NeMoCallback
from nemo_lite.core.callbacks import SimpleLogger as SimpleLogger
from nemo_lite.core.callbacks import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from nemo_lite.core.callbacks import TensorboardLogger as TensorboardLogger
from nemo_lite.core.callbacks import UnfreezeCallback as UnfreezeCallback
from nemo_lite.core.callbacks import ValueSetterCallback as ValueSetterCallback
from nemo_lite.core.callbacks import WandbCallback as WandbCallback
from nemo_lite.core.callbacks import WandBLogger as WandBLogger
from nemo_lite.core.callbacks import on_action_end as on_action_end
from nemo_lite.core.callbacks import on_action_start as on_action_start
from nemo_lite.core.callbacks import on_batch_end as on_batch_end
from nemo_lite.core.callbacks import on_batch_start as on_batch_start
from nemo_lite.core.callbacks import on_epoch_end as on_epoch_end
from nemo_lite.core.callbacks import on_epoch_start as on_epoch_start
from nemo_lite.core.callbacks import on_evaluation_end as on_evaluation_end
from nemo_lite.core.callbacks import on_step_end as on_step_end
from nemo_lite.core.callbacks import on_step_start as on_step_start
from nemo_lite.core.dag import Dag as Dag
from nemo_lite.core.dag import Node as Node
from nemo_lite.core.dag import Slice as Slice
from nemo_lite.core.dag import Step as Step
from nemo_lite.core.metrics import Accuracy as Accuracy
from nemo_lite.core.metrics import Mean as Mean
from nemo_lite.core.metrics import Metric as Metric
from nemo_lite.core.models import NeMoModel as NeMoModel
from nemo_lite.core.module_decorators import run_only_on_device as run_only_on_device
from nemo_lite.core.module_decorators import skip_in_data_parallel as skip_in_data_parallel
from nemo_lite.core.neural_module import NeuralModule as NeuralModule
from nemo_lite.core.neural_types import AcousticEncodedRepresentation as AcousticEncodedRepresentation
from nemo_lite.core.neural_types import AudioSignal as AudioSignal
from nemo_lite.core.neural_types import AxisKind as AxisKind
from nemo_lite.core.neural_types import AxisKindAbstract as AxisKindAbstract
from nemo_lite.core.neural_types import AxisType as AxisType
from nemo_lite.core.neural_types import CategoricalValuesType as CategoricalValuesType
from nemo_lite.core.neural_types import ChannelType as ChannelType
from nemo_lite.core.neural_types import ClassificationTarget as ClassificationTarget
from nemo_lite.core.neural_types import ElementType as ElementType
from nemo_lite.core.neural_types import EmbeddedTextType as EmbeddedTextType
from nemo_lite.core.neural_types import EncodedRepresentation as EncodedRepresentation
from nemo_lite.core.neural_types import ImageFeatureValue as ImageFeatureValue
from nemo_lite.core.neural_types import ImageValue as ImageValue
from nemo_lite.core.neural_types import Index as Index
from nemo_lite.core.neural_types import IntType as IntType
from nemo_lite.core.neural_types import LabelsType as LabelsType
from nemo_lite.core.neural_types import Length as Length
from nemo_lite.core.neural_types import LengthsType as LengthsType
from nemo_lite.core.neural_types import LogitsType as LogitsType
from nemo_lite.core.neural_types import LogprobsType as LogprobsType
from nemo_lite.core.neural_types import LossType as LossType
from nemo_lite.core.neural_types import MaskType as MaskType
from nemo_lite.core.neural_types import MelSpectrogramType as MelSpectrogramType
from nemo_lite.core.neural_types import MFCCSpectrogramType as MFCCSpectrogramType
from nemo_lite.core.neural_types import NeuralType as NeuralType
from nemo_lite.core.neural_types import NeuralTypeComparisonResult as NeuralTypeComparisonResult
from nemo_lite.core.neural_types import NmTensor as NmTensor
from nemo_lite.core.neural_types import NormalizedImageValue as NormalizedImageValue
from nemo_lite.core.neural_types import PredictionsType as PredictionsType
from nemo_lite.core.neural_types import RegressionValuesType as RegressionValuesType
from nemo_lite.core.neural_types import SpectrogramType as SpectrogramType
from nemo_lite.core.neural_types import StringLabel as StringLabel
from nemo_lite.core.neural_types import StringType as StringType
from nemo_lite.core.neural_types import Target as Target
from nemo_lite.core.neural_types import TokenIndex as TokenIndex
from nemo_lite.core.neural_types import VoidType as VoidType
from nemo_lite.core.ports import ModelMode as ModelMode
from nemo_lite.core.ports import ModuleType as ModuleType
from nemo_lite.core.ports import NeuralInterface as NeuralInterface
from nemo_lite.core.ports import OperationMode as OperationMode
from nemo_lite.core.ports import Ports as Ports
from nemo_lite.core.ports import PretrainedModelInfo as PretrainedModelInfo
from nemo_lite.core.ports import WeightShareTransform as WeightShareTransform
from nemo_lite.core.run_options import RunOptions as RunOptions
from nemo_lite.errors import NeuralPortNameMismatchError as NeuralPortNameMismatchError
from nemo_lite.errors import NeuralPortNmTensorMismatchError as NeuralPortNmTensorMismatchError
from nemo_lite.errors import NeuralTypeError as NeuralTypeError
from nemo_lite.utils.substitutes import tell_of_missing

if TYPE_CHECKING:  # nemo_lite/__init__.py puts them here, where NeMo has them: they stand above the backend
    from nemo_lite.backends.pytorch.neural_graph import NeuralGraph as NeuralGraph
    from nemo_lite.factory import NeuralModuleFactory as NeuralModuleFactory

# NeMo's modules of these names (nemo_lite/compat.py).
neural_factory: types.ModuleType
neural_modules: types.ModuleType

__getattr__ = tell_of_missing("nemo.core", __name__)
