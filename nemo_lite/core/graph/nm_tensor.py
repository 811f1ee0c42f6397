"""Re-exports; the code is in ``core/neural_types/nm_tensor.py``, where NeMo has it."""

from nemo_lite.core.neural_types.nm_tensor import ModuleCall as ModuleCall
from nemo_lite.core.neural_types.nm_tensor import NestedUse as NestedUse
from nemo_lite.core.neural_types.nm_tensor import NmTensor as NmTensor
from nemo_lite.utils.alive import Connection as Connection
from nemo_lite.utils.alive import StepModulePort as StepModulePort
