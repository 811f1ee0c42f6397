"""Re-exports under NeMo 0.x's module name; the code is in ``core/factory.py`` and ``core/backend.py``."""

from nemo_lite.core.factory import Backend as Backend
from nemo_lite.core.factory import DeploymentFormat as DeploymentFormat
from nemo_lite.core.factory import DeviceType as DeviceType
from nemo_lite.core.factory import NeuralModuleFactory as NeuralModuleFactory
from nemo_lite.core.factory import Optimization as Optimization
from nemo_lite.core.graph.kinds import ModelMode as ModelMode
from nemo_lite.core.graph.recording import OperationMode as OperationMode
